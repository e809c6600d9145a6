"""Sends one call to the device where it is quicker, and brings the result back.

Data on the CPU go to an accelerator only through the public functions: the library's own factorisations leave them
where they are (`own_device`), as docs/design.md section 6 promises, and bring small problems of an accelerator to the
CPU where that is quicker. An accelerator that fails is told once and not asked again; the CPU then answers.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from flashgp.foundations.accelerator import accelerator, give_up_accelerator
from flashgp.foundations.determinism import is_deterministic
from flashgp.foundations.errors import BackendUnavailableError, DomainError, FlashGPError, warn
from flashgp.foundations.operations import OPERATIONS, operation_flops
from flashgp.foundations.profile import MachineProfile
from flashgp.foundations.profile_store import current_profile, tune_command

from .decision import ACCELERATOR, CPU, Decision, Speeds, decide, order_of

__all__ = ["Elsewhere", "Transfers", "elsewhere", "explain", "own_device", "using_transfers"]

DEVICES = ("auto", "cpu", "cuda")
MIN_FLOPS = 3e4  # data in host memory: less than this is done before an accelerator has heard of it


class Transfers:
    """Where tensors lie, how they are moved, and how quick both devices are."""

    def __init__(self) -> None:
        self._of_profile: tuple[MachineProfile, Speeds | None] | None = None

    def home(self, A: Tensor) -> str | None:
        """CPU or ACCELERATOR; None for a device that nothing is known of."""
        return {"cpu": CPU, "cuda": ACCELERATOR}.get(A.device.type)

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


@dataclass(frozen=True)
class Elsewhere:
    """Another device than the one the data lie on."""

    operation: str
    device: torch.device

    def run(self, call: Callable[..., Any], *operands: Tensor) -> Any:
        """The call there, its results here; on an accelerator that fails, here with a warning."""
        home = operands[0].device
        if self.device.type == "cpu" and home.type != "cpu":
            return _carried(call(*(_transfers.move(one, self.device) for one in operands)), home)
        try:
            return _carried(call(*(_transfers.move(one, self.device) for one in operands)), home)
        except (FlashGPError, LinAlgError):
            raise
        except RuntimeError as error:  # torch's errors of a device are of this class, and so are some of arguments
            failure = error
        result = call(*operands)  # arguments that are wrong are wrong here too, and say so
        _tell(self, failure)
        return result


def _tell(place: Elsewhere, failure: RuntimeError) -> None:
    lasting = not isinstance(failure, torch.OutOfMemoryError)
    if lasting:
        give_up_accelerator()
    reason = str(failure).strip().splitlines()[0][:200] if str(failure).strip() else type(failure).__name__
    after = "it is not used again in this process" if lasting else "it is asked again next time"
    warn(f"{place.operation} failed on {place.device} ({reason}) and was computed on the CPU; {after}")


def _carried(found: Any, home: torch.device) -> Any:
    """A tensor, or torch's named tuple of tensors, on a device."""
    if isinstance(found, Tensor):
        return _transfers.move(found, home)
    return type(found)([_transfers.move(one, home) for one in found])


def elsewhere(operation: str, A: Tensor, columns: int | None, device: str, crossover: float | None) -> Elsewhere | None:
    """Where a call on A goes; None for where A lies.

    Args: columns: of the right-hand sides, None for those of A; device, crossover: as the caller of the public
        function gave them.
    Raises: DomainError, BackendUnavailableError.
    """
    if device not in DEVICES:
        raise DomainError(
            f"`device` must be one of {', '.join(DEVICES)}, got {device!r}; leave it out to have one chosen"
        )
    limit = check_crossover(crossover)
    if not isinstance(A, Tensor) or A.dim() < 2:
        return None  # torch says what is wrong with it
    home = _transfers.home(A)
    if home is None:
        if device != "auto":
            raise DomainError(f'`device` must be "auto" for data on {A.device}, got {device!r}; move A first')
        return None
    there = accelerator()
    if device == "cuda":
        if there is None:
            raise BackendUnavailableError(
                '`device` is "cuda", but torch finds no CUDA device that answers; leave it out, or pass device="cpu"'
            )
        return None if home == ACCELERATOR else Elsewhere(operation, there)
    if device == "cpu":
        return None if home == CPU else Elsewhere(operation, torch.device("cpu"))
    if there is None or is_deterministic() or torch._C._functorch.is_functorch_wrapped_tensor(A):
        return None
    rows, last = A.shape[-2:]
    size = rows, last if columns is None else columns, math.prod(A.shape[:-2])
    if limit is not None:
        place = ACCELERATOR if order_of(operation, *size[:2]) >= limit else CPU
    else:
        if home == CPU and operation_flops(operation, *size) < MIN_FLOPS:
            return None
        speeds = _transfers.speeds(operation, A.dtype)
        if speeds is None:
            return None
        place = speeds.quicker(operation, A.dtype, *size, home)
    if place == home:
        return None
    return Elsewhere(operation, there if place == ACCELERATOR else torch.device("cpu"))


def check_crossover(crossover: Any) -> float | None:
    """Raises: DomainError for what is no order."""
    if crossover is None:
        return None
    if isinstance(crossover, bool) or not isinstance(crossover, int | float) or not crossover >= 0:
        raise DomainError(
            f"`crossover` must be a number of columns, 0 or more, got {crossover!r}; leave it out for the measured "
            "one, or pass math.inf to stay on the CPU"
        )
    return float(crossover)


def own_device(A: Tensor) -> str:
    """What the library's own factorisations ask for: data on the CPU stay there, others go where it is quicker.

    Example:
        >>> fgp.linalg.own_device(torch.ones(3, 3))
        'cpu'
    """
    return "cpu" if _transfers.home(A) == CPU else "auto"


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
        rows, columns: of the matrix; of a triangular system its order and its right-hand sides. batch: how many.
        home: "cpu" or "cuda", where the data lie.
        profile: a machine's, which decides alone; None for the one kept.
    Raises: DomainError.

    Example:
        >>> fgp.linalg.explain("qr", 300, 40).device  # without an accelerator
        'cpu'
    """
    if operation not in OPERATIONS:
        raise DomainError(f"`operation` must be one of {', '.join(OPERATIONS)}, got {operation!r}")
    if home not in DEVICES[1:]:
        raise DomainError(f"`home` must be one of {', '.join(DEVICES[1:])}, got {home!r}; say where the data lie")
    place = CPU if home == "cpu" else ACCELERATOR
    size = (rows, rows if columns is None else columns, batch)
    if min(size) < 0:
        raise DomainError(f"`rows`, `columns` and `batch` must be 0 or more, got {size}")
    if profile is not None:
        known = None if profile.accelerator is None else Speeds(profile.cpu, profile.accelerator, profile.name)
        return decide(known, operation, dtype, size, place)
    if accelerator() is None:
        seconds = current_profile().cpu.seconds(operation, dtype, *size)
        return Decision(
            operation, *size, str(dtype).removeprefix("torch."), home, "cpu", seconds, None, None,
            "none" if seconds is None else "measured", "there is no accelerator",
        )  # fmt: skip
    return decide(_transfers.speeds(operation, dtype), operation, dtype, size, place)
