"""Every public name has an example in its docstring, which test_modules.py runs, and sections that a site renders."""

import dataclasses
import doctest
import enum
import importlib
import inspect
import re
from collections.abc import Iterator
from types import FunctionType
from typing import Any

NAMES = "bench data files kernels likelihoods linalg means operators plots processes"
SECTIONED = ("flashgp", *(f"flashgp.{name}" for name in NAMES.split()))
TITLE = re.compile(r"(Args|Attributes|Fields|Returns|Raises)\b.*:.*")
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


def documented() -> Iterator[tuple[str, Any]]:
    """Classes and functions that users call, by name, and the public methods of these classes."""
    for module in map(importlib.import_module, SECTIONED):
        for entry in module.__all__:
            value = getattr(module, entry)
            if inspect.isclass(value) and not issubclass(value, BaseException):
                for name, member in vars(value).items():
                    if not name.startswith("_") and isinstance(member, FunctionType | classmethod | property):
                        yield f"{entry}.{name}", getattr(value, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                yield entry, value


def malformed(text: str) -> Iterator[str]:
    """Lines that begin a section and that sphinx or mkdocs do not render as one, and entries of several names."""
    title, above = "", ""
    for line in inspect.cleandoc(text).splitlines():
        if line and not line.startswith(" "):
            title = line.removesuffix(":") if TITLE.fullmatch(line) else ""
            if title and (title not in ("Args", "Attributes", "Returns", "Raises") or above):
                yield line
        entry = re.fullmatch(r" {4}(\S.*)", line)
        if entry and title in ("Args", "Attributes", "Raises") and not re.match(r"\w+: \S", entry[1]):
            yield line
        above = line


def arguments(text: str) -> list[str]:
    """Names of a docstring's arguments; none without the section."""
    _, _, rest = inspect.cleandoc(text).partition("\nArgs:\n")
    return re.findall(r"^ {4}(\w+):", re.split(r"\n(?! |\n)", rest)[0], re.MULTILINE)


def test_public_sections_have_one_argument_or_error_a_line() -> None:
    assert [f"{name}: {line}" for name, value in documented() for line in malformed(value.__doc__ or "")] == []


def test_public_sections_name_every_argument() -> None:
    wrong = {}
    for name, value in documented():
        given = arguments(value.__doc__ or "")
        if given and given != (expected := [*inspect.signature(value).parameters])[expected[:1] == ["self"] :]:
            wrong[name] = given
    assert wrong == {}
