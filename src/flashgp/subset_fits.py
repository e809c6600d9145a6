"""Short fits of models to a subset of the rows, and what one predicts better than another there.

What choices before a fit are made with: of the target's transform (target_choice.py) and of the covariance function
(kernel_choice.py). The subset is drawn by the seed of the fit; leave-one-out log densities are compared row by row.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flashgp.foundations.deadline import NO_DEADLINE
from flashgp.foundations.events import EventKind, of_kind
from flashgp.inference.data import Data
from flashgp.inference.exact.condition import condition
from flashgp.inference.output_states import AnyState
from flashgp.inference.predict.leave_one_out import leave_one_out
from flashgp.inference.prior import Prior
from flashgp.inference.settings import ConditionSettings
from flashgp.inference.training.exact_fit import fit_exact
from flashgp.inference.training.options import FitOptions

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SubsetSettings:
    """What tunes a choice by short fits.

    Args:
        rows: of the subset; all rows where there are fewer.
        min_rows: below which nothing is tried.
        first_iterations: of L-BFGS-B, from what the data suggest.
        time_share: of the time that is left, which all of this may take.
    """

    rows: int = 300
    min_rows: int = 20
    first_iterations: int = 40
    time_share: float = 0.1


@dataclass(frozen=True, eq=False)
class SubsetFit:
    """A short fit.

    Fields: state; prior, as fitted; complete, whether the time limit left it its iterations: one that was cut short
    cannot be compared with another.
    """

    state: AnyState
    prior: Prior
    complete: bool


class SubsetFits:
    """Some rows of a table, and short fits to them.

    Args:
        prior: whose likelihood has the counts and weights of all rows; nothing in it changes.
        x: (n, d), as the prior takes it.
        options: of the whole fit; None where parameters stay as they are.
        settings: which subset, and how short.

    Fields: rows, how many; index, which, (rows,); x, theirs; counts, how often each stands there, (rows,); first,
        options of a short fit from the start, None where parameters stay as they are; deadline, of all short fits.
    """

    def __init__(self, prior: Prior, x: Tensor, options: FitOptions | None, settings: SubsetSettings) -> None:
        self.deadline = NO_DEADLINE if options is None else options.deadline.share(settings.time_share)
        seed = 0 if options is None else options.seed
        index = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[: settings.rows].sort().values
        self._index, self.index, self.rows, self.x = index, index.numpy(), len(index), x[index.to(x.device)]
        counts = prior.likelihood.counts
        self.counts: Array = np.ones(self.rows) if counts is None else counts.numpy(force=True)[self.index]
        self.first: FitOptions | None = None
        if options is not None:
            self.first = FitOptions(
                starts=1, initial=options.initial, priors=options.priors, max_iterations=settings.first_iterations,
                seed=seed, jitter=options.jitter, deterministic=options.deterministic, deadline=self.deadline,
            )  # fmt: skip

    def of_rows(self, prior: Prior) -> Prior:
        """The prior of all rows, for those of the subset."""
        return prior.with_likelihood(prior.likelihood.rows(self._index))

    def fit(self, start: Prior, z: Tensor, options: FitOptions | None, what: str) -> SubsetFit:
        """A fit to the subset, or the state at given parameters.

        Args:
            start: of the rows of the subset.
            z: standardised targets, (rows,) or (rows, outputs).
            what: is being chosen, for the message of an interrupt.

        Raises:
            KeyboardInterrupt: for Ctrl-C, FitInterrupted too, whose parameters belong to a few rows: what was asked
                for has not begun.
            NotPositiveDefiniteError: where no covariance had a factor.
        """
        if options is None:
            return SubsetFit(condition(start, Data.of(start, self.x, z), ConditionSettings()), start, complete=True)
        message = f"interrupted while {what} was chosen; nothing was fitted"
        try:
            fitted = fit_exact(start, Data.of(start, self.x, z), options)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(message) from None
        if of_kind(fitted.report.events, EventKind.FIT_INTERRUPTED):
            raise KeyboardInterrupt(message)
        complete = not of_kind(fitted.report.events, EventKind.FIT_TIME_UP)
        return SubsetFit(fitted.state, fitted.prior, complete)

    def left_out(self, state: AnyState) -> Array:
        """Leave-one-out log density of each row, all outputs together, (rows,), nats, eqs. (M-39) and (M-40)."""
        found = leave_one_out(state).log_prob.double().numpy(force=True)
        found = np.where(np.isnan(state.y.numpy(force=True)), 0.0, found)  # of cells that are missing
        return np.asarray(found if found.ndim == 1 else found.sum(axis=1), dtype=np.float64)

    def gain(self, after: Array, before: Array) -> tuple[float, float]:
        """What a model gains of leave-one-out log density over another, and its standard error over rows, nats."""
        with np.errstate(invalid="ignore"):  # rows without noise that repeat have no density, and nothing is better
            gains = self.counts * (after - before)
            return float(gains.sum()), float(gains.std() * math.sqrt(self.rows))
