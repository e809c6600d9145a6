"""The hunt: random cases for some minutes, each against the reference; a reproduction of every difference.

    python tests/hunt/run.py --minutes 10 [--start 0] [--kinds posterior,chain]

Seeds go on from `--start`, all kinds in turn, so that a run is the same again. Exit code 1 where there was one
that differs. tests/hunt/README.md says what is asked and how far off an answer may be.
"""

import argparse
import collections
import shlex
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]

from hunt.generate import KINDS, case_of  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description="Random cases against plain references.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--kinds", default=",".join(KINDS), help="comma-separated")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    kinds = asked.kinds.split(",")
    totals: collections.Counter[str] = collections.Counter()
    began, seed = time.monotonic(), asked.start
    while time.monotonic() - began < 60 * asked.minutes:
        for kind in kinds:
            tried(kind, seed, totals)
        seed += 1
    totals["seconds"] = round(time.monotonic() - began)
    print(f"\nseeds {asked.start} to {seed - 1}, each of {', '.join(kinds)}")
    for name in sorted(totals):
        print(f"{totals[name]:>12,}  {name}")
    return 1 if totals["differences"] else 0


def tried(kind: str, seed: int, totals: "collections.Counter[str]") -> None:
    case: Any = case_of(kind, seed)
    totals[f"cases {kind}"] += 1
    totals["cases"] += 1
    try:
        found = case.check()
    except Exception:
        totals["differences"] += 1
        print(f"\nthe reference failed at {kind} {seed}:\n{case!r}\n{traceback.format_exc(limit=-4)}", flush=True)
        return
    totals["numbers compared"] += found.compared
    totals["online operations"] += found.operations
    for name in (*found.skipped, *(f"refused: {what}" for what in found.refused)):
        totals[name] += 1
    if found.differences:
        totals["differences"] += 1
        for name, text in found.differences.items():
            print(f"\n{kind} {seed}: {name}: {text}", flush=True)
        code = f"from hunt.generate import case_of; print(case_of({kind!r}, {seed}).check().differences)"
        print(f"    {case!r}\n    PYTHONPATH=src:tests python -c {shlex.quote(code)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
