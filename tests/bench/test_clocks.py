"""Clocks beside the one that decides: what they measure, when they contradict it, and how that is shown."""

import subprocess
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flashgp.bench import Comparison, compare
from flashgp.bench.clocks import EventClock, ProfilerClock, available_clocks, clocks_named, union_seconds
from flashgp.bench.comparison import AGREEMENT, GRACE_SECONDS, disagreement
from flashgp.foundations.errors import BackendUnavailableError, DomainError

X = torch.linspace(0.5, 2.0, 12, dtype=torch.float64).reshape(4, 3)


def gram(x: torch.Tensor) -> torch.Tensor:
    return x @ x.T


class Says:
    """A clock that always says the same."""

    def __init__(self, name: str, seconds: float, overhead_seconds: float = 0.0) -> None:
        self.name, self.seconds, self.overhead_seconds = name, seconds, overhead_seconds
        self.runs = 0

    def measure(self, function: Callable[[], Any]) -> tuple[Any, float]:
        self.runs += 1
        return function(), self.seconds


def compared(*others: Any, seconds: float = 1.0, repeats: int = 5, **candidates: Any) -> Comparison:
    return compare(
        candidates or {"it": gram},
        (X,),
        reference=gram,
        tolerance=1e-9,
        repeats=repeats,
        clock=Says("main", seconds),
        clocks=list(others),
    )


def test_further_clocks_measure_every_candidate_and_decide_nothing() -> None:
    beside = Says("beside", 0.5)
    result = compared(beside, right=gram, wrong=lambda x: -gram(x))
    right, wrong = result.candidates
    assert (right.seconds, right.clock_seconds) == (1.0, {"beside": 0.5})
    assert right.clock_times == {"beside": (0.5,) * 3}
    assert len(right.runs) == 5
    assert beside.runs == 3, "of the refused one there is none"
    assert (wrong.clock_seconds, wrong.disagreements) == ({}, {})
    record = result.record()
    assert record["clocks"] == ["beside"]
    assert [one["clock_seconds"] for one in record["candidates"]] == [{"beside": 0.5}, {}]


def test_an_answer_that_is_wrong_under_another_clock_is_refused() -> None:
    other = Says("other", 1.0)

    def wrong_when_watched(x: torch.Tensor) -> torch.Tensor:
        return gram(x) * (2.0 if other.runs else 1.0)

    assert "wrong answer" in str(compared(other, it=wrong_when_watched)["it"].reason)


@pytest.mark.parametrize(
    ("seconds", "other", "overhead", "flagged"),
    [
        (1.0, 2.9, 0.0, ""),
        (1.0, 3.1, 0.0, "work went on while the main clock did not count it"),
        (1.0, 0.34, 0.0, ""),
        (1.0, 0.32, 0.0, "did not see all of the work"),
        (1e-6, 2.9e-4, 0.0, ""),
        (1e-6, 3.1e-4, 0.0, "work went on"),
        (2.9e-4, 0.0, 0.0, ""),
        (1.0, 9.0, 2.1, ""),
        (6.0, 0.1, 2.0, ""),
    ],
)
def test_clocks_that_disagree_are_flagged(seconds: float, other: float, overhead: float, flagged: str) -> None:
    assert (AGREEMENT, GRACE_SECONDS) == (3.0, 1e-4)
    result = compared(Says("other", other, overhead), seconds=seconds)
    flags = result["it"].disagreements
    assert result["it"].accepted
    assert len(flags) == bool(flagged)
    assert flagged in "".join(flags.values())
    assert (" !" in str(result)) is bool(flagged)
    assert ("! it: other clock " in str(result)) is bool(flagged)


class Hesitates(Says):
    """A clock whose first runs take long, for reasons of its own."""

    def __init__(self, *seconds: float) -> None:
        super().__init__("other", seconds[-1])
        self.first = list(seconds[:-1])

    def measure(self, function: Callable[[], Any]) -> tuple[Any, float]:
        answer, seconds = super().measure(function)
        return answer, self.first.pop(0) if self.first else seconds


@pytest.mark.parametrize(
    ("other", "flagged"),
    [
        ((1.26e-3, 1.26e-3, 1.6e-4), False),
        ((1.26e-3,), True),
        ((1.6e-4, 1.26e-3), False),
    ],
)
def test_work_went_on_only_if_no_run_of_the_other_clock_says_otherwise(other: tuple[float, ...], flagged: bool) -> None:
    clock = Hesitates(*other)
    result = compared(clock, seconds=1.59e-4, repeats=1)["it"]
    assert len(result.disagreements) == flagged
    assert clock.runs == len(result.clock_times["other"]) == 3


