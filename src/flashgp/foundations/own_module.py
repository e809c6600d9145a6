"""Modules whose `help` shows what is their own, without what every `torch.nn.Module` has."""

from abc import ABC, ABCMeta

from torch import nn

_HIDDEN = {"__dir__", "__abstractmethods__", "_abc_impl", "__parameters__", "__orig_bases__"}


class _OwnNames(ABCMeta):
    """A class whose `dir`, which `help` goes by, leaves out what comes from torch."""

    def __dir__(cls) -> list[str]:
        foreign = (*nn.Module.__mro__, ABC)
        return sorted({name for base in cls.__mro__ if base not in foreign for name in vars(base)} - _HIDDEN)


class OwnModule(nn.Module, metaclass=_OwnNames):
    """A module; `dir` of an object has all its names."""

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(nn.Module)})
