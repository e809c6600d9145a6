"""The generated program of a form over NumPy arrays: the same text, started sooner than over torch tensors."""

import functools
from collections.abc import Callable
from typing import Any

import numpy

from flashgp.foundations.form import Form
from flashgp.pairwise.program.program import program_of
from flashgp.pairwise.program.tile_code import ELEMENTARY, RUNTIME

Array = numpy.ndarray


# -- the operations of the generated code, on arrays ---------------------------------------------------------------
def _scale(x: Array, s: float, own: bool) -> Array:
    return numpy.multiply(x, s, out=x if own else None)


def _axpy(total: Array, x: Array, s: float, own: bool) -> Array:
    return numpy.add(total, x if s == 1.0 else x * s, out=total if own else None)


def _shift(x: Array, s: float, own: bool) -> Array:
    return numpy.add(x, s, out=x if own else None)


def _times(x: Array, y: Array, own: bool) -> Array:
    return numpy.multiply(x, y, out=x if own else None)


def _elementary(name: str) -> Callable[..., Any]:
    of_float, of_array = RUNTIME[f"_{name}"], getattr(numpy, name)
    return lambda x, own=False: of_float(x) if isinstance(x, float) else of_array(x, out=x if own else None)


def _sqrt(x: Array, own: bool) -> Array:
    return numpy.sqrt(x, out=x if own else None)


def _power(x: Array, power: int, own: bool) -> Array:
    return numpy.power(x, float(power), out=x if own else None)


def _inverse_at(x: Array, power: int, own: bool) -> Array:
    result = numpy.zeros_like(x)
    return numpy.power(x, float(-power), out=result, where=x != 0.0)


_RUNTIME = {
    "_raised": RUNTIME["_raised"],
    **{f.__name__: f for f in (_scale, _axpy, _shift, _times, _sqrt, _power, _inverse_at)},
    **{f"_{name}": _elementary(name) for name in ELEMENTARY},
}


@functools.lru_cache(maxsize=256)
def numpy_partials(form: Form) -> Callable[..., Any]:
    """The generated `partials` of a form over NumPy arrays: see `Program.partials`."""
    return program_of(form).bound(_RUNTIME)["partials"]


@functools.lru_cache(maxsize=256)
def numpy_value(form: Form) -> Callable[..., Any]:
    """The generated `value` of a form over NumPy arrays: see `Program.value`; its result in a tuple."""
    return program_of(form).bound(_RUNTIME)["value"]
