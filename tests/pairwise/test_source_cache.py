"""Compiled loops and their cache under bad luck: many processes, broken files, foreign directories, forks."""

import inspect
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import pytest

import flashgp as fgp
from flashgp.pairwise.cpu.backend import cpu_tiles_missing
from flashgp.pairwise.program import source_cache
from flashgp.pairwise.program.source_cache import cache_directory, import_generated
from forked import Forked

numba_needed = pytest.mark.skipif(bool(cpu_tiles_missing()), reason="numba is not installed")
WORK = """
import sys, torch, warnings
import flashgp as fgp
from flashgp.pairwise.cpu.backend import CpuTiles
from flashgp.pairwise.cpu.engine import compile_seconds
from flashgp.pairwise.problem import PairProblem
warnings.simplefilter("error" if len(sys.argv) < 2 else sys.argv[1])
kernel = fgp.kernels.RBF(1.3)
x = torch.linspace(0, 1, 50, dtype=torch.float64)[:, None]
problem = PairProblem(kernel.form, [], kernel.rows(x).detach())
found = CpuTiles(0).product(problem, torch.ones(50, 1, dtype=torch.float64))
wanted = kernel(x).to_dense().detach().sum(1, keepdim=True)
assert torch.allclose(found, wanted, rtol=1e-13), (found - wanted).abs().max()
print(compile_seconds())
"""


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLASHGP_CACHE_DIR", str(tmp_path))
    source_cache.cache_directory.cache_clear()
    yield tmp_path
    source_cache.cache_directory.cache_clear()


LIMITED = """
import sys, torch, flashgp as fgp
from flashgp.foundations.deadline import Deadline
from flashgp.foundations.workspace import Workspace
from flashgp.pairwise.cpu.backend import CpuTiles
from flashgp.pairwise.problem import PairProblem
kernel = 1.5 * fgp.kernels.RBF(1.3)
x = torch.linspace(0.0, 1.0, 40, dtype=torch.float64)[:, None]
problem, v = PairProblem(kernel.form, kernel.theta(), kernel.rows(x)).detached(), torch.ones_like(x)
wanted = (kernel(x).to_dense() @ v).detach()
for seconds in map(float, sys.argv[1:]):
    workspace = Workspace(deadline=Deadline.after(seconds))
    found = CpuTiles.for_every_size().product(problem, v, workspace=Workspace(parent=workspace))
    torch.testing.assert_close(found, wanted)
    print(workspace.backend == CpuTiles.title, workspace.compile_seconds > 0.0)
"""


@numba_needed
def test_nothing_is_compiled_that_would_end_after_the_deadline(tmp_path: Path) -> None:
    """The portable backend computes the same; with time, or once some process has kept it, the compiled one does.

    Each process has a cache that nobody else fills: `FLASHGP_CACHE_DIR` counts until the cache is first asked for. Seen
    red without the question for the deadline, and without that for what is kept.
    """

    def compiled(*seconds: str) -> list[str]:
        code, out, err = Forked(LIMITED, *seconds, FLASHGP_CACHE_DIR=str(tmp_path)).ended()
        assert code == 0, err
        return out.splitlines()

    assert compiled("0", "600", "0") == ["False False", "True True", "True False"]
    assert compiled("0") == ["True True"], "loaded, which counts as compiling"


