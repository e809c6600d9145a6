"""`fgp.tune` measures what plans use, in seconds, and eight processes at once get along."""

import contextlib
import json
import multiprocessing
import time
import warnings
from pathlib import Path

import pytest
import torch

import flashgp as fgp
from flashgp.foundations import profile_store
from flashgp.foundations.profile import BUILT_IN, MachineProfile
from flashgp.foundations.profile_store import CHOICE, current_profile, machine_key, profile_path
from flashgp.planner import engines, tuning

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CHOICE, str(tmp_path))
    monkeypatch.setattr(profile_store, "_known", {})
    return tmp_path


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurements of a moment."""
    monkeypatch.setattr(tuning, "MEASURED_SECONDS", 0.0)
    monkeypatch.setattr(tuning, "QUICK_SECONDS", 0.0)
    monkeypatch.setattr(tuning, "POINTS", ((3, 1), (8, 2)))
    monkeypatch.setitem(tuning.SIZES, "cpu", 64)


@pytest.mark.usefixtures("short")
def test_a_measured_profile_serves_the_plans_that_follow(folder: Path) -> None:
    gp = fgp.GP(fgp.kernels.RBF())
    before = fgp.plan(gp, n=500, d=2)
    assert before.profile == "built-in"
    heard: list[tuple[str, float]] = []
    threads, state = torch.get_num_threads(), torch.random.get_rng_state()
    profile = fgp.tune(progress=lambda what, fraction: heard.append((what, fraction)))
    assert (torch.get_num_threads(), torch.equal(torch.random.get_rng_state(), state)) == (threads, True)
    assert profile.measured
    assert (profile.processor, profile.cores, profile.threads, profile.torch_version) == machine_key()
    assert MachineProfile.from_json(profile_path().read_text()) == profile == current_profile()
    shapes = {(r.backend, r.dtype, r.symmetric, r.d, r.t) for r in profile.products if r.backend == "torch"}
    assert shapes == {
        ("torch", dtype, s, d, t)
        for dtype in ("float64", "float32")
        for s in (True, False)
        for d, t in ((3, 1), (8, 2))
    }
    fractions = [fraction for _, fraction in heard]
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1]) == (0.0, 1.0)
    after = fgp.plan(gp, n=500, d=2)
    assert (after.profile, after.notes) == ("measured", ())
    assert after.seconds != before.seconds
    assert after.peak_bytes == before.peak_bytes
    assert fgp.plan(gp, n=500, d=2, deterministic=True).seconds == before.seconds


@pytest.mark.usefixtures("short")
def test_only_measuring(folder: Path) -> None:
    assert fgp.tune(keep=False).measured
    assert list(folder.iterdir()) == []
    assert current_profile() is BUILT_IN


@pytest.mark.usefixtures("short")
def test_rates_are_of_the_right_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a benchmark: a unit off by ten would show, beside the plain calls of torch measured in the same breath.

    On one thread by the processor's own clock, which stands still while other work has the core.
    """
    monkeypatch.setattr(tuning.time, "perf_counter", time.thread_time)
    monkeypatch.setattr(tuning, "ENGINES", [engine for engine in tuning.ENGINES if engine.backend == "torch"])
    a, numbers, values = torch.ones(64, 64, dtype=torch.float64), torch.zeros(2**24), torch.zeros(2**16)
    target, out = torch.empty_like(numbers), torch.empty_like(values)
    plain = {
        "gemm_float64": (2 * 64**3, lambda: a @ a),
        "copy_bytes": (2 * 4 * 2**24, lambda: target.copy_(numbers)),
        "exp": (2**16, lambda: torch.exp(values, out=out)),
    }
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        before = {name: amount / tuning._seconds(call, CPU) for name, (amount, call) in plain.items()}
        profile = fgp.tune(keep=False)
        after = {name: amount / tuning._seconds(call, CPU) for name, (amount, call) in plain.items()}
    finally:
        torch.set_num_threads(threads)
    for name in plain:
        slower, quicker = sorted((before[name], after[name]))
        assert slower / 4 < getattr(profile.cpu, name) < quicker * 4, name
    call = profile.cpu.call_seconds  # of two rows; 64 of them are a few such calls, and one exponential a pair
    assert 5e-6 < call < 5e-3
    for rate in profile.products:
        assert 64**2 / call / 30 < rate.pairs_per_second < max(before["exp"], after["exp"]), rate


