"""The Triton backend without a GPU: interpreted, compiled for one, and what needs neither.

The interpreted tests are in triton_interpreted.py, which runs in a process of its own (TRITON_INTERPRET is read when
triton is imported). Compiling for sm_90 needs no GPU, only the assembler that triton's package carries.
"""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from flashgp import kernels
from flashgp.foundations.errors import BackendUnavailableError, DomainError
from flashgp.foundations.workspace import Workspace
from flashgp.kernels import REGISTRY
from flashgp.pairwise.backend import BACKENDS
from flashgp.pairwise.problem import PairProblem
from flashgp.pairwise.triton import TritonTiles, launch
from flashgp.pairwise.triton.gradient_source import gradient_source
from flashgp.pairwise.triton.kernel_source import block_source, product_source

HERE = Path(__file__).resolve().parent
INSTALLED = importlib.util.find_spec("triton") is not None
needs_triton = pytest.mark.skipif(not INSTALLED, reason="triton is not installed")
TRITON = TritonTiles()


@needs_triton
def test_under_the_interpreter(request: pytest.FixtureRequest, source_environment: dict[str, str]) -> None:
    """Everything in triton_interpreted.py passes; with --slow, all examples and shapes."""
    root = HERE.parents[1]
    paths = [str(root / "src"), str(root / "tests")]
    environment = {**source_environment, "PYTHONPATH": os.pathsep.join(paths), "PYTHONWARNINGS": "ignore"}
    environment.pop("PYTHONSAFEPATH", None)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / "triton_interpreted.py")]
    command += ["--slow"] if request.config.getoption("--slow") else []
    run = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    assert re.search(r"\d+ passed", run.stdout)


def test_importing_the_backend_does_not_import_triton(source_environment: dict[str, str]) -> None:
    code = "import sys, flashgp.pairwise.triton; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=source_environment, check=False).returncode == 0


@needs_triton
def test_a_cpu_is_refused_in_float32() -> None:
    assert BACKENDS["triton"] is TritonTiles
    kernel = kernels.SquaredExponential()
    rows = kernel.rows(torch.zeros(3, 2)).detach()
    with pytest.raises(
        BackendUnavailableError, match=r"`rows` must be on a CUDA device .* got cpu; move x there or use"
    ):
        TRITON.product(PairProblem(kernel.form, [], rows), torch.ones(3, 1))


def test_float64_goes_to_the_torch_tiles() -> None:
    kernel = kernels.SquaredExponential()
    rows = kernel.rows(torch.zeros(3, 2)).detach()
    assert torch.equal(
        TRITON.product(PairProblem(kernel.form, [], rows), torch.ones(3, 1).double()), torch.full((3, 1), 3.0).double()
    )


def test_many_statistics_go_to_the_torch_tiles() -> None:
    """A kernel has lines and arguments for each: longer ones are not generated, and the report says what ran."""
    kernel = kernels.SpectralMixture([1.0] * 65, [0.3] * 65, [0.1] * 65)
    rows, right = kernel.rows(torch.rand(3, 1)).detach(), torch.ones(3, 1)
    theta, workspace = [t.detach() for t in kernel.theta()], Workspace()
    TRITON.product(PairProblem(kernel.form, theta, rows), right, workspace=workspace)
    assert workspace.backend == "portable backend"


def test_without_triton_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    kernel = kernels.SquaredExponential()
    rows = kernel.rows(torch.zeros(3, 2)).detach()
    with pytest.raises(BackendUnavailableError, match="install triton or use the backend 'torch'"):
        TRITON.block(PairProblem(kernel.form, [], rows), dtype=torch.float32)


def test_two_devices_are_both_named() -> None:
    kernel = kernels.SquaredExponential()
    rows = kernel.rows(torch.zeros(3, 2)).detach()
    elsewhere = kernel.rows(torch.zeros(3, 2, device="meta")).detach()
    with pytest.raises(DomainError, match="must be on cpu like `rows`, got meta"):
        TRITON.block(PairProblem(kernel.form, [], rows, elsewhere), dtype=torch.float32)


