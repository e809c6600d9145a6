"""How much code a folder of src/ may hold: code_budget.txt. Growth is a change of that file, so someone decides it.

Code is what remains without blank lines, comments and docstrings. `python tests/project/test_code_budget.py` rewrites
the file from what there is.
"""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "flashgp"
BUDGET = Path(__file__).with_name("code_budget.txt")


def code_lines(text: str) -> int:
    """Lines of a module that are neither blank nor comments nor in docstrings."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(getattr(first.value, "value", None), str):
                documented |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    numbered = enumerate(text.splitlines(), 1)
    return sum(bool(t.strip()) and not t.strip().startswith("#") and i not in documented for i, t in numbered)


def counted() -> dict[str, int]:
    """Code lines by folder below the package; "." for its own files."""
    found: dict[str, int] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).parts
        folder = parts[0] if len(parts) > 1 else "."
        found[folder] = found.get(folder, 0) + code_lines(path.read_text())
    return found


def allowed() -> dict[str, int]:
    return {folder: int(lines) for folder, lines in map(str.split, BUDGET.read_text().splitlines())}


def over(found: dict[str, int], budget: dict[str, int]) -> dict[str, str]:
    return {
        folder: f"{lines} of {budget.get(folder, 0)}"
        for folder, lines in found.items()
        if lines > budget.get(folder, 0)
    }


def test_no_folder_holds_more_code_than_its_budget() -> None:
    assert over(counted(), allowed()) == {}, "delete elsewhere in the folder, or raise its line in code_budget.txt"


def test_a_budget_follows_what_was_deleted() -> None:
    """What a folder no longer needs is given back: budgets stay within 150 lines of what there is."""
    found = counted()
    assert {folder: lines for folder, lines in allowed().items() if lines - found.get(folder, 0) > 150} == {}


@pytest.mark.parametrize(
    ("text", "lines"),
    [('"""About."""\n\nx = 1\n', 1), ("# no\ndef f():\n    '''Two\n    lines.'''\n    return 1\n", 2), ("", 0)],
)
def test_what_counts_as_code(text: str, lines: int) -> None:
    assert code_lines(text) == lines


def test_growth_and_new_folders_are_seen() -> None:
    assert over({"a": 3, "b": 1}, {"a": 2}) == {"a": "3 of 2", "b": "1 of 0"}


if __name__ == "__main__":
    BUDGET.write_text("".join(f"{folder} {lines}\n" for folder, lines in counted().items()))