def test_a_rate_is_measured_on_enough_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows double until a call is long enough to time, and the rate is that of the last."""
    monkeypatch.setitem(tuning.SIZES, "cpu", 64)
    seen: list[int] = []

    class Engine(engines.BACKENDS["torch"]):  # type: ignore[misc, valid-type]
        def product(self, form, theta, rows, cols, right, **options):  # type: ignore[no-untyped-def]
            seen.append(rows.count)

    monkeypatch.setitem(engines.BACKENDS, "quick", Engine)
    monkeypatch.setattr(tuning, "_seconds", lambda call, device: (call(), seen[-1] ** 2 / 1e9)[1])
    monkeypatch.setattr(tuning, "QUICK_SECONDS", 300**2 / 1e9)
    assert tuning._product_rate(CPU, "quick", torch.float32, True, 3, 1) == pytest.approx(1e9)
    assert seen == [64, 128, 256, 512]
    monkeypatch.setattr(tuning, "QUICK_SECONDS", 1e9)
    tuning._product_rate(CPU, "quick", torch.float32, True, 3, 1)
    assert seen[-1] == 64 * tuning.MOST_GROWTH, "and never without end"


def test_other_work_does_not_slow_the_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lower quartile: one quick call in four is enough, one lucky one in ten is not taken."""
    waits = iter([0.9, *([0.1, 0.5, 0.7, 0.9] * 3)])  # the first warms up
    now = {"time": 0.0}
    monkeypatch.setattr(tuning.time, "perf_counter", lambda: now["time"])
    monkeypatch.setattr(tuning, "MEASURED_SECONDS", 6.0)

    def call() -> None:
        now["time"] += next(waits)

    assert tuning._seconds(call, CPU) == pytest.approx(0.5)


def test_who_waited_takes_what_the_other_measured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = _stub(None)
    monkeypatch.setattr(tuning, "measuring", lambda: contextlib.nullcontext(True))
    monkeypatch.setattr(tuning, "_measure", _stub)
    assert tuning.tune() == first, "the other one failed, and left nothing to take"
    monkeypatch.setattr(tuning, "_measure", None)
    monkeypatch.setattr(profile_store, "_known", {})
    assert tuning.tune() == first
    assert current_profile() == first


def _stub(progress: object) -> MachineProfile:
    """A measurement that takes a moment and says which process took it."""
    import os
    import time
    from dataclasses import replace

    time.sleep(0.3)
    processor, cores, threads, version = machine_key()
    profile = replace(BUILT_IN, name="measured", processor=processor, cores=cores, threads=threads)
    return replace(profile, torch_version=version, accelerator_name=str(os.getpid()))


def _tune_in_child(start: object, answers: object) -> None:
    tuning._measure = _stub
    torch.set_num_threads(1)
    start.wait()  # type: ignore[attr-defined]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        profile = tuning.tune()
    answers.put((profile.accelerator_name, [str(w.message) for w in caught]))  # type: ignore[attr-defined]


def test_eight_processes_at_once(folder: Path) -> None:
    """All succeed without a word, and one whole file is left."""
    context = multiprocessing.get_context("fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn")
    start, answers = context.Event(), context.Queue()
    children = [context.Process(target=_tune_in_child, args=(start, answers)) for _ in range(8)]
    for child in children:
        child.start()
    start.set()
    found = [answers.get(timeout=60) for _ in children]
    for child in children:
        child.join(timeout=10)
    assert [child.exitcode for child in children] == [0] * 8
    assert all(said == [] for _, said in found)
    measurers = {name for name, _ in found}
    files = [path for path in folder.iterdir() if path.suffix == ".json"]
    assert len(files) == 1
    assert json.loads(files[0].read_text())["accelerator_name"] in measurers
    assert {path.suffix for path in folder.iterdir()} <= {".json", ".lock"}
