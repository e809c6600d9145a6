"""Seconds that plans predicted beside the seconds they took, for `flashgp tune --check`.

Kept are sizes, routes and seconds: nothing of the data, no names, no times of day. Runs are gathered in memory, equal
ones together, and appended to one bounded file beside the machine profile now and then and when the process ends. Only
plans made with a measured profile are kept, and only where its file is; FLASHGP_RUN_LOG=off keeps none. What goes wrong
here ends the keeping, never a computation.
"""

import atexit
import contextlib
import json
import math
import os
import threading
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from flashgp.foundations.atomic import write_whole
from flashgp.foundations.profile_store import CHOICE, profile_path

__all__ = ["SWITCH", "Run", "forget_runs", "log_run", "read_runs", "runs_path", "write_runs"]

SWITCH = "FLASHGP_RUN_LOG"  # environment: "off" for none
LARGEST_BYTES = 2**18  # of the file; the older half goes when it is longer
MOST_KINDS = 256  # of runs in memory; more are written first
MOST_REPEATS = 9  # of one kind whose seconds are kept in memory: their median is written
WRITE_SECONDS = 30.0  # between two writes of a process that goes on

Kind = tuple[str, str, str, str, str, int, int, int, int, int]


@dataclass(frozen=True)
class Run:
    """Equal runs of one process.

    Fields: work, what was planned: "condition", "fit", "predict" or "product"; route, backend, device and dtype of the
    plan; n rows, m columns of a product, d feature numbers, t right-hand sides, batch; predicted_seconds and seconds,
    medians of one of them; count, how many there were.
    """

    work: str
    route: str
    backend: str
    device: str
    dtype: str
    n: int
    m: int
    d: int
    t: int
    batch: int
    predicted_seconds: float
    seconds: float
    count: int


class _Gathered:
    """What this process has not written yet."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.runs: dict[Kind, tuple[list[float], list[float], int]] = {}
        self.written = time.monotonic()
        self.ended = False  # after a failure


_gathered: _Gathered | None = None


def log_run(work: str, plan: Any, predicted_seconds: float | None, seconds: float | None) -> None:
    """Keep one run of a plan. Cost: some microseconds; a write of a few kilobytes every WRITE_SECONDS."""
    if getattr(plan, "profile", "") != "measured" or not predicted_seconds or not seconds:
        return
    if os.environ.get(SWITCH) == "off" or os.environ.get(CHOICE) == "built-in":
        return
    global _gathered
    if _gathered is None:
        _gathered = _Gathered()
        atexit.register(write_runs)
    here = _gathered
    if here.ended:
        return
    n, t = plan.n, getattr(plan, "t", None)
    kind = (work, plan.route, plan.backend, plan.device, plan.dtype, n, getattr(plan, "m", n), plan.d,
            plan.outputs if t is None else t, plan.batch)  # fmt: skip
    with here.lock:
        expected, taken, count = here.runs.setdefault(kind, ([], [], 0))
        if count < MOST_REPEATS:
            expected.append(predicted_seconds)
            taken.append(seconds)
        else:
            expected[count % MOST_REPEATS], taken[count % MOST_REPEATS] = predicted_seconds, seconds
        here.runs[kind] = expected, taken, count + 1
        due = len(here.runs) >= MOST_KINDS or time.monotonic() - here.written > WRITE_SECONDS
    if due:
        write_runs()


def write_runs() -> None:
    """Append what this process has gathered; nothing is said where that fails, and nothing kept from then on."""
    here = _gathered
    if here is None or here.ended:
        return
    with here.lock:
        runs, here.runs, here.written = here.runs, {}, time.monotonic()
    if not runs:
        return
    text = "".join(
        json.dumps(asdict(Run(*kind, _median(expected), _median(taken), count))) + "\n"
        for kind, (expected, taken, count) in runs.items()
    )
    try:
        if not profile_path().exists():
            raise FileNotFoundError("no profile is kept here")
        _append(runs_path(), text.encode())
    except Exception:  # an answer is never worth less than its log: the disk, the folder, the end of the interpreter
        here.ended = True


def runs_path() -> Path:
    """The file of this machine's runs, beside its profile. Raises: FileNotFoundError as `profile_path`."""
    return profile_path().with_suffix(".runs.jsonl")


def forget_runs() -> None:
    """Of an older profile: its predictions say nothing about a new one."""
    if _gathered is not None:
        with _gathered.lock:
            _gathered.runs = {}
    with contextlib.suppress(OSError):
        runs_path().unlink()


def read_runs() -> list[Run]:
    """What was kept of this machine, this process included, the oldest first; a line that is not ours is left out."""
    write_runs()
    try:
        with open(runs_path(), "rb") as file:
            lines = file.read(2 * LARGEST_BYTES).splitlines()
    except OSError:
        return []
    return [run for line in lines if (run := _run(line)) is not None]


def _run(line: bytes) -> Run | None:
    try:
        values = json.loads(line)
        run = Run(**values)
    except (ValueError, TypeError, RecursionError):
        return None
    for one in fields(Run):
        value, kind = getattr(run, one.name), one.type
        number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
        if not (len(value) <= 40 if kind is str and isinstance(value, str) else number and (
            kind is float or isinstance(value, int)
        )):  # fmt: skip
            return None
    return run if run.predicted_seconds and run.seconds else None


def _append(path: Path, data: bytes) -> None:
    """In one write at the end, whole beside those of other processes; the older half goes once the file is long."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, data)
        long = os.fstat(descriptor).st_size > LARGEST_BYTES
    finally:
        os.close(descriptor)
    if long:
        whole = path.read_bytes()
        newest = whole[-LARGEST_BYTES // 2 :]
        write_whole(path, newest[newest.index(b"\n") + 1 :], mode=0o600)


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _in_child() -> None:
    """A forked child has runs of its own: those of its parent are written there."""
    global _gathered
    if _gathered is not None:
        _gathered = _Gathered()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
