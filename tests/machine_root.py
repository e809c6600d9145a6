"""A machine of our own making: its memory, and the files of /proc and /sys that the library reads."""

from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Self

import psutil
import pytest

from flashgp.foundations.machine import using_root

__all__ = ["MachineRoot"]


class MachineRoot(AbstractContextManager["MachineRoot"]):
    """A folder that the library takes for `/` inside the block."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.monkeypatch = monkeypatch
        self._using = using_root(path)

    def __enter__(self) -> Self:
        self._using.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._using.__exit__(None, None, None)

    def memory(self, available: int, total: int = 2**40) -> None:
        said = SimpleNamespace(available=available, total=total)
        self.monkeypatch.setattr(psutil, "virtual_memory", lambda: said)

    def write(self, name: str, text: str) -> None:
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_text(text)
