"""Run-time check of the shapes and dtypes in annotations, for the test run only.

A function either refuses its arguments with an error of its own or keeps its annotations. So arguments and result are
checked together after the function has returned: checking before the call would hide the library's own errors behind
the checker's. Shapes are bound per call by jaxtyping: `n` in two arguments is one number. Annotations without a shape
are left to mypy.
"""

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

SOURCE = Path(__file__).resolve().parents[1] / "src" / "flashgp"
RESULT = re.compile(r"ret\d+")  # the name that jaxtyping gives the result, as no parameter of ours is called


def check_on_return(function: Callable[..., Any], *_: object, **__: object) -> Callable[..., Any]:
    """The type checker that jaxtyping's import hook calls.

    jaxtyping hands over two functions for each of ours: one with only the parameters, called before ours, and one that
    also receives the result, as a last keyword, called after. The first is left unchecked. Its return annotation of Any
    does not tell it: the other has that too where ours names a class that does not exist yet, such as its own.
    """
    last = list(inspect.signature(function).parameters.values())[-1:]
    if not last or last[0].kind is not inspect.Parameter.KEYWORD_ONLY or not RESULT.fullmatch(last[0].name):
        return function
    from beartype import BeartypeConf, beartype

    # jaxtyping made the function for this purpose: its annotations are ours to change.
    function.__annotations__.update({name: Any for name, hint in function.__annotations__.items() if not _shaped(hint)})
    return beartype(conf=BeartypeConf(is_pep484_tower=True))(function)  # the tower: an int is a float, as for mypy


def _shaped(hint: object) -> bool:
    """Whether an annotation holds a shape, at any depth."""
    from jaxtyping import AbstractArray

    return (isinstance(hint, type) and issubclass(hint, AbstractArray)) or any(_shaped(part) for part in get_args(hint))


def install() -> None:
    """Check every module of the package that imports shapes, from now on: the wrapper costs more than most functions,
    and would stand around those of modules without a shape for nothing."""
    from jaxtyping import install_import_hook

    install_import_hook(shaped_modules(), "shape_check.check_on_return")


def shaped_modules() -> list[str]:
    """The modules of the package whose annotations have shapes; no package, below which everything would be checked."""
    return [
        ".".join(["flashgp", *path.relative_to(SOURCE).with_suffix("").parts])
        for path in sorted(SOURCE.rglob("*.py"))
        if "\nfrom jaxtyping import " in path.read_text(encoding="utf-8")
    ]
