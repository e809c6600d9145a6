"""Where a dense operation is quicker: a pure function of measured seconds, the size, and where the data lie.

The accelerator is charged for carrying operands there and results back if the data lie in host memory, the CPU if they
lie on the accelerator. The backward pass is not counted: it goes where the forward one went.
"""

from dataclasses import dataclass

import torch

from flashgp.foundations.operations import result_numbers
from flashgp.foundations.profile import DeviceRates
from flashgp.foundations.quantities import readable_seconds

__all__ = ["ACCELERATOR", "CPU", "Decision", "Speeds", "decide", "order_of"]

CPU, ACCELERATOR = "cpu", "accelerator"
EXACT_ORDER = 128  # sizes above it are rounded down to seven binary digits before they are looked up: 0.8 % of an order


@dataclass(frozen=True)
class Speeds:
    """What a choice is made from. Fields: cpu and accelerator, whose `operations` hold the measured seconds; source,
    the name of the profile."""

    cpu: DeviceRates
    accelerator: DeviceRates
    source: str = "measured"

    def __post_init__(self) -> None:
        object.__setattr__(self, "_chosen", {})

    def quicker(self, operation: str, dtype: torch.dtype, rows: int, columns: int, batch: int, home: str) -> str:
        """CPU or ACCELERATOR for data that lie at home; home where one of them was not measured. Cost: a look-up, for a
        size that was asked for before; some 100 us for a new one."""
        key = (operation, dtype, _rounded(rows), _rounded(columns), _rounded(batch), home)
        known: dict[tuple[object, ...], str] = self._chosen  # type: ignore[attr-defined]
        place = known.get(key)
        if place is None:
            on_cpu, on_accelerator, _ = _seconds(self, operation, dtype, *key[2:5], home)
            if on_cpu is None or on_accelerator is None:
                place = home
            else:
                place = ACCELERATOR if on_accelerator < on_cpu else CPU
            if len(known) >= 2**14:
                known.clear()
            known[key] = place
        return place


@dataclass(frozen=True)
class Decision:
    """Where one call goes, and why. It can be printed.

    Fields: operation, rows, columns, batch, dtype; home, where its data lie, and device, where it runs, "cpu" or
    "cuda"; cpu_seconds and accelerator_seconds, with what is carried, None where not known; transfer_seconds, the
    carrying alone; rates, where the seconds come from; reason.
    """

    operation: str
    rows: int
    columns: int
    batch: int
    dtype: str
    home: str
    device: str
    cpu_seconds: float | None
    accelerator_seconds: float | None
    transfer_seconds: float | None
    rates: str
    reason: str

    def lines(self) -> list[tuple[str, str]]:
        """(name, readable value)."""
        many = f", {self.batch:,} of them" if self.batch > 1 else ""
        seconds = [
            (name, readable_seconds(value))
            for name, value in (
                ("on the CPU", self.cpu_seconds),
                ("on the GPU", self.accelerator_seconds),
                ("carrying", self.transfer_seconds),
            )
            if value is not None
        ]
        return [
            ("operation", f"{self.operation}, {self.rows:,} x {self.columns:,}{many}, {self.dtype}, on {self.home}"),
            ("runs on", f"{self.device}: {self.reason}"),
            *seconds,
            ("rates", self.rates),
        ]

    def __str__(self) -> str:
        return "\n".join(f"{name:<10}  {text}" for name, text in self.lines())


def order_of(operation: str, rows: int, columns: int) -> int:
    """What a crossover is compared with: the shorter side of a matrix, the rows of a triangular system."""
    return min(rows, columns) if operation == "qr" else rows


def decide(
    speeds: Speeds | None, operation: str, dtype: torch.dtype, size: tuple[int, int, int], home: str = CPU
) -> Decision:
    """The choice with all that it rests on.

    Args: speeds, None where nothing is known; size, rows, columns and batch; home, CPU or ACCELERATOR.
    """
    rows, columns, batch = size
    names = {CPU: "cpu", ACCELERATOR: "cuda"}
    seconds: tuple[float | None, float | None, float | None] = (None, None, None)
    if speeds is None:
        place = home
        rates, reason = "none", "nothing was measured, so data stay where they are"
    else:
        place = speeds.quicker(operation, dtype, rows, columns, batch, home)
        seconds = _seconds(speeds, operation, dtype, rows, columns, batch, home)
        rates = speeds.source
        if seconds[0] is None or seconds[1] is None:
            reason = "one of the devices was not measured, so data stay where they are"
        else:
            times = max(seconds[0], seconds[1]) / min(seconds[0], seconds[1])
            reason = f"{times:.3g} times quicker" if times > 1.0 else "as quick"
    return Decision(
        operation, rows, columns, batch, str(dtype).removeprefix("torch."), names[home], names[place], *seconds,
        rates, reason,
    )  # fmt: skip


def _seconds(
    speeds: Speeds, operation: str, dtype: torch.dtype, rows: int, columns: int, batch: int, home: str
) -> tuple[float | None, float | None, float | None]:
    """(on the CPU, on the accelerator, of these the carrying) for data at home."""
    operands, there, results, back = result_numbers(operation, rows, columns, batch)
    link, size = speeds.accelerator, dtype.itemsize
    to_link, from_link = (there, back) if home == CPU else (back, there)
    carried = to_link * size / link.transfer_bytes + from_link * size / link.return_bytes
    carried += (operands + results) * link.transfer_seconds / 2
    on_cpu = speeds.cpu.seconds(operation, dtype, rows, columns, batch)
    on_accelerator = link.seconds(operation, dtype, rows, columns, batch)
    if home == CPU:
        on_accelerator = None if on_accelerator is None else on_accelerator + carried
    else:
        on_cpu = None if on_cpu is None else on_cpu + carried
    return on_cpu, on_accelerator, carried


def _rounded(size: int) -> int:
    """A size with its seven leading binary digits, so that sizes which grow by one are looked up, not computed."""
    if size < EXACT_ORDER:
        return size
    shift = size.bit_length() - 7
    return size >> shift << shift
