"""How steep a profile is in its distances: what an error of a squared distance does to a covariance, eq. (M-75).

The slope of most profiles is a property of the formula; where it depends on parameters (a scale inside the profile, as
`Custom` functions may have), it is looked at for their values.
"""

import functools
from collections.abc import Sequence

import numpy
import torch
from torch import Tensor

from flashgp.foundations.form import Form
from flashgp.pairwise.numpy_program import numpy_partials
from flashgp.pairwise.program import program_of

__all__ = ["steepness"]

GRID = numpy.exp2(numpy.arange(-80.0, 41.0))  # squared distances: a profile changes within one in a few octaves


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


@functools.lru_cache(maxsize=512)
def _depends_on_theta(form: Form) -> bool:
    """Whether other parameters give other slopes."""
    if not form.parameter_count:
        return False
    one = _slopes(form, (1.0,) * form.parameter_count)
    other = _slopes(form, tuple(1.0 + 2.0**0.5 * (k + 1) for k in range(form.parameter_count)))
    return any(abs(one[k] - other[k]) > 1e-9 * one[k] for k in one)


@functools.lru_cache(maxsize=4096)
def _slopes(form: Form, theta: tuple[float, ...]) -> dict[int, float]:
    distances = [k for k, kind in enumerate(form.statistics) if kind == "distance"]
    # Every distance alone, the others 0, then all together.
    runs = [*([k] for k in distances), distances]
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
