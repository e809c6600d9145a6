"""Every public name has an example in its docstring; test_modules.py runs them."""

import dataclasses
import doctest
import enum
import importlib
import inspect
from collections.abc import Iterator
from typing import Any

MODULES = ("flashgp", "bench", "kernels", "likelihoods", "linalg", "means", "operators", "plots")


def public() -> Iterator[tuple[str, Any]]:
    """Public classes and functions by name, errors and modules aside; an alias counts once."""
    seen: set[int] = set()
    for name in MODULES:
        module = importlib.import_module("flashgp" if name == "flashgp" else f"flashgp.{name}")
        names = getattr(module, "__all__", ())
        for entry in sorted(names):
            value = getattr(module, entry)
            if not (inspect.isclass(value) or inspect.isfunction(value)) or id(value) in seen:
                continue
            if inspect.isclass(value) and (issubclass(value, BaseException) or _is_result(value)):
                continue
            seen.add(id(value))
            yield (entry if name == "flashgp" else f"{name}.{entry}"), value


def _is_result(value: type) -> bool:
    """Values that functions return, protocols and enumerations: the function's example shows them."""
    if issubclass(value, enum.Enum):
        return True
    return dataclasses.is_dataclass(value) or getattr(value, "_is_protocol", False)


PUBLIC = dict(public())


def examples(name: str) -> list[doctest.DocTest]:
    """Those of the object and of its own methods."""
    return [test for test in doctest.DocTestFinder().find(PUBLIC[name], name) if test.examples]


def test_public_names_have_an_example() -> None:
    assert [name for name in PUBLIC if not examples(name)] == []
