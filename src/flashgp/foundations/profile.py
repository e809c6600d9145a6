"""The machine profile: the rates that plans predict seconds from, built in or measured by `flashgp tune`.

A profile is data: it is read from a file by name and type, and nothing in it is executed. Built-in rates are cautious
guesses for two CPU cores and a mid-range accelerator; a plan says which profile it used.
"""

import functools
import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

import torch

from flashgp.foundations.errors import DomainError
from flashgp.foundations.json_values import json_dataclass

SCHEMA = 5  # of the JSON; a file of another number is not read
FAR = 100.0  # times slower than the built-in rate of two cores: slower than processors are, so something disturbed it
DIP = 3.0  # times slower than at the sizes beside it: rates bend with size, but do not dip
# What a covariance costs besides its d features and t right-hand sides, in multiply-adds: the profile, eq. (M-58).
PROFILE_WORK = 16.0


OPERATIONS = ("gemm", "cholesky")  # (n x n)(n x n), and the factor of n x n


@dataclass(frozen=True)
class OperationTime:
    """One measurement: seconds of an operation on a device that the profile names, the result complete.

    Fields: operation, one of OPERATIONS; dtype as text; order, n.
    """

    operation: str
    dtype: str
    order: int
    seconds: float

    def __post_init__(self) -> None:
        if self.operation not in OPERATIONS:
            raise DomainError(f"`operation` must be one of {', '.join(OPERATIONS)}, got {self.operation!r}")


def operation_flops(operation: str, order: float) -> float:
    """Floating-point operations, to leading order. Source: Golub & Van Loan (2013), sections 1.1 and 4.2."""
    return 2 * order**3 if operation == "gemm" else order**3 / 3


def seconds_at(known: Sequence[tuple[int, float]], order: float) -> float:
    """Seconds at an order from (order, seconds) in increasing order: log-log linear between measured orders.

    Exact for any power law, and it follows the bend from latency to arithmetic; above the largest order the rate of
    arithmetic stays what it was there, below the smallest the seconds do."""
    (first, least), (last, most) = known[0], known[-1]
    if order <= first:
        return least
    if order >= last:
        return most * (order / last) ** 3
    place = bisect_right(known, order, key=lambda one: one[0])
    (x0, s0), (x1, s1) = known[place - 1], known[place]
    share = math.log(order / x0) / math.log(x1 / x0)
    return s0 * (s1 / s0) ** share


@dataclass(frozen=True)
class DeviceRates:
    """Rates per second of one processor or accelerator, with all threads that torch uses.

    Fields: gemm and cholesky in flops per second by dtype (n^3 / 3 flops for a factor) at large sizes; copy_bytes,
    bytes read and written; exp, float32 exponentials in cache; block_pairs, float64 covariances of a dense symmetric
    block by the portable backend, a pair counted once per entry of the full matrix; call_seconds, seconds of one small
    operation of this library, the launches of its kernels included; tile_pairs, of the torch tile that large products
    are quickest with; operations, dense products and factors at measured orders.
    """

    gemm_float64: float
    gemm_float32: float
    cholesky_float64: float
    cholesky_float32: float
    copy_bytes: float
    exp: float
    block_pairs: float
    call_seconds: float
    tile_pairs: int
    operations: tuple[OperationTime, ...] = ()

    def gemm(self, dtype: torch.dtype, n: float | None = None) -> float:
        """Flops per second of a product as large as one of n x n matrices; at large sizes without n."""
        large = self.gemm_float64 if dtype == torch.float64 else self.gemm_float32
        return self._rate("gemm", dtype, n) or large

    def cholesky(self, dtype: torch.dtype, n: float | None = None) -> float:
        """Flops per second of a factor of an n x n matrix; at large sizes without n."""
        large = self.cholesky_float64 if dtype == torch.float64 else self.cholesky_float32
        return self._rate("cholesky", dtype, n) or large

    @functools.cached_property
    def _curves(self) -> dict[tuple[str, str], list[tuple[int, float]]]:
        return {key: [(one.order, one.seconds) for one in curve] for key, curve in curves_of(self.operations).items()}

    def _rate(self, operation: str, dtype: torch.dtype, n: float | None) -> float | None:
        known = self._curves.get((operation, str(dtype).removeprefix("torch.")))
        return None if n is None or n < 1 or not known else operation_flops(operation, n) / seconds_at(known, n)


