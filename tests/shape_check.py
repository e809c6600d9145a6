"""Run-time check of the shapes and dtypes in annotations, for the test run only.

A function either refuses its arguments with an error of its own or keeps its annotations. So arguments and result are
checked together after the function has returned: checking before the call would hide the library's own errors behind
the checker's. Shapes are bound per call by jaxtyping: `n` in two arguments is one number. Annotations without a shape
are left to mypy, and functions without one as they are. Shapes and dtypes that a function has kept once are not
compared again: what jaxtyping does of each call took a third of the time of the tests of few rows.
"""

import dataclasses
import functools
import inspect
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any, get_args

SOURCE = Path(__file__).resolve().parents[1] / "src" / "flashgp"


class Unknown(Exception):  # noqa: N818 - no error
    pass


def checked(function: Any, **_: object) -> Any:
    """A function whose shaped arguments and result are compared with their annotations after it has returned; or a
    dataclass whose fields are. It stands for `jaxtyping.jaxtyped`."""
    if inspect.isclass(function):
        if dataclasses.is_dataclass(function) and "__init__" in vars(function):
            function.__init__ = checked(function.__init__)  # type: ignore[misc]
        return function
    hints = {name: hint for name, hint in function.__annotations__.items() if _shaped(hint)}
    if not hints:
        return function
    signature, result = inspect.signature(function), hints.pop("return", None)
    assert all("VAR" not in signature.parameters[name].kind.name for name in hints), "shapes of *args are not checked"
    places = [
        (list(signature.parameters).index(name), f"argument `{name}`", name, hint) for name, hint in hints.items()
    ]
    names_arguments = any("{" in repr(hint) for hint in (*hints.values(), result))  # in sizes, such as "{count} n"
    kept = set[Any]()

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        found = function(*args, **kwargs)
        values = [args[place] if place < len(args) else kwargs.get(name) for place, _, name, _ in places]
        try:
            seen = None if names_arguments else (_seen(found), *map(_seen, values))
        except Unknown:
            seen = None
        if seen is None or seen not in kept:
            bound = signature.bind(*args, **kwargs)
            given = [(what, bound.arguments[name], hint) for _, what, name, hint in places if name in bound.arguments]
            bound.apply_defaults()  # sizes may be among them
            _compare(function, bound.arguments, [*given, *([("return value", found, result)] if result else [])])
            kept.add(seen)
        return found

    return call


def _seen(value: Any) -> Any:
    """All of a value that its check depends on; `Unknown` where that may be more, as in a dictionary."""
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, (tuple, list)):
        return type(value), *map(_seen, value)
    if hasattr(value, "dtype"):
        return type(value), value.shape, value.dtype
    if isinstance(value, Container):
        raise Unknown
    return type(value)


def _compare(function: Any, arguments: dict[str, Any], given: list[tuple[str, Any, Any]]) -> None:
    from beartype import BeartypeConf
    from beartype.door import is_bearable
    from jaxtyping import TypeCheckError
    from jaxtyping._storage import pop_shape_memo, push_shape_memo, shape_str

    tower = BeartypeConf(is_pep484_tower=True)  # an int is a float, as for mypy
    sizes = push_shape_memo(dict(arguments))
    try:
        for what, value, hint in given:
            if not is_bearable(value, hint, conf=tower):
                got = (value.dtype, tuple(value.shape)) if hasattr(value, "shape") else value
                raise TypeCheckError(f"{what} of {function.__qualname__} must be {hint}, got {got}. {shape_str(sizes)}")
    finally:
        pop_shape_memo()


def _shaped(hint: object) -> bool:
    """Whether an annotation holds a shape, at any depth."""
    from jaxtyping import AbstractArray

    return (isinstance(hint, type) and issubclass(hint, AbstractArray)) or any(_shaped(part) for part in get_args(hint))


def install(modules: Iterable[str] = ()) -> Any:
    """Check modules from when they are imported: each of the package that imports shapes, or others."""
    import jaxtyping

    jaxtyping.jaxtyped = lambda **_: checked  # what the hook puts around each function
    return jaxtyping.install_import_hook([*modules] or shaped_modules(), None)


def shaped_modules() -> list[str]:
    """The modules of the package whose annotations have shapes; no package, below which everything would be checked."""
    return [
        ".".join(["flashgp", *path.relative_to(SOURCE).with_suffix("").parts])
        for path in sorted(SOURCE.rglob("*.py"))
        if "\nfrom jaxtyping import " in path.read_text(encoding="utf-8")
    ]
