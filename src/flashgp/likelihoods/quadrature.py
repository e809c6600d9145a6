"""Expectations under normal distributions by the trapezoidal rule, eq. (M-276): below 1e-9 for every mean and variance.

Nodes lie where the integrand needs them, f = centre + a sinh(u) at equal steps of u: their number grows with the
logarithm of deviation / strip. Hermite nodes of any fixed number are wrong in the third digit where f is uncertain.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

DIGITS = 28.0  # nats by which the rule's error is below the integrand
REACH = 8.0  # standard deviations to each side
ANGLE = 0.6  # of the hyperbola in the complex plane, at most; below pi / 4, where the normal density would grow
BLOCK = 2_000_000  # nodes at a time
NONE = math.sqrt(torch.finfo(torch.float64).tiny)  # of a deviation, in units of a: its square is a number


@dataclass(frozen=True)
class Analytic:
    """Where a function of f is analytic: but where |Im f| >= strip and |Re f - centre| <= spread.

    Fields: strip, positive; centre, a number or one of each row, (n,); spread, 0 or more.
    """

    strip: float
    centre: Tensor | float = 0.0
    spread: float = 0.0

    @property
    def angle(self) -> float:
        """The angle of a hyperbola that passes below what is not analytic."""
        return min(ANGLE, math.atan2(self.strip, math.sqrt(2.0) * self.spread))

    @property
    def unit(self) -> float:
        """a of the nodes."""
        return self.strip / (math.sqrt(2.0) * math.sin(self.angle))


@torch.no_grad()
def nodes(
    mean: Float64[Tensor, "n"], deviation: Float64[Tensor, "n"], where: Analytic
) -> Iterator[tuple[Tensor, Float64[Tensor, "k nodes"], Float64[Tensor, "k nodes"]]]:
    """Nodes t and weights of N(0, 1), for functions of mean + deviation t that are analytic there, eq. (M-276).

    Rows that need about as many nodes come together: (index (k,), t, weights). Rows that are not finite have NaN.
    """
    a = where.unit
    offset = ((mean - where.centre) / a).nan_to_num()
    width = (deviation / a).nan_to_num(nan=1.0, posinf=1.0).clamp_min(NONE)
    from_centre = offset.asinh()
    low, high = ((offset + sign * REACH * width).asinh() - from_centre for sign in (-1.0, 1.0))
    angle = (math.sqrt(2.0 * DIGITS) * width / (1.0 + offset.square()).sqrt()).clamp_max(where.angle)
    growth = angle.sin().square() * (1.0 + offset.square() / (2.0 * angle).cos()) / (2.0 * width.square())
    count = ((high - low) * (DIGITS + growth) / (2.0 * math.pi * angle)).ceil().clamp_min(1.0)
    group = (4.0 * count.log2()).ceil()  # of steps of a fifth
    for one in group.unique().tolist():
        index = (group == one).nonzero().squeeze(-1)
        share = torch.linspace(0.0, 1.0, int(count[index].max()) + 1, dtype=torch.float64, device=mean.device)
        for some in index.split(max(1, BLOCK // len(share))):
            u = torch.lerp(low[some, None], high[some, None], share)
            around = from_centre[some, None] + 0.5 * u
            t = 2.0 * around.cosh() * (0.5 * u).sinh() / width[some, None]  # sinh(u0 + u) - sinh(u0)
            weights = (-0.5 * t.square()).exp() * (around + 0.5 * u).cosh()
            yield some, t, weights / weights.sum(-1, keepdim=True)


def expectation(
    function: Callable[..., Tensor],
    mean: Float[Tensor, "..."],
    variance: Float[Tensor, "..."],
    where: Analytic,
    *rows: Tensor,
) -> Float64[Tensor, "..."]:
    """E function(f, *rows) under f ~ N(mean, variance), entry by entry, eq. (M-276).

    Args:
        function: of f, (k, nodes), and numbers of the rows, each (k, 1); differentiable.
        mean: of f; variance, positive; rows: numbers that go with them; all of shapes that broadcast.
        where: of the function.
    Returns: of the common shape; differentiable in mean, variance and what the function knows.
    Cost: 20 calls of the function a row where the deviation is below a tenth of the strip, 50 at one strip, 120 at 100.
    """
    mean, variance, *rows = (t.double() for t in torch.broadcast_tensors(mean, variance, *rows))  # type: ignore[assignment]
    shape = mean.shape
    mean, deviation = mean.reshape(-1), variance.reshape(-1).sqrt()
    each = [t.reshape(-1) for t in rows]
    if isinstance(where.centre, Tensor):
        where = Analytic(where.strip, where.centre.detach().expand(shape).reshape(-1), where.spread)
    places, values = [mean.new_zeros(0, dtype=torch.int64)], [mean.new_zeros(0)]
    for some, t, weights in nodes(mean.detach(), deviation.detach(), where):
        f = mean[some, None] + deviation[some, None] * t
        values.append((function(f, *(r[some, None] for r in each)) * weights).sum(-1))
        places.append(some)
    return torch.cat(values)[torch.cat(places).argsort()].reshape(shape)