@dataclass(frozen=True)
class PairRate:
    """Covariances per second of K V on one backend, at one shape: d feature numbers, t right-hand sides.

    A pair counts once per entry of the full matrix, also where symmetry saves half of the work.
    """

    backend: str
    device: str
    dtype: str
    symmetric: bool
    d: int
    t: int
    pairs_per_second: float


@dataclass(frozen=True)
class Crossover:
    """The order of a matrix from which the accelerator is quicker.

    Fields: operation, "qr", "cholesky", "eigh" or "triangular"; dtype as text; home, "cpu" or "cuda", where the data
    lie; order.
    """

    operation: str
    dtype: str
    home: str
    order: int


@dataclass(frozen=True)
class MachineProfile:
    """Rates of one machine.

    Fields: name, "built-in" or "measured"; processor (with its family, model and stepping where the system lists them),
    cores, threads and torch_version, whose change makes a measured profile one of another machine; cpu, and accelerator
    (None where there is none) with its name; products, the rates of K V, any number per backend; crossovers, of
    factorisations.
    """

    name: str
    processor: str
    cores: int
    threads: int
    torch_version: str
    cpu: DeviceRates
    accelerator: DeviceRates | None = None
    accelerator_name: str = ""
    products: tuple[PairRate, ...] = field(default=())
    crossovers: tuple[Crossover, ...] = field(default=())

    def __hash__(self) -> int:
        # Of what tells machines apart: every small block looks its engine up by the profile, which has 150 rates.
        return hash((self.name, self.processor, self.cores, self.threads, self.torch_version, self.accelerator_name))

    @property
    def measured(self) -> bool:
        return self.name != "built-in"

    def rates(self, device: torch.device | str) -> DeviceRates:
        """The rates of a device; the built-in ones for an accelerator that was not measured."""
        if torch.device(device).type == "cpu":
            return self.cpu
        rates = self.accelerator or BUILT_IN.accelerator
        assert rates is not None
        return rates

    def crossover(self, operation: str, dtype: torch.dtype, home: str) -> int | None:
        """The order from which the accelerator is quicker for data at home; None where that was not found."""
        key = (operation, str(dtype).removeprefix("torch."), home)
        return next((one.order for one in self.crossovers if (one.operation, one.dtype, one.home) == key), None)

    def product_rate(
        self, backend: str, device: torch.device | str, dtype: torch.dtype, symmetric: bool, d: int, t: int
    ) -> float | None:
        """Covariances per second of K V by a backend, eq. (M-58); None where nothing is known of it.

        From the measured shape nearest in logarithms, by the ratio of the work per pair. A profile that does not know
        the backend (a package that came later) takes the built-in rates.
        """
        kind, name = torch.device(device).type, str(dtype).removeprefix("torch.")
        known = [
            rate
            for rate in self.products
            if (rate.backend, rate.device, rate.dtype) == (backend, "cpu" if kind == "cpu" else "accelerator", name)
        ]
        if not known:
            return None if self is BUILT_IN else BUILT_IN.product_rate(backend, device, dtype, symmetric, d, t)

        def distance(rate: PairRate) -> float:
            apart = abs(math.log((d + 1) / (rate.d + 1))) + abs(math.log((t + 1) / (rate.t + 1)))
            return apart + (0.0 if rate.symmetric == symmetric else 1e3)

        near = min(known, key=distance)
        rate = near.pairs_per_second * (near.d + near.t + PROFILE_WORK) / (d + t + PROFILE_WORK)
        if near.symmetric != symmetric:
            rate *= 2.0 if symmetric else 0.5
        return rate

    # -- as a file ----------------------------------------------------------------------------------------------
    def to_json(self) -> str:
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "MachineProfile":
        """Raises: DomainError for text that `to_json` of this version did not write, naming the field."""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DomainError(f"`text` must be a machine profile in JSON, got something else ({error})") from None
        if not isinstance(values, dict) or values.get("schema") != SCHEMA or isinstance(values["schema"], bool):
            said = values.get("schema") if isinstance(values, dict) else values
            newer = isinstance(said, int) and not isinstance(said, bool) and said > SCHEMA
            advice = "a newer FlashGP wrote it" if newer else "run `flashgp tune` again where it was measured"
            raise DomainError(f"`schema` must be {SCHEMA}, got {str(said)[:40]!r}; {advice}")
        values = {name: value for name, value in values.items() if name != "schema"}
        try:
            return json_dataclass(cls, values, "profile", positive=True)
        except ValueError as error:
            raise DomainError(f"{error}; run `flashgp tune` again") from None

    def doubts(self) -> list[str]:
        """Rates of the CPU that something must have disturbed: far below built-in ones, or below those beside them."""
        found = []
        for name in ("gemm_float64", "gemm_float32", "cholesky_float64", "cholesky_float32", "copy_bytes", "exp",
                     "block_pairs"):  # fmt: skip
            here, usual = getattr(self.cpu, name), getattr(BUILT_IN.cpu, name)
            if here * FAR < usual:
                found.append(f"{name} {here / 1e9:.2g}e9 a second (built in {usual / 1e9:.2g}e9)")
        for rate in self.products:
            if rate.device == "cpu":
                dtype = getattr(torch, rate.dtype)
                usual = BUILT_IN.product_rate(rate.backend, "cpu", dtype, rate.symmetric, rate.d, rate.t)
                if usual is not None and rate.pairs_per_second * FAR < usual:
                    what = f"products by {rate.backend}, {rate.dtype}, d={rate.d}, t={rate.t}"
                    found.append(
                        f"{what}: {rate.pairs_per_second / 1e9:.2g}e9 pairs a second (built in {usual / 1e9:.2g}e9)"
                    )
        for (operation, dtype), curve in curves_of(self.cpu.operations).items():
            speeds = [(one.order, operation_flops(operation, one.order) / one.seconds) for one in curve]
            for (_, low), (rows, speed), (_, high) in zip(speeds, speeds[1:], speeds[2:], strict=False):
                if speed * DIP < min(low, high):
                    text = f"{operation}, {dtype} at {rows:,}: {speed / 1e9:.2g} GFLOP/s"
                    found.append(f"{text} between {low / 1e9:.2g} and {high / 1e9:.2g}")
        return found

    # -- as text ------------------------------------------------------------------------------------------------
    def lines(self) -> list[tuple[str, str]]:
        """(name, readable value) of what is known."""
        lines = [("profile", self.name)]
        if self.measured:
            lines.append(
                ("machine", f"{self.processor}, {self.cores} cores, {self.threads} threads, torch {self.torch_version}")
            )
        lines += _rate_lines("", self.cpu)
        if self.accelerator is not None:
            lines += _rate_lines("accelerator ", self.accelerator)
        if self.accelerator_name:
            lines.append(("accelerator", self.accelerator_name))
        for cross in self.crossovers:
            data = "CPU" if cross.home == "cpu" else "GPU"
            name = f"{cross.operation}, {cross.dtype}, data on the {data}"
            lines.append((name, f"on the GPU from order {cross.order:,}"))
        for rate in self.products:
            kind = "symmetric" if rate.symmetric else "rectangular"
            lines.append(
                (
                    f"K V, {rate.backend}, {rate.device}",
                    f"{rate.dtype} d={rate.d} t={rate.t} {kind}: {rate.pairs_per_second / 1e9:.3g} G pairs/s",
                )
            )
        return lines

    def __str__(self) -> str:
        lines = self.lines()
        width = max(len(name) for name, _ in lines)
        return "\n".join(f"{name:<{width}}  {text}" for name, text in lines)


