"""Arrow arrays as typed columns. The only file that imports pyarrow, and only once a table is read or written.

The kind of a column of text is decided by all its cells together: numbers, else booleans, else dates, percentages or
clock times, else categories. Typed files and frames have no type of their own for some of these, so their text is read
as dates, percentages and clock times too, but never as numbers: digits that are kept as text are names.
"""

import contextlib
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..foundations.checks import LARGEST_EXACT, first_inexact
from ..foundations.errors import BackendUnavailableError, ShapeError
from .columns import Column, Doubt, Kind, Table, array_values, checked_names, quoted
from .dates import clock_hours, read_dates
from .numbers import DECIMAL_COMMA, before_percent, has_names, may_be_codes, without_thousands

# Cells that mean "no value", after stripping and case folding.
MISSING = (
    "", "?", "na", "n/a", "n.a.", "#n/a", "#na", "<na>", "nan", "-nan", "null", "(null)", "\\n",
    "#div/0!", "#value!", "#ref!", "#name?", "#num!", "#null!",
)  # fmt: skip
# The same among numbers, booleans and dates alone: among text "none" is a level like any other.
NO_VALUE_BESIDE = (
    "none", "-", "--", "---", "\u2013", "\u2014", ".", "..", "...", "*", "**", "/", ":", "missing", "nil", "unknown",
    "undefined", "n.d.", "k.a.",
)  # fmt: skip
_WHOLE = re.compile(r"[+-]?\d{16,400}", re.ASCII)
_MICROSECONDS_PER_DAY = 86_400_000_000

Array = npt.NDArray[np.float64]


def require_pyarrow(path: str) -> Any:
    """The pyarrow package with its parts. Raises: BackendUnavailableError naming the extra when it is absent."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError:
        raise BackendUnavailableError(
            f"{quoted(path)} needs pyarrow, which reads and writes tables and is not installed; install flashgp[table]."
        ) from None
    return pyarrow


def text_array(pyarrow: Any, texts: Sequence[str]) -> Any:
    """Text as one Arrow array, by its bytes: given Python's values, pyarrow imports pandas to look for its types."""
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    buffers = [None, pyarrow.py_buffer(ends), pyarrow.py_buffer(b"".join(encoded))]
    return pyarrow.Array.from_buffers(pyarrow.large_string(), len(encoded), buffers)


def given_cells(pyarrow: Any, cells: Any, without: tuple[str, ...] = MISSING) -> tuple[Any, npt.NDArray[np.bool_]]:
    """The cells of a column of text that hold a value, stripped, and which rows they are in."""
    compute = pyarrow.compute
    stripped = compute.utf8_trim_whitespace(cells)
    missing = compute.is_in(compute.utf8_lower(stripped), value_set=text_array(pyarrow, without).cast(stripped.type))
    return stripped.filter(compute.invert(missing)), ~array_values(missing)


def column_from_text(pyarrow: Any, name: str, cells: Any, decimal: str = ".") -> Column:
    """Decide a column's kind from all its cells and convert them.

    Args:
        cells: Arrow text, one cell a row; surrounding spaces do not count.
        decimal: "." or ",", the decimal mark of its numbers.

    Returns:
        A column of what all its cells are, else categories; a column without any value is a number column of NaN.
    """
    found = replace(_of_all_cells(pyarrow, name, *given_cells(pyarrow, cells), decimal), cells=cells)
    if found.kind == "category" and {level.lower() for level in found.levels} & set(NO_VALUE_BESIDE):
        given, present = given_cells(pyarrow, cells, (*MISSING, *NO_VALUE_BESIDE))
        beside = _of_all_cells(pyarrow, name, given, present, decimal)
        if beside.kind != "category" and beside.given:
            blanks = tuple(level for level in found.levels if level.lower() in NO_VALUE_BESIDE)
            return replace(beside, cells=cells, blanks=blanks)
    return found


