"""Processes that need not import torch: they are forked from one that has imported it, and computed nothing.

    child = Forked("from flashgp.cli import process; process()", "fit", path, RANK="0")
    code, out, err = child.ended()

Only a test of the import itself, or of how Python starts and ends, needs another: no exit handler runs here.
"""

import multiprocessing
import os
import sys
import tempfile
import threading
from multiprocessing import forkserver
from pathlib import Path

TIMEOUT = 600.0  # seconds; measurements may stop all processes meanwhile
TESTS = Path(__file__).resolve().parent
PATHS = [str(TESTS), str(TESTS.parent / "src"), str(TESTS.parent / "benchmark")]
# What a fit on the command line imports in the end; what is not installed is passed over.
IMPORTS = [
    "forked", "torch.distributed", "torch.fx.experimental.symbolic_shapes", "numba", "scipy.stats", "scipy.optimize",
    "pandas", "pyarrow.parquet", "matplotlib.backends.backend_agg", "matplotlib.pyplot", "flashgp.cli.fitting",
    "flashgp.pairwise.cpu.engine", "flashgp.inference.fit", "flashgp.diagnosis",
]  # fmt: skip


class Forked:
    """A process that executes `code` with the words as `sys.argv[1:]`, one thread and its output in files."""

    def __init__(self, code: str, *words: object, **environment: str) -> None:
        self._folder = Path(tempfile.mkdtemp())
        context = multiprocessing.get_context("forkserver")
        before = {name: os.environ.get(name) for name in ("PYTHONPATH", "OMP_NUM_THREADS")}
        os.environ |= {"PYTHONPATH": os.pathsep.join(PATHS), "OMP_NUM_THREADS": "1"}
        context.set_forkserver_preload(IMPORTS)
        forkserver.ensure_running()
        for name, text in before.items():
            os.environ.pop(name) if text is None else os.environ.update({name: text})
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "FLASHGP_PROFILE": "built-in", **environment}
        self._process = context.Process(
            target=_execute, args=(code, [*map(str, words)], environment, str(self._folder)), daemon=True
        )
        self._process.start()

    def poll(self) -> int | None:
        """The exit code, or None while it runs; -9 where SIGKILL ended it."""
        return self._process.exitcode

    def wait(self, timeout: float = TIMEOUT) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            self._process.kill()
            raise AssertionError(f"no end within {timeout:g} s; stderr: {self.text('err')[-2000:]}")
        return code

    def ended(self) -> tuple[int, str, str]:
        """Exit code, standard output and standard error."""
        return self.wait(), self.text("out"), self.text("err")

    def text(self, stream: str) -> str:
        """What it has written so far to `out` or `err`."""
        path = self._folder / stream
        return path.read_text() if path.exists() else ""

    def kill(self) -> None:
        self._process.kill()

    def send_signal(self, number: int) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)


def _execute(code: str, words: list[str], environment: dict[str, str], folder: str) -> None:
    import signal

    for descriptor, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["flashgp", *words]
    threading.Thread(target=_end_with_parent, daemon=True).start()
    exec(compile(code, "<forked>", "exec"), {"__name__": "__main__"})


def _end_with_parent() -> None:
    """A rank that waits for another in a collective sees no pipe that closes."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
