"""What `compare` measures and reports, and in which order it runs."""

import gc
import math
import multiprocessing
from collections.abc import Callable
from typing import Any

import pytest
import torch

from flashgp.bench import Clock, Comparison, compare, write_record
from flashgp.foundations.errors import DomainError

X = torch.linspace(0.5, 2.0, 12, dtype=torch.float64).reshape(4, 3)


def gram(x: torch.Tensor) -> torch.Tensor:
    return x @ x.T


class ScriptedClock:
    """A clock that says what it is told, candidate by candidate."""

    name = "scripted"

    def __init__(self, seconds: dict[str, list[float]]) -> None:
        self.seconds = {name: iter(times) for name, times in seconds.items()}
        self.ran: list[str] = []

    def candidate(self, name: str) -> Callable[[torch.Tensor], torch.Tensor]:
        def run(x: torch.Tensor) -> torch.Tensor:
            self.ran.append(name)
            return gram(x)

        return run

    def measure(self, function: Callable[[], Any]) -> tuple[Any, float]:
        result = function()
        return result, next(self.seconds[self.ran[-1]])


def scripted(repeats: int, **seconds: list[float]) -> tuple[Comparison, ScriptedClock]:
    script = ScriptedClock(seconds)
    clock: Clock = script
    candidates = {name: script.candidate(name) for name in seconds}
    return compare(candidates, (X,), reference=gram, tolerance=1e-9, repeats=repeats, clock=clock), script


def test_median_spread_and_warm_up_of_each_candidate() -> None:
    result, _ = scripted(5, slow=[90.0, 5.0, 1.0, 40.0, 2.0, 3.0], fast=[7.0, 0.5, 0.5, 0.5, 0.5, 0.5])
    slow, fast = result.candidates
    assert (slow.name, slow.accepted, slow.reason) == ("slow", True, None)
    assert (slow.seconds, slow.spread, slow.warmup_seconds) == (3.0, 3.0, 90.0)
    assert [run.seconds for run in slow.runs] == [5.0, 1.0, 40.0, 2.0, 3.0]
    assert (fast.seconds, fast.spread, fast.warmup_seconds) == (0.5, 0.0, 7.0)
    assert result.fastest is fast
    assert result["slow"] is slow
    with pytest.raises(KeyError, match="no candidate 'other'"):
        result["other"]


def test_runs_are_interleaved_in_changing_order_after_the_warm_up() -> None:
    names = "abc"
    result, clock = scripted(12, **{name: [1.0] * 13 for name in names})
    assert clock.ran[:3] == list(names)
    rounds = [tuple(clock.ran[start : start + 3]) for start in range(3, len(clock.ran), 3)]
    assert len(rounds) == 12
    assert all(sorted(one) == list(names) for one in rounds)
    assert len(set(rounds)) > 2
    _, clock_again = scripted(12, **{name: [1.0] * 13 for name in names})
    assert clock_again.ran == clock.ran, "the same seed, the same order"
    assert [candidate.name for candidate in result.candidates] == list(names)