def test_a_clock_that_says_more_and_less_accuses_nobody() -> None:
    assert compared(Hesitates(9.0, 9.0, 0.1), seconds=1.0)["it"].disagreements == {}


def test_what_a_clock_may_have_missed_is_named() -> None:
    assert "outside PyTorch's operations" in str(disagreement("wall", 1.0, "profiler", 0.0))
    assert "another stream" in str(disagreement("wall", 1.0, "events", 0.0))


def test_the_profiler_counts_operations_once_and_nothing_between_them() -> None:
    x = torch.randn(300, 300)

    def work() -> torch.Tensor:
        time.sleep(0.05)
        return torch.linalg.multi_dot([x, x, x])  # operations inside an operation

    clock = ProfilerClock()
    began = time.perf_counter()
    answer, seconds = clock.measure(work)
    taken = time.perf_counter() - began
    assert torch.equal(answer, torch.linalg.multi_dot([x, x, x]))
    assert 0.0 < seconds < taken - 0.05
    assert clock.overhead_seconds > 0.0
    assert clock.measure(lambda: None) == (None, 0.0)
    assert clock.overhead_seconds == 0.0


def test_the_profiler_sees_operations_and_misses_python() -> None:
    def sleeping(x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.2)
        return gram(x)

    result = compare({"it": sleeping}, (X,), reference=gram, tolerance=1e-9, repeats=1, clocks="profiler")
    assert result["it"].accepted
    assert "outside PyTorch's operations" in result["it"].disagreements["profiler"]


@pytest.mark.parametrize(
    ("spans", "length"),
    [
        ([], 0.0),
        ([(0.0, 1.0)], 1.0),
        ([(0.0, 4.0), (1.0, 2.0)], 4.0),
        ([(3.0, 5.0), (0.0, 1.0), (0.5, 2.0)], 4.0),
        ([(0.0, 1.0), (1.0, 2.0)], 2.0),
    ],
)
def test_the_union_of_intervals(spans: list[tuple[float, float]], length: float) -> None:
    assert union_seconds(spans) == length


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_events_are_not_offered_without_an_accelerator() -> None:
    assert available_clocks() == ("wall", "profiler")
    with pytest.raises(BackendUnavailableError, match="names 'events', which are an accelerator's"):
        compare({"it": gram}, (X,), reference=gram, clocks=["events"])


def test_events_are_recorded_around_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    class Event:
        def __init__(self, device: Any, *, enable_timing: bool) -> None:
            assert (device, enable_timing) == ("device 0", True)

        def record(self) -> None:
            done.append("record")

        def elapsed_time(self, other: "Event") -> float:
            assert other is not self
            done.append("elapsed")
            return 250.0

    accelerator = SimpleNamespace(
        is_available=lambda: True,
        current_accelerator=lambda: "device 0",
        synchronize=lambda: done.append("synchronise"),
    )
    monkeypatch.setattr(torch, "accelerator", accelerator)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch, "Event", Event)
    assert available_clocks() == ("wall", "events", "profiler")
    answer, seconds = EventClock().measure(lambda: done.append("work") or 7)
    assert (answer, seconds) == (7, 0.25)
    assert done == ["synchronise", "record", "work", "record", "synchronise", "elapsed"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="compares clocks of CUDA, and there is no CUDA")
def test_three_clocks_agree_about_work_on_a_gpu() -> None:
    x = torch.randn(4096, 4096, device="cuda")
    result = compare({"it": gram}, (x,), reference=lambda x: gram(x.double()), tolerance=1e-2, clocks="all")
    assert set(result["it"].clock_seconds) == {"events", "profiler"}
    assert result["it"].disagreements == {}


def test_the_clock_that_decides_is_not_measured_twice() -> None:
    result = compare({"it": gram}, (X,), reference=gram, tolerance=1e-9, repeats=2, clocks="all")
    assert result.settings["clock"] == "wall"
    assert "wall" not in result.settings["clocks"]
    assert set(result["it"].clock_seconds) == set(available_clocks()) - {"wall"}


@pytest.mark.parametrize(
    ("clocks", "message"),
    [
        ("sundial", "must be among wall, events, profiler or 'all', got 'sundial'"),
        (["wall", "wall"], "different names"),
    ],
)
def test_unusable_clocks(clocks: Any, message: str) -> None:
    with pytest.raises(DomainError, match=message):
        clocks_named(clocks)


def test_the_profiler_says_nothing_on_standard_error() -> None:
    code = (
        "import os; from flashgp.bench.clocks import ProfilerClock; ProfilerClock().measure(lambda: 1); "
        "assert 'KINETO_LOG_LEVEL' not in os.environ"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
