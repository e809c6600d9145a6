"""Choices before a fit, by short fits to a subset of the rows: the target's transform, the covariance function.

The subset is drawn by the seed of the fit, so that a choice is deterministic; leave-one-out log densities are compared
row by row. A transform is chosen by the evidence, with the Jacobian: from the optimum of the target as it is a few
steps for each neighbouring power, as long as the evidence grows. The evidence of a model that is wrong in its tails can
prefer a transform that predicts no better, so the leave-one-out densities must confirm it. Of covariance functions the
default stays unless another predicts better by more than a standard error; with a column of time one candidate has the
periods that the rows show. Does not do: targets of several outputs at once, a search among sums and products.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flashgp.foundations.deadline import NO_DEADLINE
from flashgp.foundations.errors import DomainError, NotPositiveDefiniteError
from flashgp.foundations.events import Event, EventKind, Untried, of_kind
from flashgp.inference.data import Data
from flashgp.inference.exact.condition import condition
from flashgp.inference.exact.evidence import log_evidence
from flashgp.inference.output_states import AnyState
from flashgp.inference.posterior import Posterior
from flashgp.inference.prior import Prior
from flashgp.inference.run import Run
from flashgp.inference.settings import ConditionSettings
from flashgp.inference.training.exact_fit import fit_exact
from flashgp.inference.training.options import FitOptions
from flashgp.kernels.default import CANDIDATES, DEFAULT, SeasonalKernel, TableKernel
from flashgp.kernels.periodogram import highest_frequency, strongest_frequencies
from flashgp.target_transform import TargetTransform, check_target_transform
from flashgp.units import ColumnScaling

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SubsetSettings:
    """Settings of a choice by short fits.

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
        self.deadline = NO_DEADLINE if options is None else options.run.deadline.share(settings.time_share)
        seed = 0 if options is None else options.run.seed
        index = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[: settings.rows].sort().values
        self._index, self.index, self.rows, self.x = index, index.numpy(), len(index), x[index.to(x.device)]
        counts = prior.likelihood.counts
        self.counts: Array = np.ones(self.rows) if counts is None else counts.numpy(force=True)[self.index]
        self.first: FitOptions | None = None
        if options is not None:
            self.first = FitOptions(
                starts=1, initial=options.initial, priors=options.priors, max_iterations=settings.first_iterations,
                jitter=options.jitter, run=Run(seed, options.run.deterministic, deadline=self.deadline),
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
        found = Posterior(state).leave_one_out().log_prob.double().numpy(force=True)
        found = np.where(np.isnan(state.y.numpy(force=True)), 0.0, found)  # of cells that are missing
        return np.asarray(found if found.ndim == 1 else found.sum(axis=1), dtype=np.float64)

    def gain(self, after: Array, before: Array) -> tuple[float, float]:
        """Gain of a model over another in leave-one-out log density, and its standard error over rows, nats."""
        with np.errstate(invalid="ignore"):  # rows without noise that repeat have no density, and nothing is better
            gains = self.counts * (after - before)
            return float(gains.sum()), float(gains.std() * math.sqrt(self.rows))


@dataclass(frozen=True)
class ChoiceSettings(SubsetSettings):
    """Settings of the choice, beside the subset; "auto" keeps a target of less than `min_rows` rows as it is.

    Args:
        powers: of Yeo-Johnson that are tried, beside 1.
        iterations: of L-BFGS-B for each transform, from the parameters of the target as it is.
        nats: of evidence that "auto" asks of each step away from the target as it is.
        standard_errors: that the step's gain of leave-one-out log density must reach too, paired row by row.
    """

    powers: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.25, 1.5, 1.75, 2.0)
    iterations: int = 10
    nats: float = 10.0
    standard_errors: float = 3.0


@dataclass(frozen=True)
class TransformChoice:
    """Fields: transform; event, what was chosen and why, None where nothing was to be chosen."""

    transform: TargetTransform
    event: Event | None = None


