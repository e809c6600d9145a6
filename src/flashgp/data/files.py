"""Parquet files by name or pattern, opened and read a batch at a time; a file that is cut off is named."""

import glob
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy

from flashgp.foundations.errors import DomainError, FlashGPError
from flashgp.processes.group import Group
from flashgp.table.columns import quoted

BATCH_ROWS = 2**16
PARQUET = b"PAR1"
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def is_pattern(paths: Any) -> bool:
    """True if it means Parquet files that are read, not one that is held: a pattern of names, or a list of paths."""
    if isinstance(paths, list | tuple):
        return bool(paths) and all(isinstance(path, str | os.PathLike) for path in paths)
    if not isinstance(paths, str | os.PathLike):
        return False
    name = os.fspath(paths)
    return isinstance(name, str) and glob.has_magic(name) and not Path(name).is_file()


def is_parquet(path: str | os.PathLike[str]) -> bool:
    """True if a file begins as one of Parquet does; False where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(len(PARQUET)) == PARQUET
    except (OSError, ValueError):
        return False


def found_files(paths: Paths) -> list[str]:
    """The files that are meant, each once. Raises: DomainError."""
    several = list(paths) if isinstance(paths, Iterable) and not isinstance(paths, str) else [paths]
    if not all(isinstance(one, str | os.PathLike) for one in several):
        raise DomainError(
            f"`paths` must be a file, a pattern or a list of either, got {quoted(repr(paths))}; for example "
            "'part-*.parquet'"
        )
    found: list[str] = []
    for one in several:
        name = os.fspath(one)
        matches = [name] if Path(name).is_file() else sorted(glob.glob(name))
        if not matches:
            raise DomainError(f"`paths` must name Parquet files, got {name!r}, which no file matches; check it")
        found += matches
    if not found:
        raise DomainError("`paths` must name at least one Parquet file, got none; pass a file or a pattern")
    seen: set[str] = set()
    for path in found:
        if (real := os.path.realpath(path)) in seen:
            raise DomainError(
                f"`paths` must name each file once, got {path!r} twice, whose rows would count double; leave one out"
            )
        seen.add(real)
    return found


def opened(pyarrow: Any, path: str) -> Any:
    """The file, of which the schema is known and nothing else has been read. Raises: DomainError."""
    try:
        return pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: str, error: Exception) -> DomainError:
    text = str(error).partition("\n")[0]
    return DomainError(f"{path!r} must be a whole Parquet file, got {quoted(text)}; write or copy it again")


Piece = tuple[str, int | None, int]  # file, row group or None for all of it, its first row


def pieces_of(
    pyarrow: Any, paths: Sequence[str], seed: int | None, pieces: Sequence[Piece] | None = None
) -> list[Piece]:
    """Pieces that are read one after the other, with a seed the row groups of all files in random order.

    Args:
        pieces: those of a rank; None for all.
    Raises: DomainError.
    """
    if seed is None:
        return [(path, None, 0) for path in paths] if pieces is None else list(pieces)
    found = [piece for piece, _ in _row_groups(pyarrow, paths)] if pieces is None else list(pieces)
    return [found[at] for at in numpy.random.default_rng(seed).permutation(len(found))]


def _row_groups(pyarrow: Any, paths: Sequence[str]) -> list[tuple[Piece, int]]:
    """The row groups of files with their numbers of rows."""
    found: list[tuple[Piece, int]] = []
    for path in paths:
        file, row = opened(pyarrow, path), 0
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            found.append(((path, group, row), rows))
            row += rows
        file.close()
    return found


def shard_pieces(pyarrow: Any, paths: Sequence[str], group: Group) -> tuple[list[Piece], int]:
    """The row groups of a rank, with their rows: runs of them, one rank after the other, as equal as row groups allow.

    Every rank names the same files, by paths of its own. Raises: DomainError; RankMismatchError.
    """
    found = _row_groups(pyarrow, paths)
    text = json.dumps([[os.path.basename(path), number, rows] for (path, number, _), rows in found])
    group.compare(files=f"{len(paths)} files, {hashlib.sha256(text.encode()).hexdigest()[:12]}")
    total, before, own, count = sum(rows for _, rows in found), 0, [], 0
    for piece, rows in found:
        if min((2 * before + rows) * group.size // max(1, 2 * total), group.size - 1) == group.rank:  # by their middles
            own.append(piece)
            count += rows
        before += rows
    return own, count


def batches_of(pyarrow: Any, path: str, names: Sequence[str], rows: int, group: int | None = None) -> Iterator[Any]:
    """The batches of one file, of so many rows. Args: group, of rows that alone is read, None for all.

    Raises: DomainError for a file that cannot be read to its end, or has other columns than when it was looked at
        first.
    """
    file = opened(pyarrow, path)
    try:
        stored = file.schema_arrow.names
        changed = next((name for name in names if stored.count(name) != 1), None)
        if changed is not None:
            raise DomainError(
                f"{path!r} must have the same columns in every pass, got column {quoted(changed)} "
                f"{'no more' if changed not in stored else 'several times'}; do not write to files that are read"
            )
        groups = None if group is None else [group]
        yield from file.iter_batches(rows, row_groups=groups, columns=list(names))
    except FlashGPError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    finally:
        file.close()
