"""The compiled elementary functions against NumPy's in extended precision, eqs. (M-65), (M-66), (M-67)."""

from collections.abc import Callable
from typing import Any

import numpy
import pytest

from flashgp.pairwise.cpu.backend import cpu_tiles_missing

pytestmark = pytest.mark.skipif(bool(cpu_tiles_missing()), reason="numba is not installed")

POINTS = {
    "exp2": numpy.concatenate([numpy.linspace(-125, 20, 20_001), numpy.linspace(-1e-3, 1e-3, 1001)]),
    "log1p": numpy.concatenate([numpy.logspace(-12, 8, 20_001), -numpy.logspace(-8, -0.01, 1001), [0.0]]),
    "cos": numpy.linspace(-500, 500, 20_001),
    "sin": numpy.linspace(-500, 500, 20_001),
}


def over(function: Callable[[Any], Any]) -> Callable[[Any, Any], None]:
    from numba import njit

    from flashgp.pairwise.cpu.arithmetic import FAST

    @njit(fastmath=FAST, error_model="numpy")
    def loop(x: Any, out: Any) -> None:
        for i in range(x.size):
            out[i] = function(x[i])

    return loop


@pytest.mark.parametrize("name", POINTS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_close_to_the_precision(name: str, dtype: str) -> None:
    """Also inside a loop that may reassociate, which must not undo their rounding."""
    from flashgp.pairwise.cpu.arithmetic import FUNCTIONS

    x = POINTS[name].astype(dtype)
    out = numpy.empty_like(x)
    over(FUNCTIONS[dtype][name])(x, out)
    wanted = getattr(numpy, name)(x.astype(numpy.longdouble))
    scale = numpy.abs(wanted) if name in ("exp2", "log1p") else 1.0
    error = numpy.abs(out - wanted) / numpy.maximum(scale, numpy.finfo(dtype).tiny)
    assert float(error.max()) <= 3 * numpy.finfo(dtype).eps  # the polynomial of 2^t in float32 alone is off by 1.7


def test_exp2_is_0_where_numbers_become_subnormal() -> None:
    from flashgp.pairwise.cpu.arithmetic import FUNCTIONS

    for below in (-1e30, -127.0, -126.0):
        assert FUNCTIONS["float32"]["exp2"](numpy.float32(below)) == 0
    assert FUNCTIONS["float32"]["exp2"](numpy.float32(-125.0)) == numpy.float32(2.0**-125)
    assert FUNCTIONS["float64"]["exp2"](-1e300) == 0
    assert FUNCTIONS["float64"]["exp2"](-1021.0) == 2.0**-1021
