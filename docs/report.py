"""Make docs/report.png: the first screen of the report that the README's command writes. Needs Chromium and Pillow.

python docs/report.py report.html
"""

import io
import runpy
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Load the report into a window, and write what is seen in 240 colours."""
    chromium = runpy.run_path(str(ROOT / "tests" / "browser.py"))
    with tempfile.TemporaryDirectory() as folder, chromium["browser"](chromium["found"](), Path(folder)) as tab:
        tab.show(Path(sys.argv[1]), 1120, 610)
        picture = Image.open(io.BytesIO(tab.screenshot(whole=False))).convert("RGB")
    picture.quantize(240, method=Image.Quantize.FASTOCTREE).save(ROOT / "docs" / "report.png", optimize=True)


if __name__ == "__main__":
    main()
