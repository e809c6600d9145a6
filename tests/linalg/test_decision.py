"""Where a dense operation goes is a function of a profile: made-up machines with an accelerator say what must be."""

import json
from dataclasses import replace

import pytest
import torch

import flashgp as fgp
from flashgp.foundations.errors import DomainError
from flashgp.foundations.operations import OPERATIONS, OperationTime, operation_flops, result_numbers
from flashgp.foundations.profile import BUILT_IN, DeviceRates, MachineProfile
from flashgp.linalg.routing import Speeds, decide

F32, F64 = torch.float32, torch.float64
CPU, ACCELERATOR = "cpu", "cuda"
SIDES = {"triangular": 16}


def rates(latency: float, flops: float, **other: float) -> DeviceRates:
    """A device whose calls take latency + work / flops, measured finely."""
    times = [
        OperationTime(op, dtype, n, t, batch, latency + operation_flops(op, n, t) * batch / rate)
        for op in OPERATIONS
        for dtype, rate in (("float64", flops), ("float32", 2 * flops))
        for n in (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
        for batch in (1, 64)
        for t in (SIDES.get(op, n),)
    ]
    assert BUILT_IN.accelerator is not None
    return replace(BUILT_IN.accelerator, operations=tuple(times), **other)


CPU_RATES = rates(2e-6, 3e10)
GPU = rates(1e-4, 3e12, transfer_bytes=1e10, return_bytes=1e10, transfer_seconds=2e-5)
SPEEDS = Speeds(CPU_RATES, GPU)


def seconds(op: str, n: int, device: str, home: str, size: int = 8, batch: int = 1) -> float:
    """By the formulas of the made-up machine."""
    latency, flops = (2e-6, 3e10) if device == CPU else (1e-4, 3e12)
    t = SIDES.get(op, n)
    found = latency + operation_flops(op, n, t) * batch / flops * (1 if size == 8 else 0.5)
    if device != home:
        operands, there, results, back = result_numbers(op, n, t, batch)
        found += (there + back) * size / 1e10 + (operands + results) * 1e-5
    return found


@pytest.mark.parametrize("home", [CPU, ACCELERATOR])
@pytest.mark.parametrize("op", ["qr", "cholesky", "eigh", "triangular"])
def test_the_choice_is_never_much_slower_than_the_better_device(op: str, home: str) -> None:
    """Within 15 % + 10 us at every order, at sizes that were not measured; transfers counted both ways."""
    chosen = set()
    for n in (10, 15, 33, 50, 75, 100, 150, 210, 300, 400, 700, 1000, 1500, 2500, 5000):
        for dtype, size in ((F64, 8), (F32, 4)):
            place = SPEEDS.quicker(op, dtype, n, SIDES.get(op, n), 1, home)
            took = {device: seconds(op, n, device, home, size) for device in (CPU, ACCELERATOR)}
            assert took[place] <= 1.15 * min(took.values()) + 1e-5, (n, dtype)
            chosen.add(place)
    expected = {CPU} if (op, home) == ("triangular", CPU) else {CPU, ACCELERATOR}
    assert chosen == expected


def test_carrying_counts_both_ways() -> None:
    """Where arithmetic alone would pay, the way there and back may not."""
    alone = {place: seconds("triangular", 2000, place, place) for place in (CPU, ACCELERATOR)}
    assert alone[ACCELERATOR] < alone[CPU]
    assert SPEEDS.quicker("triangular", F64, 2000, 16, 1, ACCELERATOR) == ACCELERATOR
    assert SPEEDS.quicker("triangular", F64, 2000, 16, 1, CPU) == CPU
    free = Speeds(CPU_RATES, replace(GPU, transfer_bytes=1e15, return_bytes=1e15, transfer_seconds=1e-12))
    assert free.quicker("triangular", F64, 2000, 16, 1, CPU) == ACCELERATOR
    slow_back = Speeds(CPU_RATES, replace(GPU, return_bytes=1e6))
    assert SPEEDS.quicker("qr", F64, 2000, 2000, 1, CPU) == ACCELERATOR
    assert slow_back.quicker("qr", F64, 2000, 2000, 1, CPU) == CPU
    system = ("triangular", F64, 64, 1, 1, ACCELERATOR)
    assert SPEEDS.quicker(*system) == CPU
    assert Speeds(CPU_RATES, replace(GPU, return_bytes=1e8)).quicker(*system) == ACCELERATOR, "the matrix goes back"
    slow_there = Speeds(CPU_RATES, replace(GPU, transfer_bytes=1e6))
    assert slow_there.quicker("qr", F64, 2000, 2000, 1, CPU) == CPU


def test_batches_count() -> None:
    """One small matrix stays, 64 of them together pay."""
    assert SPEEDS.quicker("eigh", F64, 48, 48, 1, CPU) == CPU
    assert SPEEDS.quicker("eigh", F64, 48, 48, 4096, CPU) == ACCELERATOR
    assert SPEEDS.quicker("cholesky", F64, 48, 48, 4096, CPU) == CPU, "carrying them takes longer"


def test_a_decision_says_what_it_rests_on() -> None:
    found = decide(SPEEDS, "qr", F64, (2000, 2000, 1))
    assert (found.device, found.home, found.dtype, found.rates) == ("cuda", "cpu", "float64", "measured")
    assert found.cpu_seconds == pytest.approx(seconds("qr", 2000, CPU, CPU), rel=0.05)
    assert found.accelerator_seconds == pytest.approx(seconds("qr", 2000, ACCELERATOR, CPU), rel=0.05)
    assert found.transfer_seconds == pytest.approx(3 * 2000**2 * 8 / 1e10 + 3e-5)
    for part in ("qr, 2,000 x 2,000, float64, on cpu", "cuda", "times quicker"):
        assert part in str(found)
    unknown = decide(None, "qr", F64, (2000, 2000, 1), ACCELERATOR)
    assert unknown.device == "cuda"
    assert "stay where they are" in str(unknown)
    partly = decide(Speeds(CPU_RATES, BUILT_IN.cpu), "qr", F64, (2000, 2000, 1))
    assert (partly.device, partly.accelerator_seconds) == ("cpu", None)


def profile() -> MachineProfile:
    return replace(BUILT_IN, name="measured", cpu=CPU_RATES, accelerator=GPU, accelerator_name="made up")


def test_explain_is_a_function_of_a_profile() -> None:
    """And survives the file: the same decision from what `flashgp tune` would have written."""
    again = MachineProfile.from_json(profile().to_json())
    assert again == profile()
    for home in ("cpu", "cuda"):
        for n in (20, 200, 2000):
            found = fgp.linalg.explain("qr", n, dtype=F64, home=home, profile=profile())
            assert found == fgp.linalg.explain("qr", n, n, 1, F64, home=home, profile=again)
            assert found.device == SPEEDS.quicker("qr", F64, n, n, 1, home)
    alone = fgp.linalg.explain("qr", 2000, dtype=F64, profile=replace(profile(), accelerator=None))
    assert (alone.device, alone.accelerator_seconds) == ("cpu", None)


def test_what_explain_refuses() -> None:
    with pytest.raises(DomainError, match="`operation` must be one of gemm, cholesky"):
        fgp.linalg.explain("svd", 10)
    with pytest.raises(DomainError, match="`home` must be one of cpu, cuda"):
        fgp.linalg.explain("qr", 10, home="tpu")
    with pytest.raises(DomainError, match="0 or more"):
        fgp.linalg.explain("qr", -1)


def test_measured_rates_by_size_price_a_factor() -> None:
    """A small factor runs at its own rate, not at that of a large one."""
    assert CPU_RATES.cholesky(F64) == BUILT_IN.accelerator.cholesky_float64  # type: ignore[union-attr]
    small, large = CPU_RATES.cholesky(F64, 16), CPU_RATES.cholesky(F64, 2048)
    assert small == pytest.approx(16**3 / 3 / (2e-6 + 16**3 / 3 / 3e10))
    assert large == pytest.approx(3e10, rel=1e-3)
    assert BUILT_IN.cpu.cholesky(F64, 16) == BUILT_IN.cpu.cholesky(F64)
    assert CPU_RATES.gemm(F32, 0.0) == CPU_RATES.gemm(F32)
    lines = dict(profile().lines())
    assert "at 2,048" in lines["qr, float64"]
    assert json.loads(profile().to_json())["cpu"]["operations"][0]["operation"] == "gemm"
