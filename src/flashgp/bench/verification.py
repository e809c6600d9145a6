"""What counts as an answer, and how far it is from the truth.

An answer is a dense `torch.Tensor`, or a tuple, list or dict of answers, nested as the reference's is. It is judged
after the clock has stopped, by the numbers that the very object which the timed call returned held then. Everything
that could still have work to do is refused: functions, generators, futures, coroutines, lazy operators, subclasses of
Tensor (asynchronous collectives among them), lazy devices and pending conjugations. NumPy arrays and Python numbers are
refused too, so that the cost of the way to a tensor is inside the time (`torch.from_numpy` copies nothing).

The error of a floating tensor is the largest deviation divided by the largest magnitude of the reference tensor (by 1
where the reference is zero everywhere); of an answer, the largest of its tensors. Integers and booleans must be equal.
"""

import concurrent.futures
import inspect
import math
import types
from collections.abc import Mapping
from typing import Any

import torch

from flashgp.foundations.errors import DomainError

__all__ = ["Path", "answer_error", "answer_tensors", "distances", "reference_tensors", "same_values"]

_ADVICE = "return a torch.Tensor, or a tuple, list or dict of them"
Path = tuple[Any, ...]
_LAZY_DEVICES = ("lazy", "xla")


def reference_tensors(value: Any) -> dict[Path, torch.Tensor]:
    """The reference's tensors by their place in it; NumPy arrays and numbers are taken as tensors.

    Raises: DomainError if it holds anything else, no tensor at all, or a value that is not finite.
    """
    tensors: dict[Path, torch.Tensor] = {}
    _collect_reference(value, (), tensors)
    if not tensors:
        raise DomainError("`reference` must give at least one tensor, got an empty container; return what it computes")
    return tensors


def _collect_reference(value: Any, path: Path, tensors: dict[Path, torch.Tensor]) -> None:
    if isinstance(value, dict):
        for key, entry in value.items():
            _collect_reference(entry, (*path, key), tensors)
        return
    if isinstance(value, tuple | list):
        for index, entry in enumerate(value):
            _collect_reference(entry, (*path, index), tensors)
        return
    is_number = isinstance(value, bool | int | float | complex)
    if not is_number and not isinstance(value, torch.Tensor) and not hasattr(value, "__array__"):
        raise DomainError(f"`reference` must give tensors, got {_kind(value)}; {_ADVICE}")
    tensor = torch.as_tensor(value, dtype=torch.float64 if isinstance(value, float) else None).detach()
    if not bool(torch.isfinite(tensor).all()):
        raise DomainError(
            f"`reference` must be finite, got NaN or infinity{_place(path)}; choose inputs inside its domain"
        )
    tensors[path] = tensor.clone()


def answer_tensors(answer: Any) -> tuple[str | None, dict[Path, torch.Tensor]]:
    """Why the answer is refused as something that is no numbers (None if it is not), and its tensors by their place."""
    tensors: dict[Path, torch.Tensor] = {}
    return _collect_answer(answer, (), tensors), tensors


def answer_error(
    tensors: Mapping[Path, torch.Tensor], truth: Mapping[Path, torch.Tensor], tolerance: float
) -> tuple[str | None, float | None]:
    """Why an answer's tensors are refused (None if they are not), and their error (None if there is none to state)."""
    if tensors.keys() != truth.keys():
        return f"returned tensors at {_names(tensors)}, the reference at {_names(truth)}", None
    worst = 0.0
    for path, expected in truth.items():
        reason = _unlike(tensors[path], expected)
        if reason is not None:
            return f"returned {reason}{_place(path)}", None
        worst = max(worst, _distance(tensors[path], expected))
    # NaN and infinity were refused above, so a plain comparison decides.
    return (None if worst <= tolerance else f"gave a wrong answer: error {worst:.1e}, tolerance {tolerance:.1e}"), worst


def distances(left: dict[Path, torch.Tensor], right: dict[Path, torch.Tensor]) -> list[float]:
    """Distance of each floating tensor from its counterpart; a tensor that changed its shape is infinitely far."""
    return [
        _distance(tensor, right[path]) if path in right and tensor.shape == right[path].shape else math.inf
        for path, tensor in left.items()
        if tensor.is_floating_point() or tensor.is_complex()
    ]


