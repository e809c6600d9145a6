"""`fgp.tune`: measures the machine profile in seconds.

Every rate comes from a few timed calls after one that warms up. Dense operations are measured at a few sizes by
linalg/measuring.py, products K V for each backend that this installation can run, at a few representative shapes, on a
Matern-5/2 kernel.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from flashgp.foundations.accelerator import accelerator
from flashgp.foundations.errors import DomainError
from flashgp.foundations.operations import OPERATIONS, OperationTime, operation_flops
from flashgp.foundations.profile import BUILT_IN, DeviceRates, MachineProfile, PairRate
from flashgp.foundations.profile_store import (
    current_profile,
    keep_profile,
    machine_key,
    measuring,
    read_profile,
    tune_command,
)
from flashgp.foundations.timing import seconds_of
from flashgp.kernels.matern import Matern
from flashgp.linalg.measuring import link_rates, measured_curve, sizes_of
from flashgp.pairwise.backend import BACKENDS
from flashgp.pairwise.problem import PairProblem
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.planner.engines import ENGINES

__all__ = ["PARTS", "POINTS", "TILES", "tune", "tuned"]

PARTS = (*OPERATIONS, "copy", "exp", "block", "tile", "call", "transfer", "products")  # of a profile; `only` names some
POINTS = ((3, 1), (8, 1), (8, 16), (26, 16), (90, 16))  # (feature numbers, right-hand sides) of measured products
MEASURED_SECONDS = 0.08  # of timed calls per rate
QUICK_SECONDS = 0.005  # a call shorter than this is measured on more rows
MAX_GROWTH = 16  # of the rows, until a call is long enough
SIZES = {"cpu": 1024, "accelerator": 4096}  # rows of the blocks and products measured on each
FLOATS = (torch.float64, torch.float32)
TILES = (2**18, 2**19, 2**20, 2**21)  # pairs; of torch tiles that are compared on products of so many rows
TILE_ROWS, ABOUT = 8192, 1.05


def tune(
    *,
    only: str | Sequence[str] | None = None,
    progress: Callable[[str, float], None] | None = None,
    keep: bool = True,
) -> MachineProfile:
    """Measure this machine and keep the profile for its plans: `fgp.tune`, `flashgp tune`.

    Args:
        only: names of PARTS to measure again; the rest of this machine's profile stays. None for all.
        progress: called with what is measured next and the fraction done.
        keep: write the profile to the user's configuration folder and use it in this process; False only measures.
    Returns: the profile. A process that finds another one measuring takes what that one measured.
    Raises: DomainError for a part that does not exist, or where there is no profile to measure a part of.
    Cost: seconds, some 200 MiB; a compiled backend compiles its kernels first.

    Example:
        >>> profile = fgp.tune(only="exp", keep=False)  # doctest: +SKIP
    """
    return tuned(only, progress, keep)[0]


def tuned(
    only: str | Sequence[str] | None, progress: Callable[[str, float], None] | None, keep: bool = True
) -> tuple[MachineProfile, bool]:
    """As `tune`; also whether the profile stands in its file, which it does not where that cannot be written."""
    parts = _parts(only)
    if not keep:
        return _measure(progress) if parts is None else _measure(progress, parts, _known()), False
    with measuring() as waited:
        found = read_profile() if waited and parts is None else None
        if found is not None:
            return found, True
        profile = _measure(progress) if parts is None else _measure(progress, parts, read_profile() or _known())
        kept = keep_profile(profile)
    return profile, kept


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
    parts: Sequence[str] = PARTS,
    known: MachineProfile | None = None,
) -> MachineProfile:
    """Args: parts: to measure; known: where the rest comes from, None if all are measured."""
    there = accelerator()
    if known is not None and known.accelerator is None:
        there = None  # what is not measured now is known of the CPU only
    devices = [torch.device("cpu"), *([] if there is None else [there])]
    before = (
        {"cpu": None, "accelerator": None} if known is None else {"cpu": known.cpu, "accelerator": known.accelerator}
    )
    steps = [(device, *step) for device in devices for step in _steps(device) if step[0] in parts]
    shapes = [one for device in devices for one in _shapes(device)] if "products" in parts else []
    total = len(steps) + len(shapes)
    done = 0

    def say(what: str) -> None:
        nonlocal done
        if progress is not None:
            progress(what, done / total)
        done += 1

    rates: dict[str, dict[str, Any]] = {_kind(device): {} for device in devices}
    times: dict[str, list[OperationTime]] = {kind: [] for kind in rates}
    products: list[PairRate] = []
    with torch.inference_mode(False), torch.no_grad():
        for device, _, name, run in steps:
            say(f"{device.type} {name}")
            found = run()
            times[_kind(device)] += found.pop("operations", ())
            rates[_kind(device)] |= found
        for device, backend, dtype, symmetric, d, t in shapes:
            say(f"{device.type} products by {backend}, {dtype}, d={d}, t={t}")
            rate = _product_rate(device, backend, getattr(torch, dtype), symmetric, d, t)
            products.append(PairRate(backend, _kind(device), dtype, symmetric, d, t, rate))
        made = {kind: _device_rates(before[kind], rates[kind], times[kind], parts) for kind in rates}
        cpu, other = made["cpu"], made.get("accelerator")
    if progress is not None:
        progress("done", 1.0)
    processor, cores, threads, version = machine_key()
    if known is not None:
        other = other or known.accelerator
        products = products or list(known.products)
    name = torch.cuda.get_device_name(there)[:200] if there is not None else known.accelerator_name if known else ""
    return MachineProfile("measured", processor, cores, threads, version, cpu, other, name, tuple(products))


def _device_rates(
    known: DeviceRates | None, found: dict[str, Any], times: Sequence[OperationTime], parts: Sequence[str]
) -> DeviceRates:
    """What was measured of one device, beside what is known of it."""
    kept = () if known is None else tuple(one for one in known.operations if one.operation not in parts)
    for operation in ("gemm", "cholesky"):
        for dtype in ("float64", "float32"):
            curve = [one for one in times if (one.operation, one.dtype, one.batch) == (operation, dtype, 1)]
            if curve:
                largest = max(curve, key=lambda one: one.rows)
                flops = operation_flops(operation, largest.rows, largest.columns)
                found[f"{operation}_{dtype}"] = flops / largest.seconds
    operations = (*kept, *times)
    return DeviceRates(**found, operations=operations) if known is None else replace(
        known, **found, operations=operations
    )  # fmt: skip


def _kind(device: torch.device) -> str:
    return "cpu" if device.type == "cpu" else "accelerator"


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of a call, after one that is not counted."""
    return seconds_of(call, device, MEASURED_SECONDS)


