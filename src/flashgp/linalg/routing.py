"""The device on which a dense operation is quicker, and a call there with its result brought back.

The choice is a function of measured seconds, the size, and where the data lie. The accelerator is charged for carrying
operands there and results back if the data lie in host memory, the CPU if they lie on the accelerator. The backward
pass is not counted: it goes where the forward one went.

Data on the CPU go to an accelerator only through the public functions: the library's own factorisations leave them
where they are (`own_device`), and bring small problems of an accelerator to the CPU where that is quicker. An
accelerator that fails costs one warning and is not asked again; the CPU then answers.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from flashgp.foundations.accelerator import accelerator, give_up_accelerator
from flashgp.foundations.determinism import is_deterministic
from flashgp.foundations.errors import BackendUnavailableError, DomainError, FlashGPError, warn
from flashgp.foundations.operations import OPERATIONS, operation_flops, result_numbers
from flashgp.foundations.profile import DeviceRates, MachineProfile
from flashgp.foundations.profile_store import current_profile, tune_command
from flashgp.foundations.quantities import readable_seconds

__all__ = ["Decision", "Speeds", "Transfers", "decide", "explain", "own_device", "run", "using_transfers"]

DEVICES = ("auto", "cpu", "cuda")
MIN_FLOPS = 3e4  # data in host memory: a smaller operation is done before an accelerator has begun
EXACT_ORDER = 128  # sizes above it are rounded down to seven binary digits before they are looked up: 0.8 % of an order
MAX_CHOICES = 2**14  # that are kept

Size = tuple[int, int, int]  # rows, columns, batch
Seconds = tuple[float | None, float | None, float]  # on the CPU, on the accelerator, of these the transfers


# -- the choice ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Speeds:
    """What a choice is made from. Fields: cpu and accelerator, whose `operations` hold the measured seconds; source,
    the name of the profile; choices made, by size."""

    cpu: DeviceRates
    accelerator: DeviceRates
    source: str = "measured"
    choices: dict[tuple[object, ...], str] = field(default_factory=dict, compare=False, repr=False)

    def quicker(self, operation: str, dtype: torch.dtype, rows: int, columns: int, batch: int, home: str) -> str:
        """ "cpu" or "cuda" for data that lie at home; home where one of them was not measured. Cost: a look-up for a
        size that was asked for before; some 100 us for a new one."""
        size = _rounded(rows), _rounded(columns), _rounded(batch)
        key = (operation, dtype, *size, home)
        place = self.choices.get(key)
        if place is None:
            on_cpu, on_accelerator, _ = self.seconds(operation, dtype, size, home)
            place = home
            if on_cpu is not None and on_accelerator is not None:
                place = "cuda" if on_accelerator < on_cpu else "cpu"
            if len(self.choices) >= MAX_CHOICES:
                self.choices.clear()
            self.choices[key] = place
        return place

    def seconds(self, operation: str, dtype: torch.dtype, size: Size, home: str) -> Seconds:
        """For data at home, transfers included; None where a device was not measured."""
        operands, there, results, back = result_numbers(operation, *size)
        link = self.accelerator
        to_link, from_link = (there, back) if home == "cpu" else (back, there)
        carried = to_link * dtype.itemsize / link.transfer_bytes + from_link * dtype.itemsize / link.return_bytes
        carried += (operands + results) * link.transfer_seconds / 2
        on_cpu, on_accelerator = self.cpu.seconds(operation, dtype, *size), link.seconds(operation, dtype, *size)
        if on_accelerator is not None and home == "cpu":
            on_accelerator += carried
        if on_cpu is not None and home != "cpu":
            on_cpu += carried
        return on_cpu, on_accelerator, carried


def _rounded(size: int) -> int:
    """A size with its seven leading binary digits, so that sizes which grow by one are looked up, not computed."""
    if size < EXACT_ORDER:
        return size
    shift = size.bit_length() - 7
    return size >> shift << shift


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
        seconds = (
            ("on the CPU", self.cpu_seconds),
            ("on the GPU", self.accelerator_seconds),
            ("carrying", self.transfer_seconds),
        )
        return [
            ("operation", f"{self.operation}, {self.rows:,} x {self.columns:,}{many}, {self.dtype}, on {self.home}"),
            ("runs on", f"{self.device}: {self.reason}"),
            *((name, readable_seconds(value)) for name, value in seconds if value is not None),
            ("rates", self.rates),
        ]

    def __str__(self) -> str:
        return "\n".join(f"{name:<10}  {text}" for name, text in self.lines())


def decide(speeds: Speeds | None, operation: str, dtype: torch.dtype, size: Size, home: str = "cpu") -> Decision:
    """The choice for data at home with all that it rests on; speeds are None where nothing is known."""
    place, rates, reason = home, "none", "nothing was measured, so data stay where they are"
    seconds: tuple[float | None, float | None, float | None] = (None, None, None)
    if speeds is not None:
        place, rates = speeds.quicker(operation, dtype, *size, home), speeds.source
        on_cpu, on_accelerator, _ = seconds = speeds.seconds(operation, dtype, size, home)
        if on_cpu is None or on_accelerator is None:
            reason = "one of the devices was not measured, so data stay where they are"
        else:
            times = max(on_cpu, on_accelerator) / min(on_cpu, on_accelerator)
            reason = f"{times:.3g} times quicker" if times > 1.0 else "as quick"
    return Decision(operation, *size, str(dtype).removeprefix("torch."), home, place, *seconds, rates, reason)


def explain(
    operation: str,
    rows: int,
    columns: int | None = None,
    batch: int = 1,
    dtype: torch.dtype = torch.float64,
    *,
    home: str = "cpu",
    profile: MachineProfile | None = None,
) -> Decision:
    """Where `fgp.linalg` runs an operation of this size, with the seconds on each device and the crossover.

    Args:
        operation: "qr", "cholesky", "eigh" or "triangular" (solve_triangular).
        rows: of the matrix, or the order of a triangular system.
        columns: of the matrix, or the right-hand sides of a triangular system.
        batch: how many.
        dtype: of the matrix.
        home: "cpu" or "cuda", where the data lie.
        profile: a machine's, which decides alone; None for the one kept.

    Raises:
        DomainError: for an operation, a size or a device that does not exist.

    Example:
        >>> fgp.linalg.explain("qr", 300, 40).device  # without an accelerator
        'cpu'
    """
    if operation not in OPERATIONS:
        raise DomainError(f"`operation` must be one of {', '.join(OPERATIONS)}, got {operation!r}")
    if home not in DEVICES[1:]:
        raise DomainError(f"`home` must be one of {', '.join(DEVICES[1:])}, got {home!r}; say where the data lie")
    size = (rows, rows if columns is None else columns, batch)
    if min(size) < 0:
        raise DomainError(f"`rows`, `columns` and `batch` must be 0 or more, got {size}")
    if profile is not None:
        known = None if profile.accelerator is None else Speeds(profile.cpu, profile.accelerator, profile.name)
        return decide(known, operation, dtype, size, home)
    if accelerator() is None:
        seconds = current_profile().cpu.seconds(operation, dtype, *size)
        rates = "none" if seconds is None else "measured"
        name = str(dtype).removeprefix("torch.")
        return Decision(operation, *size, name, home, "cpu", seconds, None, None, rates, "there is no accelerator")
    return decide(_transfers.speeds(operation, dtype), operation, dtype, size, home)


# -- devices ---------------------------------------------------------------------------------------------------------
class Transfers:
    """Where tensors lie, how they are moved, and how quick both devices are."""

    def __init__(self) -> None:
        self._of_profile: tuple[MachineProfile, Speeds | None] | None = None

    def home(self, A: Tensor) -> str | None:
        """ "cpu" or "cuda"; None for a device that nothing is known of."""
        return A.device.type if A.device.type in DEVICES else None

    def move(self, tensor: Tensor, device: torch.device) -> Tensor:
        return tensor.to(device)

    def speeds(self, operation: str, dtype: torch.dtype) -> Speeds | None:
        """Of both devices, from the machine's profile; None where it does not know them."""
        profile = current_profile()
        if self._of_profile is None or self._of_profile[0] is not profile:
            self._of_profile = (profile, self._speeds_of(profile))
        speeds = self._of_profile[1]
        return None if speeds is None or speeds.accelerator.seconds(operation, dtype, 2) is None else speeds

    def accelerator_name(self) -> str:
        there = accelerator()
        return "" if there is None else torch.cuda.get_device_name(there)[:200]

    def _speeds_of(self, profile: MachineProfile) -> Speeds | None:
        """The speeds in a profile, if it was measured with the accelerator that is here."""
        if not profile.measured or profile.accelerator is None:
            return None
        here = self.accelerator_name()
        if here != profile.accelerator_name:
            warn(
                f"the machine profile was measured with {profile.accelerator_name or 'another accelerator'}, and this "
                f"machine has {here or 'another'}: its rates are not used for it; run `{tune_command()}`"
            )
            return None
        return Speeds(profile.cpu, profile.accelerator)