def _of_all_cells(pyarrow: Any, name: str, given: Any, present: npt.NDArray[np.bool_], decimal: str) -> Column:
    """Column that the given cells make together."""
    numbers = numbers_of(pyarrow, given, decimal)
    if numbers is not None:
        inexact = _inexact_text(given, numbers)
        place = None if inexact is None else (int(np.flatnonzero(present)[inexact[0]]), inexact[1])
        doubt: Doubt | None = "codes" if may_be_codes(pyarrow.compute, given) else None
        padded = has_names(pyarrow.compute, given)
        return Column(name, "number", _spread(present, numbers), inexact=place, doubt=doubt, padded=padded)
    coded = given.combine_chunks().dictionary_encode()
    codes, levels = array_values(coded.indices), coded.dictionary.to_pylist()
    if {level.lower() for level in levels} <= {"true", "false"}:
        return Column(name, "boolean", _spread(present, np.array([lv.lower() == "true" for lv in levels])[codes]))
    return _of_text(pyarrow, name, levels, codes, present, decimal)


def column_from_arrow(pyarrow: Any, name: str, data: Any) -> Column:
    """A column of a typed file; kind "other" for lists, structures, bytes and durations, so that it can be dropped."""
    types, compute = pyarrow.types, pyarrow.compute
    stored_as = str(data.type)
    declared = types.is_dictionary(data.type)
    if declared:
        wanted = data.type.value_type
        if types.is_integer(wanted) or types.is_string_view(wanted):  # whole numbers may be declared to be categories
            wanted = pyarrow.large_string()
        chunks = [chunk.dictionary.cast(wanted).take(chunk.indices) for chunk in data.chunks]
        data = pyarrow.chunked_array(chunks, wanted)
    if types.is_string_view(data.type):
        data = data.cast(pyarrow.large_string())
    kind = data.type
    if types.is_boolean(kind):
        return Column(name, "boolean", _floats(pyarrow, data.cast("uint8")), stored_as=stored_as)
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_null(kind):
        values = _floats(pyarrow, data)
        return Column(name, "number", values, stored_as=stored_as, inexact=_inexact_stored(pyarrow, data, values))
    if types.is_timestamp(kind) or types.is_date(kind):
        # Microseconds as the datetime module has; finer digits are cut, as they are from text.
        moments = compute.cast(data, pyarrow.timestamp("us", getattr(kind, "tz", None)), safe=False)
        days = _floats(pyarrow, moments.cast("int64")) / _MICROSECONDS_PER_DAY
        return Column(name, "date", days, stored_as=stored_as)
    if types.is_string(kind) or types.is_large_string(kind):
        stripped = compute.fill_null(compute.utf8_trim_whitespace(data), "")
        given, present = given_cells(pyarrow, stripped)
        coded = given.combine_chunks().dictionary_encode()
        found = _of_text(
            pyarrow, name, coded.dictionary.to_pylist(), array_values(coded.indices), present, stored_as=stored_as
        )
        if found.kind != "category" and not (declared and (found.undecided or found.doubt)):
            return replace(found, cells=stripped)
        named = compute.not_equal(stripped, "")  # a level of a typed file may be called "NA"
        present = array_values(named)
        coded = stripped.filter(named).combine_chunks().dictionary_encode()
        levels, codes = coded.dictionary.to_pylist(), array_values(coded.indices)
        return replace(_category(name, levels, codes, present, stored_as), declared=declared, cells=stripped)
    return Column(name, "other", np.full(len(data), np.nan), stored_as=stored_as)


def table_from_arrow(pyarrow: Any, stored: Any, name: str, first_row: int = 1, keep: Sequence[str] = ()) -> Table:
    """A typed table of Arrow; columns that pandas stored as an index are left out and said.

    Args: keep, as `Table.keeping`.
    Raises: ShapeError without rows or columns, or for two columns of one name; what Arrow raises.
    """
    columns: list[Column] = []
    as_stored: list[Any] = []
    notes: list[str] = []
    for field, cells in zip(stored.schema, stored.columns, strict=True):
        if field.name.startswith("__index_level_"):
            notes.append(f"column {quoted(field.name)} is an index that pandas stored: left out.")
        else:
            as_stored.append(cells)
            label = field.name.strip() or f"column_{len(columns) + 1}"
            columns.append(column_from_arrow(pyarrow, label, cells))
    checked_names([column.name for column in columns], name)
    if not columns or stored.num_rows == 0:
        raise ShapeError(
            f"{quoted(name)} must have at least one row and one column, got {stored.num_rows} rows and {len(columns)} "
            "columns; check that it is what you meant."
        )
    table = Table(name, tuple(columns), stored.num_rows, True, None, tuple(notes), first_row)
    return table.keeping(as_stored, keep)


