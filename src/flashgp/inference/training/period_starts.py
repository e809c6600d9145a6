"""Starts for periods: what the periodogram of the targets suggests, weighed by the log joint of few rows, eq. (M-250).

The likelihood of a period has an optimum for nearly every frequency, each as wide as a turn over the range of x: a
search that begins elsewhere ends elsewhere. Candidates are the frequencies that explain most, one after the other
(kernels/periodogram.py), within bounds and priors of the parameter, and multiples of the strongest one's period, whose
overtone may be stronger; the value that its user gave is one of them. All else is at its start. Several periods take
turns, twice, so that two of a sum do not take one frequency. Does not do: periods of a SpectralMixture, which has
`from_data`.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy
import torch
from torch import Tensor

from flashgp.foundations.errors import ConvergenceError, NotPositiveDefiniteError
from flashgp.foundations.parameters import Parameter
from flashgp.inference.training.history import Recorder, SearchRun, Stage
from flashgp.inference.training.lbfgs import evaluated
from flashgp.inference.training.objective import Objective, Problem
from flashgp.inference.training.parameter_vector import Slot
from flashgp.inference.training.settings import PeriodSettings
from flashgp.kernels import Kernel, Warped
from flashgp.kernels.base import active_columns
from flashgp.kernels.periodogram import strongest_frequencies
from flashgp.kernels.spectrum import separate_peaks, spectrum_of

Array = numpy.ndarray
PERIODIC_ROLES = ("period", "frequency")


@dataclass(frozen=True)
class _Unknown:
    """A period or a frequency: entries of the flat vector, and candidates for them, unconstrained, (k, entries)."""

    entries: Array
    candidates: Array


@dataclass(frozen=True)
class _Series:
    """Series that one unknown may repeat in: coordinates (n, columns), targets (n,), relative precisions (n,) or
    None."""

    x: Tensor
    y: Tensor
    weights: Tensor | None

    @classmethod
    def of_observed(cls, x: Tensor, y: Tensor, weights: Tensor | None) -> Self:
        """Series of the rows whose target is there: a missing cell is NaN, eq. (M-252)."""
        rows = ~y.isnan()
        return cls(x[rows], y[rows], None if weights is None else weights[rows])


def with_periods(
    few: Objective, whole: Problem, starts: Sequence[Array], recorder: Recorder, settings: PeriodSettings
) -> list[Array]:
    """Starts with the periods of the highest log joint in place of the first, and the next best of the random ones.

    Args:
        few: of few rows, which weighs candidates.
        whole: all rows that are held, which suggest them.
        starts: vectors, from the data, perhaps the given one, and random ones around the first.
        recorder: of all evaluations.
    Returns: as many starts; the same ones where no period is trained. A given start stays, or becomes the second one
        where it was the first.
    Cost: a dozen evaluations of few rows for one period, two dozen for each of several, and their periodograms.
    Raises: TimeUp.
    """
    if few.rows > settings.max_rows:
        return list(starts)
    with torch.no_grad():
        unknowns = list(_unknowns(few, whole, settings))
    if not unknowns:
        return list(starts)
    recorder.begin(few.rows)
    recorder.phase = "weighing periods"
    ranked = _weighed(few, unknowns, starts[0], recorder, settings)
    if not ranked:
        return list(starts)
    periods = numpy.concatenate([unknown.entries for unknown in unknowns])
    given = starts[0][periods]
    moved = not numpy.array_equal(ranked[0][periods], given)
    same = [start for start in starts[1:] if numpy.array_equal(start[periods], given)]
    others = list(starts[1:]) if same or not moved else [starts[0], *starts[1:-1]][: len(starts) - 1]
    following = iter(ranked[1:])
    return [ranked[0], *(s if numpy.array_equal(s[periods], given) else next(following, s) for s in others)]


def _weighed(
    few: Objective, unknowns: Sequence[_Unknown], start: Array, recorder: Recorder, settings: PeriodSettings
) -> list[Array]:
    """Vectors with periods that were tried, the best first, eq. (M-250)."""
    low, high = few.parameters.bounds()
    values: dict[bytes, tuple[float, Array]] = {}
    run = SearchRun(Stage.PERIODS)

    def value(theta: Array) -> float:
        theta = numpy.clip(theta, low, high)
        key = theta.tobytes()
        if key not in values:
            try:
                found = evaluated(few, theta, run, recorder).value
            except (NotPositiveDefiniteError, ConvergenceError):
                found = None
            values[key] = (math.inf if found is None else found), theta
        return values[key][0]

    theta, taken = start.copy(), set[float]()
    for unknown in unknowns:  # no two begin with one frequency
        free = [one for one in unknown.candidates if float(one[0]) not in taken]
        if free:
            theta[unknown.entries] = free[0]
            taken.add(float(free[0][0]))
    for _ in range(settings.sweeps if len(unknowns) > 1 else 1):
        before = theta.copy()
        for unknown in unknowns:
            choices = [theta[unknown.entries], start[unknown.entries], *unknown.candidates]
            if len(values) + len(choices) > settings.max_evaluations:
                break
            tried = []
            for choice in choices:
                one = theta.copy()
                one[unknown.entries] = choice
                tried.append(one)
            theta = min(tried, key=value)
        if numpy.array_equal(theta, before):
            break
    return [vector for known, vector in sorted(values.values(), key=lambda one: one[0]) if known < math.inf]


def _unknowns(few: Objective, whole: Problem, settings: PeriodSettings) -> Iterator[_Unknown]:
    """Every period and frequency that is trained, once, with candidates."""
    slots = {slot.owner: slot for slot in few.parameters.slots if slot.owner is not None}
    if not slots:
        return
    data = whole.subset(settings.spectrum_rows, settings.seed) if whole.rows > settings.spectrum_rows else whole
    weights = _precisions(data)
    for leaf, x in _leaves(data.prior.kernel, data.x.detach().double()):
        for name, role in getattr(leaf, "roles", {}).items():
            parameter = getattr(leaf, name)
            slot = slots.get(parameter)
            if role in PERIODIC_ROLES and slot is not None and parameter.event_dim <= 1:
                del slots[parameter]
                for entries, series in _places(parameter, slot, role, x, data, weights):
                    candidates = _candidates(parameter, role, entries, series, settings)
                    if len(candidates):
                        yield _Unknown(entries, candidates)


def _leaves(kernel: Kernel, x: Tensor) -> Iterator[tuple[Kernel, Tensor]]:
    """Every leaf with the columns that it sees, (*batch, n, d)."""
    if isinstance(kernel, Warped):
        yield from _leaves(kernel.kernel, kernel.features_of(x).detach())
    elif kernel.parts:
        for part in kernel.parts:
            yield from _leaves(part, x)
    else:
        yield kernel, active_columns(x, getattr(kernel, "active_dims", None)).cpu()


def _precisions(data: Problem) -> Tensor | None:
    """Precisions of the rows, (n,), where they differ: with the noise that a search begins at as that of all."""
    noise = data.prior.likelihood.linear_noise()
    if noise is None or (noise.scale is None and noise.offset is None) or data.x.dim() != 2:
        return None
    y = data.y.detach().double()
    variance = 0.1 * float(y[~y.isnan()].var(correction=0))
    scale = torch.ones(data.rows) if noise.scale is None else noise.scale.cpu()
    offset = torch.zeros(data.rows) if noise.offset is None else noise.offset.cpu()
    total = scale * variance + offset
    usual = total.isfinite().all() and total.min() > 0 and total.shape == (data.rows,)
    return 1.0 / total.double() if usual else None


def _places(
    parameter: Parameter, slot: Slot, role: str, x: Tensor, data: Problem, weights: Tensor | None
) -> Iterator[tuple[Array, list[_Series]]]:
    """(entries of the vector, series that they may repeat in): of each model of a batch and each column apart."""
    batch, d = parameter.batch_shape, x.shape[-1]
    y = data.y.detach().double().cpu()
    y = y[..., None] if data.prior.outputs is None else y
    index = numpy.arange(slot.entries.start, slot.entries.stop).reshape(tuple(parameter.raw.shape))
    of_data = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2], batch)
    x, y = (t.expand(*of_data, *t.shape[-2:]) for t in (x, y))
    for member in numpy.ndindex(*batch):
        place = (slice(None),) * (len(of_data) - len(batch)) + member
        xs = x[place].reshape(-1, *x.shape[-2:])
        ys = y[place].reshape(-1, *y.shape[-2:])
        pairs = [(points, target) for points, of_one in zip(xs, ys, strict=True) for target in of_one.unbind(-1)]
        own = index[member].reshape(-1)
        if role == "frequency" and len(own) == d > 1:
            yield own, [_Series.of_observed(points, target, weights) for points, target in pairs]
        elif role == "frequency":  # cos(2 pi w sum_k (x_k - x'_k))
            yield own, [_Series.of_observed(points.sum(-1, keepdim=True), target, weights) for points, target in pairs]
        else:
            groups = [[column] for column in range(d)] if len(own) == d else [list(range(d))]
            for entry, columns in zip(own, groups, strict=True):
                series = [_Series.of_observed(p[:, [k]], target, weights) for p, target in pairs for k in columns]
                yield numpy.array([entry]), series


def _candidates(
    parameter: Parameter, role: str, entries: Array, series: Sequence[_Series], settings: PeriodSettings
) -> Array:
    """Unconstrained values, (k, entries): the strongest frequencies of every series in turn, within the domain."""

    def plausible(frequencies: Tensor) -> Tensor:
        """The log density of the parameter at each frequency; -inf outside of its domain."""
        values = 1.0 / frequencies if role == "period" else frequencies
        inside = (values > parameter.domain.lower) & (values < parameter.domain.upper)
        if parameter.prior is None or parameter.prior.batch_shape.numel() > 1:
            return torch.where(inside, 0.0, -math.inf)
        kept = torch.where(inside, values, parameter.value.detach().cpu().reshape(-1)[0])
        return torch.where(inside, parameter.prior.log_prob(kept), -math.inf)

    found = []
    for one in series[: settings.max_series]:
        if len(entries) > 1:
            spectrum = spectrum_of(one.x, one.y, settings.seed)
            found.append(separate_peaks(*spectrum[:2], settings.candidates, spectrum[2]))
            continue
        peaks = strongest_frequencies(
            one.x[:, 0], one.y, one.weights, count=settings.candidates, log_prior=plausible
        ).frequencies
        if role == "period" and len(peaks):
            multiples = peaks[0] / torch.arange(2, 2 + settings.multiples)
            peaks = torch.cat([peaks, multiples[plausible(multiples) > -math.inf]])
        found.append(peaks[:, None])
    turns = [peaks[i] for i in range(max(map(len, found), default=0)) for peaks in found if i < len(peaks)]
    if not turns:
        return numpy.zeros((0, len(entries)))
    frequencies = torch.stack(turns[: settings.candidates + settings.multiples])
    values = 1.0 / frequencies if role == "period" else frequencies
    rows = [value for value in values if parameter.domain.contains(value)]
    return torch.stack([parameter.domain.raw(value) for value in rows]).numpy() if rows else frequencies[:0].numpy()
