"""What every test shares: reproducible property tests, checked shapes, markers, and the data beside the checkout.

Torch's flags stay as they are: the library must not depend on them. Each worker has its share of the cores.
"""

import contextlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import settings

import shape_check

ROOT = Path(__file__).resolve().parents[1]

# No result of a test may depend on what `flashgp tune` once measured here; child processes inherit it.
os.environ["FLASHGP_PROFILE"] = "built-in"

# Beside another worker, threads that wait by spinning take the core that the other would compute on, and so do more
# threads than its share of the cores. It counts where it is set before torch is imported.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    share = (os.cpu_count() or 1) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, share)))

# Folders of code that divides its work among threads, which has two of them in every run.
THREADED = {ROOT / "tests" / name for name in ("linalg", "operators", "pairwise", "solvers")}

if os.environ.get("FLASHGP_CHECK_SHAPES", "1") == "0":
    SHAPES = "not checked: FLASHGP_CHECK_SHAPES=0"
elif importlib.util.find_spec("beartype") is None:
    SHAPES = "not checked: beartype is not installed"
else:
    assert "flashgp" not in sys.modules, "flashgp was imported before its shapes could be checked"
    shape_check.install()
    SHAPES = "checked"

# The same examples in every run: a failure is a failure for everybody.
settings.register_profile("flashgp", deadline=None, derandomize=True)
settings.load_profile("flashgp")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")


def pytest_report_header() -> str:
    import torch

    return f"shapes {SHAPES}; torch {torch.__version__} with {torch.get_num_threads()} threads"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if "slow" in item.keywords and not config.getoption("--slow"):
            item.add_marker(pytest.mark.skip(reason="slow: runs with --slow"))
        if "gpu" in item.keywords and not _accelerator():
            item.add_marker(pytest.mark.skip(reason="needs an accelerator, and torch finds none"))


def _accelerator() -> bool:
    import torch

    return torch.accelerator.is_available()


@pytest.fixture(autouse=True)
def two_threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where work is divided among threads, though a worker may have one core."""
    if request.path.parent not in THREADED:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(max(2, before))
    yield
    torch.set_num_threads(before)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Which no busy core holds up, and whose bits repeat."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of published regression tables, beside the checkout; the test is skipped where it is absent."""
    path = ROOT.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip(f"needs the regression tables, and there is no {path.parent.name}/{path.name} beside the checkout")
    return path


@pytest.fixture
def source_environment() -> dict[str, str]:
    """Environment for a fresh interpreter that finds the package in src/."""
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONWARNINGS": "default", "PYTHONSAFEPATH": "1"}


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for measured profiles that is not there yet, and a process that has read none."""
    from flashgp.foundations.profile_store import CHOICE, forget_profiles

    monkeypatch.setenv(CHOICE, str(tmp_path / "profiles"))
    forget_profiles()
    yield tmp_path / "profiles"
    forget_profiles()


@pytest.fixture
def set_free_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., int]]:
    """Sets the bytes that may be taken, as the system and an accelerator say it; gives those of the host, exactly."""
    import torch

    from flashgp.foundations.machine import FREE_MEMORY_SHARE, available_bytes
    from machine_root import MachineRoot

    machines = contextlib.ExitStack()

    def set_to(host: int, accelerator: int | None = None) -> int:
        machine = machines.enter_context(MachineRoot(tmp_path / "root", monkeypatch))
        machine.memory(int(host / FREE_MEMORY_SHARE))
        if accelerator is not None:
            said = SimpleNamespace(
                get_memory_info=lambda device: (int(accelerator / FREE_MEMORY_SHARE), 2**40),
                memory_reserved=lambda device: 0,
                memory_allocated=lambda device: 0,
            )
            monkeypatch.setattr(torch, "accelerator", said)
        return available_bytes(torch.device("cpu"))

    with machines:
        yield set_to
