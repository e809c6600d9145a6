"""Slopes of a profile by its distances: the effect of an error of a squared distance on a covariance, eq. (M-75).

The slope of most profiles is a property of the formula; where it depends on parameters (a scale inside the profile, as
`Custom` functions may have), it is looked at for their values.
"""

import functools
from collections.abc import Sequence

import numpy
import torch
from torch import Tensor

from flashgp.foundations.form import Form
from flashgp.pairwise.program.families import distance_runs
from flashgp.pairwise.program.numpy_program import numpy_partials
from flashgp.pairwise.program.program import program_of
from flashgp.pairwise.program.tile_code import Scalar

GRID_FIRST, GRID_LAST = -80.0, 41.0
# Squared distances: a profile changes within one in a few octaves.
GRID = numpy.exp2(numpy.arange(GRID_FIRST, GRID_LAST))


def steepness(form: Form, theta: Sequence[Tensor]) -> dict[int, float]:
    """Per distance, max |dg/dq| / max |g| over squared distances, at least 1; theta entries () or (*batch,).

    Inner products and codes are taken as equal, row scalars as 0. Cost: a hundred values of the profile for every
    member of a batch if the slope depends on theta, a look-up otherwise.
    """
    if not form.fusable or "distance" not in form.statistics:
        return {}
    if not _depends_on_theta(form):
        return _slopes(form, (1.0,) * form.parameter_count)
    if any(torch._C._functorch.is_functorch_wrapped_tensor(t) for t in theta):
        return {k: numpy.inf for k, kind in enumerate(form.statistics) if kind == "distance"}
    flat = torch.broadcast_tensors(*(t.detach() for t in theta))
    members = set(zip(*(t.reshape(-1).tolist() for t in flat), strict=True))
    found = [_slopes(form, member) for member in members]
    return {k: max(f[k] for f in found) for k in found[0]} if found else {}


def rounding_slopes(form: Form, theta: Tensor) -> dict[int, tuple[Tensor, Tensor]]:
    """Per distance, what a unit error of a coordinate and of the squared distance does to a covariance, at least 1.

    max |dg/dq| 2 sqrt(q) / max |g| and max |dg/dq| / max |g| over squared distances, as in eq. (M-75), with products,
    codes and row scalars taken as 1. Computed where theta is, without waiting for it: a call can be captured.
    Args: theta (members, at least P), float64. Returns: two (members,) tensors each. Cost: some dozen operations on a
        hundred numbers per member.
    """
    distances = [k for k, kind in enumerate(form.statistics) if kind == "distance"]
    runs = distance_runs(form)
    grid = torch.exp2(torch.arange(GRID_FIRST, GRID_LAST, dtype=torch.float64, device=theta.device))
    one = torch.ones((theta.shape[0], len(runs), len(GRID)), dtype=torch.float64, device=theta.device)
    statistics = []
    for k, kind in enumerate(form.statistics):
        value = torch.zeros_like(one) if kind == "distance" else one
        for at, run in enumerate(runs):
            if k in run:
                value[:, at] = grid
        statistics.append(value)
    parameters = [theta[:, p, None, None] for p in range(form.parameter_count)]
    (scalar, tile), parts = program_of(form).partials(statistics, [one] * (2 * form.scalar_count), parameters, False)

    def size(factor: Scalar, values: Tensor | None) -> Tensor:
        return torch.as_tensor(factor, dtype=torch.float64, device=theta.device).abs() * (
            one if values is None else values.abs()
        )

    scale = size(scalar, tile).amax((-2, -1), keepdim=True).clamp_min(1e-300)
    found = {k: (torch.ones_like(one[:, 0, 0]),) * 2 for k in distances}
    for part in parts:
        if part.symbol.kind == "distance":
            slope = size(part.scalar, part.tile) / scale
            coordinate = slope * 2.0 * statistics[part.symbol.index].sqrt()
            found[part.symbol.index] = tuple(s.amax((-2, -1)).clamp_min(1.0) for s in (coordinate, slope))  # type: ignore[assignment]
    return found


@functools.lru_cache(maxsize=512)
def _depends_on_theta(form: Form) -> bool:
    """True if other parameters give other slopes."""
    if not form.parameter_count:
        return False
    one = _slopes(form, (1.0,) * form.parameter_count)
    other = _slopes(form, tuple(1.0 + 2.0**0.5 * (k + 1) for k in range(form.parameter_count)))
    return any(abs(one[k] - other[k]) > 1e-9 * one[k] for k in one)


@functools.lru_cache(maxsize=4096)
def _slopes(form: Form, theta: tuple[float, ...]) -> dict[int, float]:
    distances = [k for k, kind in enumerate(form.statistics) if kind == "distance"]
    runs = distance_runs(form)  # every distance alone, the others 0, then all together
    shape = (len(runs), len(GRID))
    statistics = []
    for k, kind in enumerate(form.statistics):
        value = numpy.zeros(shape) if kind == "distance" else numpy.ones(shape)
        for at, run in enumerate(runs):
            if k in run:
                value[at] = GRID
        statistics.append(value)
    scalars = [numpy.zeros(shape)] * (2 * form.scalar_count)
    with numpy.errstate(all="ignore"):
        scalar, tile, *partials = numpy_partials(form)(*statistics, *scalars, *theta, False)
        scale = float(numpy.max(numpy.abs(scalar if tile is None else scalar * tile)))
        found = dict.fromkeys(distances, 1.0)
        for position, symbol in enumerate(program_of(form).present):
            if symbol.kind == "distance":
                scalar, tile = partials[2 * position], partials[2 * position + 1]
                slope = float(numpy.max(numpy.abs(scalar if tile is None else scalar * tile))) / max(scale, 1e-300)
                found[symbol.index] = max(1.0, slope) if slope == slope else numpy.inf
    return found
