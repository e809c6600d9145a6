"""Reading delimited text and Parquet: what is decided, what is refused and where."""

import csv
import gzip
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from flashgp.foundations.errors import BackendUnavailableError, DomainError, ShapeError
from flashgp.table import Table, read_table, write_predictions


def read(tmp_path: Path, content: str | bytes, name: str = "t.csv", **options) -> Table:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_table(path, **options)


def rows_of(table: Table) -> list[list[object]]:
    """Cells as Python values, a level for a category and None where missing."""
    columns = [
        [None if np.isnan(v) else c.levels[int(v)] if c.kind == "category" else v for v in c.values.tolist()]
        for c in table.columns
    ]
    return [list(row) for row in zip(*columns, strict=True)]


def noted(table: Table, text: str) -> bool:
    return any(text in note for note in table.notes)


# --- header


def test_header_is_found_by_text_above_numbers(tmp_path):
    table = read(tmp_path, "a,b\n1,2\n3,4\n")
    assert table.names == ("a", "b")
    assert table.header
    assert rows_of(table) == [[1.0, 2.0], [3.0, 4.0]]
    assert table.where(1) == "row 2 (line 3)"


def test_without_header_columns_are_numbered_and_it_is_said(tmp_path):
    table = read(tmp_path, "1,2\n3,4\n")
    assert table.names == ("column_1", "column_2")
    assert not table.header
    assert table.rows == 2
    assert noted(table, "no header row")


def test_header_can_be_stated(tmp_path):
    assert read(tmp_path, "2019,2020\n1,2\n", header=True).names == ("2019", "2020")
    table = read(tmp_path, "a,b\n1,2\n", header=False)
    assert [c.kind for c in table.columns] == ["category", "category"]


def test_one_text_column_above_text_decides_nothing_alone(tmp_path):
    assert read(tmp_path, "city,price\nulm,1\nbonn,2\n").header
    assert not read(tmp_path, "ulm,1\nbonn,2\n").header


def test_years_above_numbers_with_a_name_are_reported(tmp_path):
    table = read(tmp_path, "day,2019,2020\n2020-01-01,1,2\n2020-01-02,3,4\n")
    assert table.header
    assert noted(table, "pass header=")


def test_text_everywhere_is_a_header_when_names_do_not_come_back(tmp_path):
    assert read(tmp_path, "a,b\nx,y\nx,z\n").header
    table = read(tmp_path, "x,y\nx,z\n")
    assert not table.header
    assert noted(table, "may be wrong")


@pytest.mark.parametrize(("text", "header"), [("a,b\n", True), ("1,2\n", False)])
def test_one_row(tmp_path, text, header):
    if header:
        with pytest.raises(ShapeError, match=r"header row alone.*'a', 'b'"):
            read(tmp_path, text)
    else:
        assert read(tmp_path, text).rows == 1


def test_nameless_header_cells_get_a_name(tmp_path):
    table = read(tmp_path, ",a\n0,5\n1,6\n2,6\n")
    assert table.names == ("column_1", "a")
    assert table.columns[0].unnamed
    assert not table.columns[1].unnamed


def test_duplicate_names(tmp_path):
    with pytest.raises(ShapeError, match=r"'a' for columns 1 and 3"):
        read(tmp_path, "a,b,a\n1,2,3\n")


# --- delimiter and decimal mark


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_delimiters(tmp_path, delimiter):
    table = read(tmp_path, "a,b,c\n1,2.5,x\n2,3,y\n".replace(",", delimiter))
    assert rows_of(table) == [[1.0, 2.5, "x"], [2.0, 3.0, "y"]]


def test_text_with_commas_between_semicolons(tmp_path):
    assert rows_of(read(tmp_path, "x;y\n1;a, b\n2;c\n")) == [[1.0, "a, b"], [2.0, "c"]]


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_decimal_comma(tmp_path, delimiter):
    table = read(tmp_path, "1,5;2,25;7\n-3,0;,5;8\n".replace(";", delimiter))
    assert rows_of(table) == [[1.5, 2.25, 7.0], [-3.0, 0.5, 8.0]]
    assert noted(table, "decimal comma")


def test_decimal_comma_or_thousands_is_refused_unless_stated(tmp_path):
    text = "a;b\n1,234;x\n5,678;y\n"
    with pytest.raises(DomainError, match=r"'1,234' in column 'a'.*decimal=','"):
        read(tmp_path, text)
    assert read(tmp_path, text, decimal=",").columns[0].values.tolist() == [1.234, 5.678]
    assert read(tmp_path, text, decimal=".").columns[0].values.tolist() == [1234.0, 5678.0]