@numba_needed
@pytest.mark.parametrize("count", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_processes_at_once_then_from_the_cache_then_broken_files(tmp_path: Path, count: int) -> None:
    """Processes compile the same kernel at once; the next loads it; what is broken is a miss and is mended."""
    for process in [Forked(WORK, FLASHGP_CACHE_DIR=str(tmp_path)) for _ in range(count)]:
        code, _, error = process.ended()
        assert code == 0, error
    files = list((tmp_path / "generated").rglob("*.nb?"))
    assert files
    assert not list((tmp_path / "generated").glob("*.tmp"))
    stamps = {f: f.stat().st_mtime_ns for f in files}
    assert Forked(WORK, FLASHGP_CACHE_DIR=str(tmp_path)).wait() == 0
    assert {f: f.stat().st_mtime_ns for f in files} == stamps  # nothing was compiled again
    for number, f in enumerate(files):
        f.write_bytes(b"" if number % 2 else b"garbage" * 50)
    sources = list((tmp_path / "generated").glob("*.py"))
    sources[0].write_text("raise RuntimeError('not ours')")  # a source that says something else is written anew
    code, _, error = Forked(WORK, FLASHGP_CACHE_DIR=str(tmp_path)).ended()
    assert code == 0, error


def test_a_directory_that_cannot_be_used_is_said_and_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    monkeypatch.setenv("FLASHGP_CACHE_DIR", str(blocked))
    source_cache.cache_directory.cache_clear()
    source_cache.warn_not_kept.cache_clear()
    try:
        with pytest.warns(fgp.FlashGPWarning, match="compiled again in every process"):
            path = cache_directory()
        assert path.is_dir()
        assert import_generated("answer = 42\n", "blocked").answer == 42
    finally:
        source_cache.cache_directory.cache_clear()


FULL = """
import os, resource, sys, tempfile, warnings
import numba, torch
import flashgp as fgp
tempfile.tempdir = sys.argv[2]
limit = int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))  # no file may grow beyond: what a full disk does to a write
with warnings.catch_warnings(record=True) as caught:
    exec(sys.argv[4])
print([str(w.message) for w in caught if issubclass(w.category, fgp.FlashGPWarning)])
print(os.listdir(sys.argv[2]))
"""


@numba_needed
@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no such limit here")
def test_a_full_disk_costs_the_cache_and_not_the_product(tmp_path: Path) -> None:
    """The text fits and the code does not. One warning, and nothing is left."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "temporary").mkdir()
    done = subprocess.run(  # to its real end, where what is temporary is removed
        [sys.executable, "-c", FULL, "always", str(tmp_path / "temporary"), "16384", WORK],
        env={**os.environ, "FLASHGP_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *_, said, left = done.stdout.splitlines()
    assert said.count("generated code cannot be kept in") == 1, said
    assert "flashgp-" not in left
    assert os.listdir(tmp_path / "temporary") == []


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no owners here")
@pytest.mark.parametrize("trouble", ["others may write", "it belongs to user", "it is a link", "File exists"])
def test_a_directory_that_is_not_ours_is_not_used(
    trouble: str, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = empty_cache / "generated"
    if trouble == "it is a link":
        (empty_cache / "elsewhere").mkdir()
        folder.symlink_to(empty_cache / "elsewhere")
    elif trouble == "File exists":
        folder.write_text("")
    else:
        folder.mkdir(mode=0o700)
    if trouble == "others may write":
        folder.chmod(0o777)
    elif trouble == "it belongs to user":
        owner = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert import_generated("answer = 42\n", trouble).answer == 42
        assert import_generated("answer = 43\n", trouble).answer == 43
    (one,) = caught  # one warning, not one per file
    assert one.category is fgp.FlashGPWarning
    assert trouble in str(one.message)
    assert not folder.is_dir() or not any(folder.iterdir())


def test_a_module_has_a_file_and_its_source(empty_cache: Path) -> None:
    """What Triton and numba read; nothing but the file is left, and a damaged one is written again."""
    text = "def answer():\n    return 42\n"
    module = import_generated(text)
    assert inspect.getsource(module.answer) == text
    (file,) = (empty_cache / "generated").iterdir()
    assert (file.read_text(), str(file)) == (text, module.__file__)
    file.write_text("def answer():\n    return 13\n")
    del sys.modules[module.__name__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert import_generated(text).answer() == 42
    assert file.read_text() == text


@numba_needed
def test_nowhere_to_write_costs_the_cache_and_not_the_product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No home directory, and no temporary one either."""

    def nowhere(*_: object, **__: object) -> str:
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.delenv("FLASHGP_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.setattr(tempfile, "mkdtemp", nowhere)
    monkeypatch.chdir(tmp_path)
    for cached in (cache_directory, source_cache._temporary, source_cache.warn_not_kept):
        cached.cache_clear()
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            module = import_generated("value = 3  # nowhere\n")
    finally:
        for cached in (cache_directory, source_cache._temporary, source_cache.warn_not_kept):
            cached.cache_clear()
    assert module.value == 3
    assert ["home directory" in str(one.message) for one in said] == [True, False]
    assert "any directory" in str(said[1].message)
    assert list(tmp_path.iterdir()) == [], "and no folder named ~"


FORK = """
import faulthandler, os, sys, threading, time, torch
import flashgp as fgp
from flashgp.foundations import lazy_import as forks
from flashgp.pairwise.cpu.backend import CpuTiles
from flashgp.pairwise.problem import PairProblem

def product(kernel):
    x = torch.linspace(0, 1, 50, dtype=torch.float64)[:, None]
    right = torch.ones(50, 1, dtype=torch.float64)
    found = CpuTiles(0).product(PairProblem(kernel.form, [], kernel.rows(x).detach()), right)
    assert torch.allclose(found, kernel(x).to_dense().detach().sum(1, keepdim=True), rtol=1e-13)

def is_free():
    free = forks._lock.acquire(blocking=False)
    if free:
        forks._lock.release()
    return free

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "flashgp.operators.covariance":
            loading.set()
            time.sleep(2)

loading = threading.Event()
work = product
if sys.argv[1] == "compiling":
    product(fgp.kernels.Matern(1.5))  # numba is imported and has compiled once
if sys.argv[1] == "loading":
    assert "flashgp.operators" not in sys.modules
    sys.meta_path.insert(0, Slow())
    work = lambda kernel: kernel(torch.ones(2, 1))
thread = threading.Thread(target=work, args=(fgp.kernels.RBF(1.3),))
thread.start()
if sys.argv[1] == "loading":
    loading.wait()
while is_free():
    time.sleep(1e-3)
time.sleep(0.05)
assert not is_free(), "too late: nothing is being compiled or loaded"
child = os.fork()
if child == 0:
    faulthandler.dump_traceback_later(60, exit=True)
    torch.set_num_threads(1)  # the threads of torch's own OpenMP do not survive a fork
    product(fgp.kernels.Matern(0.5))
    os._exit(0)
status = os.waitpid(child, 0)[1]
thread.join()
product(fgp.kernels.Matern(0.5))
assert status == 0, status
"""


@numba_needed
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("moment", ["compiling", "loading"])
def test_a_fork_while_another_thread_compiles(tmp_path: Path, moment: str) -> None:
    """The child computes: locks that a thread of the parent held (ours, numba's, an import's) are free in it."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK, moment],
        env={**os.environ, "FLASHGP_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


@numba_needed
def test_threads_that_ask_for_pools_of_different_sizes() -> None:
    """Who makes the pool larger does not take it away from those who are about to use the smaller one."""
    import threading

    from flashgp.pairwise.cpu import pool

    failures: list[BaseException] = []

    def ask(sizes: list[int]) -> None:
        try:
            for size in sizes:
                assert pool.run_together([lambda _, k=k: k for k in range(size)]) == list(range(size))
        except BaseException as error:
            failures.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            pool._forget()  # so that it grows once more
            threads = [threading.Thread(target=ask, args=([*range(2 + k, 24, 4)],)) for k in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert failures == []


@numba_needed
def test_an_error_in_one_thread_reaches_the_caller() -> None:
    import threading

    from flashgp.pairwise.cpu.pool import run_together

    seen: list[bool] = []

    def fails(stop: threading.Event) -> None:
        raise ArithmeticError("not today")

    def waits(stop: threading.Event) -> None:
        seen.append(stop.wait(30))

    for tasks in ([fails, waits], [waits, fails]):
        with pytest.raises(ArithmeticError, match="not today"):
            run_together(tasks)
    assert seen == [True, True]
