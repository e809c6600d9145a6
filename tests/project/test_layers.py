"""Imports point down only: every import in src/flashgp is read and compared with the layer map."""

import ast
from dataclasses import dataclass
from pathlib import Path

import pytest

# Bottom up. A name is a module or a package directly under flashgp; modules of one layer may import each other.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("foundations",),
    ("linalg", "sources", "processes"),
    ("kernels", "means", "likelihoods"),
    ("pairwise",),
    ("planner",),
    ("operators",),
    ("solvers",),
    ("inference",),
    # The edges.
    ("drawing",),
    ("page",),
    ("files",),
    ("scores",),
    ("target_transform",),
    ("targets",),
    ("units",),
    ("choices",),
    ("plots", "table"),
    ("data",),
    ("kernel_expression",),
    ("fitted_table",),
    ("table_fit",),
    ("table_model",),
    ("estimator_base",),
    ("classifier", "estimator"),
    ("model_files",),
    ("bench", "diagnosis", "interop", "profiling"),
    ("cli",),
    ("__main__",),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
EDGES = RANK["drawing"]

# The one sanctioned late import: `k.operator(x1, x2)`. In one file, inside that method, or for its annotation.
LATE_IMPORTS = {("kernels", "operator", "operators"), ("kernels", "TYPE_CHECKING", "operators")}


@dataclass(frozen=True)
class Import:
    """One import of a flashgp module: where it stands, what it names, the method or `if TYPE_CHECKING` around it."""

    path: Path
    line: int
    target: str
    within: str


def imports(path: Path, source: Path) -> list[Import]:
    """Every import of the package by the file at path, at module level and inside functions.

    Written in absolute or relative form, or as importlib.import_module("flashgp..."); `from flashgp.a import b`
    names flashgp.a.b when that is a module, flashgp.a otherwise.
    """
    package = ["flashgp", *path.relative_to(source).parent.parts]
    found: list[Import] = []

    def visit(node: ast.AST, within: str, inside_class: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend(Import(path, node.lineno, alias.name, within) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join(package[: len(package) - node.level + 1] + ([node.module] if node.module else []))
            for alias in node.names:
                name = f"{base}.{alias.name}"
                found.append(Import(path, node.lineno, name if _is_module(name, source) else base, within))
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "import_module":
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                found.append(Import(path, node.lineno, first.value, within))
        if isinstance(node, ast.FunctionDef) and inside_class and not within:
            within = node.name
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            within = "TYPE_CHECKING"
        for child in ast.iter_child_nodes(node):
            visit(child, within, isinstance(node, ast.ClassDef))

    visit(ast.parse(path.read_text(encoding="utf-8")), "", False)
    return [one for one in found if one.target.split(".")[0] == "flashgp"]


def _is_module(name: str, source: Path) -> bool:
    parts = name.split(".")
    if parts[0] != "flashgp":
        return False
    place = source.joinpath(*parts[1:])
    return place.with_suffix(".py").is_file() or place.is_dir()


def violations(source: Path) -> list[str]:
    """What breaks the map, one line each; empty when every arrow points down."""
    problems: list[str] = []
    late: set[Path] = set()
    for path in sorted(source.rglob("*.py")):
        own = path.relative_to(source).with_suffix("").parts[0]
        if own == "__init__":
            continue  # the package's own front door: it may import anything, lazily (test_import.py)
        if own not in RANK:
            problems.append(f"{path}: no layer claims `{own}`; give it a place in LAYERS of {Path(__file__).name}")
            continue
        for one in imports(path, source):
            place = f"{path}:{one.line}"
            target = one.target.split(".")[1] if "." in one.target else ""
            if not target:
                if RANK[own] < EDGES:
                    problems.append(f"{place}: `{own}` imports the front door; import the module that holds it")
            elif target not in RANK:
                problems.append(f"{place}: imports `{one.target}`, which no layer claims")
            elif (own, one.within, target) in LATE_IMPORTS:
                late.add(path)
            elif RANK[target] > RANK[own]:
                problems.append(f"{place}: `{own}` imports `{one.target}`, a layer above it")
    if len(late) > 1:
        problems.append(f"the sanctioned late import stands in more than one file: {sorted(map(str, late))}")
    return problems


def test_imports_point_down(root: Path) -> None:
    source = root / "src" / "flashgp"
    assert any(source.rglob("*.py"))
    problems = violations(source)
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    ("module", "text", "problem"),
    [
        ("foundations/numerics.py", "import flashgp.kernels", "a layer above it"),
        ("kernels/base.py", "from flashgp import operators", "a layer above it"),
        ("kernels/base.py", "from ..operators import Dense", "a layer above it"),
        ("kernels/base.py", "import importlib\nimportlib.import_module('flashgp.solvers')", "a layer above it"),
        ("kernels/base.py", "class K:\n    def operator(self):\n        import flashgp.solvers", "a layer above it"),
        ("kernels/base.py", "if TYPE_CHECKING:\n    from flashgp.inference import GP", "a layer above it"),
        ("planner/plan.py", "from flashgp.operators import Dense", "a layer above it"),
        ("solvers/direct.py", "import flashgp", "front door"),
        ("solvers/direct.py", "from flashgp.helpers import f", "which no layer claims"),
        ("helpers.py", "", "no layer claims `helpers`"),
    ],
)
def test_an_arrow_up_is_found(tmp_path: Path, module: str, text: str, problem: str) -> None:
    for name in ("operators", "solvers", "inference", "kernels", "planner", "foundations", "files"):
        (tmp_path / name).mkdir()
    (tmp_path / module).write_text(text)
    assert [problem in line for line in violations(tmp_path)] == [True]


def test_what_is_allowed_passes(tmp_path: Path) -> None:
    allowed = {
        "__init__.py": "from flashgp.inference import gp\nimport flashgp.cli",
        "kernels/base.py": "import torch\nfrom flashgp.foundations import errors\nfrom . import matern\n"
        "if TYPE_CHECKING:\n    from flashgp.operators import Dense\n"
        "class K:\n    def operator(self):\n        from flashgp.operators import Dense",
        "kernels/matern.py": "from flashgp.means import Zero\nfrom ..foundations.errors import ShapeError",
        "cli.py": "import flashgp\nfrom flashgp import GP\nfrom flashgp.plots import calibration",
        "table/read.py": "from flashgp.foundations.json_values import refused",
    }
    for name, text in allowed.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert violations(tmp_path) == []
    (tmp_path / "kernels/second.py").write_text(allowed["kernels/base.py"])
    assert ["more than one file" in line for line in violations(tmp_path)] == [True]
