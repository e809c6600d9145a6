"""Parquet files as one table that is read a part at a time, and its rows as numbers of a model."""

import copy
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from flashgp.data.files import BATCH_ROWS, Paths, Piece, batches_of, found_files, opened, pieces_of, shard_pieces
from flashgp.foundations.errors import DomainError, FlashGPError, ShapeError
from flashgp.processes.group import Group
from flashgp.sources.source import Batch, RowSource
from flashgp.table.columns import Table, checked_names, listed, quoted
from flashgp.table.conversion import require_pyarrow, table_from_arrow
from flashgp.table.encoding import Encoding
from flashgp.table.parts import TableParts

_INDEX = "__index_level_"  # what pandas calls an index that it stores


class ParquetParts(TableParts):
    """Parquet files of the same columns, in any order, whose rows follow each other.

    Args: paths, as `fgp.data.parquet` takes them; batch_rows, of a part; keep, as `Table.keeping`, of every part.
    Fields: paths, the files; count of rows, as the files say.
    Raises:
        BackendUnavailableError: without pyarrow.
        DomainError: for no file, one that is no whole Parquet file, or columns that differ between files, naming both.
        ShapeError: for two columns of one name.
    """

    count: int

    def __init__(self, paths: Paths, batch_rows: int = BATCH_ROWS, keep: Sequence[str] = ()) -> None:
        self.keep = keep
        self.paths = tuple(found_files(paths))
        self.batch_rows, self.count = batch_rows, 0
        one = paths if isinstance(paths, str | os.PathLike) else self.paths[0] if len(self.paths) == 1 else None
        self.path = f"{len(self.paths):,} files" if one is None else Path(one).name
        pyarrow = require_pyarrow(self.paths[0])
        names: tuple[str, ...] | None = None
        for path in self.paths:
            file = opened(pyarrow, path)
            stored = [name for name in file.schema_arrow.names if not name.startswith(_INDEX)]
            self.count += file.metadata.num_rows
            file.close()
            checked_names(stored, path)  # which a column could not be read by
            if names is None:
                names = tuple(stored)
            self._check(names, stored, path)
        assert names is not None
        if not names:
            raise ShapeError(f"{quoted(self.path)} must have columns, got none; check that it is what you meant")
        self._stored, self.names = names, tuple(name.strip() or f"column_{at}" for at, name in enumerate(names, 1))
        checked_names(self.names, self.path)
        short = [Path(path).name for path in self.paths]  # what errors call them
        self._pieces: Sequence[Piece] | None = None  # those of a rank
        self._called = dict(zip(self.paths, short if len({*short}) == len(short) else self.paths, strict=True))

    def shard(self, group: Group) -> "ParquetParts":
        if group.size == 1 or self._pieces is not None:
            return self
        part = copy.copy(self)
        part._pieces, part.count = shard_pieces(require_pyarrow(self.paths[0]), self.paths, group)
        return part

    def parts(self) -> Iterator[Table]:
        return self._read(None)

    def shuffled(self, seed: int) -> Iterator[Table]:
        return self._read(seed)

    def _read(self, seed: int | None) -> Iterator[Table]:
        """A pass. Args: seed, of the order of row groups; None for that of the files."""
        pyarrow = require_pyarrow(self.paths[0])
        for path, group, before in pieces_of(pyarrow, self.paths, seed, self._pieces):
            row, called = before + 1, self._called[path]
            for batch in batches_of(pyarrow, path, self._stored, self.batch_rows, group):
                if not batch.num_rows:
                    continue
                columns = pyarrow.Table.from_batches([batch]).select(list(self._stored))
                try:
                    table = table_from_arrow(pyarrow, columns, called, row, self.keep)
                except FlashGPError:
                    raise
                except (pyarrow.ArrowException, ValueError, OverflowError) as error:
                    raise DomainError(
                        f"{path!r} must hold values that can be read, got {quoted(str(error))} after row {row:,}; "
                        "write it again"
                    ) from None
                yield replace(table, notes=(), part=True)
                row += batch.num_rows

    def _check(self, names: tuple[str, ...], stored: list[str], path: str) -> None:
        lacking = [name for name in names if name not in stored]
        beside = [name for name in stored if name not in names]
        if lacking or beside:
            what = f"{listed(lacking)} missing" if lacking else f"{listed(beside)} beside them"
            raise DomainError(
                f"{path!r} must have the columns of {self.paths[0]!r}, got {what}; write it with the same columns"
            )


class EncodedRows(RowSource):
    """The rows of a table that is read, as numbers of a model in units of the table. Args: table; encoding."""

    def __init__(self, table: TableParts, encoding: Encoding) -> None:
        self.table, self.encoding = table, encoding
        self.columns = tuple(column.name for column in encoding.inputs)

    @property
    def length(self) -> int | None:
        """Known where no row is left out."""
        return self.table.count if self.encoding.missing == "error" else None

    def shard(self, group: Group) -> "EncodedRows":
        return EncodedRows(self.table.shard(group), self.encoding)

    def batches(self) -> Iterator[Batch]:
        return self._encoded(self.table.parts())

    def shuffled(self, seed: int) -> Iterator[Batch]:
        return self._encoded(self.table.shuffled(seed))

    def _encoded(self, parts: Iterator[Table]) -> Iterator[Batch]:
        for part in parts:
            data = self.encoding.apply(part, need_target=True)
            assert data.y is not None
            yield f"{part.path}, row {part.first_row:,} on", data.x, data.y, {}
