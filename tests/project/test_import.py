"""`import flashgp` is light, and loads on every operating system."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = (
    "numba", "llvmlite", "triton", "sklearn", "matplotlib", "pandas", "polars", "narwhals", "pyarrow",
    "typer", "rich", "psutil", "gpytorch", "botorch",
)  # fmt: skip

# Not on Windows.
UNIX_MODULES = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
UNIX_NAMES = {
    "fork",
    "register_at_fork",
    "sched_getaffinity",
    "sched_setaffinity",
    "getuid",
    "geteuid",
    "sysconf",
    "uname",
}


def python(code: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)


def test_what_is_loaded_comes_with_what_needs_it(source_environment: dict[str, str]) -> None:
    """Torch with the first name: until then the command line answers Ctrl-C at once. Nothing heavy on import, no SymPy
    for first steps (half a second), no compiler for fits of few rows, scikit-learn for the estimator alone."""
    code = """
import json, sys
import flashgp.cli
print("torch" in sys.modules)
import torch
before = set(sys.modules)
import flashgp as fgp
fgp.GP, fgp.Parameter, fgp.kernels, fgp.likelihoods, fgp.means
print(json.dumps(sorted(set(sys.modules) - before)))
gp, few = fgp.GP(1.0 * fgp.kernels.Matern(nu=1.5)), {"max_iterations": 2, "starts": 1}
fgp.plan(gp, n=36_000, d=8, n_test=4_000)
x = torch.rand(420, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
post = gp.condition(x[:20], x[:20, 0]).append(x[:1] + 1.0, x[:1, 0])
post.predict(x[:20]).variance, gp.kernel.operator(x) @ x
fitted = fgp.fit(gp, x, torch.sin(9.0 * x[:, 0]), **few)
print(len({entry.run.stage for entry in fitted.history}))  # all rows from the curvature of some
print({"numba", "sympy", "sklearn", "pandas", "narwhals", "pyarrow", "matplotlib"} & set(sys.modules))
sys.modules["pandas"] = sys.modules["polars"] = None
import flashgp.table, flashgp.plots
print({"sklearn", "pyarrow", "narwhals", "matplotlib"} & set(sys.modules))
fgp.GPRegressor(**few).fit(x.numpy(), torch.sin(9.0 * x[:, 0]).numpy()).predict(x[:5].numpy())
print({"numba", "sympy", "matplotlib"} & set(sys.modules))
print([name for name in fgp.__all__ if not hasattr(fgp, name)])
"""
    run = python(code, source_environment)
    assert run.returncode == 0, run.stderr
    assert "flashgp" not in run.stderr
    torch, loaded, *others = run.stdout.splitlines()
    assert (torch, others) == ("False", ["2", "set()", "set()", "set()", "[]"])
    assert "flashgp.inference.gp" in json.loads(loaded)
    heavy = [name for name in json.loads(loaded) if name.split(".")[0] in HEAVY or name == "scipy.optimize"]
    assert heavy == [], "import them inside the functions that use them"


def test_a_command_loads_what_it_runs_and_its_process_freezes_that(source_environment: dict[str, str]) -> None:
    """What other commands need is not loaded; `main` freezes nothing, the process of the command does, and collects
    again once its work begins. A file of text is read without pandas, which takes longer than all else of it."""
    code = """
import contextlib, gc, sys
from flashgp.cli import process
from flashgp.cli.application import main
print(*sys.modules)
sys.argv = ["flashgp", "--version"]
with contextlib.suppress(SystemExit):
    main()
counts = [gc.get_freeze_count()]
with contextlib.suppress(SystemExit):
    process()
print(*counts, gc.get_freeze_count() > 10_000)
sys.argv = ["flashgp", "plan", "--rows", "100", "--columns", "2", "--quiet"]
with contextlib.suppress(SystemExit):
    process()
from flashgp.table import read_table
read_table("data/concrete.csv")
print(gc.isenabled(), "pandas" in sys.modules)
"""
    run = python(code, source_environment)
    assert run.returncode == 0, run.stderr
    others = {"flashgp.bench", "flashgp.diagnosis", "flashgp.inference.posterior", "flashgp.table"}
    assert others & set(run.stdout.splitlines()[0].split()) == set()
    assert run.stdout.splitlines()[-2:] == ["0 True", "True False"], run.stderr


def test_import_without_what_only_unix_has(source_environment: dict[str, str]) -> None:
    code = f"""
import os, sys, torch, logging, random, concurrent.futures, multiprocessing
for name in {sorted(UNIX_NAMES)}:
    if hasattr(os, name):
        delattr(os, name)
for name in {sorted(UNIX_MODULES)}:
    sys.modules[name] = None
import flashgp
"""
    run = python(code, source_environment)
    assert run.returncode == 0, run.stderr


def unix_imports(text: str) -> list[str]:
    """Unix-only modules imported where the module is read, outside functions and outside try."""
    found: list[str] = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Try | ast.If):
            return
        if isinstance(node, ast.Import):
            found.extend(alias.name for alias in node.names if alias.name.split(".")[0] in UNIX_MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in UNIX_MODULES:
            found.append(str(node.module))
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(text))
    return found


def test_no_module_needs_unix_to_be_read(root: Path) -> None:
    modules = sorted((root / "src").rglob("*.py"))
    found = {str(path): names for path in modules if (names := unix_imports(path.read_text(encoding="utf-8")))}
    assert found == {}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("import resource", ["resource"]),
        ("from fcntl import flock", ["fcntl"]),
        ("class A:\n    import pwd", ["pwd"]),
        ("def f():\n    import resource", []),
        ("try:\n    import fcntl\nexcept ImportError:\n    fcntl = None", []),
        ("import os\nimport resources", []),
    ],
)
def test_unix_imports_are_found(text: str, names: list[str]) -> None:
    assert unix_imports(text) == names


def test_version_needs_no_torch(root: Path) -> None:
    # setuptools reads the version from the source text; a computed one would import torch while building.
    text = (root / "src" / "flashgp" / "__init__.py").read_text(encoding="utf-8")
    assigned = [
        node.value
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and [getattr(t, "id", "") for t in node.targets] == ["__version__"]
    ]
    assert len(assigned) == 1
    assert isinstance(assigned[0], ast.Constant)
