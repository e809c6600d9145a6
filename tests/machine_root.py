"""A machine of our own making: the files of /proc and /sys that the library reads."""

from pathlib import Path

import pytest

from flashgp.foundations import machine

__all__ = ["MachineRoot"]


class MachineRoot:
    """A folder that the library takes for `/` while the test runs."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        monkeypatch.setattr(machine, "ROOT", str(path))

    def write(self, name: str, text: str) -> None:
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_text(text)
