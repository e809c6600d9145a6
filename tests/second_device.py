"""A second device for machines without one: tensors that say they are on cuda:0, with numbers that the CPU holds.

Every operation must find all its tensors on one device, as on an accelerator: numbers () of the CPU may stand beside,
and indices; only `.to` and `.cpu` move. What is wrong raises RuntimeError as torch does there. It shows where tensors
are made or left on the wrong device; it shows nothing of speed, of streams or of how an accelerator rounds, and
autograd does not run there.
"""

import contextlib
import operator
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

__all__ = ["DEVICE", "SecondDevice", "held", "transforms"]

DEVICE = torch.device("cuda", 0)
aten = torch.ops.aten
# What torch says of it: that it is there, and how much memory is free.
OF_CUDA: dict[str, Any] = {"_lazy_init": lambda: None, "device_count": lambda: 1}
OF_MEMORY: dict[str, Any] = {
    "get_memory_info": lambda device: (2**33, 2**34), "memory_reserved": lambda device: 0,
    "memory_allocated": lambda device: 0,
}  # fmt: skip
OF_STREAMS: dict[str, Any] = {"current_stream": lambda device: SimpleNamespace(cuda_stream=0)}
MOVES = (aten._to_copy.default, aten.copy_.default)
INDEXED = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default)


class _Held(Tensor):
    """A tensor of the second device. Field: inner, its numbers."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> "_Held":
        made = Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device=DEVICE, requires_grad=inner.requires_grad,
        )  # fmt: skip
        made.inner = inner
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    # torch asks a device's own code for these, which is not there.
    def __getitem__(self, index: Any) -> Tensor:
        return _Held(self.inner[_plain(index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(value, Tensor) and not isinstance(value, _Held) and value.dim():
            raise RuntimeError(f"expected all tensors to be on {DEVICE}, got {tuple(value.shape)} on the CPU")
        self.inner[_plain(index)] = _plain(value)

    def copy_(self, source: Tensor, non_blocking: bool = False) -> Tensor:
        self.inner.copy_(_plain(source))
        return self

    def contiguous(self, memory_format: Any = torch.contiguous_format) -> Tensor:
        return self if self.inner.is_contiguous() else _Held(self.inner.contiguous())

    def nonzero(self) -> Tensor:  # type: ignore[override]
        return _Held(self.inner.nonzero())

    def tolist(self) -> Any:
        return self.inner.tolist()

    item = tolist

    def __float__(self) -> float:
        return float(self.inner)

    def __int__(self) -> int:
        return int(self.inner)

    def __bool__(self) -> bool:
        return bool(self.inner)

    def __index__(self) -> int:
        return operator.index(self.inner)

    def __invert__(self) -> Tensor:
        return torch.bitwise_not(self)

    def new_tensor(self, data: Any, **kwargs: Any) -> Tensor:
        return torch.tensor(data, **{"dtype": self.dtype, "device": self.device, **kwargs})

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError(f"can't convert {DEVICE} device type tensor to numpy; use Tensor.cpu()")
        return self.inner.numpy(force=True)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"held({self.inner!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


_of_cpu, _as_of_cpu = torch.tensor, torch.as_tensor


def _tensor(data: Any, *, device: Any = None, **kwargs: Any) -> Tensor:
    made = _of_cpu(data, **kwargs)
    return made if device is None else made.to(device)


def _as_tensor(data: Any, *, device: Any = None, **kwargs: Any) -> Tensor:
    made = _as_of_cpu(data, **kwargs)
    return made if device is None else made.to(device)


def _plain(value: Any) -> Any:
    return tree_map_only(_Held, lambda tensor: tensor.inner, value)


def transforms() -> ModuleType:
    """A cufinufft of the second device: as that it refuses what is not contiguous there, of one precision."""
    import finufft

    def of(name: str) -> Callable[..., Tensor]:
        def run(
            *given: Tensor, n_modes: Any = None, eps: float, isign: int, gpu_device_id: int, gpu_stream: int
        ) -> Tensor:
            assert gpu_device_id == DEVICE.index
            assert gpu_stream == 0
            for tensor in given:
                assert isinstance(tensor, _Held)
                assert tensor.is_contiguous()
                assert not tensor.requires_grad
            assert {tensor.dtype.to_complex() for tensor in given} == {given[-1].dtype}
            modes = {} if n_modes is None else {"n_modes": n_modes}
            *points, values = (tensor.inner.numpy() for tensor in given)
            return held(torch.from_numpy(getattr(finufft, name)(*points, values, eps=eps, isign=isign, **modes)))

        return run

    made = ModuleType("cufinufft")
    for name in (f"nufft{d}d{kind}" for d in (1, 2, 3) for kind in (1, 2)):
        setattr(made, name, of(name))
    return made


def held(tensor: Tensor) -> Tensor:
    """A tensor of the CPU on the second device."""
    return _Held(tensor.detach())


class SecondDevice(TorchDispatchMode):
    """Within the block tensors can be made on cuda:0, which torch does not ask whether it is there."""

    def __enter__(self) -> Any:
        self._patches = contextlib.ExitStack()
        for place, said in (
            (torch.cuda, OF_CUDA | OF_STREAMS),
            (torch.accelerator, OF_MEMORY),
            (torch, {"tensor": _tensor, "as_tensor": _as_tensor}),
        ):
            self._patches.enter_context(mock.patch.multiple(place, **said))
        torch._C._ensureCUDADeviceGuardSet()
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch.__future__.set_overwrite_module_params_on_conversion(False)
        self._patches.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    inside = any(isinstance(tensor, _Held) for tensor in tensors)
    target = kwargs.get("device")
    target = None if target is None else torch.device(target)
    if func not in MOVES:
        checked = tensors[:1] if func in INDEXED else tensors
        strange = [tensor for tensor in checked if not isinstance(tensor, _Held) and tensor.dim()]
        if inside and (strange or (not isinstance(checked[0], _Held) and func in INDEXED)):
            raise RuntimeError(
                f"expected all tensors to be on {DEVICE}, {func} got {tuple(strange[0].shape)} on the CPU"
            )
        generator = kwargs.get("generator")
        on_device = inside if target is None else target.type == DEVICE.type
        if generator is not None and on_device and generator.device.type != DEVICE.type:
            raise RuntimeError(f"expected a generator on {DEVICE}, {func} got one on the CPU")
    if func is aten.copy_.default:
        made = isinstance(args[0], _Held)
    else:
        made = inside if target is None else target.type == DEVICE.type
    plain = _plain((args, kwargs))
    if target is not None:
        plain[1]["device"] = torch.device("cpu")
    out = func(*plain[0], **plain[1])
    if not made:
        return args[0] if func is aten.copy_.default else out
    out = tree_map_only(Tensor, lambda tensor: tensor if isinstance(tensor, _Held) else _Held(tensor), out)
    return return_and_correct_aliasing(func, args, kwargs, out) if inside else out
