"""The device of a dense operation: the accelerator from a measured order on, and a call there with its result back.

`flashgp tune` measures the order for each operation, dtype and place of the data (foundations/profile.py, `Crossover`);
without one, data stay where they are. The order of a matrix is the square root of its number of entries, those of a
whole batch together, so that a tall matrix counts as the square one of as many entries. The backward pass goes where
the forward one went.

Data on the CPU go to an accelerator only through the public functions: the library's own factorisations leave them
where they are (`own_device`). An accelerator that fails costs one warning, and the CPU answers.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from flashgp.foundations.determinism import is_deterministic
from flashgp.foundations.errors import BackendUnavailableError, DomainError, FlashGPError, warn
from flashgp.foundations.machine import accelerator, give_up_accelerator
from flashgp.foundations.profile_store import current_profile

DEVICES = ("auto", "cpu", "cuda")


class Transfers:
    """Moves of tensors to and from the accelerator, and the orders from which it is quicker."""

    def home(self, A: Tensor) -> str | None:
        """ "cpu" or "cuda"; None for a device that nothing is known of."""
        return A.device.type if A.device.type in DEVICES else None

    def move(self, tensor: Tensor, device: torch.device) -> Tensor:
        return tensor.to(device)

    def crossover(self, operation: str, dtype: torch.dtype, home: str) -> float | None:
        """Crossover by the machine's profile, for data that lie at home; None where it was not measured."""
        return current_profile().crossover(operation, dtype, home)


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
    """The `device` of the library's own factorisations: data on the CPU stay there, others go where it is quicker.

    Example:
        >>> fgp.linalg.own_device(torch.ones(3, 3))
        'cpu'
    """
    return "cpu" if _transfers.home(A) == "cpu" else "auto"


def run(
    operation: str, call: Callable[..., Any], operands: tuple[Tensor, ...], device: str, crossover: float | None
) -> Any:
    """The call on its operands, on the device that is asked for or quicker, its results on the device of the first.

    Args:
        operation: "qr", "cholesky", "eigh" or "triangular".
        call: torch's function.
        operands: a matrix, and right-hand sides for "triangular".
        device: as the caller of the public function gave it.
        crossover: likewise.

    Raises:
        DomainError: for a device or crossover that is none.
        BackendUnavailableError: for a device that is not there.
    """
    A = operands[0]
    if crossover is None and ((device == "auto" and accelerator() is None) or (device == "cpu" and A.is_cpu)):
        return call(*operands)  # nothing to choose
    place = _place(operation, A, device, crossover)
    return call(*operands) if place is None else run_there(operation, call, operands, place)


def _place(operation: str, A: Tensor, device: str, crossover: float | None) -> torch.device | None:
    """Device of a call if another than that of A, else None."""
    if device not in DEVICES:
        raise DomainError(
            f"`device` must be one of {', '.join(DEVICES)}, got {device!r}; leave it out to have one chosen"
        )
    if crossover is not None and (
        isinstance(crossover, bool) or not isinstance(crossover, int | float) or not crossover >= 0
    ):
        raise DomainError(
            f"`crossover` must be the order of a matrix, 0 or more, got {crossover!r}; leave it out for the measured "
            "one, or pass math.inf to stay on the CPU"
        )
    if not isinstance(A, Tensor) or A.dim() < 2 or not A.numel():
        return None  # torch says what is wrong with it, if anything is
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
        known = _transfers.crossover(operation, A.dtype, home) if crossover is None else crossover
        place = home if known is None else "cuda" if math.sqrt(A.numel()) >= known else "cpu"
    if place == home:
        return None
    return there if place == "cuda" else torch.device("cpu")


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
