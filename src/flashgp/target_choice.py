"""Which transform of the target a table gets: chosen by the evidence of a subset of its rows, with the Jacobian.

A short fit of the target as it is, then a few steps from its optimum for each neighbouring power, as long as the
evidence grows. The evidence of a model that is wrong in its tails can prefer a transform that predicts no better, so
the leave-one-out densities of the same rows must confirm it. Deterministic; about ten evaluations of 300 rows for each
transform that is tried. Does not do: targets of several outputs at once, which are chosen one by one.
"""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flashgp.foundations.errors import DomainError, NotPositiveDefiniteError
from flashgp.foundations.events import Event, EventKind, Untried
from flashgp.inference.exact.evidence import log_evidence
from flashgp.inference.prior import Prior
from flashgp.inference.training.options import FitOptions
from flashgp.likelihoods import Gaussian
from flashgp.standardise import ColumnScaling
from flashgp.subset_fits import SubsetFits, SubsetSettings
from flashgp.target_transform import TargetTransform, check_target_transform

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ChoiceSettings(SubsetSettings):
    """What tunes the choice, beside the subset; "auto" keeps a target of less than `min_rows` rows as it is.

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
    known = isinstance(prior.likelihood, Gaussian) and prior.likelihood.row_variance is not None
    if wanted == "auto" and constant:
        return _kept(Untried.CONSTANT)
    if wanted == "auto" and (known or not standardise):
        return _kept(Untried.UNITS)
    if wanted == "auto" and len(y) < settings.min_rows:
        return _kept(Untried.FEW_ROWS)
    try:
        subset = _Subset(prior, x, y, options, standardise, settings)
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
    gain, error = subset.left_out_gain(shown, subset.base)
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


def _walk(subset: "_Subset", shift: float, scale: float, clearly: bool) -> tuple[_Trial, list[_Trial]]:
    """Yeo-Johnson's powers outward from 1, down, or else up, as long as each is better than the one before it.

    Returns: the last that was, which may be the base; and all that were tried.
    """
    trials: list[_Trial] = []
    powers = subset.settings.powers
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


class _Subset:
    """Some rows, their short fit as they are, and trials of transforms from there.

    Fields: rows, how many; base, the trial of the target as it is; cut, whether the time limit left trials out.
    """

    def __init__(
        self, prior: Prior, x: Tensor, y: Array, options: FitOptions | None, standardise: bool, settings: ChoiceSettings
    ) -> None:
        self.settings, self._standardise, self._whole = settings, standardise, y
        counts = prior.likelihood.counts
        self._whole_counts = None if counts is None else counts.numpy(force=True)
        self._fits = SubsetFits(prior, x, options, settings)
        self.rows, self._y = self._fits.rows, y[self._fits.index]
        first = self._fits.first
        self._next = first
        if first is not None:
            self._next = dataclasses.replace(first, initial="given", max_iterations=settings.iterations)
        self.base = self._trial(TargetTransform(), self._fits.of_rows(prior), first)
        self.cut = not self.base.complete

    def tried(self, transform: TargetTransform, start: _Trial) -> _Trial | None:
        """The trial from the parameters of another; None where no covariance had a factor, or the time is up: what the
        first fit was cut short of, a second one from there would gain, whatever its transform."""
        self.cut = self.cut or self._fits.deadline.passed()
        if self.cut:
            return None
        try:
            trial = self._trial(transform, start.prior, self._next)
        except NotPositiveDefiniteError:
            return None
        self.cut = not trial.complete
        return trial if trial.complete else None

    def left_out_gain(self, trial: _Trial, before: _Trial) -> tuple[float, float]:
        """What a trial gains of leave-one-out log density, and its standard error over rows, nats."""
        return self._fits.gain(trial.left_out, before.left_out)

    def better(self, trial: _Trial, before: _Trial, clearly: bool) -> bool:
        """Whether the evidence is higher; clearly, with leave-one-out densities that confirm it."""
        more = trial.evidence - before.evidence
        if not clearly:
            return more > 0.0
        gain, error = self.left_out_gain(trial, before)
        return more >= self.settings.nats and gain >= self.settings.standard_errors * error

    def _trial(self, transform: TargetTransform, start: Prior, options: FitOptions | None) -> _Trial:
        units = ColumnScaling.identity(1)
        if self._standardise:
            whole = np.asarray(transform.forward(self._whole), dtype=np.float64)
            units = ColumnScaling.of(whole[:, None], self._whole_counts)
        rows = np.asarray(transform.forward(self._y), dtype=np.float64)
        z = torch.from_numpy(units.apply(rows[:, None])[:, 0]).to(self._fits.x.device)
        slope = transform.log_slope(self._y) - math.log(units.scale[0])
        fit = self._fits.fit(start, z, options, "the transform of the target")
        evidence = float(log_evidence(fit.state)) + float(self._fits.counts @ slope)
        return _Trial(transform, evidence, self._fits.left_out(fit.state) + slope, fit.prior, fit.complete)
