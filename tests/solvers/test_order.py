"""Files of solvers import only from rooms before their own, in the order that the package states."""

import re
from pathlib import Path

import pytest

import flashgp.solvers

ROOT = Path(flashgp.solvers.__file__).parent
ROOMS = ["", "direct", "growing", "preconditioners", "iterative"]  # "" for the files at the root
IMPORT = re.compile(r"^\s*from flashgp\.solvers\.(\w+)", re.MULTILINE)


@pytest.mark.parametrize("room", ROOMS)
def test_imports_point_down(room: str) -> None:
    for path in (ROOT / room).glob("*.py"):
        named = set() if path == ROOT / "__init__.py" else set(IMPORT.findall(path.read_text()))
        rooms = {name if (ROOT / name).is_dir() else "" for name in named}
        assert all(ROOMS.index(one) <= ROOMS.index(room) for one in rooms), path
