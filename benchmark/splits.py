"""Six published tables on five fixed splits: pieces that are kept as they come, and paired differences of scores."""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy
from common import SHARED_DATA, Split, split_of

from flashgp.bench import read_record, write_record

SETS = ("yacht", "housing", "energy", "concrete", "airfoil", "wine")
SPLITS = range(5)
Piece = dict[str, Any]


def pieces_of(
    store: Path, title: str, methods: Sequence[str], run: Callable[[str, Split, dict[str, Piece]], Piece], only: str
) -> dict[str, Piece]:
    """A piece for every table, split and method, read from the store where it is there, else run and written to it.

    Args:
        store: file of the pieces, so that a suite can be stopped and run again.
        title: of that file.
        methods: what is compared, by name.
        run: gives a piece from the method, the split and the pieces of that split so far, by method.
        only: text that the key of a new piece must contain.
    """
    pieces: dict[str, Piece] = {}
    if not SHARED_DATA.exists():
        print(f"not run: the tables are not at {SHARED_DATA}")
        return pieces
    pieces |= read_record(store)["pieces"] if store.exists() else {}
    for name in SETS:
        for split in SPLITS:
            for method in methods:
                key = f"{name}/{split}/{method}"
                if key in pieces or only not in key:
                    continue
                before = {other: pieces[k] for other in methods if (k := f"{name}/{split}/{other}") in pieces}
                pieces[key] = run(method, split_of(name, split), before)
                print(key, pieces[key], flush=True)
                write_record(store, {"title": title, "pieces": pieces})
    return pieces


def complete(pieces: dict[str, Piece], methods: Sequence[str]) -> Iterator[tuple[str, dict[str, list[Piece]]]]:
    """The tables of which every piece is there, with those of each method by split."""
    for name in SETS:
        if all(f"{name}/{split}/{method}" in pieces for split in SPLITS for method in methods):
            yield name, {method: [pieces[f"{name}/{split}/{method}"] for split in SPLITS] for method in methods}


def paired(ours: Sequence[Piece], theirs: Sequence[Piece], score: str) -> tuple[float, float]:
    """The mean of the differences of a score, ours less theirs, and its standard error."""
    difference = numpy.array([one[score] - other[score] for one, other in zip(ours, theirs, strict=True)])
    return float(difference.mean()), float(difference.std(ddof=1) / math.sqrt(len(difference)))
