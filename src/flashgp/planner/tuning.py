"""`fgp.tune`: measures the machine profile in seconds.

Every rate comes from a few timed calls after one that warms up. Dense operations are measured at a few sizes by
linalg/measuring.py, products K V for each backend that this installation can run, at a few representative shapes, on a
Matern-5/2 kernel. What was timed while other processes kept its cores busy is timed again; where they go on, nothing
is kept.
"""

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from flashgp.foundations.contention import CoreTimes, reachable_cores
from flashgp.foundations.errors import DomainError, MeasurementDisturbedError
from flashgp.foundations.machine import accelerator
from flashgp.foundations.profile import (
    BUILT_IN,
    OPERATIONS,
    Crossover,
    DeviceRates,
    MachineProfile,
    OperationTime,
    PairRate,
    operation_flops,
)
from flashgp.foundations.profile_store import (
    current_profile,
    keep_profile,
    machine_key,
    measuring,
    read_profile,
    tune_command,
)
from flashgp.kernels.matern import Matern
from flashgp.linalg.measuring import CALLS, DenseSettings, measured_crossover, measured_curve, seconds_of
from flashgp.pairwise.problem import PairProblem
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.planner.engines import ENGINES, Engine

PARTS = (*OPERATIONS, "copy", "exp", "block", "tile", "call", "products", "crossover")  # of a profile
FLOATS = (torch.float64, torch.float32)
TILES = (2**18, 2**19, 2**20, 2**21)  # pairs of a torch tile
ABOUT = 1.05  # times the seconds of the best tile: a smaller one is as good


@dataclass(frozen=True)
class TuneSettings:
    """Settings of the measurements.

    Fields: dense, of dense operations; engines, whose products are measured; points, (feature numbers, right-hand
    sides) of products; measured_seconds of timed calls per rate; quick_seconds, a call shorter than this is measured
    on more rows, up to max_growth times as many; cpu_rows and accelerator_rows of the blocks and products on each;
    tile_rows, of products that compare TILES; core_times, a reading of what this process and others ran; watched, the
    seconds between two readings at least; others_cores, of a core that others may keep busy meanwhile; attempts, at
    what they disturbed.
    """

    dense: DenseSettings = field(default_factory=DenseSettings)
    engines: tuple[Engine, ...] = ENGINES
    points: tuple[tuple[int, int], ...] = ((3, 1), (8, 1), (8, 16), (26, 16), (90, 16))
    measured_seconds: float = 0.08
    quick_seconds: float = 0.005
    max_growth: int = 16
    cpu_rows: int = 1024
    accelerator_rows: int = 4096
    tile_rows: int = 8192
    core_times: Callable[[], CoreTimes] = CoreTimes.now
    watched: float = 0.5
    others_cores: float = 0.25
    attempts: int = 4

    def rows(self, device: torch.device) -> int:
        return self.cpu_rows if device.type == "cpu" else self.accelerator_rows

    def seconds(self, call: Callable[[], object], device: torch.device) -> float:
        """Seconds of a call, after one that is not counted."""
        return seconds_of(call, device, self.measured_seconds)


def tune(
    *,
    only: str | Sequence[str] | None = None,
    progress: Callable[[str, float], None] | None = None,
    keep: bool = True,
    settings: TuneSettings | None = None,
) -> MachineProfile:
    """Measure this machine and keep the profile for its plans: `fgp.tune`, `flashgp tune`.

    Args:
        only: names of PARTS to measure again; the rest of this machine's profile stays. None for all.
        progress: called with what is measured next and the fraction done.
        keep: write the profile to the user's configuration folder and use it in this process; False only measures.
        settings: how much is measured; by default what takes seconds.

    Returns:
        The profile. A process that finds another one measuring takes what that one measured.

    Raises:
        DomainError: for a part that does not exist, or where there is no profile to measure a part of.
        MeasurementDisturbedError: where other processes keep cores busy that it needs: nothing is kept then.
    Cost: seconds, some 200 MiB; a compiled backend compiles its kernels first.

    Example:
        >>> profile = fgp.tune(only="exp", keep=False)  # doctest: +SKIP
    """
    return tuned(only, progress, keep, settings)[0]


