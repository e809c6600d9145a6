"""Answers: what counts as one, its error, and whether it was there when the clock stopped.

An answer is a dense `torch.Tensor`, or a tuple, list or dict of answers, nested as the reference's is, judged by the
numbers that the very object which the timed call returned held when the clock stopped. Everything that could still have
work to do is refused: functions, generators, futures, coroutines, lazy operators, subclasses of Tensor (asynchronous
collectives among them), lazy devices and pending conjugations. NumPy arrays and Python numbers are refused too, so that
the cost of the way to a tensor is inside the time (`torch.from_numpy` copies nothing).

The error of a floating tensor is the largest deviation divided by the largest magnitude of the reference tensor (by 1
where the reference is zero everywhere); of an answer, the largest of its tensors. Integers and booleans must be equal.
"""

import concurrent.futures
import inspect
import math
import time
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from flashgp.bench.clocks import synchronise
from flashgp.foundations.errors import DomainError

_ADVICE = "return a torch.Tensor, or a tuple, list or dict of them"
_LAZY_DEVICES = ("lazy", "xla")
_TIMES = 3.0  # a first reading also faults pages in and fills caches: so many times a second one is no work yet
Path = tuple[Any, ...]
Tensors = dict[Path, torch.Tensor]  # by their place in an answer


def _leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Leaves of nested dicts, lists and tuples, each with its place."""
    if type(value) is dict:
        entries: Any = value.items()
    elif type(value) is list:
        entries = enumerate(value)
    elif isinstance(value, tuple):  # torch's own named results are tuples; their entries exist already
        entries = enumerate(tuple.__iter__(value))
    else:
        yield path, value
        return
    for key, entry in entries:
        yield from _leaves(entry, (*path, key))


def reference_tensors(value: Any) -> Tensors:
    """The reference's tensors; NumPy arrays and numbers are taken as tensors.

    Raises: DomainError if it holds anything else, no tensor at all, or a value that is not finite.
    """
    tensors: Tensors = {}
    for path, leaf in _leaves(value):
        if not isinstance(leaf, bool | int | float | complex | torch.Tensor) and not hasattr(leaf, "__array__"):
            raise DomainError(f"`reference` must give tensors, got {_kind(leaf)}; {_ADVICE}")
        tensor = torch.as_tensor(leaf, dtype=torch.float64 if isinstance(leaf, float) else None).detach()
        if not bool(torch.isfinite(tensor).all()):
            raise DomainError(
                f"`reference` must be finite, got NaN or infinity{_place(path)}; choose inputs inside its domain"
            )
        tensors[path] = tensor.clone()
    if not tensors:
        raise DomainError("`reference` must give at least one tensor, got an empty container; return what it computes")
    return tensors


def answer_tensors(answer: Any) -> tuple[str | None, Tensors]:
    """Reason that the answer is refused as something that is no numbers (None if it is not), and its tensors."""
    tensors: Tensors = {}
    for path, leaf in _leaves(answer):
        if type(leaf) not in (torch.Tensor, torch.nn.Parameter):
            return f"returned {_kind(leaf)}{_place(path)}, which may still have work to do; {_ADVICE}", tensors
        reason = _unfinished(leaf)
        if reason is not None:
            return f"returned{_place(path)} a tensor {reason}", tensors
        tensors[path] = leaf.detach()
    return None, tensors


def read(answer: Tensors) -> tuple[Tensors, float]:
    """Copies of an answer's tensors on the CPU, and the seconds that this took beyond what reading takes.

    Nothing is synchronised before this first reading, which is the answer's matter: what is computed on synchronisation
    takes its work on top. It is compared with reading as many numbers that exist for certain.
    """
    began = time.perf_counter()
    tensors = {path: _copy(tensor) for path, tensor in answer.items()}
    first = time.perf_counter() - began
    # Not the answer once more: a lazy device may compute it again for every reading.
    existing = [tensors[path].to(tensor.device) for path, tensor in answer.items()]
    synchronise()
    began = time.perf_counter()
    # Kept until all are there: memory that one gave back would be quicker than what the first had to ask for.
    again = [_copy(tensor) for tensor in existing]
    second = time.perf_counter() - began
    del again
    return tensors, max(0.0, first - _TIMES * second)


def changed(answer: Tensors, tensors: Tensors) -> bool:
    """True if an answer has other values now than when it was read: somebody went on writing to it."""
    synchronise()
    return any(not same_values(_copy(answer[path]), tensor) for path, tensor in tensors.items())


def answer_error(tensors: Tensors, truth: Tensors, tolerance: float) -> tuple[str | None, float]:
    """Reason that an answer's tensors are refused (None if they are not), and their error (infinite if there is
    none)."""
    if tensors.keys() != truth.keys():
        return f"returned tensors at {_names(tensors)}, the reference at {_names(truth)}", math.inf
    for path, expected in truth.items():
        reason = _unlike(tensors[path], expected)
        if reason is not None:
            return f"returned {reason}{_place(path)}", math.inf
    # NaN and infinity were refused above, so a plain comparison decides.
    worst = max(_distance(tensors[path], expected) for path, expected in truth.items())
    return (None if worst <= tolerance else f"gave a wrong answer: error {worst:.1e}, tolerance {tolerance:.1e}"), worst


def distances(left: Tensors, right: Tensors) -> list[float]:
    """Distance of each floating tensor from its counterpart; a tensor that changed its shape is infinitely far."""
    return [
        _distance(tensor, right[path]) if path in right and tensor.shape == right[path].shape else math.inf
        for path, tensor in left.items()
        if tensor.is_floating_point() or tensor.is_complex()
    ]


def same_values(left: torch.Tensor, right: torch.Tensor) -> bool:
    """True if two tensors on one device have the same shape and numbers; NaN is the same as NaN."""
    if left.shape != right.shape:
        return False
    if left.is_floating_point() or left.is_complex():
        return bool(((left == right) | (left.isnan() & right.isnan())).all())
    return torch.equal(left, right)


def _unfinished(tensor: torch.Tensor) -> str | None:
    """Reason why a torch.Tensor is not numbers in memory."""
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
    kinds = [(one.is_floating_point(), one.is_complex(), one.dtype is torch.bool) for one in (tensor, expected)]
    if kinds[0] != kinds[1]:
        return f"dtype {tensor.dtype}, the reference has {expected.dtype}"
    if tensor.is_floating_point() or tensor.is_complex():
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
    return float((left - right).abs().max()) / (float(right.abs().max()) or 1.0)


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
    # Futures of every library, coroutines, handles and tensors of collectives have something to wait for.
    waits = inspect.isawaitable(value) or callable(getattr(type(value), "wait", None))
    waits = waits or isinstance(value, concurrent.futures.Future | torch.futures.Future)
    return f"{kind}, an asynchronous result (wait for it inside the call)" if waits else kind


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True)


def _place(path: Path) -> str:
    return "" if not path else " at output" + "".join(f"[{entry!r}]" for entry in path)


def _names(tensors: Mapping[Path, torch.Tensor]) -> str:
    return ", ".join(_place(path).removeprefix(" at ") or "the top" for path in tensors) or "nowhere"
