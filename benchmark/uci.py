"""Published regression sets: FlashGP beside GPyTorch, on the same splits and machine, one cell after the other.

    python benchmark/uci.py --sets elevators pol --splits 0 1 2 --methods flashgp gpytorch-default

A cell is a set, a split and a method; it runs in a process of its own (see uci_cell). A finished cell is written at
once, atomically, to records/uci.json, and skipped when the command runs again: stop it whenever you like. A cell that
fails, or would not fit into memory, is recorded as such, and the others go on. The methods are

    flashgp             fgp.fit at its defaults
    dense               the same, forced to a float64 Cholesky of all rows: the optimum, where it can be computed
    polished            the optimum beside what FlashGP finds: from there on with a float64 Cholesky of all rows
    gpytorch-default    GPyTorch as its regression example trains it (see uci_gpytorch)
    gpytorch-cholesky   the same in float64, factorising at any size

The table at the end shows means over splits, beside what was to be reached.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cells import in_process, run_missing
from common import RECORDS, SHARED_DATA, peer
from tables import markdown_table
from uci_cell import METHODS
from uci_summary import COLUMNS, TARGETS, summary
from uci_types import Cell

from flashgp.bench import read_record
from flashgp.foundations.errors import DomainError
from flashgp.foundations.machine import parse_bytes
from flashgp.foundations.quantities import readable_bytes, readable_seconds

TITLE = "Published sets: exact GPs trained on all rows, means over splits"
# A cell that runs this much longer than its time limit for training, and a minute, is ended: predictions take time too.
PATIENCE = 4.0
PATIENCE_SECONDS = 60.0


def main(argv: Sequence[str] | None = None, run: Callable[[Cell], dict[str, Any] | None] | None = None) -> int:
    """Run what is missing, in a process each unless `run` is given, and print the table.

    Returns: 1 if a cell of this command has failed, else 0.
    """
    options = _options(argv)
    if not options.data.is_dir():
        print(f"not run: the tables are not at {options.data}; say where with --data")
        return 0
    failed = run_missing(
        _cells(options), options.record, run=run or _run, again=options.again, payload=_payload, line=_line
    )
    if options.record.exists():
        print(f"\n{markdown_table(read_record(options.record), source=options.record.name)}")
    return 1 if failed else 0


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    methods = ["flashgp", "gpytorch-default", "gpytorch-cholesky"]
    parser.add_argument("--sets", nargs="+", default=list(TARGETS), metavar="SET", help="folders of --data")
    parser.add_argument("--splits", nargs="+", type=int, default=[0, 1, 2], metavar="SPLIT", help="columns of the mask")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=methods, metavar="METHOD")
    parser.add_argument("--data", type=Path, default=SHARED_DATA, help="folder of sets: SET/data.csv.gz, test_mask")
    parser.add_argument("--memory", help="budget of every method, such as 8GiB; what is free if left out")
    parser.add_argument("--rows", type=int, metavar="N", help="train on the first N training rows of each split")
    parser.add_argument("--time-limit", type=float, metavar="SECONDS", help="of each training; its best is scored")
    parser.add_argument("--peer-steps", type=int, default=50, metavar="N", help="Adam steps of GPyTorch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--again", nargs="?", choices=("all", "failed"), const="all", help="run recorded cells again, or failed ones"
    )
    parser.add_argument("--record", type=Path, default=RECORDS / "uci.json", metavar="FILE")
    options = parser.parse_args(argv)
    for name in ("rows", "time_limit", "peer_steps"):
        value = getattr(options, name)
        if value is not None and not value > 0:
            parser.error(f"--{name.replace('_', '-')} must be positive, got {value}")
    if options.memory is not None:
        try:
            parse_bytes(options.memory, "--memory")
        except DomainError as error:
            parser.error(str(error))
    return options


def _cells(options: argparse.Namespace) -> list[Cell]:
    """In the order of the splits first, so that every set has a figure early."""
    return [
        Cell(
            name, split, method, str(options.data), options.rows, options.memory, options.time_limit,
            options.peer_steps, options.seed,
        )
        for split in options.splits
        for name in options.sets
        for method in options.methods
    ]  # fmt: skip


def _line(entry: Mapping[str, Any]) -> str:
    return (
        f"RMSE {entry['rmse']:.4f}, NLL {entry['nll']:.4f}, coverage {100 * entry['coverage']:.1f} %, "
        f"{readable_seconds(entry['seconds'])}, peak {readable_bytes(entry['peak_bytes'])}, route {entry['route']}"
    )


def _run(cell: Cell) -> dict[str, Any] | None:
    """A cell in a fresh process; None where its method is not installed."""
    if cell.method.startswith("gpytorch") and peer("gpytorch") is None:
        print(f"{cell.key}: not run, gpytorch is not installed", flush=True)
        return None
    print(f"{cell.key}: running", flush=True)
    patience = None if cell.time_limit is None else PATIENCE * cell.time_limit + PATIENCE_SECONDS
    return in_process("uci_cell", "run_cell", cell, patience)


def _payload(entries: Mapping[str, Any]) -> dict[str, Any]:
    return {"title": TITLE, "columns": COLUMNS, "rows": summary(entries)}


if __name__ == "__main__":
    sys.exit(main())