def numbers_of(pyarrow: Any, given: Any, decimal: str) -> Array | None:
    """Given cells as numbers with this decimal mark; None unless all are such."""
    compute = pyarrow.compute

    def cast(cells: Any) -> Array:
        plain = cells if decimal == "." else compute.replace_substring(cells, decimal, ".")
        return array_values(compute.cast(plain, pyarrow.float64()))

    if decimal == "." or compute.all(compute.match_substring_regex(given, DECIMAL_COMMA), min_count=0).as_py():
        with contextlib.suppress(pyarrow.ArrowInvalid):
            return cast(given)
    plain = without_thousands(compute, given, decimal)
    return None if plain is None else cast(plain)


def _of_text(
    pyarrow: Any,
    name: str,
    levels: Sequence[str],
    codes: Any,
    present: npt.NDArray[np.bool_],
    decimal: str = ".",
    stored_as: str = "text",
) -> Column:
    """A column of dates, percentages or clock times where all its levels are such, in one form, else of categories."""
    dates = read_dates(levels)
    if dates is not None:
        readings = {order: _spread(present, days[codes]) for order, days in dates.readings.items()}
        values = next(iter(readings.values()), None)
        values = _spread(present, dates.days[codes]) if values is None else values
        column = Column(name, "date", values, stored_as=stored_as, readings=readings)
        return replace(column, short_years=dates.short_years, doubt=dates.doubt)
    kind: Kind = "percentage"
    values = _percentages(pyarrow, levels, decimal)
    if values is None:
        kind, (values, known) = "time", clock_hours(levels)
        if not levels or not known.all():
            return _category(name, levels, codes, present, stored_as)
    return Column(name, kind, _spread(present, values[codes]), stored_as=stored_as)


def _percentages(pyarrow: Any, texts: Sequence[str], decimal: str) -> Array | None:
    """Percentages as the numbers before their signs; None unless all texts are such."""
    bare = [text for text in map(before_percent, texts) if text is not None]
    if not bare or len(bare) < len(texts):
        return None
    return numbers_of(pyarrow, text_array(pyarrow, bare), decimal)


def _category(
    name: str, levels: Sequence[str], codes: Any, present: npt.NDArray[np.bool_], stored_as: str = "text"
) -> Column:
    """Codes into sorted levels."""
    order = sorted(range(len(levels)), key=levels.__getitem__)
    rank = np.empty(len(levels))
    rank[order] = np.arange(len(levels))
    return Column(name, "category", _spread(present, rank[codes]), tuple(levels[i] for i in order), stored_as)


def _spread(present: npt.NDArray[np.bool_], values: Any) -> Array:
    """Values of the given cells at their rows, NaN elsewhere."""
    column = np.full(len(present), np.nan)
    column[present] = values
    return column


def _floats(pyarrow: Any, data: Any) -> Array:
    """float64 with NaN for null."""
    found = pyarrow.compute.cast(data, pyarrow.float64(), safe=False)
    return np.array(array_values(pyarrow.compute.fill_null(found, np.nan)))


def _inexact_text(given: Any, numbers: Array) -> tuple[int, int] | None:
    """The first cell that is a whole number which float64 does not hold: its position, and the number."""
    for position in np.flatnonzero(np.abs(numbers) >= LARGEST_EXACT).tolist():
        cell = given[position].as_py()
        if _WHOLE.fullmatch(cell) and (found := first_inexact(np.array([int(cell)], object))) is not None:
            return position, found[1]
    return None


def _inexact_stored(pyarrow: Any, data: Any, values: Array) -> tuple[int, int] | None:
    """Inexact integers and decimals of a typed file, as of text."""
    if not pyarrow.types.is_integer(data.type) and not pyarrow.types.is_decimal(data.type):
        return None
    for row in np.flatnonzero(np.abs(values) >= LARGEST_EXACT).tolist():
        value = data[row].as_py()
        if value == int(value) and (found := first_inexact(np.array([int(value)], object))) is not None:
            return row, found[1]
    return None