_transfers = Transfers()


@contextlib.contextmanager
def using_transfers(transfers: Transfers) -> Iterator[None]:
    """Inside, calls are sent by these; not for several threads."""
    global _transfers
    before, _transfers = _transfers, transfers
    try:
        yield
    finally:
        _transfers = before


def own_device(A: Tensor) -> str:
    """What the library's own factorisations ask for: data on the CPU stay there, others go where it is quicker.

    Example:
        >>> fgp.linalg.own_device(torch.ones(3, 3))
        'cpu'
    """
    return "cpu" if _transfers.home(A) == "cpu" else "auto"


# -- calls -----------------------------------------------------------------------------------------------------------
def run(
    operation: str,
    call: Callable[..., Any],
    operands: tuple[Tensor, ...],
    device: str,
    crossover: float | None,
    left: bool = True,
) -> Any:
    """The call on its operands, on the device that is asked for or quicker, its results on the device of the first.

    Args:
        operation: one of OPERATIONS; call: torch's; operands: a matrix, and right-hand sides for "triangular".
        device, crossover: as the caller of the public function gave them.
        left: whether A X = B is solved.
    Raises: DomainError, BackendUnavailableError; whatever the call raises.
    """
    A = operands[0]
    if crossover is None and ((device == "auto" and accelerator() is None) or (device == "cpu" and A.is_cpu)):
        return call(*operands)  # nothing to choose
    place = _place(operation, operands, device, crossover, left)
    return call(*operands) if place is None else run_there(operation, call, operands, place)