def test_two_decimal_marks_are_refused(tmp_path):
    with pytest.raises(DomainError, match="decimal commas in column 'a' and decimal points in column 'b'"):
        read(tmp_path, "a;b\n1,5;2.5\n2,5;1\n")


def test_delimiter_can_be_stated(tmp_path):
    assert rows_of(read(tmp_path, "1 2\n3 4\n", delimiter=" ")) == [[1.0, 2.0], [3.0, 4.0]]
    for wrong in ("", ",,", '"', "\n", "§"):
        with pytest.raises(DomainError, match="`delimiter`"):
            read(tmp_path, "1,2\n", delimiter=wrong)
    with pytest.raises(DomainError, match="`decimal`"):
        read(tmp_path, "1,2\n", decimal=",", delimiter=",")
    assert rows_of(read(tmp_path, '"1,5",2\n', decimal=",", delimiter=",")) == [[1.5, 2.0]]


# --- cells


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_line_ends_byte_order_mark_blank_lines_and_spaces(tmp_path, end, mark):
    text = end.join(["", "a, b", "", " 1 ,2", "   ", "3,\t4 ", ""])
    table = read(tmp_path, mark + text.encode())
    assert table.names == ("a", "b")
    assert rows_of(table) == [[1.0, 2.0], [3.0, 4.0]]
    assert table.where(1) == "row 2 (line 6)"


@pytest.mark.parametrize("above", ["", ",\n", "\n,\n , \n"])
def test_rows_of_empty_cells_above_the_header_are_skipped(tmp_path, above):
    table = read(tmp_path, f"{above}a,b\n1,2\n,\n3,4\n")
    assert table.names == ("a", "b")
    assert [column.kind for column in table.columns] == ["number", "number"]
    np.testing.assert_array_equal(table.columns[0].values, [1, np.nan, 3])
    assert table.where(0) == f"row 1 (line {2 + above.count(chr(10))})"


def test_a_cell_longer_than_the_sampler_reads(tmp_path):
    table = read(tmp_path, f"a,b\n{'x' * 200_000},1\ny,2\n")
    assert [column.kind for column in table.columns] == ["category", "number"]
    assert table.where(1) == "row 2 (line 3)"
    assert read(tmp_path, f"a,b\n\n{'x' * 200_000},1\ny,2\n").where(1) == "row 2"  # nobody cut its records


def test_quoted_cells_with_line_ends_delimiters_and_quotes(tmp_path):
    table = read(tmp_path, 'a,b\n1,"x\ny, ""z"""\n2,"w"\n3,5" pipe\n4,""""')
    assert rows_of(table) == [[1.0, 'x\ny, "z"'], [2.0, "w"], [3.0, '5" pipe'], [4.0, '"']]
    assert table.where(1) == "row 2 (line 4)"


def test_missing_values_in_every_kind(tmp_path):
    text = "n,b,d,c\n1,true,2020-01-01,x\n,,,\nNA,?,null,NaN\n2,False,1970-01-02,None\n"
    table = read(tmp_path, text)
    assert [c.kind for c in table.columns] == ["number", "boolean", "date", "category"]
    empty = [None] * 4
    assert rows_of(table) == [[1.0, 1.0, 18262.0, "x"], empty, empty, [2.0, 0.0, 1.0, "None"]]


def test_dates_with_times_and_offsets(tmp_path):
    table = read(tmp_path, "d\n1970-01-01T12:00:00+12:00\n1970-01-02T06:00:00.000Z\n")
    assert table.columns[0].values.tolist() == [0.0, 1.25]


@pytest.mark.parametrize(
    "cells", ["2020-02-30\n2020-01-01", "2020-01-01T00:00\n2020-01-01T00:00Z", "1_000\n2_000", "0x1\n0x2"]
)
def test_what_only_resembles_a_date_or_a_number_is_text(tmp_path, cells):
    assert read(tmp_path, f"d\n{cells}\n", header=True).columns[0].kind == "category"


def test_a_number_far_below_the_sample_still_decides_the_kind(tmp_path):
    table = read(tmp_path, "a,b\n" + "1,2\n" * 70_000 + "x,3\n")
    assert [c.kind for c in table.columns] == ["category", "number"]
    assert table.columns[0].levels == ("1", "x")
    assert table.rows == 70_001
    assert table.columns[1].values.sum() == 140_003.0


