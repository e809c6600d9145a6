"""Every module of the package can be imported by itself, keeps its doctests, and lists what it exports."""

import ast
import doctest
import importlib
from inspect import isclass, isfunction
from pathlib import Path
from types import ModuleType

import pytest
import torch

import flashgp

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "flashgp"
MODULES = [
    ".".join(["flashgp", *path.relative_to(SOURCE).with_suffix("").parts]).removesuffix(".__init__")
    for path in sorted(SOURCE.rglob("*.py"))
    if path.name != "__main__.py"
]


@pytest.mark.parametrize("name", MODULES)
def test_doctests(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    options = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    given = {"fgp": flashgp, "torch": torch}  # imported in each
    assert doctest.testmod(importlib.import_module(name), extraglobs=given, optionflags=options).failed == 0


def exported(module: ModuleType) -> list[str]:
    """`__all__` where there is one; else the classes and functions of the module's own without an underscore."""
    own = [k for k, v in vars(module).items() if getattr(v, "__module__", None) == module.__name__ and k[0] != "_"]
    return list(getattr(module, "__all__", own))


def test_packages_and_what_users_import_from_list_their_exports() -> None:
    modules = [getattr(flashgp, name) for name in flashgp.__all__ if isinstance(getattr(flashgp, name), ModuleType)]
    assert [module.__name__ for module in modules if not hasattr(module, "__all__")] == []


@pytest.mark.parametrize("name", MODULES)
def test_exports_exist_and_say_what_they_are(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__ or not Path(module.__file__ or "").read_text(encoding="utf-8"), "a module says what it holds"
    values = {export: getattr(module, export) for export in exported(module)}
    silent = [export for export, value in values.items() if (isclass(value) or isfunction(value)) and not value.__doc__]
    assert silent == [], "an exported class or function says what it is"


def test_no_postponed_annotations() -> None:
    # Shapes are checked on real annotation objects.
    postponed = [
        str(path)
        for path in SOURCE.rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ImportFrom) and node.module == "__future__"
    ]
    assert postponed == []


def test_what_the_solver_contract_takes_is_at_hand_in_its_package() -> None:
    import flashgp.solvers as package
    from flashgp.solvers import contract

    internal = {"Index", "check_residual"}  # of System's annotations, and for implementations
    assert set(exported(contract)) - internal <= set(package.__all__)
