"""Which covariance function a table gets: chosen by leave-one-out log densities of a subset of its rows.

A short fit of each candidate to the same rows; the default stays unless another predicts them better by more than a
standard error. Deterministic, given the seed. Does not do: a search among sums and products.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from flashgp.foundations.errors import NotPositiveDefiniteError
from flashgp.foundations.events import Event, EventKind, Untried
from flashgp.inference.prior import Prior
from flashgp.inference.training.options import FitOptions
from flashgp.kernels.default import CANDIDATES, TableKernel
from flashgp.subset_fits import SubsetFits, SubsetSettings

__all__ = ["KernelChoice", "KernelChoiceSettings", "choose_kernel"]

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class KernelChoiceSettings(SubsetSettings):
    """What tunes the choice, beside the subset; with less than `min_rows` rows the first candidate stays.

    Args:
        standard_errors: by which another candidate must predict better than the first, paired row by row.
    """

    standard_errors: float = 2.0


@dataclass(frozen=True)
class KernelChoice:
    """Fields: kernel; event, what was chosen and why."""

    kernel: TableKernel
    event: Event


def choose_kernel(
    prior_of: Callable[[TableKernel], Prior],
    x: Tensor,
    z: Tensor,
    options: FitOptions | None,
    *,
    candidates: Sequence[TableKernel] = CANDIDATES,
    settings: KernelChoiceSettings | None = None,
) -> KernelChoice:
    """The candidate with the highest leave-one-out log density, eqs. (M-39) and (M-40), or the first of them.

    Hyperparameters have seen the row that is left out: they are those of a short fit to the subset. Candidates should
    therefore have about as many parameters each. The first stays unless the best gains `settings.standard_errors`
    standard errors of the gain.

    Args:
        prior_of: the prior of all rows with a candidate as its covariance function; the likelihood's are not changed.
        x: (n, d), as the prior takes it.
        z: (n,) or (n, outputs), standardised, and transformed where the target is.
        options: of the whole fit, whose seed draws the subset and whose time limit is kept; None where parameters stay
            as they are, and the first candidate with them.
        settings: by default `KernelChoiceSettings()`.

    Raises:
        NotPositiveDefiniteError: never; a candidate without a factor is out.
        KeyboardInterrupt: for Ctrl-C.
    Cost: a short fit of 300 rows for each candidate, .1 to .5 s each on one core.
    """
    settings = KernelChoiceSettings() if settings is None else settings
    first = candidates[0]

    def kept(untried: Untried) -> KernelChoice:
        return KernelChoice(first, Event(EventKind.KERNEL_KEPT, kernel=first.name, untried=untried))

    if options is None or len(x) < settings.min_rows:
        return kept(Untried.GIVEN if options is None else Untried.FEW_ROWS)
    fits = SubsetFits(prior_of(first), x, options, settings)
    rows = z[fits.index].to(fits.x.device)
    found: dict[TableKernel, Array] = {}
    cut = False
    for candidate in candidates:
        if cut := cut or fits.deadline.passed():
            break
        try:
            fit = fits.fit(fits.of_rows(prior_of(candidate)), rows, fits.first, "the covariance function")
        except NotPositiveDefiniteError:
            continue
        if cut := not fit.complete:
            break
        density = fits.left_out(fit.state)
        if np.isfinite(density).all():  # rows without noise that repeat have none
            found[candidate] = density
    others = [candidate for candidate in found if candidate is not first]
    if first not in found or not others:
        return kept(Untried.TIME if cut else Untried.NO_FACTOR)
    best = max(others, key=lambda candidate: float(fits.counts @ found[candidate]))
    gain, error = fits.gain(found[best], found[first])
    clearly = gain > 0.0 and gain >= settings.standard_errors * error
    chosen, other = (best, first) if clearly else (first, best)
    event = Event(
        EventKind.KERNEL_CHOSEN if clearly else EventKind.KERNEL_KEPT, kernel=chosen.name, other=other.name,
        rows=fits.rows, tried=len(found) if clearly else len(others), gain=gain, error=error,
        errors=settings.standard_errors, cut=Untried.TIME if cut else None,
    )  # fmt: skip
    return KernelChoice(chosen, event)
