"""`fgp.tune` measures what plans use, in seconds, and eight processes at once get along."""

import itertools
import multiprocessing
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import filelock
import pytest
import torch

import flashgp as fgp
from flashgp.diagnosis.installation import profile_findings
from flashgp.foundations import profile_store
from flashgp.foundations.contention import CoreTimes, reachable_cores
from flashgp.foundations.errors import DomainError, FlashGPWarning, MeasurementDisturbedError
from flashgp.foundations.machine import using_accelerator
from flashgp.foundations.profile import BUILT_IN, MachineProfile, OperationTime
from flashgp.foundations.profile_store import current_profile, machine_key, profile_path
from flashgp.linalg.measuring import DenseSettings, measured_curve
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.planner import tuning
from flashgp.planner.engines import ENGINES, Engine

CPU = torch.device("cpu")


@pytest.fixture
def folder(profiles: Path) -> Path:
    profiles.mkdir()
    return profiles


def idle() -> CoreTimes:
    """Nothing else runs, and every reading is a second after the one before."""
    return CoreTimes(float(next(SECONDS)), 0.0, 0.0)


SECONDS = itertools.count()
DENSE = DenseSettings(orders=(16, 64), crossover_orders=(4, 8), measured_seconds=0.0)
SHORT = tuning.TuneSettings(
    DENSE, points=((3, 1), (8, 2)), measured_seconds=0.0, quick_seconds=0.0, cpu_rows=64, accelerator_rows=64,
    tile_rows=64, core_times=idle,
)  # fmt: skip
QUICK = replace(SHORT, engines=(), dense=replace(DENSE, orders=(16,)))


@dataclass(frozen=True)
class Timed(tuning.TuneSettings):
    """Calls run once, and a clock says what they take."""

    clock: Callable[[], float] = float

    def seconds(self, call: Callable[[], object], device: torch.device) -> float:
        call()
        return self.clock()


@dataclass(frozen=True)
class TimedDense(DenseSettings):
    """The same for dense operations."""

    clock: Callable[[], float] = float

    def seconds(self, call: Callable[[], object], device: torch.device) -> float:
        call()
        return self.clock()


def another_measures_first(monkeypatch: pytest.MonkeyPatch, leaves: MachineProfile | None) -> None:
    """Another process holds the lock when this one comes; it leaves a profile, or fails, and lets go."""

    def acquire(lock: filelock.BaseFileLock, timeout: float) -> object:
        if timeout == 0:
            raise filelock.Timeout(lock.lock_file)
        if leaves is not None:
            profile_path().write_text(leaves.to_json())
        return real(lock, timeout)

    real = filelock.BaseFileLock.acquire
    monkeypatch.setattr(filelock.BaseFileLock, "acquire", acquire)


def test_a_measured_profile_serves_the_plans_that_follow(folder: Path) -> None:
    gp = fgp.GP(fgp.kernels.RBF())
    before = fgp.plan(gp, n=500, d=2)
    assert before.profile == "built-in"
    heard: list[tuple[str, float]] = []
    threads, state = torch.get_num_threads(), torch.random.get_rng_state()
    profile = fgp.tune(progress=lambda what, fraction: heard.append((what, fraction)), settings=SHORT)
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
    assert fgp.plan(gp, n=500, d=2, deterministic=True).seconds == before.seconds


def test_only_measuring(folder: Path) -> None:
    assert fgp.tune(keep=False, settings=SHORT).measured
    assert list(folder.iterdir()) == []
    assert current_profile() is BUILT_IN