def choose_transform(
    wanted: str,
    prior: Prior,
    x: Tensor,
    y: Array,
    options: FitOptions | None,
    *,
    standardise: bool = True,
    settings: ChoiceSettings | None = None,
) -> TransformChoice:
    """The transform of one target, eq. (M-143).

    "none" and "log" are taken as they are. "yeo-johnson" gets the power of the highest evidence. "auto" moves the power
    away from 1 by a quarter as long as each step is clearly better than the one before: by `settings.nats` of evidence
    (10 nats are odds of 22,000 to 1), and by `settings.standard_errors` of leave-one-out log density. Where every
    target is positive, the logarithm may win: with the higher evidence, and clearly better than the target as it is.
    With known variances of rows, few rows, a constant target or units of the user's own "auto" keeps the target.

    Args:
        wanted: "auto", "none", "log" or "yeo-johnson".
        prior: of the standardised target, one output; nothing in it changes.
        x: (n, d), as the prior takes it.
        y: (n,), finite, in its own units.
        options: of the short fits; None keeps the parameters as they are.
        standardise: whether the transformed target is standardised, as it is in the fit itself.
        settings: by default `ChoiceSettings()`.

    Raises:
        DomainError: for an unknown name, a logarithm of a target that is not positive (naming the row), or a named
            transform of a constant target.
    Cost: a fit of 300 rows, and ten evaluations of them for each of at most nine transforms.
    """
    check_target_transform(wanted)
    settings = ChoiceSettings() if settings is None else settings
    if wanted == "none":
        return TransformChoice(TargetTransform())
    counts = prior.likelihood.counts
    units = ColumnScaling.of(y[:, None], None if counts is None else counts.numpy(force=True))
    constant, shift, scale = bool(units.constant[0]), float(units.offset[0]), float(units.scale[0])
    if wanted != "auto" and constant:
        raise DomainError(
            f'`target_transform` must be "none" or "auto" for a constant target, got {wanted!r} for {len(y):,} equal '
            "values; leave it out"
        )
    logarithm = TargetTransform("log", scale=scale)
    if wanted == "log":
        logarithm.check(y)
        return TransformChoice(logarithm)
    noise = prior.likelihood.linear_noise()
    known = noise is not None and noise.offset is not None
    if wanted == "auto" and constant:
        return _kept(Untried.CONSTANT)
    if wanted == "auto" and (known or not standardise):
        return _kept(Untried.UNITS)
    if wanted == "auto" and len(y) < settings.min_rows:
        return _kept(Untried.FEW_ROWS)
    try:
        subset = _Transforms(prior, x, y, options, standardise, settings)
    except NotPositiveDefiniteError:
        if wanted == "auto":
            return _kept(Untried.NO_FACTOR)
        raise
    clearly = wanted == "auto"
    best, trials = _walk(subset, shift, scale, clearly)
    if clearly and (y > 0.0).all():
        trial = subset.tried(logarithm, subset.base)
        if trial is not None:
            trials.append(trial)
            if trial.evidence > best.evidence and subset.better(trial, subset.base, clearly):
                best = trial
    chosen = best.transform
    if wanted == "yeo-johnson" and chosen.identity:
        chosen = TargetTransform("yeo-johnson", 1.0, shift, scale)
    if not trials:
        untried = Untried.TIME if subset.cut else Untried.NO_FACTOR
        if chosen.identity:
            return _kept(untried)
        return TransformChoice(chosen, Event(EventKind.TARGET_TRANSFORMED, transform=str(chosen), untried=untried))
    kind, shown = EventKind.TARGET_TRANSFORMED, best
    if chosen.identity:
        kind, shown = EventKind.TARGET_KEPT, max(trials, key=lambda one: one.evidence)
    gain, error = subset.gain(shown.left_out, subset.base.left_out)
    event = Event(
        kind, transform=str(chosen if shown is best else shown.transform), rows=subset.rows,
        gain=shown.evidence - subset.base.evidence, left_out=gain, error=error,
        needed=settings.nats if clearly else None, errors=settings.standard_errors if clearly else None,
        cut=Untried.TIME if subset.cut else None,
    )  # fmt: skip
    return TransformChoice(chosen, event)


def _kept(untried: Untried) -> TransformChoice:
    return TransformChoice(TargetTransform(), Event(EventKind.TARGET_KEPT, untried=untried))


@dataclass(frozen=True, eq=False)
class _Trial:
    """A transform after its short fit. Fields: transform; evidence, nats, eq. (M-143); left_out, the leave-one-out log
    density of each row of the subset, nats; prior, as fitted; complete, as in `SubsetFit`.
    """

    transform: TargetTransform
    evidence: float
    left_out: Array
    prior: Prior
    complete: bool


def _walk(subset: "_Transforms", shift: float, scale: float, clearly: bool) -> tuple[_Trial, list[_Trial]]:
    """Yeo-Johnson's powers outward from 1, down, or else up, as long as each is better than the one before it.

    Returns: the last that was, which may be the base; and all that were tried.
    """
    trials: list[_Trial] = []
    powers = subset.tuned.powers
    best = subset.base
    for outward in (sorted((p for p in powers if p < 1.0), reverse=True), sorted(p for p in powers if p > 1.0)):
        for power in outward:
            trial = subset.tried(TargetTransform("yeo-johnson", power, shift, scale), best)
            trials += [] if trial is None else [trial]
            if trial is None or not subset.better(trial, best, clearly):
                break
            best = trial
        if best is not subset.base:  # the other way cannot gain too, where the evidence has one maximum
            break
    return best, trials