def _runs_that_grow() -> Any:
    calls = 0

    def worse_each_time(x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        scratch = torch.ones(calls << 20, dtype=torch.float64)  # calls x 8 MiB
        return gram(x) * (1.0 + 1e-9 * calls) + 0.0 * scratch[0]

    return compare({"it": worse_each_time}, (X,), reference=gram, tolerance=1e-7, repeats=3)


def test_time_memory_and_error_are_of_the_same_run() -> None:
    # In a process of its own: what other tests left behind in this one may fall while the meter runs.
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        result = pool.apply(_runs_that_grow)
    runs = result["it"].runs
    assert [run.error for run in runs] == pytest.approx([2e-9, 3e-9, 4e-9], rel=1e-3)
    if result.settings["memory_method"] == "high_water":  # a sampling thread may miss a peak this short
        assert [run.peak_bytes / 2**20 for run in runs] == pytest.approx([16, 24, 32], abs=4)
    assert result["it"].error == max(run.error for run in runs)
    assert result["it"].peak_bytes == max(run.peak_bytes for run in runs)
    assert all(run.seconds > 0 for run in runs)


def test_the_collector_is_off_inside_the_clock_and_back_after_an_error() -> None:
    seen = []

    def failing(x: torch.Tensor) -> torch.Tensor:
        seen.append(gc.isenabled())
        raise RuntimeError("no")

    compare({"it": failing}, (X,), reference=gram, tolerance=1e-9)
    assert seen == [False]
    assert gc.isenabled()


@pytest.mark.parametrize("inputs", [X, (X,), [X], {"x": X}])
def test_inputs_as_positional_and_keyword_arguments(inputs: Any) -> None:
    assert compare({"it": gram}, inputs, reference=gram, tolerance=1e-9, repeats=2)["it"].accepted


def test_gradients_start_empty_and_shared_tensors_stay_shared() -> None:
    x = X.clone().requires_grad_(True)

    def gradient(x: torch.Tensor, same: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        assert x is same
        value = (x**2).sum()
        value.backward()
        assert x.grad is not None
        return value, x.grad

    result = compare({"it": gradient}, (x, x), reference=gradient, tolerance=1e-9, repeats=3)
    assert result["it"].accepted, result
    assert x.grad is None


def test_printed_and_written(tmp_path: Any) -> None:
    result = compare({"good": gram, "bad": lambda x: -gram(x)}, (X,), reference=gram, tolerance=1e-9, seed=5)
    lines = str(result).splitlines()
    assert lines[0].split()[:3] == ["candidate", "median", "spread"]
    assert lines[2].split()[0] == "good"
    assert lines[3].endswith("refused: gave a wrong answer: error 2.0e+00, tolerance 1.0e-09")
    record = write_record(tmp_path / "record.json", result.record())
    assert {"hardware", "versions", "commit", "threads", "date"} <= record.keys()
    assert (record["seed"], record["dtype"], record["clock"]) == (5, ["float64"], "wall")
    assert record["inputs"][0]["shape"] == [4, 3]
    good, bad = record["candidates"]
    assert good["seconds"] > 0
    assert len(good["runs"]) == 5
    assert (bad["accepted"], bad["seconds"], bad["peak_bytes"]) == (False, None, None)
    assert result.fastest is result["good"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"candidates": {}}, "`candidates` must be"),
        ({"inputs": 3.0}, "`inputs` must be a tuple"),
        ({"reference": X}, "`reference` must be a callable while inputs are varied"),
        ({"reference": lambda x: x * math.nan}, "`reference` must be finite"),
        ({"reference": lambda x: "text"}, "`reference` must give tensors"),
        ({"reference": lambda x: ()}, "at least one tensor"),
        ({"reference": lambda x: torch.ones(3)}, "`inputs` must move the reference"),
        ({"inputs": (torch.arange(6).reshape(2, 3),)}, "`inputs` must move the reference"),
        ({"tolerance": -1.0}, "`tolerance` must be"),
        ({"repeats": 0}, "`repeats` must be"),
        ({"perturb": 1e-3}, "`perturb` must be"),
        ({"perturb": lambda inputs, generator: (inputs[0][:2],)}, "`perturb` must return inputs like"),
    ],
)
def test_unusable_arguments(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"candidates": {"it": gram}, "inputs": (X,), "reference": gram, "tolerance": 1e-9}
    with pytest.raises(DomainError, match=message):
        compare(**{**arguments, **change})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="measures the CUDA allocator, and there is no CUDA")
def test_on_cuda_the_clock_waits_and_the_allocator_is_measured() -> None:
    x = torch.randn(2048, 2048, device="cuda")

    def product(x: torch.Tensor) -> torch.Tensor:
        return x @ x @ x

    result = compare({"it": product}, (x,), reference=lambda x: product(x.double()), tolerance=1e-2, repeats=3)
    assert result["it"].accepted, result
    assert result.settings["memory_method"] == "cuda_allocator"
    assert result["it"].peak_bytes is not None
    assert result["it"].peak_bytes >= 2 * x.nbytes
