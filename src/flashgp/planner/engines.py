"""The engines that compute K V tile by tile: which backend, on which devices, and the package it needs.

An engine that this version has but whose package is missing is named in plans, with what its absence costs.
"""

import importlib
import importlib.util
from dataclasses import dataclass

import torch

from flashgp.pairwise.backend import BACKENDS, Backend


@dataclass(frozen=True)
class Engine:
    """One backend as the planner sees it.

    Fields: backend, its name in the registry; module, which registers it; package, what must be installed (empty for
    torch alone); devices and dtypes it computes on and in; fused, whether a tile never leaves the cache; skips,
    whether it can leave out far tiles.
    """

    backend: str
    module: str
    package: str
    devices: tuple[str, ...]
    dtypes: tuple[str, ...]
    fused: bool
    skips: bool = True

    def supported(self) -> bool:
        """True if this version of the library has it."""
        if self.backend in BACKENDS:
            return True
        try:
            return importlib.util.find_spec(self.module) is not None
        except ModuleNotFoundError:
            return False

    def installed(self) -> bool:
        """True if its package can be found; nothing is imported."""
        return not self.package or importlib.util.find_spec(self.package) is not None

    def load(self) -> bool:
        """Import it, so that it is in the registry; whether that worked."""
        if self.backend not in BACKENDS and self.supported():
            try:
                importlib.import_module(self.module)
            except ImportError:
                return False
        return self.backend in BACKENDS

    def create(self) -> Backend:
        """Create a backend for products of every size, however small. Raises: ImportError for a missing package."""
        if self.backend not in BACKENDS:
            importlib.import_module(self.module)
        return BACKENDS[self.backend].for_every_size()

    def compiler_bytes(self) -> int:
        """Bytes of this process's memory that the compiler takes at the next product: most before the first one."""
        return BACKENDS[self.backend].compiler_bytes() if self.load() else 0

    def compiles_first(self) -> bool:
        """True if this process has compiled nothing of it yet."""
        return self.load() and BACKENDS[self.backend].compiles_first()

    def runs_on(self, device: torch.device) -> bool:
        return device.type in self.devices


ENGINES: tuple[Engine, ...] = (
    Engine("torch", "flashgp.pairwise.torch.tiles", "", ("cpu", "cuda"), ("float64", "float32"), fused=False),
    Engine("cpu", "flashgp.pairwise.cpu.backend", "numba", ("cpu",), ("float64", "float32"), fused=True),
    Engine(
        "triton",
        "flashgp.pairwise.triton.backend",
        "triton",
        ("cuda",),
        ("float32",),
        fused=True,
        skips=False,
    ),
)
