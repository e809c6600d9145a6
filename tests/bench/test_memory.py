"""Peak memory: what is seen, in this process and in a fresh one."""

import gc
import multiprocessing
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from flashgp.bench import measure_peak_bytes
from flashgp.bench import memory as memory_module
from flashgp.bench.memory import PeakMeter
from flashgp.foundations.errors import DomainError, FlashGPError

MIB = 2**20
METHODS = ["high_water", "sampling"] if memory_module._high_water_works() else ["sampling"]
SEEN_SECONDS = 0.1  # a peak that lasts this long is sampled however busy the machine is
MODULE = """
import os, torch

def ones(mebibytes):
    return torch.ones(mebibytes << 20, dtype=torch.uint8)

def use(kept):
    return kept[:1] + ones(48)[:1]

def fail():
    raise ArithmeticError("not today")

"""


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """A module that a fresh process can import too."""
    (tmp_path / "flashgp_bench_work.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    import importlib
    import sys

    yield importlib.import_module("flashgp_bench_work")
    del sys.modules["flashgp_bench_work"]


def test_peak_counts_what_was_freed_and_what_stays() -> None:
    # In a process of its own: what other tests left behind in this one may fall while the meter runs.
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.map(peaks_of_freed_and_kept, METHODS)
    for first, second in found:
        assert first / MIB == pytest.approx(96, abs=6)
        assert second / MIB == pytest.approx(32, abs=6)


def peaks_of_freed_and_kept(method: str) -> tuple[int, int]:
    before = torch.ones(64 * MIB, dtype=torch.uint8)
    with PeakMeter(method=method) as first:
        for _ in range(3):
            freed = torch.ones(96 * MIB, dtype=torch.uint8)
            freed += 1
            time.sleep(SEEN_SECONDS)
            del freed
        kept = torch.ones(32 * MIB, dtype=torch.uint8)
    assert first.method == method
    with PeakMeter(method=method) as second:
        new = kept + before[: 32 * MIB]  # old and new alive at once, but only the new one is above entry
        time.sleep(SEEN_SECONDS)
        kept = new
        del new
    return first.peak_bytes, second.peak_bytes


class Loop:
    """An object that only the garbage collector frees."""

    def __init__(self) -> None:
        self.itself = self
        self.rows = torch.ones(64 * MIB, dtype=torch.uint8)


@pytest.mark.parametrize("method", METHODS)
def test_garbage_of_before_hides_nothing(method: str) -> None:
    Loop()
    with PeakMeter(method=method) as meter:
        gc.collect()
        kept = torch.ones(32 * MIB, dtype=torch.uint8)
        time.sleep(SEEN_SECONDS)
    assert meter.peak_bytes / MIB > 26
    del kept


@pytest.mark.skipif(memory_module._malloc_trim() is None, reason="this C library cannot return free pages")
@pytest.mark.parametrize("method", METHODS)
def test_reused_heap_pages_count_again(method: str) -> None:
    kept = []
    for _ in range(3):
        with PeakMeter(method=method) as meter:
            parts = [torch.ones(64 << 10, dtype=torch.uint8) for _ in range(256)]  # 16 MiB in pieces from the heap
            kept.append(torch.ones(1024, dtype=torch.uint8))  # above them, so that the heap cannot shrink by itself
            del parts
        assert meter.peak_bytes / MIB > 10


def test_fresh_process_counts_above_its_setup(work: object) -> None:
    peak_bytes = measure_peak_bytes(work.use, setup=partial(work.ones, 200))  # type: ignore[attr-defined]
    assert peak_bytes / MIB == pytest.approx(48, abs=12)


def test_fresh_process_failures_are_told(work: object) -> None:
    with pytest.raises(FlashGPError, match="ArithmeticError: not today"):
        measure_peak_bytes(work.fail)  # type: ignore[attr-defined]
    with pytest.raises(DomainError, match="`function` must be importable"):
        measure_peak_bytes(lambda: None)