def _rate_lines(prefix: str, rates: DeviceRates) -> list[tuple[str, str]]:
    """Rates in the units people use."""
    giga = [
        ("GEMM", f"{rates.gemm_float64 / 1e9:.4g} GFLOP/s float64, {rates.gemm_float32 / 1e9:.4g} float32"),
        ("Cholesky", f"{rates.cholesky_float64 / 1e9:.4g} GFLOP/s float64, {rates.cholesky_float32 / 1e9:.4g} float32"),
        ("copy", f"{rates.copy_bytes / 1e9:.3g} GB/s"),
        ("exp", f"{rates.exp / 1e9:.3g} G/s float32"),
        ("block", f"{rates.block_pairs / 1e9:.3g} G pairs/s float64"),
        ("torch tile", f"{rates.tile_pairs:,} pairs in large products"),
        ("call", f"{rates.call_seconds * 1e6:.3g} us"),
    ]
    return [(prefix + name, text) for name, text in (*giga, *_operation_lines(rates.operations))]


def _operation_lines(times: Sequence[OperationTime]) -> list[tuple[str, str]]:
    """Each curve on a line."""
    lines = []
    for (operation, dtype), curve in curves_of(times).items():
        rates = (f"{operation_flops(operation, one.order) / one.seconds / 1e9:.3g} at {one.order:,}" for one in curve)
        lines.append((f"{operation}, {dtype}", f"GFLOP/s: {', '.join(rates)}"))
    return lines


