"""Tests patch only what is not ours: what tunes or varies our own code is a setting, an argument or a seam."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PATCHES = ("setattr", "setitem", "delattr", "delitem")


def patched(tree: ast.AST) -> Iterator[str]:
    """What a test file patches of this library: names that it imports from it, and texts that name its modules."""
    ours = {"flashgp"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "flashgp":
            ours |= {alias.asname or alias.name for alias in node.names}
        if isinstance(node, ast.Import):
            ours |= {alias.asname for alias in node.names if alias.name.split(".")[0] == "flashgp" and alias.asname}
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in PATCHES):
            continue
        target = node.args[0]
        if isinstance(target, ast.Constant) and str(target.value).startswith("flashgp"):
            yield ast.unparse(node)
        while isinstance(target, ast.Attribute):
            target = target.value
        if isinstance(target, ast.Name) and target.id in ours:
            yield ast.unparse(node)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from flashgp.cli import plan as p\npatch.setattr(p, 'RATE', 2)", 1),
        ("import flashgp as fgp\nmonkeypatch.setattr(fgp.GP, 'condition', None)", 1),
        ("monkeypatch.setattr('flashgp.inference.fit.fit', None)", 1),
        ("from flashgp.cli import plan\nmonkeypatch.setitem(plan.TABLE, 'a', 1)", 1),
        ("import flashgp\nimport torch\nmonkeypatch.setattr(torch, 'empty', None)", 0),
        ("monkeypatch.setattr('os.replace', None)\nmonkeypatch.setenv('A', 'b')", 0),
    ],
)
def test_a_patch_is_seen(text: str, found: int) -> None:
    assert len(list(patched(ast.parse(text)))) == found


def test_nothing_of_ours_is_patched(root: Path) -> None:
    found = {
        str(path.relative_to(root)): calls
        for path in sorted((root / "tests").rglob("*.py"))
        if (calls := list(patched(ast.parse(path.read_text(encoding="utf-8")))))
    }
    assert found == {}