def tuned(
    only: str | Sequence[str] | None,
    progress: Callable[[str, float], None] | None,
    keep: bool = True,
    settings: TuneSettings | None = None,
) -> tuple[MachineProfile, bool]:
    """As `tune`; also whether the profile stands in its file, which it does not where that cannot be written."""
    parts, settings = _parts(only), settings or TuneSettings()
    if not keep:
        return _measure(progress, settings, parts or PARTS, None if parts is None else _known()), False
    with measuring() as waited:
        other = read_profile() if waited and parts is None else None
        if other is not None:
            return other, True
        known = None if parts is None else read_profile() or _known()
        profile = _measure(progress, settings, parts or PARTS, known)
        is_kept = keep_profile(profile)
    return profile, is_kept


def _parts(only: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """Raises: DomainError."""
    if only is None:
        return None
    names = [one.strip() for text in ([only] if isinstance(only, str) else only) for one in text.split(",")]
    unknown = [name for name in names if name not in PARTS]
    if unknown or not names:
        raise DomainError(f"`only` must name some of {', '.join(PARTS)}, got {', '.join(map(repr, unknown or names))}")
    return tuple(part for part in PARTS if part in names)


def _known() -> MachineProfile:
    """The profile whose other parts stay. Raises: DomainError."""
    profile = current_profile()
    if not profile.measured:
        raise DomainError(
            "`only` measures parts of this machine's profile, and there is none yet; run "
            f"`{tune_command()}` without it once"
        )
    return profile


def _measure(
    progress: Callable[[str, float], None] | None,
    settings: TuneSettings,
    parts: Sequence[str],
    known: MachineProfile | None,
) -> MachineProfile:
    """Args: parts: to measure; known: where the rest comes from, None if all are measured. Raises: DomainError."""
    there = accelerator()
    if known is not None and known.accelerator is None:
        there = None  # what is not measured now is known of the CPU only
    if there is None and tuple(parts) == ("crossover",):
        raise DomainError(
            "`only` names crossover, which compares the CPU with an accelerator that the profile knows, and there is "
            f"none; run `{tune_command()}` where torch finds one"
        )
    devices = {"cpu": torch.device("cpu")} | ({} if there is None else {"accelerator": there})
    before = {} if known is None else {"cpu": known.cpu, "accelerator": known.accelerator}
    steps = [(kind, *step) for kind, device in devices.items() for step in _steps(settings, device) if step[0] in parts]
    shapes = [(kind, *one) for kind, device in devices.items() for one in _shapes(settings, device)]
    shapes = shapes if "products" in parts else []

    def product(kind: str, engine: Engine, dtype: str, symmetric: bool, d: int, t: int) -> Callable[[], PairRate]:
        def run() -> PairRate:
            rate = _product_rate(settings, devices[kind], engine, getattr(torch, dtype), symmetric, d, t)
            return PairRate(engine.backend, kind, dtype, symmetric, d, t, rate)

        return run

    tasks: list[tuple[str, Callable[[], Any]]] = [(f"{devices[kind].type} {name}", run) for kind, _, name, run in steps]
    for kind, engine, dtype, symmetric, d, t in shapes:
        what = f"{devices[kind].type} products by {engine.backend}, {dtype}, d={d}, t={t}"
        tasks.append((what, product(kind, engine, dtype, symmetric, d, t)))
    compared = there if "crossover" in parts else None
    if compared is not None:
        for operation, floats, home in itertools.product(CALLS, FLOATS, ("cpu", "cuda")):
            what = f"where {operation} is quicker, {str(floats).removeprefix('torch.')}, data on {home}"
            call = functools.partial(measured_crossover, operation, floats, home, compared, settings.dense)
            tasks.append((what, call))
    rates: dict[str, dict[str, Any]] = {kind: {} for kind in devices}
    times: dict[str, list[OperationTime]] = {kind: [] for kind in devices}
    with torch.inference_mode(False), torch.no_grad():
        results = _undisturbed(tasks, progress, settings)
    for (kind, *_), measured in zip(steps, results, strict=False):
        times[kind] += measured.pop("operations", ())
        rates[kind] |= measured
    products: list[PairRate] = results[len(steps) : len(steps) + len(shapes)]
    crossovers: list[Crossover] = [one for one in results[len(steps) + len(shapes) :] if one is not None]
    by_kind = {kind: _device_rates(before.get(kind), rates[kind], times[kind], parts) for kind in devices}
    cpu, other = by_kind["cpu"], by_kind.get("accelerator")
    if progress is not None:
        progress("done", 1.0)
    processor, cores, threads, version = machine_key()
    if known is not None:
        other = other or known.accelerator
        products = products or list(known.products)
        crossovers = crossovers if compared is not None else list(known.crossovers)
    name = torch.cuda.get_device_name(there)[:200] if there is not None else known.accelerator_name if known else ""
    return MachineProfile(
        "measured", processor, cores, threads, version, cpu, other, name, tuple(products), tuple(crossovers)
    )


def _undisturbed(
    tasks: Sequence[tuple[str, Callable[[], Any]]],
    progress: Callable[[str, float], None] | None,
    settings: TuneSettings,
) -> list[Any]:
    """Results of the tasks, in turn; those during which others kept needed cores busy run again.

    Args: tasks: (what is measured, how).
    Raises: MeasurementDisturbedError where they are disturbed each time.
    """
    _, _, threads, _ = machine_key()
    cores = reachable_cores()
    allowed = max(0, cores - threads) + settings.others_cores
    results: list[Any] = []
    kept = failed = 0  # results that nobody disturbed; attempts at those that follow
    before = settings.core_times()
    while kept < len(tasks):
        what, run = tasks[len(results)]
        if progress is not None:
            progress(what, len(results) / len(tasks))
        results.append(run())
        after = settings.core_times()
        if after.wall - before.wall < settings.watched:
            if len(results) < len(tasks):
                continue
            time.sleep(settings.watched - (after.wall - before.wall))
            after = settings.core_times()
        others = before.others(after)
        failed = failed + 1 if others > allowed else 0
        if failed == settings.attempts:
            free = int(cores - others + settings.others_cores)
            fewer = f", or measure what they leave, `flashgp tune --threads {free}`" if 0 < free < threads else ""
            raise MeasurementDisturbedError(
                f"`tune` must have {threads} of {cores} cores for itself, got other processes that kept {others:.1f} "
                f"busy while it measured {what}; nothing was kept, and plans go on as before: "
                f"stop the others and run it again{fewer}",
                others_cores=others,
                cores=cores,
                threads=threads,
            )
        if failed:
            del results[kept:]
        kept, before = len(results), settings.core_times()
    return results


def _device_rates(
    known: DeviceRates | None, rates: dict[str, Any], times: Sequence[OperationTime], parts: Sequence[str]
) -> DeviceRates:
    """Measured rates of one device, beside those known of it."""
    unmeasured = () if known is None else tuple(one for one in known.operations if one.operation not in parts)
    for operation in ("gemm", "cholesky"):
        for dtype in ("float64", "float32"):
            curve = [one for one in times if (one.operation, one.dtype) == (operation, dtype)]
            if curve:
                largest = max(curve, key=lambda one: one.order)
                rates[f"{operation}_{dtype}"] = operation_flops(operation, largest.order) / largest.seconds
    operations = (*unmeasured, *times)
    return DeviceRates(**rates, operations=operations) if known is None else replace(
        known, **rates, operations=operations
    )  # fmt: skip


def _steps(settings: TuneSettings, device: torch.device) -> Iterator[tuple[str, str, Callable[[], dict[str, Any]]]]:
    """(part, name, how to measure fields of DeviceRates) on a device."""
    n = settings.rows(device)

    def curve(operation: str, dtype: torch.dtype) -> Callable[[], dict[str, Any]]:
        return lambda: {"operations": measured_curve(operation, dtype, device, settings.dense)}

    def copy() -> dict[str, Any]:
        source = torch.zeros(2**24, dtype=torch.float32, device=device)
        target = torch.empty_like(source)
        return {"copy_bytes": 2 * source.nbytes / settings.seconds(lambda: target.copy_(source), device)}

    def exponentials() -> dict[str, Any]:
        size = 2**16 if device.type == "cpu" else 2**24
        values = torch.linspace(-5.0, 0.0, size, device=device)
        out = torch.empty_like(values)
        return {"exp": size / settings.seconds(lambda: torch.exp(values, out=out), device)}

    for operation in OPERATIONS:
        for dtype in FLOATS:
            yield operation, f"{operation}, {str(dtype).removeprefix('torch.')}", curve(operation, dtype)
    yield "copy", "copy", copy
    yield "exp", "exp", exponentials
    yield "block", "block", lambda: {"block_pairs": (2 * n) ** 2 / settings.seconds(_block(2 * n, device), device)}
    yield "tile", "tile", lambda: {"tile_pairs": _tile_pairs(settings, device)}
    yield "call", "call", lambda: {"call_seconds": settings.seconds(_block(2, device), device)}


def _block(n: int, device: torch.device) -> Callable[[], object]:
    """A dense block by the portable backend, d = 8: on two rows, what a small operation of this library takes."""
    kernel = Matern(2.5)
    rows = kernel.rows(_points(n, 8, device)).detach()
    backend = TorchTiles()
    return lambda: backend.block(PairProblem(kernel.form, [], rows), dtype=torch.float64, upper=True)


def _tile_pairs(settings: TuneSettings, device: torch.device) -> int:
    """The smallest tile of TILES with which the portable backend is about as quick as with the best of them."""
    if device.type != "cpu":
        return BUILT_IN.rates(device).tile_pairs
    kernel = Matern(2.5)
    rows = kernel.rows(_points(settings.tile_rows, 8, device)).detach()
    right = torch.ones(settings.tile_rows, 1, dtype=torch.float32)
    seconds = {
        pairs: settings.seconds(lambda: TorchTiles(pairs).product(PairProblem(kernel.form, [], rows), right), device)  # noqa: B023
        for pairs in TILES
    }
    return next(pairs for pairs in TILES if seconds[pairs] <= ABOUT * min(seconds.values()))


def _points(n: int, d: int, device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, d, generator=generator, dtype=torch.float64).to(device) / d**0.5


def _shapes(settings: TuneSettings, device: torch.device) -> Iterator[tuple[Engine, str, bool, int, int]]:
    for engine in settings.engines:
        if engine.runs_on(device) and engine.installed() and engine.load():
            for dtype in engine.dtypes:
                for d, t in settings.points:
                    for symmetric in (True, False):
                        yield engine, dtype, symmetric, d, t


def _product_rate(
    settings: TuneSettings, device: torch.device, engine: Engine, dtype: torch.dtype, symmetric: bool, d: int, t: int
) -> float:
    """Pairs per second of K V on as many rows as make a call long enough to time."""
    kernel, backend = Matern(2.5), engine.create()
    # Compiled loops serve products from 1e7 pairs on: begin where they take over.
    n = max(4096, settings.rows(device)) if engine.backend == "cpu" else settings.rows(device)
    while True:
        rows = kernel.rows(_points(n, d, device)).detach()
        right = torch.ones(n, t, dtype=dtype, device=device)
        cols = None if symmetric else rows
        seconds = settings.seconds(lambda: backend.product(PairProblem(kernel.form, [], rows, cols), right), device)  # noqa: B023
        if seconds >= settings.quick_seconds or n >= settings.max_growth * settings.rows(device):
            return n * n / seconds
        n *= 2