@needs_triton
def test_the_gpu_check_needs_few_packages(tmp_path: Path) -> None:
    """benchmark/gpu_check.py from source: beside torch, triton and jaxtyping, only what that machine has."""
    root = HERE.parents[1]
    code = f"""
import sys, runpy, torch, triton, jaxtyping
allowed = {{"flashgp", "numba", "numpy", "scipy", "safetensors", "filelock", "psutil", "torch", "triton"}}
allowed |= {{"sympy", "mpmath"}}  # which torch itself imports
known = {{name.split(".")[0] for name in sys.modules}} | sys.stdlib_module_names | allowed
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in known:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refuse())
sys.argv = ["gpu_check.py", "--part", "0/1", "--small", "--seconds", "0"]
import flashgp.bench, flashgp.pairwise.triton.launch
from flashgp.pairwise.program.source_cache import import_generated
from flashgp.pairwise.problem import PairProblem
assert import_generated("x = 1").x == 1
runpy.run_path({str(root / "benchmark" / "gpu_check.py")!r}, run_name="__main__")
"""
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), "FLASHGP_CACHE_DIR": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    assert "not run: the time budget was used up" in run.stdout
    assert (tmp_path / "generated").is_dir()


@needs_triton
@pytest.mark.slow
def test_the_gpu_check_without_a_gpu(source_environment: dict[str, str]) -> None:
    command = [sys.executable, str(HERE.parents[1] / "benchmark" / "gpu_check.py"), "--interpret"]
    run = subprocess.run(command, env=source_environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "5 of 5 interpreted checks passed" in run.stdout


# -- source -------------------------------------------------------------------------------------------------------
def test_source_is_the_same_for_equal_forms() -> None:
    """One compile per structure: parameter values, lengthscales and tables of other sizes change nothing."""
    texts = set()
    for lengthscale, variance in ((1.0, 2.0), (0.3, 5.0)):
        form = kernels.Scaled(kernels.Matern(2.5, lengthscale), variance).form
        for columns in (20, 26, 32):
            texts.add(product_source(form, launch.routes(form, [columns], False), False, 16))
    assert len(texts) == 1


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_every_source_is_python(name: str) -> None:
    for kernel in REGISTRY[name].examples(3):
        form = kernel.form
        if not form.fusable:  # Python functions stay on the portable backend
            continue
        for width in (3, 20, 100):
            columns = [0 if kind == "match" else width for kind in form.statistics]
            for careful in (False, True):
                routes = launch.routes(form, columns, careful)
                for text in (
                    product_source(form, routes, careful, 2),
                    product_source(form, routes, careful, 16),
                    block_source(form, routes, careful, True),
                    block_source(form, routes, careful, False),
                    gradient_source(form, routes, careful, "given", 0, 16, True),
                    gradient_source(form, routes, careful, "few", 2, 16, True),
                    gradient_source(form, routes, careful, "many", 16, 32, False),
                ):
                    compile(text, "<source>", "exec")


# -- compiled for a GPU that is not there -----------------------------------------------------------------------------
@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("which", ["forward", "gradient"])
def test_kernels_compile_for_hopper(which: str, source_environment: dict[str, str]) -> None:
    """RBF and Matern-3/2 at d=3, t=1 and d=26, t=64: no spills on the fast route, tensor cores where promised."""
    if not any((Path(p) / "backends/nvidia/bin/ptxas").exists() for p in _triton_folders()):
        pytest.skip("triton's package has no ptxas here")
    root = HERE.parents[1]
    environment = {k: v for k, v in source_environment.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "ignore", str(root / "benchmark" / "triton_compile.py"), which]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    rows = [line.split() for line in run.stdout.splitlines() if line.startswith("kernel")]
    assert rows
    for row in rows:
        found = dict(part.split("=", 1) for part in row[1:])
        assert int(found["registers"]) <= 255
        if found["route"] == "fast":
            assert int(found["stack"]) == 0, row
        if "d26" in found["name"] and found["route"] == "fast":
            assert int(found["tensor"]) > 0, row


def _triton_folders() -> list[str]:
    spec = importlib.util.find_spec("triton")
    assert spec is not None
    return list(spec.submodule_search_locations or [])