def test_rates_are_of_the_right_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a benchmark: a unit off by ten would show, beside the plain calls of torch measured in the same breath.

    On one thread by the processor's own clock, which stands still while other work has the core.
    """
    monkeypatch.setattr(time, "perf_counter", time.thread_time)
    settings = replace(SHORT, engines=ENGINES[:1])
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
        before = {name: amount / SHORT.seconds(call, CPU) for name, (amount, call) in plain.items()}
        profile = fgp.tune(keep=False, settings=settings)
        after = {name: amount / SHORT.seconds(call, CPU) for name, (amount, call) in plain.items()}
    finally:
        torch.set_num_threads(threads)
    for name in plain:
        slower, quicker = sorted((before[name], after[name]))
        assert slower / 4 < getattr(profile.cpu, name) < quicker * 4, name
    call = profile.cpu.call_seconds  # of two rows; 64 of them are a few such calls, and one exponential a pair
    assert 5e-6 < call < 5e-3
    for rate in profile.products:
        assert 64**2 / call / 30 < rate.pairs_per_second < max(before["exp"], after["exp"]), rate


def test_a_rate_is_measured_on_enough_rows() -> None:
    """Rows double until a call is long enough to time, and the rate is that of the last."""
    seen: list[int] = []

    class Counting(TorchTiles):
        def product(self, problem, right, **options):  # type: ignore[no-untyped-def]
            seen.append(problem.rows.count)

    class Quick(Engine):
        def create(self) -> TorchTiles:
            return Counting()

    quick = Quick("quick", "", "", ("cpu",), ("float32",), fused=False)
    timed = Timed(cpu_rows=64, quick_seconds=300**2 / 1e9, clock=lambda: seen[-1] ** 2 / 1e9)
    assert tuning._product_rate(timed, CPU, quick, torch.float32, True, 3, 1) == pytest.approx(1e9)
    assert seen == [64, 128, 256, 512]
    tuning._product_rate(replace(timed, quick_seconds=1e9), CPU, quick, torch.float32, True, 3, 1)
    assert seen[-1] == 64 * timed.max_growth, "and never without end"


def test_the_smallest_of_the_quickest_tiles_is_kept() -> None:
    for seconds, wanted in (
        ([2.0, 1.5, 1.04, 1.0], 2**20),
        ([2.0, 1.5, 1.06, 1.0], 2**21),
        ([1.0, 1.1, 1.2, 1.3], 2**18),
    ):
        taken = iter(seconds)
        assert tuning._tile_pairs(Timed(tile_rows=64, clock=taken.__next__), CPU) == wanted
    assert tuning._tile_pairs(SHORT, torch.device("cuda")) == BUILT_IN.rates("cuda").tile_pairs, "not measured"


def test_other_work_does_not_slow_the_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lower quartile: one quick call in four is enough, one lucky one in ten is not taken."""
    waits = iter([0.9, *([0.1, 0.5, 0.7, 0.9] * 3)])  # the first warms up
    now = {"time": 0.0}
    monkeypatch.setattr(time, "perf_counter", lambda: now["time"])

    def call() -> None:
        now["time"] += next(waits)

    assert tuning.TuneSettings(measured_seconds=6.0).seconds(call, CPU) == pytest.approx(0.5)


class Busy:
    """Readings, a second apart, in which others kept as many cores busy as listed; the last for good."""

    def __init__(self, *others: float) -> None:
        self.others, self.busy, self.count = list(others), 0.0, 0

    def __call__(self) -> CoreTimes:
        self.count += 1
        if self.count % 2 == 0:  # what runs between two readings; the next task begins with a reading of its own
            self.busy += self.others.pop(0) if len(self.others) > 1 else self.others[0]
        return CoreTimes(float(self.count), self.busy, 0.0)


def test_rates_beside_a_busy_core_are_refused(folder: Path) -> None:
    """They would be several times too slow, for good: nothing is kept, plans stay as they are."""
    _, _, threads, _ = machine_key()
    cores = reachable_cores()
    kept = fgp.tune(settings=QUICK)
    heard: list[str] = []
    busy = replace(QUICK, core_times=Busy(cores - threads + 1.0), attempts=3)
    with pytest.raises(MeasurementDisturbedError, match=r"kept .* busy while it measured cpu gemm, float64") as caught:
        fgp.tune(progress=lambda what, _: heard.append(what), settings=busy)
    assert heard == ["cpu gemm, float64"] * 3
    assert (caught.value.others_cores, caught.value.threads) == (cores - threads + 1.0, threads)
    assert ("--threads" in str(caught.value)) == (threads > 1)
    assert current_profile() == kept == MachineProfile.from_json(profile_path().read_text())


