"""Rows that are held out: a published mask beside the table, or a seeded share.

A mask file is a table of 0 and 1 without a header, one row for each row of the table and one column for each split;
1 marks a test row. It is called test_mask.csv.gz (or test_mask.csv) and lies beside the table.
"""

import math
import os
import re

import numpy as np
import numpy.typing as npt

from ..foundations.errors import DomainError, ShapeError
from .columns import Table, quoted
from .reading import read_table

_MASK_NAMES = ("test_mask.csv.gz", "test_mask.csv")
_Rows = npt.NDArray[np.int64]


def read_split(split: str, table: Table) -> npt.NDArray[np.bool_]:
    """Mask of the rows of a table that a published split holds out.

    Args:
        split: the split's number, from 0: a column of the mask file beside the table; or a mask file with one column.
        table: all that its file has.
    Returns: shape (rows,), True for test rows.
    Raises: DomainError for an absent mask file, an unknown split, another value than 0 and 1, or an empty side;
        ShapeError when the mask has another number of rows.
    Cost: reading the mask file.
    """
    number = int(split) if re.fullmatch(r"-?\d{1,9}", split, re.ASCII) else None
    path = split if number is None else _mask_beside(table.path)
    mask = read_table(path, header=False)
    count = len(mask.columns)
    if number is None and count != 1:
        raise ShapeError(
            f"`split` must be a mask file with one column, got {count} in {quoted(path)}; pass a split's number."
        )
    if number is not None and not 0 <= number < count:
        raise DomainError(
            f"`split` must be 0 to {count - 1}, the columns of {quoted(path)}, got {number}; choose one of them."
        )
    if mask.rows != table.rows:
        raise ShapeError(
            f"{quoted(path)} must have a row for each of the table's {table.rows} rows, got {mask.rows}; "
            "use the mask that belongs to the table."
        )
    column = mask.columns[number or 0]
    is_test = column.values == 1.0
    wrong = ~(is_test | (column.values == 0.0))
    if column.kind not in ("number", "boolean") or wrong.any():
        row = int(np.argmax(wrong))
        raise DomainError(
            f"{quoted(path)} must hold 0 and 1 alone, got another value in column {quoted(column.name)}, "
            f"{mask.where(row)}; write 1 for test rows and 0 for the others."
        )
    if is_test.all() or not is_test.any():
        raise DomainError(
            f"a split must leave rows on both sides, got {int(is_test.sum())} test rows of {table.rows} in "
            f"{quoted(path)}, column {quoted(column.name)}; choose another split."
        )
    return is_test


def split_rows(rows: int, test_fraction: float, seed: int) -> tuple[_Rows, _Rows]:
    """Hold out a share of the rows at random.

    Each row draws one 64-bit word of PCG64(seed), in order; the test rows are those with the smallest words. NumPy
    keeps that stream fixed across its versions, so the same three arguments give the same split everywhere.

    Args:
        rows: rows to divide, at least 2.
        test_fraction: share held out, strictly between 0 and 1; rounded to whole rows, at least one on each side.
        seed: an integer of at least 0.
    Returns: zero-based rows of training and test, each increasing, shapes (n,) and (n_test,).
    Raises: DomainError for fewer than 2 rows.
    Cost: O(rows log rows).
    """
    if rows < 2:
        raise DomainError(f"`rows` must be at least 2 to hold some out, got {rows}; add rows or do not split.")
    n_test = min(max(math.floor(rows * test_fraction + 0.5), 1), rows - 1)
    order = np.argsort(np.random.PCG64(seed).random_raw(rows), kind="stable")
    is_test = np.zeros(rows, bool)
    is_test[order[:n_test]] = True
    return np.flatnonzero(~is_test).astype(np.int64), np.flatnonzero(is_test).astype(np.int64)


def split_last(when: npt.NDArray[np.float64], test_fraction: float) -> tuple[_Rows, _Rows]:
    """Hold out the last rows, as a forecast does: those from a time on, so that rows of one time stay together.

    Args:
        when: time of each row, shape (n,), any unit; numbers of rows for the order of the table.
        test_fraction: share held out, strictly between 0 and 1; about that, where times repeat.
    Returns: zero-based rows of training and test, each increasing.
    Raises: DomainError where all rows would be on one side.
    """
    ordered = np.sort(when)
    rows = len(when)
    first = ordered[min(max(rows - math.floor(rows * test_fraction + 0.5), 1), rows - 1)] if rows > 1 else -np.inf
    is_test = when >= first
    if is_test.all():
        raise DomainError(
            f"`test_last` must leave earlier rows to fit, got {test_fraction:g} of {rows} rows, which reaches back to "
            "the first time; hold out fewer"
        )
    return np.flatnonzero(~is_test), np.flatnonzero(is_test)


def _mask_beside(table_path: str) -> str:
    folder = os.path.dirname(table_path)
    for name in _MASK_NAMES:
        if os.path.isfile(os.path.join(folder, name)):
            return os.path.join(folder, name)
    raise DomainError(
        f"`split` needs a mask file beside the table, got no {' or '.join(_MASK_NAMES)} beside {quoted(table_path)}; "
        "add one (0/1, one column a split), or hold out a share with --test-fraction."
    )