def curves_of(times: Sequence[OperationTime]) -> dict[tuple[str, str], list[OperationTime]]:
    """Curves by operation and dtype, the smallest order first."""
    curves: dict[tuple[str, str], list[OperationTime]] = {}
    for one in sorted(times, key=lambda one: one.order):
        curves.setdefault((one.operation, one.dtype), []).append(one)
    return curves


def _table(backend: str, device: str, dtype: str, rates: Mapping[tuple[int, int], float]) -> tuple[PairRate, ...]:
    """Built-in rates of symmetric products; rectangular ones do twice the work."""
    return tuple(PairRate(backend, device, dtype, True, d, t, rate) for (d, t), rate in rates.items())


BUILT_IN = MachineProfile(
    name="built-in",
    processor="unknown",
    cores=2,
    threads=2,
    torch_version="any",
    cpu=DeviceRates(
        gemm_float64=6e10,
        gemm_float32=1.2e11,
        cholesky_float64=5e10,
        cholesky_float32=1e11,
        copy_bytes=2e10,
        exp=1e9,
        block_pairs=1e8,
        call_seconds=1e-4,
        tile_pairs=2**18,
    ),
    accelerator=DeviceRates(
        gemm_float64=5e12,
        gemm_float32=1e13,
        cholesky_float64=5e11,
        cholesky_float32=2e12,
        copy_bytes=5e11,
        exp=5e11,
        block_pairs=1e10,
        call_seconds=1e-4,
        tile_pairs=2**24,
    ),
    products=(
        *_table("torch", "cpu", "float64", {(3, 1): 3e8, (8, 16): 2.5e8, (90, 16): 1.8e8}),
        *_table("torch", "cpu", "float32", {(3, 1): 5e8, (8, 16): 4e8, (90, 16): 2.2e8}),
        *_table("cpu", "cpu", "float32", {(3, 1): 7e9, (8, 1): 5e9, (8, 16): 1.7e9, (26, 16): 1.3e9, (90, 16): 8e8}),
        *_table("cpu", "cpu", "float64", {(3, 1): 3e9, (8, 1): 2e9, (8, 16): 7e8, (26, 16): 5e8, (90, 16): 3e8}),
        *_table("torch", "accelerator", "float64", {(3, 1): 1e10, (8, 16): 1e10, (90, 16): 8e9}),
        # Half of what an H200 takes (benchmark/records/gpu_speed.json); of float64, as where it is slow.
        *_table("torch", "accelerator", "float32", {(3, 1): 5e10, (8, 16): 4e10, (26, 64): 3e10, (90, 16): 3e10}),
        *_table(
            "triton",
            "accelerator",
            "float32",
            {
                (3, 1): 1e12,
                (8, 1): 5e11,
                (8, 16): 3e11,
                (26, 1): 1.2e11,
                (26, 16): 1e11,
                (26, 64): 8e10,
                (90, 16): 2.8e10,
            },
        ),
    ),
)