def test_what_others_disturbed_for_a_while_is_measured_again(folder: Path) -> None:
    _, _, threads, _ = machine_key()
    much = reachable_cores() - threads + 1.0
    heard: list[tuple[str, float]] = []
    settings = replace(QUICK, core_times=Busy(0.1, much, much, 0.1))
    profile = fgp.tune(progress=lambda *one: heard.append(one), settings=settings)
    assert [what for what, _ in heard[:5]] == ["cpu gemm, float64", *["cpu gemm, float32"] * 3, "cpu cholesky, float64"]
    assert [fraction for _, fraction in heard] == sorted(fraction for _, fraction in heard)
    gemm = [one for one in profile.cpu.operations if (one.operation, one.dtype) == ("gemm", "float32")]
    assert len(gemm) == len({one.order for one in gemm}), "a rate that was measured again stands once"


def test_rates_far_from_the_built_in_ones_are_named(folder: Path) -> None:
    """Kept by a version that did not look, or on a machine that was busy without saying so."""
    assert BUILT_IN.doubts() == []
    usual = tuple(OperationTime("gemm", "float64", n, 2 * n**3 / 2e10) for n in (64, 256, 1024))
    dip = (usual[0], replace(usual[1], seconds=8 * usual[1].seconds), usual[2])
    slow = replace(BUILT_IN.products[0], pairs_per_second=1e6)
    assert replace(BUILT_IN, cpu=replace(BUILT_IN.cpu, operations=usual)).doubts() == []
    bad = replace(
        fgp.tune(keep=False, settings=QUICK),
        cpu=replace(BUILT_IN.cpu, gemm_float64=1.88e7, operations=dip),
        products=(slow, *BUILT_IN.products[1:]),
    )
    rate, product, curve = bad.doubts()
    assert rate == "gemm_float64 0.019e9 a second (built in 60e9)"
    assert "products by torch, float64, d=3, t=1" in product
    assert curve == "gemm, float64 at 256: 2.5 GFLOP/s between 20 and 20"
    profile_path().write_text(bad.to_json())
    profile_store.forget_profiles()
    with pytest.warns(FlashGPWarning, match=r"disturbed: gemm_float64 .* and 2 more\. Plans"):
        assert fgp.plan(fgp.GP(fgp.kernels.RBF()), n=500, d=2).profile == "measured"
    (said,) = [one for one in profile_findings() if one.severity == "warning"]
    assert said.values["doubts"] == [rate, product, curve]


def test_who_waited_takes_what_the_other_measured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []

    def tuned() -> MachineProfile:
        heard.clear()
        return fgp.tune(progress=lambda what, _: heard.append(what), settings=QUICK)

    tuned()
    tuned()
    assert heard, "nobody was waited for, and it is measured again"
    profile_path().unlink()
    another_measures_first(monkeypatch, None)
    first = tuned()
    assert heard, "the other one failed, and left nothing to take"
    other = replace(first, accelerator_name="the other's")
    another_measures_first(monkeypatch, other)
    profile_store.forget_profiles()
    assert tuned() == other
    assert heard == []
    assert current_profile() == other


def _tune_in_child(start: object, answers: object) -> None:
    torch.set_num_threads(1)
    heard: list[str] = []
    start.wait()  # type: ignore[attr-defined]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        profile = fgp.tune(progress=lambda what, _: heard.append(what), settings=QUICK)
    answers.put((profile.to_json(), bool(heard), [str(w.message) for w in caught]))  # type: ignore[attr-defined]


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
    assert [text for *_, said in found for text in said if "must have disturbed" not in text] == []  # eight at once do
    measured = [text for text, measures, _ in found if measures]
    assert all(text in measured for text, *_ in found), "who waited took what another had measured"
    files = [path for path in folder.iterdir() if path.suffix == ".json"]
    assert len(files) == 1
    assert files[0].read_text() in measured
    assert {path.suffix for path in folder.iterdir()} <= {".json", ".lock"}


