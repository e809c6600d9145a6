"""How much longer `import flashgp` takes than `import torch`, whole fresh processes in turn."""

import functools
import subprocess
import sys
from collections.abc import Sequence

from common import RECORDS, arguments, interleaved

from flashgp.bench import write_record

COLUMNS = [
    {"key": "work", "title": "import"},
    {"key": "against", "title": "against"},
    {"key": "ours_seconds", "title": "FlashGP"},
    {"key": "peer_seconds", "title": "torch"},
    {"key": "overhead", "title": "times torch's", "format": "fixed2"},
    {"key": "target", "title": "under", "format": "fixed2"},
]


def _import(name: str) -> None:
    subprocess.run([sys.executable, "-c", f"import {name}"], check=True)


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv, __doc__ or "")
    names = {"ours": "json", "peer": "csv"} if options.toy else {"ours": "flashgp", "peer": "torch"}
    jobs = {who: functools.partial(_import, name) for who, name in names.items()}
    timed = interleaved(jobs, 1 if options.toy else 11, 0 if options.toy else 1)
    ours, theirs = timed["ours"].seconds, timed["peer"].seconds
    row = {
        "work": "import flashgp", "against": "import torch", "ours_seconds": ours, "peer_seconds": theirs,
        "overhead": ours / theirs, "target": 1.3, "met": ours / theirs < 1.3,
    }  # fmt: skip
    print(row)
    if not options.toy:
        write_record(RECORDS / "import.json", {"title": "Import time", "columns": COLUMNS, "rows": [row]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
