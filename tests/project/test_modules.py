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


def test_doctests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    given = {"fgp": flashgp, "torch": torch}  # imported in each

    def failures(name: str) -> int:
        torch.manual_seed(0)
        return doctest.testmod(importlib.import_module(name), extraglobs=given, optionflags=options).failed

    assert [name for name in MODULES if failures(name)] == []


def exported(module: ModuleType) -> list[str]:
    """`__all__` where there is one; else the classes and functions of the module's own without an underscore."""
    own = [k for k, v in vars(module).items() if getattr(v, "__module__", None) == module.__name__ and k[0] != "_"]
    return list(getattr(module, "__all__", own))


def test_packages_and_what_users_import_from_list_their_exports() -> None:
    modules = [getattr(flashgp, name) for name in flashgp.__all__ if isinstance(getattr(flashgp, name), ModuleType)]
    assert [module.__name__ for module in modules if not hasattr(module, "__all__")] == []


def test_exports_exist_and_say_what_they_are() -> None:
    """As every module says what it holds."""
    silent = []
    for module in map(importlib.import_module, MODULES):
        if not module.__doc__ and Path(module.__file__ or "").read_text(encoding="utf-8"):
            silent.append(module.__name__)
        values = {f"{module.__name__}.{export}": getattr(module, export) for export in exported(module)}
        silent += [
            name for name, value in values.items() if (isclass(value) or isfunction(value)) and not value.__doc__
        ]
    assert silent == []


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