# -- dense operations and parts -------------------------------------------------------------------------------------
def test_dense_operations_are_measured_at_their_sizes(folder: Path) -> None:
    profile = fgp.tune(keep=False, settings=SHORT)
    sizes = {(one.operation, one.dtype, one.order) for one in profile.cpu.operations}
    assert sizes == {
        (op, dtype, n) for op in ("gemm", "cholesky") for dtype in ("float64", "float32") for n in (16, 64)
    }
    large = next(
        one for one in profile.cpu.operations if (one.operation, one.dtype, one.order) == ("cholesky", "float32", 64)
    )
    assert profile.cpu.cholesky_float32 == pytest.approx(64**3 / 3 / large.seconds)
    assert profile.cpu.cholesky(torch.float32, 64) == pytest.approx(profile.cpu.cholesky_float32)
    assert profile.crossovers == (), "there is one device"


def test_only_a_part_is_measured_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DomainError, match="there is none yet"):
        fgp.tune(only="exp", settings=SHORT)
    whole = fgp.tune(settings=SHORT)
    heard: list[str] = []
    part = fgp.tune(only="exp,cholesky", progress=lambda what, _: heard.append(what), settings=SHORT)
    assert heard == ["cpu cholesky, float64", "cpu cholesky, float32", "cpu exp", "done"]
    assert part == current_profile() == MachineProfile.from_json(profile_path().read_text())
    assert part.products == whole.products
    anew = {name: getattr(part.cpu, name) for name in ("exp", "cholesky_float64", "cholesky_float32", "operations")}
    assert part.cpu == replace(whole.cpu, **anew)
    kept = [one for one in whole.cpu.operations if one.operation != "cholesky"]
    assert [one for one in part.cpu.operations if one.operation != "cholesky"] == kept
    assert len(part.cpu.operations) == len(whole.cpu.operations)
    assert fgp.tune(only=["products"], keep=False, settings=SHORT).products != whole.products
    again = fgp.tune(only=("gemm",), settings=SHORT)
    assert again.cpu.gemm_float64 != whole.cpu.gemm_float64
    assert again.cpu.cholesky_float64 == part.cpu.cholesky_float64
    for wrong in ("svd", "", "exp;qr"):
        with pytest.raises(DomainError, match="`only` must name some of gemm, cholesky"):
            fgp.tune(only=wrong, settings=SHORT)


def test_who_waited_for_another_measures_its_part_after_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two `tune` at once: the second keeps what the first one found of the rest."""
    before = fgp.tune(settings=QUICK)
    other = replace(before, cpu=replace(before.cpu, copy_bytes=12345.0))
    another_measures_first(monkeypatch, other)
    part = fgp.tune(only="exp", settings=QUICK)
    assert part.cpu.exp != before.cpu.exp
    assert part == replace(other, cpu=replace(other.cpu, exp=part.cpu.exp))


def test_a_second_device_is_measured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a second CPU where the accelerator would be."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a second CPU")
    with using_accelerator(CPU):
        profile = fgp.tune(settings=SHORT)
    assert profile.accelerator is not None
    assert profile.accelerator_name == "a second CPU"
    for rates in (profile.cpu, profile.accelerator):
        orders = {one.order for one in rates.operations if (one.operation, one.dtype) == ("gemm", "float32")}
        assert orders == {16, 64}
    assert {rate.device for rate in profile.products} == {"cpu", "accelerator"}
    on_it = {(one.operation, one.dtype) for one in profile.crossovers if one.home == "cuda"}
    assert on_it == {(op, dtype) for op in ("qr", "cholesky", "eigh", "triangular") for dtype in ("float64", "float32")}
    assert MachineProfile.from_json(profile_path().read_text()) == profile
    with using_accelerator(None):
        with pytest.raises(fgp.DomainError, match="compares the CPU with an accelerator"):
            fgp.tune(only="crossover", settings=SHORT)
        part = fgp.tune(only="exp", settings=SHORT)
        assert part.crossovers == profile.crossovers
        assert part.accelerator == profile.accelerator, "a device that is not there now keeps what is known of it"
        assert part.accelerator_name == "a second CPU"
        assert fgp.tune(keep=False, settings=SHORT).accelerator is None


def test_sizes_that_would_take_too_long_are_left_out() -> None:
    seconds = iter(n**3 * 1e-7 for n in (16, 64))
    settings = TimedDense(orders=(16, 64, 256, 1024), clock=seconds.__next__)
    found = measured_curve("cholesky", torch.float64, CPU, settings)
    assert [one.order for one in found] == [16, 64]
