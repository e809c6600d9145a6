"""The caller's torch modes end at our doors.

Autocast would multiply float32 tiles in half precision; inference mode would leave tensors in a posterior that no
gradient may pass later. Neither is changed for the caller.
"""

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import ParamSpec, TypeVar

import torch

__all__ = ["exact_precision", "ordinary_tensors"]

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_AUTOCAST_DEVICES = ("cpu", "cuda")


def exact_precision(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Run a function with autocast off, whatever the caller has on."""

    @functools.wraps(function)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        active = [device for device in _AUTOCAST_DEVICES if torch.is_autocast_enabled(device)]
        if not active:
            return function(*args, **kwargs)
        with ExitStack() as stack:
            for device in active:
                stack.enter_context(torch.autocast(device, enabled=False))
            return function(*args, **kwargs)

    return run


def ordinary_tensors(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Run a function outside inference mode (still without gradients), so that what it makes lasts."""

    @functools.wraps(function)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if not torch.is_inference_mode_enabled():
            return function(*args, **kwargs)
        with torch.inference_mode(False), torch.no_grad():
            return function(*args, **kwargs)

    return run
