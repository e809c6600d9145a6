"""`fgp.tune`: measures the machine profile in seconds.

Every rate comes from a few timed calls after one that warms up. Products K V are measured for each backend that
this installation can run, at a few representative shapes, on a Matern-5/2 kernel.
"""

import time
from collections.abc import Callable, Iterator

import torch

from flashgp.foundations.profile import DeviceRates, MachineProfile, PairRate
from flashgp.foundations.profile_store import keep_profile, machine_key, measuring, read_profile
from flashgp.kernels.matern import Matern
from flashgp.pairwise.backend import BACKENDS
from flashgp.pairwise.torch_tiles import TorchTiles
from flashgp.planner.engines import ENGINES, accelerator

__all__ = ["POINTS", "tune"]

POINTS = ((3, 1), (8, 1), (8, 16), (26, 16), (90, 16))  # (feature numbers, right-hand sides) of measured products
MEASURED_SECONDS = 0.08  # of timed calls per rate
QUICK_SECONDS = 0.005  # a call shorter than this is measured on more rows
MOST_GROWTH = 16  # of the rows, until a call is long enough
SIZES = {"cpu": 1024, "accelerator": 4096}  # rows of the matrices measured on each


def tune(*, progress: Callable[[str, float], None] | None = None, keep: bool = True) -> MachineProfile:
    """Measure this machine and keep the profile for its plans: `fgp.tune`, `flashgp tune`.

    Args:
        progress: called with what is measured next and the fraction done.
        keep: write the profile to the user's configuration folder and use it in this process; False only measures.
    Returns: the profile. A process that finds another one measuring takes what that one measured.
    Cost: seconds, some 200 MiB; a compiled backend compiles its kernels first.
    """
    if not keep:
        return _measure(progress)
    with measuring() as waited:
        found = read_profile() if waited else None
        profile = found or _measure(progress)
        if found is None:
            keep_profile(profile)
    return profile


def _measure(progress: Callable[[str, float], None] | None) -> MachineProfile:
    devices = [torch.device("cpu"), *([found] if (found := accelerator()) is not None else [])]
    plan = [(device, name, run) for device in devices for name, run in _rate_steps(device).items()]
    shapes = [one for device in devices for one in _shapes(device)]
    rates: dict[str, dict[str, float]] = {device.type: {} for device in devices}
    products: list[PairRate] = []
    total = len(plan) + len(shapes)
    with torch.inference_mode(False), torch.no_grad():
        for done, (device, name, run) in enumerate(plan):
            _say(progress, f"{device.type} {name.replace('_', ' ')}", done / total)
            rates[device.type][name] = run()
        for done, (device, backend, dtype, symmetric, d, t) in enumerate(shapes, len(plan)):
            _say(progress, f"{device.type} products by {backend}, {dtype}, d={d}, t={t}", done / total)
            rate = _product_rate(device, backend, getattr(torch, dtype), symmetric, d, t)
            products.append(PairRate(backend, _kind(device), dtype, symmetric, d, t, rate))
    _say(progress, "done", 1.0)
    processor, cores, threads, version = machine_key()
    other = devices[1] if len(devices) > 1 else None
    return MachineProfile(
        name="measured",
        processor=processor,
        cores=cores,
        threads=threads,
        torch_version=version,
        cpu=DeviceRates(**rates["cpu"]),
        accelerator=None if other is None else DeviceRates(**rates[other.type]),
        accelerator_name="" if other is None else torch.cuda.get_device_name(other)[:200],
        products=tuple(products),
    )


def _say(progress: Callable[[str, float], None] | None, what: str, fraction: float) -> None:
    if progress is not None:
        progress(what, fraction)


def _kind(device: torch.device) -> str:
    return "cpu" if device.type == "cpu" else "accelerator"


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of a call, after one that is not counted: the lower quartile, since other work only ever adds time."""

    def once() -> float:
        started = time.perf_counter()
        call()
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        return time.perf_counter() - started

    once()
    taken = [once() for _ in range(3)]
    while sum(taken) < MEASURED_SECONDS:
        taken.append(once())
    return sorted(taken)[len(taken) // 4]


def _rate_steps(device: torch.device) -> dict[str, Callable[[], float]]:
    """How to measure each field of DeviceRates."""
    n = SIZES[_kind(device)]

    def gemm(dtype: torch.dtype) -> float:
        a = torch.ones(n, n, dtype=dtype, device=device)
        out = torch.empty_like(a)
        return 2 * n**3 / _seconds(lambda: torch.mm(a, a, out=out), device)

    def cholesky(dtype: torch.dtype) -> float:
        a = torch.full((2 * n, 2 * n), 0.5, dtype=dtype, device=device)
        a.diagonal().fill_(1.0)
        return (2 * n) ** 3 / 3 / _seconds(lambda: torch.linalg.cholesky_ex(a), device)

    def copy() -> float:
        source = torch.zeros(2**24, dtype=torch.float32, device=device)
        target = torch.empty_like(source)
        return 2 * source.nbytes / _seconds(lambda: target.copy_(source), device)

    def exponentials() -> float:
        size = 2**16 if device.type == "cpu" else 2**24
        values = torch.linspace(-5.0, 0.0, size, device=device)
        out = torch.empty_like(values)
        return size / _seconds(lambda: torch.exp(values, out=out), device)

    def transfer() -> float:
        source = torch.zeros(2**22, dtype=torch.float32)
        target = torch.empty(2**22, dtype=torch.float32, device=device)
        return source.nbytes / _seconds(lambda: target.copy_(source), device)

    return {
        "gemm_float64": lambda: gemm(torch.float64),
        "gemm_float32": lambda: gemm(torch.float32),
        "cholesky_float64": lambda: cholesky(torch.float64),
        "cholesky_float32": lambda: cholesky(torch.float32),
        "copy_bytes": copy,
        "exp": exponentials,
        "block_pairs": lambda: (2 * n) ** 2 / _seconds(_block(2 * n, device), device),
        "call_seconds": lambda: _seconds(_block(2, device), device),
        "transfer_bytes": transfer,
    }


def _block(n: int, device: torch.device) -> Callable[[], object]:
    """A dense block by the torch tiles, d = 8: on two rows, what a small operation of this library takes."""
    kernel = Matern(2.5)
    rows = kernel.rows(_points(n, 8, device)).detach()
    backend = TorchTiles()
    return lambda: backend.block(kernel.form, [], rows, None, dtype=torch.float64, upper=True)


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
    # The compiled loops leave less than 1e7 pairs to the torch tiles: begin where they take over.
    n = max(4096, SIZES[_kind(device)]) if backend == "cpu" else SIZES[_kind(device)]
    while True:
        rows = kernel.rows(_points(n, d, device)).detach()
        right = torch.ones(n, t, dtype=dtype, device=device)
        cols = None if symmetric else rows
        seconds = _seconds(lambda: made.product(kernel.form, [], rows, cols, right), device)  # noqa: B023
        if seconds >= QUICK_SECONDS or n >= MOST_GROWTH * SIZES[_kind(device)]:
            return n * n / seconds
        n *= 2
