"""The caller's torch modes end at our doors.

Autocast would multiply float32 tiles in half precision; inference mode would leave tensors in a posterior that no
gradient may pass later. Neither is changed for the caller. The caller's own networks are another matter: what runs
within `callers_autocast` runs as the caller has it. A network in training mode (dropout, batch normalisation) would
make a covariance function that changes from call to call: within `evaluation_mode` it is in evaluation mode.
"""

import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import ParamSpec, TypeVar

import torch
from torch import nn

from flashgp.foundations.determinism import deterministically

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_AUTOCAST_DEVICES = ("cpu", "cuda")


Autocast = dict[str, torch.dtype]  # the dtype of each device where it is on


class _Outside(threading.local):
    """Autocast of each thread as it was when the thread entered one of our doors."""

    autocast: Autocast | None = None


_outside = _Outside()


def autocast_of_the_caller() -> Autocast:
    """The autocast that the caller has on, on either side of our doors."""
    return _autocast() or _outside.autocast or {}


def _autocast() -> Autocast:
    return {
        device: torch.get_autocast_dtype(device)
        for device in _AUTOCAST_DEVICES
        if torch.is_autocast_enabled(device)
    }  # fmt: skip


@contextmanager
def callers_autocast() -> Iterator[None]:
    """Within the block autocast is as the caller has it: for networks of the caller's, which are made for it."""
    if not _outside.autocast:
        yield
        return
    with ExitStack() as stack:
        for device, dtype in _outside.autocast.items():
            stack.enter_context(torch.autocast(device, dtype))
        yield


class _Evaluated:
    """Modules that calls of any thread have in evaluation mode: number of calls, and the mode before."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.calls: dict[int, tuple[int, bool]] = {}  # by the id of the module

    def enter(self, modules: list[nn.Module]) -> None:
        with self.lock:
            for module in modules:
                count, training = self.calls.get(id(module), (0, module.training))
                self.calls[id(module)] = count + 1, training
                if not count and training:
                    module.training = False

    def leave(self, modules: list[nn.Module]) -> None:
        with self.lock:
            for module in modules:
                count, training = self.calls.pop(id(module))
                if count > 1:
                    self.calls[id(module)] = count - 1, training
                elif training:
                    module.training = True


_evaluated = _Evaluated()


def _forget_lock() -> None:
    """In a forked child: another thread of the parent may have held it."""
    _evaluated.lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_lock)


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Within the block the module and all in it are in evaluation mode; then each is in the mode that it was in.

    Only the flag `training` is set: what a module of the user's does in `train()` is not called.
    """
    modules = list(module.modules())
    if torch.compiler.is_compiling():  # which follows no lock
        training = [one for one in modules if one.training]
        for one in training:
            one.training = False
        try:
            yield
        finally:
            for one in training:
                one.training = True
        return
    _evaluated.enter(modules)
    try:
        yield
    finally:
        _evaluated.leave(modules)


@contextmanager
def _own_modes(deterministic: bool) -> Iterator[None]:
    """Within the block autocast is off, inference mode is off (still without gradients), and bits repeat if wanted."""
    active = _autocast()
    before = _outside.autocast
    with ExitStack() as stack:
        for device in active:
            stack.enter_context(torch.autocast(device, enabled=False))
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.no_grad())
        stack.enter_context(deterministically(deterministic))
        _outside.autocast = active or before
        try:
            yield
        finally:
            _outside.autocast = before


def outside_compile(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Decorate a door of the library that torch.compile leaves its graph for, without looking inside."""

    @functools.wraps(function)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if torch.compiler.is_compiling():  # not before: it imports the compiler
            return torch.compiler.disable(function)(*args, **kwargs)
        return function(*args, **kwargs)

    return run


def methods_outside_compile(cls: type[Result]) -> type[Result]:
    """Decorate a class whose public methods and properties torch.compile leaves its graph for."""
    for name, member in [*vars(cls).items()]:
        if name.startswith("_"):
            continue
        if isinstance(member, property) and member.fget is not None:
            setattr(cls, name, property(outside_compile(member.fget), doc=member.__doc__))
        elif callable(member):
            setattr(cls, name, outside_compile(member))
    return cls


def entered(
    deterministic: Callable[..., bool] | None = None,
) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Decorate a door of the library: the caller's autocast, inference mode and threads end there.

    Args:
        deterministic: of all arguments, whether they ask for bits that repeat (determinism.py); None for never.
    """

    def decorate(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        @functools.wraps(function)
        def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            wanted = False if deterministic is None else deterministic(*args, **kwargs)
            if wanted is False and not torch.is_inference_mode_enabled() and not _autocast():
                return function(*args, **kwargs)
            with _own_modes(wanted):
                return function(*args, **kwargs)

        return run

    return decorate
