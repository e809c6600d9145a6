"""Rows of Parquet files, read a batch at a time.

The columns of all files are compared before anything is read; a file that is cut off, a value that is missing and text
where a number belongs are errors that name file and column.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy

from flashgp.data.files import BATCH_ROWS, Paths, Piece, batches_of, found_files, opened, pieces_of, shard_pieces
from flashgp.foundations.checks import check_count
from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.processes.group import Group
from flashgp.sources.source import Batch, RowSource
from flashgp.table.columns import quoted
from flashgp.table.conversion import column_from_arrow, require_pyarrow


def parquet(
    paths: Paths,
    *,
    target: str | Sequence[str],
    columns: Sequence[str] | None = None,
    row_variance: str | None = None,
    row_weight: str | None = None,
    batch_rows: int = BATCH_ROWS,
    **of_rows: str,
) -> "ParquetRows":
    """Rows of Parquet files for `fgp.fit(gp, rows)` and `gp.condition(rows)`, which read them in passes.

    With a group of ranks (`fgp.fit(gp, rows, group=...)`) each rank names the same files and reads some of their row
    groups, so that every row is read once; write at least as many row groups as there are ranks.

    Args:
        paths: a file, a pattern such as "part-*.parquet", or a list of either; files in the order of their names, those
            of a list in its order.
        target: the column of y; several for a GP with outputs.
        columns: those of x, in their order; None for all others, in the order of the first file.
        row_variance: a column of known noise variances of the rows, beside the one that is fitted; none by default.
        row_weight: in its place, for likelihoods whose sites are found by iteration: a column of weights, which
            multiply log p of their rows.
        batch_rows: rows in memory at once, as they are stored.
        of_rows: columns of other numbers of rows by the likelihood's name for them: `exposure`, `trials`.

    Raises:
        BackendUnavailableError: without pyarrow; install flashgp[table].
        DomainError: for no file, one that is no whole Parquet file, a column that a file lacks, has twice or beside
            those of the first, or that holds no numbers; while reading for missing values.

    Example:
        >>> import pyarrow, pyarrow.parquet
        >>> for part in range(2):
        ...     table = pyarrow.table({"a": [0.0, 1.0, 2.0], "y": [part + 0.5, 1.5, 2.5]})
        ...     pyarrow.parquet.write_table(table, f"part-{part}.parquet")
        >>> rows = fgp.data.parquet("part-*.parquet", target="y")
        >>> rows.columns, rows.count
        (('a',), 6)
    """
    named = {"row_variance": row_variance, "row_weight": row_weight}
    numbers = {name: column for name, column in named.items() if column is not None} | of_rows
    return ParquetRows(paths, target, columns, numbers, batch_rows)


class ParquetRows(RowSource):
    """Rows of Parquet files, made by `parquet`.

    Attributes:
        paths: of the files.
        columns: of x.
        targets: columns of y.
        numbers: columns of numbers of rows, by the name of each.
        count: of rows, as the files say.
    """

    def __init__(
        self,
        paths: Paths,
        target: str | Sequence[str],
        columns: Sequence[str] | None,
        numbers: Mapping[str, str],
        batch_rows: int,
    ) -> None:
        self.paths = tuple(found_files(paths))
        self.batch_rows = check_count(batch_rows, "batch_rows", 1)
        self._several = not isinstance(target, str)
        self.targets = _names(target, "target")
        self.numbers = dict(numbers)
        for name, column in self.numbers.items():
            if not isinstance(column, str):
                raise DomainError(f"`{name}` must be the name of one column, got {column!r}; pass a name or None")
        pyarrow = require_pyarrow(self.paths[0])
        wanted = None if columns is None else _names(columns, "columns")
        count, first = 0, None
        for path in self.paths:
            file = opened(pyarrow, path)
            count += file.metadata.num_rows
            stored = [name for name in file.schema_arrow.names if not name.startswith("__index_level_")]
            if first is None:
                first = wanted if wanted is not None else tuple(name for name in stored if name not in self._beside)
                _check_first(first, self._beside, path)
            self._check(pyarrow, file.schema_arrow, stored, first, path, every=wanted is None)
            file.close()
        assert first is not None
        self.columns, self.count = first, count
        self._pieces: Sequence[Piece] | None = None  # those of a rank

    @property
    def length(self) -> int:
        return self.count

    def shard(self, group: Group) -> "ParquetRows":
        if group.size == 1 or self._pieces is not None:
            return self
        part = copy.copy(self)
        part._pieces, part.count = shard_pieces(require_pyarrow(self.paths[0]), self.paths, group)
        return part

    @property
    def _beside(self) -> tuple[str, ...]:
        """The columns that are not of x."""
        return (*self.targets, *self.numbers.values())

    def batches(self) -> Iterator[Batch]:
        return self._read(None)

    def shuffled(self, seed: int) -> Iterator[Batch]:
        return self._read(seed)

    def _read(self, seed: int | None) -> Iterator[Batch]:
        """A pass. Args: seed, of the order of row groups; None for that of the files."""
        pyarrow = require_pyarrow(self.paths[0])
        assert self.columns is not None
        names = [*self.columns, *self._beside]
        width, targets = len(self.columns), len(self.targets)
        for path, group, row in pieces_of(pyarrow, self.paths, seed, self._pieces):
            for batch in batches_of(pyarrow, path, names, self.batch_rows, group):
                table = numpy.empty((batch.num_rows, len(names)))
                for at, name in enumerate(names):
                    table[:, at] = self._numbers(pyarrow, batch, name, path, row)
                x, y, beside = numpy.split(table, [width, width + targets], axis=1)
                numbers = dict(zip(self.numbers, beside.T, strict=True))
                yield f"{path}, row {row:,} on", x, y if self._several else y[:, 0], numbers
                row += batch.num_rows

    def __repr__(self) -> str:
        files = f"{len(self.paths)} Parquet files" if len(self.paths) > 1 else "a Parquet file"
        return f"{self.count:,} rows of {files}: {', '.join(self.targets)} by {', '.join(self.columns or ())}"

    # -- work ------------------------------------------------------------------------------------------------------
    def _check(
        self, pyarrow: Any, schema: Any, stored: list[str], columns: tuple[str, ...], path: str, *, every: bool
    ) -> None:
        """DomainError for a file whose columns are not those that are wanted."""
        for name in (*columns, *self._beside):
            if stored.count(name) != 1:
                got = "none" if name not in stored else "several"
                raise DomainError(
                    f"{path!r} must have one column {quoted(name)}, got {got} among {_listed(stored)}; write it "
                    "with the same columns, or name others"
                )
            _check_kind(pyarrow, schema.field(name).type, name, path)
        beside = [name for name in stored if name not in columns and name not in self._beside]
        if every and beside:
            raise DomainError(
                f"{path!r} must have the columns of {self.paths[0]!r}, got {_listed(beside)} beside them; "
                "name those of x with columns="
            )

    def _numbers(self, pyarrow: Any, batch: Any, name: str, path: str, row: int) -> Any:
        """One column of a batch, float64. Raises: DomainError for values that are missing or that float64 merges."""
        cells = pyarrow.chunked_array([batch.column(batch.schema.get_field_index(name))])
        _check_kind(pyarrow, cells.type, name, path)  # which another pass may find changed
        column = column_from_arrow(pyarrow, name, cells)
        bad = ~numpy.isfinite(column.values)
        if bad.any():
            at = int(bad.argmax())
            got = "no value" if numpy.isnan(column.values[at]) else "inf"
            raise DomainError(
                f"column {quoted(name)} of {path!r} must hold finite numbers, got {got} in row {row + at:,}; "
                "fill it in, or write the file without such rows"
            )
        if column.inexact is not None:
            at, number = column.inexact
            raise DomainError(
                f"column {quoted(name)} of {path!r} must hold whole numbers that float64 holds, got {number} in "
                f"row {row + at:,}, which it merges with its neighbours; subtract one number from all, or leave it out"
            )
        return column.values


def _names(names: str | Sequence[str], argument: str) -> tuple[str, ...]:
    found = (names,) if isinstance(names, str) else tuple(names) if isinstance(names, Iterable) else ()
    if not found or not all(isinstance(name, str) for name in found) or len(set(found)) < len(found):
        raise DomainError(f"`{argument}` must be names of columns, each once, got {names!r}; pass at least one")
    return found


def _check_first(columns: tuple[str, ...], beside: tuple[str, ...], path: str) -> None:
    both = [name for name in columns if name in beside]
    if both or len(set(beside)) < len(beside):
        raise DomainError(
            "`columns`, `target` and numbers of rows must be different columns, got "
            f"{_listed(both or beside)} twice; leave one out"
        )
    if not columns:
        raise ShapeError(f"{path!r} must have a column beside the target, got none; check that it is the file")


def _check_kind(pyarrow: Any, kind: Any, name: str, path: str) -> None:
    """Raises: DomainError for what is no kind of number."""
    if not _is_number(pyarrow, kind):
        raise DomainError(
            f"column {quoted(name)} of {path!r} must hold numbers, got {kind}; leave it out with columns=, or write "
            "codes in its place"
        )


def _is_number(pyarrow: Any, kind: Any) -> bool:
    types = pyarrow.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_boolean(kind))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(quoted, names))