def test_choice_of_columns(tmp_path):
    table = read(tmp_path, "a,b,3\n1,2,5\n")
    assert [table.position(c) for c in ("a", "1", "-1", "-3", "3", " b ")] == [0, 0, 2, 0, 2, 1]
    for wrong in ("0", "4", "-4", "c", "", "1.0", "١", "99999999999"):
        with pytest.raises(DomainError, match=r"`target` .*'a', 'b', '3'"):
            table.position(wrong, "target")


# --- refusals


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"", ShapeError, "empty file"),
        (b"\n \n\r\n", ShapeError, "only blanks"),
        (b"\xef\xbb\xbf", ShapeError, "only blanks"),
        (b"a,b\n1,2\n3\n4,5\n", ShapeError, "2 cells like the first, got 1 at line 3"),
        (b"a,b\n1,2\n3,4,5\n", ShapeError, "2 cells like the first, got 3 at line 3"),
        (b'a,b\n1,"x\n2,y\n', DomainError, "unexpected end of data.*line 2"),
        (b'a,b\n1,"x', DomainError, "unexpected end of data.*line 2"),
        (b'a,b\n"1,x\n2,y\n', DomainError, "unexpected end of data.*line 2"),
        (b'a,b\n1,"x\n2,"y"\n3,z\n', DomainError, "expected after.*line 2"),
        (b'a,b\n0,w\n1,"x\n2,"y\n3,z\n', DomainError, "expected after.*line 3"),
        (b",,\n,,\n", ShapeError, "only empty cells"),
        (b'a,b\n1, "x"\n', DomainError, "a space before a quote in column 2"),
        (b"a,b\n1,x\n2,\xe9\n", DomainError, r"byte 0xe9 at line 3 \(byte 10"),
        (b"\xef\xbb\xbfa,b\n1,\xe9\n", DomainError, r"byte 0xe9 at line 2 \(byte 9"),
        (b"a\n1\n\0\n", DomainError, "zero byte at line 3"),
        (b"\xff\xfea\0\0\xd8", DomainError, "must be UTF-16"),
        (b"PK\x03\x04rest", DomainError, "spreadsheet"),
        (b"PAR1 not really", DomainError, "readable Parquet"),
        # mtime: the bytes are in the name of the test, which must be the same in every worker
        (gzip.compress(b"a,b\n1,2\n", mtime=0)[:-9], DomainError, "complete gzip"),
        (b"\x1f\x8bgarbage", DomainError, "complete gzip"),
    ],
)
def test_refused_files(tmp_path, content, error, message):
    with pytest.raises(error, match=message):
        read(tmp_path, content)


def test_paths_that_are_no_table(tmp_path):
    for path in (tmp_path, tmp_path / "absent.csv", tmp_path / "a\0b"):
        with pytest.raises(DomainError, match="readable file"):
            read_table(path)
    with pytest.raises(DomainError, match="must be a Parquet file"):
        read(tmp_path, "a\n1\n", "t.parquet")


def test_gzip_is_told_by_its_bytes(tmp_path):
    assert rows_of(read(tmp_path, gzip.compress(b"a,b\n1,2\n"), "t.csv")) == [[1.0, 2.0]]


# --- Parquet


def test_parquet_types(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="the [table] extra is not installed")
    import datetime
    from decimal import Decimal

    import pyarrow.parquet as pq

    day = datetime.date(1970, 1, 3)
    data = pa.table(
        {
            "i": pa.array([1, None], pa.int64()),
            "h": pa.array([0.5, np.nan], pa.float16()),
            "m": pa.array([Decimal("1.25"), None]),
            "b": [True, None],
            "s": ["1", ""],
            "c": pa.array(["x", None]).dictionary_encode(),
            "d": pa.array([day, None]),
            "t": pa.array([datetime.datetime(1970, 1, 2, 12), None], pa.timestamp("ns", "UTC")),
            "l": [[1], None],
            "n": pa.nulls(2),
            "__index_level_0__": [0, 1],
        }
    )
    pq.write_table(data, tmp_path / "t.parquet")
    table = read_table(tmp_path / "t.parquet")
    kinds = ["number", "number", "number", "boolean", "category", "category", "date", "date", "other", "number"]
    assert [c.kind for c in table.columns] == kinds
    assert rows_of(table)[0] == [1.0, 0.5, 1.25, 1.0, "1", "x", 2.0, 1.5, None, None]
    assert rows_of(table)[1] == [None] * 10
    assert noted(table, "index that pandas stored")
    assert table.where(0) == "row 1"
    assert table.header


