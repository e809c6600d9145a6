"""The same numbers in other memory: how an array is handed to the library; and the contexts it is called in."""

import contextlib
import copy
import pickle
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import torch

import flashgp as fgp

DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "bool")
LAYOUTS = (
    "tensor", "numpy", "negative", "readonly", "fortran", "bigendian", "list", "transposed", "sliced", "offset",
    "gradient", "flipped", "permuted", "parameter", "masked_view",
)  # fmt: skip
CONTEXTS = ("plain", "no_grad", "inference", "autocast", "default32", "default64", "default16", "made_in_inference")


def cast(values: numpy.ndarray, dtype: str) -> numpy.ndarray:
    """Values as that dtype can hold them, in float64."""
    if dtype == "float64":
        return values
    if dtype == "bool":
        return (values > numpy.median(values) if values.size else values > 0).astype(float)
    if dtype == "int64":
        return numpy.round(values * 3.0)
    return torch.from_numpy(numpy.ascontiguousarray(values)).to(getattr(torch, dtype)).double().numpy()


def laid_out(values: numpy.ndarray, dtype: str, layout: str) -> Any:
    """The values in that dtype and memory layout."""
    kind = getattr(torch, dtype)
    tensor = torch.from_numpy(numpy.ascontiguousarray(values)).to(kind)
    if layout in ("numpy", "negative", "readonly", "fortran", "bigendian", "list") and dtype != "bfloat16":
        array = tensor.numpy().copy()
        match layout:
            case "negative":
                return numpy.ascontiguousarray(array[::-1])[::-1]
            case "readonly":
                array.flags.writeable = False
            case "fortran":
                return numpy.asfortranarray(array)
            case "bigendian":
                return array.astype(array.dtype.newbyteorder(">"))
            case "list":
                return array.tolist() if array.size and dtype in ("float64", "int64", "bool") else array
        return array
    match layout:
        case "transposed":
            return tensor.mT.contiguous().mT if tensor.dim() >= 2 else tensor
        case "sliced":
            wide = torch.zeros(*tensor.shape[:-1], 2 * tensor.shape[-1] + 1, dtype=kind)
            wide[..., 1::2] = tensor
            return wide[..., 1::2]
        case "offset":
            flat = torch.zeros(tensor.numel() + 3, dtype=kind)
            flat[3:] = tensor.reshape(-1)
            return flat[3:].view(tensor.shape)
        case "gradient" if kind.is_floating_point:
            return tensor.clone().requires_grad_()
        case "parameter" if kind.is_floating_point:
            return torch.nn.Parameter(tensor.clone())
        case "flipped":
            return tensor.flip(0).flip(0)
        case "permuted" if tensor.dim() >= 2:
            order = (tensor.dim() - 1, *range(tensor.dim() - 1))
            back = (*range(1, tensor.dim()), 0)
            return tensor.permute(order).contiguous().permute(back)
        case "masked_view":
            double = torch.cat([tensor, tensor])
            return double[len(tensor) :] if tensor.dim() else tensor
    return tensor


@contextlib.contextmanager
def context(name: str) -> Iterator[None]:
    before = torch.get_default_dtype()
    with contextlib.ExitStack() as stack:
        match name:
            case "no_grad":
                stack.enter_context(torch.no_grad())
            case "inference":
                stack.enter_context(torch.inference_mode())
            case "autocast":
                stack.enter_context(torch.autocast("cpu", dtype=torch.bfloat16))
            case "default32" | "default64" | "default16":
                stack.callback(torch.set_default_dtype, before)
                torch.set_default_dtype(getattr(torch, "float" + name[-2:]))
        yield


def carried(model: Any, way: str) -> Any:
    """A model after a copy, a pickle or a file."""
    match way:
        case "deepcopy":
            return copy.deepcopy(model)
        case "pickle":
            return pickle.loads(pickle.dumps(model))
        case "file":
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "model.safetensors"
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", fgp.FlashGPWarning)  # a module's code is not in the file
                    fgp.save(model, path)
                    modules = fgp_modules(model.gp)
                    return fgp.load(path, modules=modules)
    return model


def fgp_modules(gp: Any) -> dict[str, Any]:
    """What `load` needs beside a file: modules and functions of the user's, by path."""
    modules: dict[str, Any] = {}
    for path, module in gp.named_modules():
        if isinstance(module, fgp.kernels.Warped):
            modules[f"{path}.module"] = module.module
        if isinstance(module, fgp.kernels.Custom):
            modules[f"{path}.function"] = module.function
    if not type(gp.mean).__module__.startswith("flashgp"):
        modules["mean"] = gp.mean
    return modules


WAYS = ("none", "deepcopy", "pickle", "file")
