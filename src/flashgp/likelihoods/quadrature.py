"""Expectations under normal distributions by the trapezoidal rule, eqs. (M-276) and (M-279): below 1e-9 for every mean
and variance.

Nodes lie where the integrand needs them, f = centre + a sinh(u) at equal steps of u: their number grows with the
logarithm of deviation / strip. Hermite nodes of any fixed number are wrong in the third digit where f is uncertain.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from flashgp.foundations.errors import ConvergenceError
from flashgp.foundations.normal import LOG_2PI

DIGITS = 28.0  # nats by which the rule's error is below the integrand
REACH = 8.0  # standard deviations to each side
ANGLE = 0.6  # of the hyperbola in the complex plane, at most; below pi / 4, where the normal density would grow
BLOCK = 2_000_000  # nodes at a time
FEW = 20_000  # nodes that take no longer than telling rows apart
ROUNDING = 4.0 * torch.finfo(torch.float64).eps
AGREED = 1e-9  # of half of the nodes with all
EDGE = 1e-12  # of a sum, that its last terms may be
NEAR = 1e-2  # of a mode, standard deviations
NONE = math.sqrt(torch.finfo(torch.float64).tiny)  # of a deviation, in units of a: its square is a number
FALL = 32.0  # nats below its maximum at which an integrand is left
WIDE = 1e4  # times a variance, under which a likelihood is by itself
HALVINGS = 12  # of a strip that is not known
ROUNDS = 100  # of Newton's method and bisection, at most
BISECTED = 8  # rounds, of which one bisects: where exp(-f) is large Newton's method goes by one


@dataclass(frozen=True)
class Analytic:
    """Where a function of f is analytic: but where |Im f| >= strip and |Re f - centre| <= spread.

    Fields: strip, positive; centre; spread, 0 or more: numbers, or one of each entry.
    """

    strip: Tensor | float
    centre: Tensor | float = 0.0
    spread: Tensor | float = 0.0

    def of(self, shape: torch.Size, index: Tensor) -> "Analytic":
        """Of some of the entries, numbered through."""
        return Analytic(*(
            t.detach().expand(shape).reshape(-1)[index] if isinstance(t, Tensor) else t
            for t in (self.strip, self.centre, self.spread)
        ))  # fmt: skip


Nodes = tuple[Tensor, Float64[Tensor, "k nodes"], Float64[Tensor, "k nodes"]]


@torch.no_grad()
def nodes(
    mean: Float64[Tensor, "n"], deviation: Float64[Tensor, "n"], where: Analytic, reach: float = REACH
) -> Iterator[Nodes]:
    """Nodes t and weights of N(0, 1), for functions of mean + deviation t that are analytic there, eq. (M-276).

    Rows that need about as many nodes come together: (index (k,), t, weights), an odd number of nodes.
    """
    strip, spread = (torch.as_tensor(t, dtype=torch.float64, device=mean.device) for t in (where.strip, where.spread))
    steepest = torch.atan2(strip, math.sqrt(2.0) * spread).clamp_max(ANGLE)  # a hyperbola below what is not analytic
    a = strip / (math.sqrt(2.0) * steepest.sin())
    offset = ((mean - where.centre) / a).nan_to_num()
    width = (deviation / a).nan_to_num(nan=1.0, posinf=1.0).clamp_min(NONE)
    from_centre = offset.asinh()
    low, high = ((offset + sign * reach * width).asinh() - from_centre for sign in (-1.0, 1.0))
    angle = (math.sqrt(2.0 * DIGITS) * width / (1.0 + offset.square()).sqrt()).minimum(steepest)
    growth = angle.sin().square() * (1.0 + offset.square() / (2.0 * angle).cos()) / (2.0 * width.square())
    count = ((high - low) * (DIGITS + growth) / (2.0 * math.pi * angle)).ceil().nan_to_num(nan=1.0).clamp_min(1.0)
    for index, share in _together(count):
        u = torch.lerp(low[index, None], high[index, None], share)
        around = from_centre[index, None] + 0.5 * u
        t = 2.0 * around.cosh() * (0.5 * u).sinh() / width[index, None]  # sinh(u0 + u) - sinh(u0)
        weights = (-0.5 * t.square()).exp() * (around + 0.5 * u).cosh()
        weights = weights / weights.sum(-1, keepdim=True)
        t = t - (weights * t).sum(-1, keepdim=True)  # exact for lines and parabolas: derivatives by a small variance
        spread = (weights * t.square()).sum(-1, keepdim=True).sqrt()
        yield index, t / torch.where(spread > 0.0, spread, 1.0), weights


def _together(count: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows that need about as many steps, and the shares of these, from 0 to 1, an odd number of nodes."""
    if not len(count):
        return
    group = (4.0 * count.log2()).ceil()  # of steps of a fifth
    if len(count) * float(count.max()) <= FEW:
        group = torch.zeros_like(group)
    for one in group.unique().tolist():
        rows = (group == one).nonzero().squeeze(-1)
        steps = int(count[rows].max())
        share = torch.linspace(0.0, 1.0, steps + steps % 2 + 1, dtype=torch.float64, device=count.device)
        for index in rows.split(max(1, BLOCK // len(share))):
            yield index, share


def expectation(
    function: Callable[..., Tensor],
    mean: Float[Tensor, "..."],
    variance: Float[Tensor, "..."],
    where: Analytic | None,
    *rows: Tensor,
) -> Float64[Tensor, "..."]:
    """E function(f, *rows) under f ~ N(mean, variance), entry by entry, eq. (M-276).

    Args:
        function: of f, (k, nodes), and numbers of the rows, each (k, 1); differentiable.
        mean: of f; variance, 0 or more; rows: numbers that go with them; all of shapes that broadcast.
        where: of the function. None where that is not known: strips are halved, and the range of f widened, until half
            of the nodes agree with all of them within 1e-9.
    Returns: of the common shape; differentiable in mean, variance and what the function knows.
    Raises: ConvergenceError where the function is not smooth enough.
    Cost: 20 calls of the function a row where the deviation is below a tenth of the strip, 30 at one third, 60 at 30.
    """
    shape, (mean, variance, *each) = _flat(mean, variance, *rows)
    deviation = variance.sqrt()

    def sums(index: Tensor, where: Analytic, reach: float) -> Sums:
        found = [(index[:0], mean[:0], mean.detach()[:0])]
        for some, t, weights in nodes(mean.detach()[index], deviation.detach()[index], where, reach):
            at = index[some]
            values = function(mean[at, None] + deviation[at, None] * t, *(r[at, None] for r in each))
            terms = torch.where(weights > 0.0, values, 0.0) * weights
            with torch.no_grad():
                whole = terms.sum(-1)
                half = terms[:, ::2].sum(-1) / weights[:, ::2].sum(-1)
                apart = (whole - half).abs() / (AGREED * whole.abs().clamp_min(1.0))
                edge = terms[:, [0, -1]].abs().amax(-1) / (EDGE * terms.abs().sum(-1).clamp_min(1.0))
            found.append((at, terms.sum(-1), torch.maximum(apart, edge)))
        places, value, apart = (torch.cat(column) for column in zip(*found, strict=True))
        order = places.argsort()
        return places[order], value[order], apart[order]

    everywhere = torch.arange(len(mean), device=mean.device)
    if where is not None:
        return sums(everywhere, where.of(shape, everywhere), REACH)[1].reshape(shape)
    spread = 4.0 * deviation.detach()

    def halved(index: Tensor, share: float) -> tuple[Tensor, Tensor, Tensor]:
        where = Analytic(0.5 * share * spread[index], mean.detach()[index], spread[index])
        return sums(index, where, REACH * share**-0.5)

    return _settled(halved, len(mean)).reshape(shape)


Sums = tuple[Tensor, Tensor, Tensor]  # rows, sums, and how far off they may be in units of what is allowed


def _settled(sums: Callable[[Tensor, float], Sums], rows: int) -> Tensor:
    """Sums of so many rows, of shares of their strip that are halved until they are right. Raises: ConvergenceError."""
    left, places, values = torch.arange(rows), list[Tensor](), list[Tensor]()
    for halving in range(HALVINGS + 1):
        index, value, apart = sums(left, 0.5**halving)
        more = apart > 1.0  # not NaN
        places.append(index[~more])
        values.append(value[~more])
        left = index[more]
        if not len(left):
            return torch.cat(values)[torch.cat(places).argsort()]
    raise ConvergenceError(
        f"`log_prob` must be smooth in f, got one of row {int(left[0])} whose expectation did not settle over "
        f"{HALVINGS} halvings of steps; round off its kinks and jumps",
        iterations=HALVINGS, residual=float(apart.max()), tolerance=1.0,
    )  # fmt: skip


def _flat(*values: Tensor) -> tuple[torch.Size, Sequence[Tensor]]:
    together = torch.broadcast_tensors(*values)
    return together[0].shape, [t.double().reshape(-1) for t in together]


@dataclass(frozen=True)
class Unimodal:
    """p(y | f) of one mode in f. Fields: strip, |Im f| below which it is analytic, None where that is not known;
    concave, whether its logarithm is."""

    strip: float | None
    concave: bool = True


@dataclass(frozen=True)
class Peak:
    """A density of f by its mode. Fields: mode; deviation, of the normal density of the same curvature there."""

    mode: Float64[Tensor, "..."]
    deviation: Float64[Tensor, "..."]


def peak(
    function: Callable[..., Tensor],
    mean: Float[Tensor, "..."],
    variance: Float[Tensor, "..."],
    *rows: Tensor,
    start: Tensor | None = None,
) -> Peak:
    """Of exp(function(f, *rows)) N(f; mean, variance), entry by entry: the one next to `start`, by default the mean.

    Its mode is where the slope of the logarithm changes its sign: by Newton's method between ends that bisect it.
    """
    shape, (mean, variance, *each) = _flat(*(t.detach() for t in (mean, variance, *rows)))
    variance = _widened(mean, variance)

    def slopes(f: Tensor) -> tuple[Tensor, Tensor]:
        first, second = _slopes(function, f, each)
        return first - (f - mean) / variance, 1.0 / variance - second.clamp_max(0.0)

    near = mean if start is None else start.detach().reshape(-1)
    slope, curvature = slopes(near)
    direction, step = slope.sign(), 1.0 / curvature.sqrt()
    far = near + direction * step
    for _ in range(ROUNDS):
        slope, curvature = slopes(far)
        ahead = slope * direction > 0.0  # not NaN, which is too far
        if not bool(ahead.any()):
            break
        near, step = torch.where(ahead, far, near), 4.0 * step
        far = torch.where(ahead, far + direction * step, far)
    f = near
    for k in range(1, ROUNDS + 1):
        slope, curvature = slopes(f)
        ahead = slope * direction > 0.0
        near, far = torch.where(ahead, f, near), torch.where(ahead, far, f)
        if bool((slope.abs() <= NEAR * curvature.sqrt()).all()):
            break
        newton = f + slope / curvature
        inside = (newton - near) * (newton - far) <= 0.0 if k % BISECTED else torch.zeros_like(ahead)
        f = torch.where(inside, newton, 0.5 * (near + far))
    return Peak(f.reshape(shape), (1.0 / curvature.sqrt()).reshape(shape))


@torch.no_grad()
def _higher(
    function: Callable[..., Tensor], mean: Tensor, variance: Tensor, peaks: tuple[Peak, Peak], rows: Sequence[Tensor]
) -> Peak:
    """The higher one of two peaks, entry by entry."""
    variance = _widened(mean, variance)
    one, other = (function(p.mode, *rows) - 0.5 * (p.mode - mean).square() / variance for p in peaks)
    return Peak(*(torch.where(one >= other, getattr(peaks[0], n), getattr(peaks[1], n)) for n in ("mode", "deviation")))


def _slopes(function: Callable[..., Tensor], f: Tensor, rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """First and second derivatives of a function by f, entry by entry."""
    with torch.enable_grad():
        f = f.detach().requires_grad_()
        (first,) = torch.autograd.grad(function(f, *rows).sum(), f, create_graph=True)
        second = torch.zeros_like(f)
        if first.requires_grad:
            (second,) = torch.autograd.grad(first.sum(), f)
    return first.detach(), second


def log_expectation(
    function: Callable[..., Tensor],
    mean: Float[Tensor, "..."],
    variance: Float[Tensor, "..."],
    where: Unimodal,
    *rows: Tensor,
) -> Float64[Tensor, "..."]:
    """log E exp(function(f, *rows)) under f ~ N(mean, variance), entry by entry, eq. (M-279).

    Args: as `expectation`; where, of exp(function).
    Returns: of the common shape, however small the expectation is; differentiable.
    """
    strip, top = where.strip, peak(function, mean, variance, *rows)
    if not where.concave:
        alone = peak(function, mean, variance + WIDE * (1.0 + variance), *rows)
        other = peak(function, mean, variance, *rows, start=alone.mode)
        top = _higher(function, mean, variance, (top, other), rows)
    shape, (mean, variance, mode, deviation, *each) = _flat(mean, variance, top.mode, top.deviation, *rows)
    variance = _widened(mean, variance)

    def density(f: Tensor, index: Tensor) -> Tensor:
        m, v = mean[index, None], variance[index, None]
        return function(f, *(r[index, None] for r in each)) - 0.5 * ((f - m).square() / v + v.log() + LOG_2PI)

    everywhere = torch.arange(len(mean), device=mean.device)
    with torch.no_grad():
        highest, ends = density(mode[:, None], everywhere), list[Tensor]()
        for sign in (-1.0, 1.0):
            low, high = deviation.log(), (math.sqrt(2.0 * FALL) * variance.sqrt()).log()
            for _ in range(12):
                middle = 0.5 * (low + high)
                inside = (density((mode + sign * middle.exp())[:, None], everywhere) > highest - FALL).squeeze(-1)
                low, high = torch.where(inside, middle, low), torch.where(inside, high, middle)
            ends.append(mode + sign * high.exp())
        share = torch.tensor([0.0, *(2.0 ** -(0.75 * k) for k in range(12))], dtype=torch.float64, device=mean.device)
        some = torch.cat([torch.lerp(mode[:, None], end[:, None], share) for end in ends], -1)
        below = highest - density(some, everywhere)
        bend = 1.0 / variance[:, None] - _slopes(function, some, [r[:, None] for r in each])[1].clamp_max(0.0)

    def sums(index: Tensor, share: float) -> Sums:
        most = 0.7 * strip if strip is not None else 8.0 * share * deviation[index]
        step = torch.zeros_like(mode[index])
        for k in range(-6, 3):
            a = (math.sqrt(2.0 * DIGITS) * deviation[index] * 2.0**k).clamp(max=most)
            growth = (0.7 * a.square()[:, None] * bend[index] - below[index]).amax(-1).clamp_min(0.0)
            step = torch.maximum(step, 2.0 * math.pi * a / (DIGITS + growth))
        low, high = ends[0][index, None], ends[1][index, None]
        count = ((high - low).squeeze(-1) / step).ceil().nan_to_num(nan=1.0, posinf=1.0).clamp_min(2.0)
        found = [(index[:0], mean[:0], mean.detach()[:0])]
        for some, share_of in _together(count):
            f = torch.lerp(low[some], high[some], share_of)
            logs, spacing = density(f, index[some]), (f[:, 1] - f[:, 0]).log()
            value = torch.logsumexp(logs, -1)
            half = torch.logsumexp(logs.detach()[:, ::2], -1) + math.log(2.0)
            found.append((index[some], value + spacing, (value.detach() - half).abs() / AGREED))
        places, value, apart = (torch.cat(column) for column in zip(*found, strict=True))
        return places, value, apart

    if strip is None:
        return _settled(sums, len(mean)).reshape(shape)
    places, value, _ = sums(everywhere, 1.0)
    return value[places.argsort()].reshape(shape)


def _widened(mean: Tensor, variance: Tensor) -> Tensor:
    """Variances of at least what rounding of the mean is."""
    return torch.maximum(variance, (ROUNDING * (1.0 + mean.detach().abs())).square())