class _Transforms(SubsetFits):
    """Some rows, their short fit as they are, and trials of transforms from there.

    Fields: base, the trial of the target as it is; cut, whether the time limit left trials out.
    """

    def __init__(
        self, prior: Prior, x: Tensor, y: Array, options: FitOptions | None, standardise: bool, settings: ChoiceSettings
    ) -> None:
        super().__init__(prior, x, options, settings)
        self.tuned, self._standardise, self._whole = settings, standardise, y
        counts = prior.likelihood.counts
        self._whole_counts = None if counts is None else counts.numpy(force=True)
        self._y, first = y[self.index], self.first
        self._next = first and dataclasses.replace(first, initial="given", max_iterations=settings.iterations)
        self.base = self._trial(TargetTransform(), self.of_rows(prior), first)
        self.cut = not self.base.complete

    def tried(self, transform: TargetTransform, start: _Trial) -> _Trial | None:
        """The trial from the parameters of another; None where no covariance had a factor, or the time is up: what the
        first fit was cut short of, a second one from there would gain, whatever its transform."""
        self.cut = self.cut or self.deadline.passed()
        if self.cut:
            return None
        try:
            trial = self._trial(transform, start.prior, self._next)
        except NotPositiveDefiniteError:
            return None
        self.cut = not trial.complete
        return trial if trial.complete else None

    def better(self, trial: _Trial, before: _Trial, clearly: bool) -> bool:
        """True if the evidence is higher; clearly: with leave-one-out densities that confirm it."""
        more = trial.evidence - before.evidence
        if not clearly:
            return more > 0.0
        gain, error = self.gain(trial.left_out, before.left_out)
        return more >= self.tuned.nats and gain >= self.tuned.standard_errors * error

    def _trial(self, transform: TargetTransform, start: Prior, options: FitOptions | None) -> _Trial:
        units = ColumnScaling.identity(1)
        if self._standardise:
            whole = np.asarray(transform.forward(self._whole), dtype=np.float64)
            units = ColumnScaling.of(whole[:, None], self._whole_counts)
        rows = np.asarray(transform.forward(self._y), dtype=np.float64)
        z = torch.from_numpy(units.apply(rows[:, None])[:, 0]).to(self.x.device)
        slope = transform.log_slope(self._y) - math.log(units.scale[0])
        fit = self.fit(start, z, options, "the transform of the target")
        evidence = float(log_evidence(fit.state)) + float(self.counts @ slope)
        return _Trial(transform, evidence, self.left_out(fit.state) + slope, fit.prior, fit.complete)


@dataclass(frozen=True)
class KernelChoiceSettings(SubsetSettings):
    """Settings of the choice, beside the subset; with less than `min_rows` rows the first candidate stays.

    Args:
        standard_errors: by which another candidate must predict better than the first, paired row by row.
    """

    standard_errors: float = 2.0


@dataclass(frozen=True)
class SeasonSettings:
    """Settings of the periods that a column of time is taken to have.

    Args: most, how many; false_alarm, probability that the strongest frequency of pure noise counts; cycles, that the
        rows must show of a period; harmonics, multiples of a frequency that its Periodic term explains already.
    """

    most: int = 3
    false_alarm: float = 1e-3
    cycles: float = 2.0
    harmonics: int = 12


@dataclass(frozen=True)
class KernelChoice:
    """Fields: kernel; event, what was chosen and why."""

    kernel: TableKernel
    event: Event


def table_candidates(
    x: Tensor, z: Tensor, time: int | None, settings: SeasonSettings | None = None
) -> tuple[TableKernel, ...]:
    """The covariance functions to choose among: CANDIDATES, and a seasonal one where a column of time shows periods.

    A frequency counts where it explains more of what those before it left than the strongest of noise would, by
    Scargle's false-alarm probability for as many independent frequencies as x tells apart.

    Args: x, (n, d), and z, (n,), standardised; time, position of the column, None for none; several outputs take none.
    Cost: some periodograms, O(n + F log F) each.
    Source: Scargle (1982), Studies in astronomical time series analysis II; the share's law is a Beta(1, (n - 5) / 2).
    """
    settings = settings or SeasonSettings()
    if time is None or z.dim() > 1 or len(x) < 20:
        return CANDIDATES
    at = x[:, time].detach().to("cpu", torch.float64)
    found = strongest_frequencies(at, z, count=settings.most + settings.harmonics)
    span = float(at.max() - at.min())
    independent = max(1.0, span * highest_frequency(at))
    frequencies: list[float] = []
    for count, (frequency, share) in enumerate(zip(found.frequencies.tolist(), found.power.tolist(), strict=True)):
        noise = 1.0 - (settings.false_alarm / independent) ** (2.0 / max(1.0, len(x) - 5.0 - 2.0 * count))
        if share < noise:
            break
        if frequency * span >= settings.cycles:
            frequencies.append(frequency)
    multiples = range(2, settings.harmonics + 1)
    own = [f for f in frequencies if not any(abs(f - k * g) * span < 1.0 for g in frequencies for k in multiples)]
    if not own:
        return CANDIDATES
    periods = tuple(1.0 / frequency for frequency in own[: settings.most])
    return (*CANDIDATES, SeasonalKernel(DEFAULT.base, DEFAULT.stationary, DEFAULT.linear, time, periods))


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
