"""No file of the package imports itself by way of others: all imports count, also late ones and those for annotations.

A reader who follows imports down arrives at the bottom. One late import is sanctioned, as in the layer map: a kernel's
public method `operator`.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "flashgp"
SANCTIONED = {("flashgp.kernels", "flashgp.operators")}  # a file under the first may import one under the second


def modules(source: Path) -> dict[str, Path]:
    """Every module of the package by its dotted name; a package is its `__init__`."""
    named = {}
    for path in sorted(source.rglob("*.py")):
        parts = [PACKAGE, *path.relative_to(source).with_suffix("").parts]
        named[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return named


def imported(module: str, path: Path, known: dict[str, Path]) -> set[str]:
    """The modules of the package that a file imports anywhere in it, the front door aside."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    targets: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            targets |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                base = ".".join(parents[: len(parents) - node.level + 1] + ([base] if base else []))
            names = {f"{base}.{alias.name}" for alias in node.names}
            targets |= {name if name in known else base for name in names}
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "import_module":
            targets |= {a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)}
    return {
        name for name in targets if name in known and name not in (module, PACKAGE) and not _sanctioned(module, name)
    }


def _sanctioned(module: str, target: str) -> bool:
    return any(f"{module}.".startswith(f"{low}.") and f"{target}.".startswith(f"{high}.") for low, high in SANCTIONED)


def circles(source: Path) -> list[list[str]]:
    """Sets of files each of which leads to every other, largest first: strongly connected components (Tarjan 1972)."""
    known = modules(source)
    graph = {module: imported(module, path, known) for module, path in known.items() if module != PACKAGE}
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    open_: list[str] = []
    components: list[list[str]] = []
    for root in graph:
        if root in number:
            continue
        number[root] = low[root] = len(number)
        open_.append(root)
        work: list[tuple[str, Iterator[str]]] = [(root, iter(graph[root]))]
        while work:
            module, left = work[-1]
            for target in left:
                if target not in number:
                    number[target] = low[target] = len(number)
                    open_.append(target)
                    work.append((target, iter(graph[target])))
                    break
                if target in open_:
                    low[module] = min(low[module], number[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[module])
                if low[module] == number[module]:
                    at = open_.index(module)
                    components.append(sorted(open_[at:]))
                    del open_[at:]
    return sorted((c for c in components if len(c) > 1), key=lambda c: (-len(c), c))


def test_no_file_imports_itself_by_way_of_others(root: Path) -> None:
    found = circles(root / "src" / PACKAGE)
    assert not found, "\n".join(f"{len(one)} files: {', '.join(one)}" for one in found)


@pytest.mark.parametrize(
    "back",
    [
        "from flashgp.high import thing",
        "def f():\n    from flashgp.high import thing",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from flashgp.high import thing",
        "from .high import thing",
        "from . import high",
        "import flashgp.high as other",
        "import importlib\nimportlib.import_module('flashgp.high')",
    ],
)
def test_a_circle_is_found_however_it_is_written(tmp_path: Path, back: str) -> None:
    planted(
        tmp_path, {"low.py": back, "middle.py": "from flashgp.low import thing", "high.py": "import flashgp.middle"}
    )
    assert circles(tmp_path) == [["flashgp.high", "flashgp.low", "flashgp.middle"]]


@pytest.mark.parametrize(
    "files",
    [
        {"low.py": "", "middle.py": "import flashgp.low", "high.py": "import flashgp.middle\nimport flashgp.low"},
        {"kernels/base.py": "def f():\n    from flashgp.operators.lazy import thing",
         "operators/lazy.py": "import flashgp.kernels.base"},
        {"low.py": "import os\nimport flashgp", "__init__.py": "from flashgp import low"},
    ],
)  # fmt: skip
def test_what_is_no_circle_passes(tmp_path: Path, files: dict[str, str]) -> None:
    planted(tmp_path, files)
    assert circles(tmp_path) == []


def planted(source: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