def _steps(device: torch.device) -> Iterator[tuple[str, str, Callable[[], dict[str, Any]]]]:
    """(part, name, how to measure fields of DeviceRates) on a device."""
    n = SIZES[_kind(device)]

    def curve(operation: str, dtype: torch.dtype) -> Callable[[], dict[str, Any]]:
        return lambda: {"operations": measured_curve(operation, dtype, device, sizes_of(operation))}

    def copy() -> dict[str, Any]:
        source = torch.zeros(2**24, dtype=torch.float32, device=device)
        target = torch.empty_like(source)
        return {"copy_bytes": 2 * source.nbytes / _seconds(lambda: target.copy_(source), device)}

    def exponentials() -> dict[str, Any]:
        size = 2**16 if device.type == "cpu" else 2**24
        values = torch.linspace(-5.0, 0.0, size, device=device)
        out = torch.empty_like(values)
        return {"exp": size / _seconds(lambda: torch.exp(values, out=out), device)}

    for operation in OPERATIONS:
        for dtype in FLOATS:
            yield operation, f"{operation}, {str(dtype).removeprefix('torch.')}", curve(operation, dtype)
    yield "copy", "copy", copy
    yield "exp", "exp", exponentials
    yield "block", "block", lambda: {"block_pairs": (2 * n) ** 2 / _seconds(_block(2 * n, device), device)}
    yield "tile", "tile", lambda: {"tile_pairs": _tile_pairs(device)}
    yield "call", "call", lambda: {"call_seconds": _seconds(_block(2, device), device)}
    yield "transfer", "transfer", lambda: dict(link_rates(device))


def _block(n: int, device: torch.device) -> Callable[[], object]:
    """A dense block by the portable backend, d = 8: on two rows, what a small operation of this library takes."""
    kernel = Matern(2.5)
    rows = kernel.rows(_points(n, 8, device)).detach()
    backend = TorchTiles()
    return lambda: backend.block(PairProblem(kernel.form, [], rows), dtype=torch.float64, upper=True)


def _tile_pairs(device: torch.device) -> int:
    """The smallest tile of TILES with which the portable backend is about as quick as with the best of them."""
    if device.type != "cpu":
        return BUILT_IN.rates(device).tile_pairs
    kernel = Matern(2.5)
    rows = kernel.rows(_points(TILE_ROWS, 8, device)).detach()
    right = torch.ones(TILE_ROWS, 1, dtype=torch.float32)
    seconds = {
        pairs: _seconds(lambda: TorchTiles(pairs).product(PairProblem(kernel.form, [], rows), right), device)  # noqa: B023
        for pairs in TILES
    }
    return next(pairs for pairs in TILES if seconds[pairs] <= ABOUT * min(seconds.values()))


def _points(n: int, d: int, device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, d, generator=generator, dtype=torch.float64).to(device) / d**0.5


def _shapes(device: torch.device) -> Iterator[tuple[torch.device, str, str, bool, int, int]]:
    for engine in ENGINES:
        if engine.runs_on(device) and engine.installed() and engine.load():
            for dtype in engine.dtypes:
                for d, t in POINTS:
                    for symmetric in (True, False):
                        yield device, engine.backend, dtype, symmetric, d, t


def _product_rate(device: torch.device, backend: str, dtype: torch.dtype, symmetric: bool, d: int, t: int) -> float:
    """Pairs per second of K V on as many rows as make a call long enough to time."""
    kernel, made = Matern(2.5), BACKENDS[backend]()
    # The compiled loops leave less than 1e7 pairs to the portable backend: begin where they take over.
    n = max(4096, SIZES[_kind(device)]) if backend == "cpu" else SIZES[_kind(device)]
    while True:
        rows = kernel.rows(_points(n, d, device)).detach()
        right = torch.ones(n, t, dtype=dtype, device=device)
        cols = None if symmetric else rows
        seconds = _seconds(lambda: made.product(PairProblem(kernel.form, [], rows, cols), right), device)  # noqa: B023
        if seconds >= QUICK_SECONDS or n >= MAX_GROWTH * SIZES[_kind(device)]:
            return n * n / seconds
        n *= 2