def same_values(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors on one device have the same shape and numbers; NaN is the same as NaN."""
    if left.shape != right.shape:
        return False
    if left.is_floating_point() or left.is_complex():
        return bool(((left == right) | (left.isnan() & right.isnan())).all())
    return torch.equal(left, right)


def _collect_answer(value: Any, path: Path, tensors: dict[Path, torch.Tensor]) -> str | None:
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        reason = _unfinished(value)
        if reason is not None:
            return f"returned{_place(path)} a tensor {reason}"
        tensors[path] = value.detach()
        return None
    entries: list[tuple[Any, Any]]
    if type(value) is dict:
        entries = list(value.items())
    elif isinstance(value, tuple):  # torch's own named results are tuples; their entries exist already
        entries = list(enumerate(tuple.__iter__(value)))
    elif type(value) is list:
        entries = list(enumerate(value))
    else:
        return f"returned {_kind(value)}{_place(path)}, which may still have work to do; {_ADVICE}"
    for key, entry in entries:
        reason = _collect_answer(entry, (*path, key), tensors)
        if reason is not None:
            return reason
    return None


def _unfinished(tensor: torch.Tensor) -> str | None:
    """What keeps a torch.Tensor from being numbers in memory."""
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return "of a transform that has ended (vmap, grad); return what the transform returns"
    if tensor.layout is not torch.strided:
        return f"of layout {tensor.layout}; return a dense one"
    if tensor.is_nested:
        return "that is nested; return a dense one"
    if tensor.is_meta:
        return "without data (device meta)"
    if tensor.device.type in _LAZY_DEVICES:
        return f"of device {tensor.device.type}, whose numbers are computed when they are read; read them in the call"
    if tensor.is_conj() or tensor.is_neg():
        return "whose conjugation or negation is still to do; return .resolve_conj().resolve_neg()"
    return None


def _unlike(tensor: torch.Tensor, expected: torch.Tensor) -> str | None:
    if tensor.shape != expected.shape:
        return f"shape {tuple(tensor.shape)}, the reference has {tuple(expected.shape)}"
    if _dtype_class(tensor) != _dtype_class(expected):
        return f"dtype {tensor.dtype}, the reference has {expected.dtype}"
    if _dtype_class(tensor) in ("floating", "complex"):
        wrong = int((~torch.isfinite(tensor)).sum())
        return f"{wrong} values that are NaN or infinite" if wrong else None
    wrong = int((tensor.to(expected.device) != expected).sum())
    return f"a wrong answer: {wrong} of {tensor.numel()} values differ" if wrong else None


def _distance(tensor: torch.Tensor, expected: torch.Tensor) -> float:
    if tensor.numel() == 0:
        return 0.0
    # On the CPU, since not every accelerator has float64; this is after the clock.
    wide = torch.promote_types(expected.dtype, torch.float64)
    left, right = tensor.to("cpu", wide), expected.to("cpu", wide)
    scale = float(right.abs().max())
    return float((left - right).abs().max()) / (scale if scale > 0.0 else 1.0)


def _dtype_class(tensor: torch.Tensor) -> str:
    if tensor.is_floating_point():
        return "floating"
    if tensor.is_complex():
        return "complex"
    return "boolean" if tensor.dtype is torch.bool else "integer"


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, types.FunctionType | types.BuiltinFunctionType | types.MethodType):
        return "a function"
    if isinstance(value, types.GeneratorType):
        return "a generator"
    if isinstance(value, torch.Tensor):
        kind = f"{type(value).__name__}, a subclass of Tensor"
    else:
        kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    return f"{kind}, an asynchronous result (wait for it inside the call)" if _is_asynchronous(value) else kind


def _is_asynchronous(value: Any) -> bool:
    """Futures of every library, coroutines, handles and tensors of collectives: they have something to wait for."""
    if inspect.isawaitable(value) or isinstance(value, concurrent.futures.Future | torch.futures.Future):
        return True
    return callable(getattr(type(value), "wait", None))


def _place(path: Path) -> str:
    return "" if not path else " at output" + "".join(f"[{entry!r}]" for entry in path)


def _names(tensors: Mapping[Path, torch.Tensor]) -> str:
    return ", ".join(_place(path).removeprefix(" at ") or "the top" for path in tensors) or "nowhere"