def test_parquet_without_rows_and_truncated(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="the [table] extra is not installed")
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"a": pa.array([], pa.float64())}), tmp_path / "t.parquet")
    with pytest.raises(ShapeError, match="0 rows and 1 columns"):
        read_table(tmp_path / "t.parquet")
    whole = (tmp_path / "t.parquet").read_bytes()
    with pytest.raises(DomainError, match="readable Parquet"):
        read(tmp_path, whole[:-5], "u.parquet")


@pytest.mark.parametrize("name", ["absent.parquet", "absent.csv", "absent.csv.gz"])
def test_the_missing_extra_is_named_before_work(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(BackendUnavailableError, match=r"install flashgp\[table\]"):
        read_table(tmp_path / name)
    with pytest.raises(BackendUnavailableError, match=r"install flashgp\[table\]"):
        write_predictions(tmp_path / "out.parquet", {"a": np.zeros(1)})


def test_numbers_at_the_edge_of_floats(tmp_path):
    table = read(tmp_path, "a,b,c,d\n9007199254740993,1e400,+5,1_0\n-12345678901234567890123,,0012,3\n", header=True)
    assert [c.kind for c in table.columns] == ["number"] * 3 + ["category"]
    assert table.columns[0].values.tolist() == [9007199254740992.0, -1.2345678901234568e22]
    assert table.columns[1].values.tolist()[0] == np.inf
    assert table.columns[2].values.tolist() == [5.0, 12.0]


# --- properties


quiet = settings(
    max_examples=80, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@quiet
@given(st.binary(max_size=300) | st.text(st.sampled_from('a1,;\t|\n\r" .-_?e٣\u2028'), max_size=60).map(str.encode))
@example(b"PAR1\x00\x00PAR1")
@example(b'"')
@example(b"1e999,2\n3,4")
@example("１,٣\n2,3".encode())
def test_any_bytes_are_a_table_or_one_of_our_errors(tmp_path, content):
    for data in (content, gzip.compress(content)):
        try:
            table = read(tmp_path, data)
        except (DomainError, ShapeError):
            continue
        assert table.rows >= 1
        assert all(c.values.shape == (table.rows,) for c in table.columns)
        assert len(set(table.names)) == len(table.columns)


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)


@quiet
@given(
    st.integers(1, 6).flatmap(
        lambda rows: st.tuples(
            st.lists(st.floats(), min_size=rows, max_size=rows),
            st.lists(st.integers(-(2**53), 2**53), min_size=rows, max_size=rows),
            st.lists(st.booleans(), min_size=rows, max_size=rows),
            st.lists(texts, min_size=rows, max_size=rows),
        )
    )
)
@example(([0.1, -0.0], [1, 2], [True, False], ['a"b,\r\nc', ""]))
def test_what_others_write_is_read_back(tmp_path, columns):
    floats, integers, booleans, words = columns
    words = ["w" + word + "w" for word in words]  # spaces at the ends are not kept, and a word may look like a number
    with open(tmp_path / "out.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["f", "i", "b", "w w"], *zip(floats, integers, booleans, words, strict=True)])
    table = read_table(tmp_path / "out.csv", header=True, delimiter=",")
    assert table.names == ("f", "i", "b", "w w")
    # The same bits, but for the sign and payload of NaN.
    assert list(map(repr, table.columns[0].values.tolist())) == list(map(repr, floats))
    assert table.columns[1].values.tolist() == integers
    assert table.columns[2].values.tolist() == booleans
    assert [row[3] for row in rows_of(table)] == words


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet"])
def test_what_is_written_is_read_back(tmp_path, suffix):
    values = np.array([0.1, -0.0, np.nan, 1e-320, -1.7976931348623157e308, 2.0**53 - 1])
    write_predictions(tmp_path / f"p{suffix}", {"mean": values, "a, b": values[::-1].copy()})
    table = read_table(tmp_path / f"p{suffix}")
    assert table.names == ("mean", "a, b")
    for column, wanted in zip(table.columns, (values, values[::-1]), strict=True):
        assert np.array_equal(column.values.view(np.int64), np.ascontiguousarray(wanted).view(np.int64))
