"""Make docs/first_fit.png: run the first block of the README and save the figure that it draws."""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def draw() -> Any:
    """The axes that the block leaves in `ax`."""
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    names: dict[str, Any] = {}
    exec(block[1], names)
    return names["ax"]


if __name__ == "__main__":
    draw().figure.savefig(ROOT / "docs" / "first_fit.png", dpi=110, metadata={"Software": None})
