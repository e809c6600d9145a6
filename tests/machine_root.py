"""A machine of our own making: its memory, and the files of /proc and /sys that the library reads."""

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from flashgp.foundations import machine

__all__ = ["MachineRoot"]


class MachineRoot:
    """A folder that the library takes for `/` while the test runs."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.monkeypatch = monkeypatch
        monkeypatch.setattr(machine, "ROOT", str(path))

    def memory(self, available: int, total: int = 2**40) -> None:
        said = SimpleNamespace(available=available, total=total)
        self.monkeypatch.setattr(psutil, "virtual_memory", lambda: said)

    def write(self, name: str, text: str) -> None:
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_text(text)