def _place(
    operation: str, operands: tuple[Tensor, ...], device: str, crossover: float | None, left: bool
) -> torch.device | None:
    """Another device than the one that A lies on, or None. Raises: DomainError, BackendUnavailableError."""
    A = operands[0]
    if device not in DEVICES:
        raise DomainError(
            f"`device` must be one of {', '.join(DEVICES)}, got {device!r}; leave it out to have one chosen"
        )
    if crossover is not None and (
        isinstance(crossover, bool) or not isinstance(crossover, int | float) or not crossover >= 0
    ):
        raise DomainError(
            f"`crossover` must be a number of columns, 0 or more, got {crossover!r}; leave it out for the measured "
            "one, or pass math.inf to stay on the CPU"
        )
    if not isinstance(A, Tensor) or A.dim() < 2:
        return None  # torch says what is wrong with it
    home, there = _transfers.home(A), accelerator()
    if home is None:
        if device != "auto":
            raise DomainError(f'`device` must be "auto" for data on {A.device}, got {device!r}; move A first')
        return None
    if device == "cuda" and there is None:
        raise BackendUnavailableError(
            '`device` is "cuda", but torch finds no CUDA device that answers; leave it out, or pass device="cpu"'
        )
    place = device
    if device == "auto":
        if there is None or is_deterministic() or torch._C._functorch.is_functorch_wrapped_tensor(A):
            return None
        place = _quicker(operation, A, _size(operands, left), home, crossover)
    if place == home:
        return None
    return there if place == "cuda" else torch.device("cpu")


def _size(operands: tuple[Tensor, ...], left: bool) -> Size:
    """Rows, columns (of the right-hand sides of a system) and batch."""
    A, *right = operands
    columns, systems = A.shape[-1], math.prod(A.shape[:-2])
    for B in right:
        columns = 1
        if isinstance(B, Tensor) and B.dim() > 1:  # several B for one A are more columns of the same systems
            columns = B.shape[-1 if left else -2] * max(1, math.prod(B.shape[:-2]) // max(1, systems))
    return A.shape[-2], columns, systems


def _quicker(operation: str, A: Tensor, size: Size, home: str, crossover: float | None) -> str:
    """By the crossover that was given, of the shorter side of a matrix or the rows of a system; else as measured."""
    if crossover is not None:
        order = min(size[:2]) if operation == "qr" else size[0]
        return "cuda" if order >= crossover else "cpu"
    if home == "cpu" and operation_flops(operation, *size) < MIN_FLOPS:
        return home
    speeds = _transfers.speeds(operation, A.dtype)
    return home if speeds is None else speeds.quicker(operation, A.dtype, *size, home)


def run_there(operation: str, call: Callable[..., Any], operands: tuple[Tensor, ...], place: torch.device) -> Any:
    """The call on another device, its results here; where an accelerator fails, the call here, with a warning."""
    home = operands[0].device
    try:
        result = call(*(_transfers.move(one, place) for one in operands))
        if isinstance(result, Tensor):
            return _transfers.move(result, home)
        return type(result)([_transfers.move(one, home) for one in result])  # torch's named tuple
    except RuntimeError as error:  # torch's errors of a device are of this class, and so are some of arguments
        if place.type == "cpu" or isinstance(error, FlashGPError | LinAlgError):
            raise
        failure = error
    result = call(*operands)  # arguments that are wrong are wrong here too, and say so
    lasting = not isinstance(failure, torch.OutOfMemoryError)
    if lasting:
        give_up_accelerator()
    reason = str(failure).strip().splitlines()[0][:200] if str(failure).strip() else type(failure).__name__
    after = "it is not used again in this process" if lasting else "it is asked again next time"
    warn(f"{operation} failed on {place} ({reason}) and was computed on the CPU; {after}")
    return result
