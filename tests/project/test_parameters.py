"""A function of our own with more than eight parameters wants a value type; public functions keep their keywords."""

import ast
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import flashgp

MAX_PARAMETERS = 8  # without self and cls


def public_names() -> set[str]:
    """Names that users reach from the front door: its `__all__`, and that of the modules and packages in it."""
    names = (
        {*importlib.import_module("flashgp.interop.botorch").__all__} if importlib.util.find_spec("botorch") else set()
    )
    for name in flashgp.__all__:
        thing = getattr(flashgp, name)
        names |= {name, *getattr(thing, "__all__", ())} if isinstance(thing, ModuleType) else {name}
    return names


def long_functions(source: Path, public: set[str]) -> list[str]:
    """`path:line name (count)` of every function that takes too many; public ones and commands aside.

    Public are functions whose name is, the methods of a class whose name is (`__init__` with them), and commands, whose
    parameters are the options of a command line.
    """
    found: list[str] = []

    def visit(node: ast.AST, path: Path, owner: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                visit(child, path, child.name)
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                count = parameters(child, inside_class=bool(owner))
                if count > MAX_PARAMETERS and not (is_public(child, owner, public) or is_command(child)):
                    name = f"{owner}.{child.name}" if owner else child.name
                    found.append(f"{path.relative_to(source)}:{child.lineno} {name} ({count})")
                visit(child, path, "")
            else:
                visit(child, path, owner)

    for path in sorted(source.rglob("*.py")):
        visit(ast.parse(path.read_text(encoding="utf-8")), path, "")
    return found


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef, inside_class: bool) -> int:
    own = function.args
    plain = [*own.posonlyargs, *own.args]
    decorators = {getattr(d, "id", "") for d in function.decorator_list}
    bound = inside_class and plain and "staticmethod" not in decorators
    return len(plain) - bool(bound) + len(own.kwonlyargs) + (own.vararg is not None) + (own.kwarg is not None)


def is_public(function: ast.FunctionDef | ast.AsyncFunctionDef, owner: str, public: set[str]) -> bool:
    if owner:
        return owner in public and (not function.name.startswith("_") or function.name == "__init__")
    return function.name in public


def is_command(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("command" in ast.unparse(decorator) for decorator in function.decorator_list)


def test_no_function_of_our_own_takes_more_than_eight_parameters(root: Path) -> None:
    found = long_functions(root / "src" / "flashgp", public_names())
    assert not found, f"{len(found)} functions:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def f(a, b, c, d, e, f, g, h): ...", False),
        ("def f(a, b, c, d, e, f, g, h, i): ...", True),
        ("def f(a, b, c, d, e, f, g, *args, **kwargs): ...", True),
        ("class C:\n    def f(self, a, b, c, d, e, f, g, h, i): ...", True),
        ("class C:\n    @staticmethod\n    def f(a, b, c, d, e, f, g, h, i): ...", True),
        ("class Public:\n    def f(self, a, b, c, d, e, f, g, h, i): ...", False),
        ("class Public:\n    def _f(self, a, b, c, d, e, f, g, h, i): ...", True),
        ("def public(a, b, c, d, e, f, g, h, i): ...", False),
        ("@app.command()\ndef f(a, b, c, d, e, f, g, h, i): ...", False),
    ],
)
def test_what_counts(tmp_path: Path, text: str, found: bool) -> None:
    (tmp_path / "module.py").write_text(text, encoding="utf-8")
    assert bool(long_functions(tmp_path, {"Public", "public"})) is found


def test_public_names_are_those_of_the_front_door() -> None:
    names = public_names()
    assert {"GP", "fit", "plan", "Matern", "Gaussian", "cholesky"} <= names
    assert "conditioning_plan" not in names, "of a module that users do not import from"
