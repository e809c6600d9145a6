"""Run-time check of the shapes and dtypes in annotations, for the test run only.

A function either refuses its arguments with an error of its own or keeps its annotations. So arguments and result are
checked together after the function has returned: checking before the call would hide the library's own errors behind
the checker's. Shapes are bound per call by jaxtyping: `n` in two arguments is one number. Annotations without a shape
are left to mypy.
"""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

SOURCE = Path(__file__).resolve().parents[1] / "src" / "flashgp"

# Called for every pair of points by the reference backend, where the wrapper would dominate; or compiled by numba,
# which cannot compile the wrapper. No tensor is handled in either.
UNCHECKED = (
    "flashgp.foundations.expression",
    "flashgp.pairwise.cpu.arithmetic",
    "flashgp.pairwise.cpu.pulls",
    "flashgp.pairwise.cpu.sweeps",
)


def check_on_return(function: Callable[..., Any], *_: object, **__: object) -> Callable[..., Any]:
    """The type checker that jaxtyping's import hook calls.

    jaxtyping hands over two functions for each of ours: one with only the parameters, called before ours and marked
    by a return annotation of Any, and one that also receives the result, called after. The first is left unchecked.
    """
    if inspect.signature(function).return_annotation is Any and "return" in function.__annotations__:
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
    """Check every module of the package that is imported from now on, except those in UNCHECKED."""
    from jaxtyping import install_import_hook

    modules = [
        ".".join(["flashgp", *path.relative_to(SOURCE).with_suffix("").parts]).removesuffix(".__init__")
        for path in sorted(SOURCE.rglob("*.py"))
    ]
    checked = [name for name in modules if not name.startswith(UNCHECKED)]
    # The hook takes a name and everything below it, so packages that hold an exempt module are left to their modules.
    checked = [name for name in checked if not any(other.startswith(name + ".") for other in UNCHECKED)]
    install_import_hook(checked, "shape_check.check_on_return")
