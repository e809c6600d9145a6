"""What a Python function takes from where it was defined: closure cells, globals, defaults, attributes it names.

A traced form holds the numbers it met. Two forms are the same only where these values are, so they are part of the
key under which a form is remembered. Numbers, texts and containers of them count by value, functions of the user's by
their code and their own free values, objects and modules of the user's by identity and by those attributes that the
code names. What hides elsewhere (a property, a file, a number behind two objects) is not seen: `Custom.forget()`.
"""

import dis
import functools
import sys
from collections.abc import Callable, Hashable, Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy

__all__ = ["free_values", "outside"]

LIBRARIES = sys.stdlib_module_names | {"torch", "numpy", "scipy", "flashgp"}  # their functions and modules stay
Seen = set[tuple[int, frozenset[str]]]  # objects by identity, with the names under which they were looked at
PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), numpy.generic)


def outside(function: Any) -> Iterator[tuple[str, Any]]:
    """Names and values that a Python function takes from closure cells and globals; nothing for other callables."""
    function = getattr(function, "__func__", function)  # of a method
    if not isinstance(function, FunctionType):
        return
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not filled yet
            continue
    for name in _names(code)[0]:
        if name in function.__globals__:
            yield name, function.__globals__[name]


def free_values(function: Callable[..., Any]) -> Hashable:
    """A key that is equal as long as what the function takes from outside is.

    Cost: microseconds per name; a large array in a closure is read whole.
    """
    return _key(function, frozenset(), set())


@functools.lru_cache(maxsize=256)
def _names(code: CodeType) -> tuple[tuple[str, ...], frozenset[str]]:
    """The globals that code (and functions written inside it) loads, and every attribute or global it names."""
    loaded = [str(i.argval) for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"]
    named = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner_loaded, inner_named = _names(constant)
            loaded += inner_loaded
            named |= inner_named
    return tuple(dict.fromkeys(loaded)), frozenset(named)


class _Same:
    """Equal to itself alone; keeps its object alive, so that no other takes its address."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def _key(value: Any, named: frozenset[str], seen: Seen) -> Hashable:
    """A value as a key; `named` are the attributes that the code around it names, `seen` breaks cycles."""
    if isinstance(value, PLAIN):
        return type(value), repr(value)  # 1, 1.0 and True are three keys, as are 0.0 and -0.0
    if (id(value), named) in seen or _is_of_library(value):
        return _Same(value)
    seen.add((id(value), named))

    def keys(values: Any) -> tuple[Hashable, ...]:
        return tuple(_key(one, named, seen) for one in values)

    match value:
        case tuple() | list() | set() | frozenset():
            return type(value), keys(value)
        case dict():
            return dict, keys(value), keys(value.values())
        case numpy.ndarray():
            return value.dtype.str, value.shape, value.tobytes()
        case FunctionType():
            return _function_key(value, seen)
        case MethodType():
            return _function_key(value.__func__, seen), _attributes(value.__self__, _names_of(value.__func__), seen)
        case functools.partial():
            return functools.partial, *keys((value.func, value.args, value.keywords))
    called = getattr(type(value), "__call__", None)  # noqa: B004 - the method itself, to read its code
    if isinstance(called, FunctionType):
        return _function_key(called, seen), _attributes(value, named | _names_of(called), seen)
    return _attributes(value, named, seen)


def _function_key(function: Any, seen: Seen) -> Hashable:
    """Code, defaults and free values of a function written in Python."""
    if not isinstance(function, FunctionType):
        return _Same(function)
    named = _names_of(function)
    free = tuple((name, _key(one, named, seen)) for name, one in outside(function))
    defaults = _key(function.__defaults__, named, seen), _key(function.__kwdefaults__, named, seen)
    return _Same(function.__code__), free, defaults


def _names_of(function: Any) -> frozenset[str]:
    return _names(function.__code__)[1] if isinstance(function, FunctionType) else frozenset()


def _attributes(value: Any, named: frozenset[str], seen: Seen) -> Hashable:
    """An object or a module, and those of its own attributes that the code names."""
    own = getattr(value, "__dict__", {})
    return _Same(value), tuple((name, _key(own[name], named, seen)) for name in sorted(named & own.keys()))


def _is_of_library(value: Any) -> bool:
    if isinstance(value, BuiltinFunctionType | type):
        return True
    if not isinstance(value, ModuleType | FunctionType):
        return False
    home = value.__name__ if isinstance(value, ModuleType) else value.__module__
    return str(home).partition(".")[0] in LIBRARIES
