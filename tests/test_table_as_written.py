"""Text as people and programs write it: thousands, marks for missing values, comments, encodings, names of rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow")

from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.table import Encoding, Table, read_table


def read(folder: Path, text: str | bytes, **options: Any) -> Table:
    path = folder / "t.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_table(path, **options)


def noted(table: Table, text: str) -> bool:
    return any(text in note for note in table.notes)


@pytest.mark.parametrize(
    ("text", "options", "wanted"),
    [
        ('a,b\n"1,234.5",1\n12,2\n', {}, [1234.5, 12.0]),
        ('a,b\n"1,234",1\n"12,000",2\n', {"decimal": "."}, [1234.0, 12000.0]),
        ('a,b\n"1,234,567",1\n"12,000",2\n', {}, [1234567.0, 12000.0]),
        ("a;b\n1,234.5;1\n-2,000,000;2\n", {}, [1234.5, -2e6]),
        ("a;b\n1.234,5;1\n1.000;2\n", {}, [1234.5, 1000.0]),
        ("a;b\n1.234.567;1\n2,5;2\n", {}, [1234567.0, 2.5]),
        ("a;b\n1.234;1\n2.000;2\n", {"decimal": ","}, [1234.0, 2000.0]),
        ("a;b\n1'234.5;1\n20;2\n", {}, [1234.5, 20.0]),
        ("a;b\n1 234,5;1\n20;2\n", {"decimal": ","}, [1234.5, 20.0]),
        ("a;b\n1\u00a0234;1\n20;2\n", {}, [1234.0, 20.0]),
    ],
)
def test_thousands_are_numbers(tmp_path: Path, text: str, options: Any, wanted: list[float]) -> None:
    table = read(tmp_path, text, **options)
    assert table.columns[0].values.tolist() == wanted
    assert noted(table, "marks between thousands in 'a'")
    assert table.columns[1].values.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("text", ["a;b\n1.234;1\n0.5;2\n", "a,b\n12.345,1\n1.000,2\n", "a\n1e3\n0.001\n"])
def test_plain_decimals_have_no_thousands(tmp_path: Path, text: str) -> None:
    table = read(tmp_path, text)
    assert table.columns[0].kind == "number"
    assert not noted(table, "thousands")


@pytest.mark.parametrize(
    ("cells", "beside", "wanted"),
    [
        (["45\u00a0%", "50 %", "60\u202f%"], "1", [45.0, 50.0, 60.0]),
        (["1,5%", "2,5 %", "3%"], "1", [1.5, 2.5, 3.0]),
        (["1,5%", "-2,25\u00a0%", "3%"], "0,5", [1.5, -2.25, 3.0]),
        (["1,234.5%", "2.5%", "3%"], "0.5", [1234.5, 2.5, 3.0]),
        (["1.234,5 %", "2%", "3%"], "1", [1234.5, 2.0, 3.0]),
        (["1'234%", "2%", "3%"], "0.5", [1234.0, 2.0, 3.0]),
    ],
)
def test_percentages_are_read_as_numbers_are(
    tmp_path: Path, cells: list[str], beside: str, wanted: list[float]
) -> None:
    table = read(tmp_path, "a;b\n" + "".join(f"{cell};{beside}\n" for cell in cells))
    assert table.columns[0].kind == "percentage"
    assert table.columns[0].values.tolist() == wanted
    assert table.columns[1].values[0] == float(beside.replace(",", "."))


def test_marks_of_percentages_are_refused_as_those_of_numbers(tmp_path: Path) -> None:
    with pytest.raises(DomainError, match="decimal commas in column 'a' and decimal points in column 'b'"):
        read(tmp_path, "a;b\n1,5%;0.5\n2%;1.5\n")
    with pytest.raises(DomainError, match="'1,234' in column 'a', decimals or thousands"):
        read(tmp_path, "a;b\n1,234%;1\n2%;1\n")
    mixed = read(tmp_path, "a;b\n1.5%;1\n1.5%;2\n2,5%;3\n")
    with pytest.raises(
        DomainError, match=r"\(percentages with decimal commas, the first '2,5%' at row 3.*: write points, or take"
    ):
        Encoding.learn(mixed, "b")


def test_groups_between_points_do_not_decide_what_other_points_are(tmp_path: Path) -> None:
    codes = ["1.234.567", "1.234.568", "-"]
    text = "a;y\n" + "".join(
        f"{code};{number}\n" for code, number in zip(codes, ("1.000", "1.001", "2.500"), strict=True)
    )
    with pytest.raises(
        DomainError, match=r"'1.000' in column 'y', decimals or thousands beside '1.234.567' in column 'a'"
    ):
        read(tmp_path, text)
    assert read(tmp_path, text, decimal=",").columns[1].values.tolist() == [1000.0, 1001.0, 2500.0]
    assert read(tmp_path, text, decimal=".").columns[1].values.tolist() == [1.0, 1.001, 2.5]
    decimals = read(tmp_path, text.replace("2.500", "2.5"))
    assert decimals.columns[1].values.tolist() == [1.0, 1.001, 2.5]
    assert decimals.columns[0].kind == "category"
    assert read(tmp_path, "a;y\n1.234.567;1\n12.345;2\n").columns[0].values.tolist() == [1234567.0, 12345.0]


def test_quoted_decimal_commas_between_commas_are_no_categories(tmp_path: Path) -> None:
    """Seen red: three categories, without a word."""
    rows = "".join(f'"{row % 3},5",{row}\n' for row in range(9))
    table = read(tmp_path, "a,y\n" + rows)
    with pytest.raises(
        DomainError,
        match=r"numbers with decimal commas, the first '0,5' at row 1 .*: write points, or have them read by "
        r"decimal=',' \(--decimal ,\), or take",
    ):
        Encoding.learn(table, "y")
    assert Encoding.learn(table, "y", categorical=["a"]).inputs[0].levels == ("0,5", "1,5", "2,5")
    assert read(tmp_path, "a,y\n" + rows, decimal=",").columns[0].values.tolist() == [0.5, 1.5, 2.5] * 3
    points = read(tmp_path, "a,y\n" + rows.replace("\n", ".5\n"))
    with pytest.raises(DomainError, match=r"with decimal commas, the first '0,5' at row 1 .*: write points, or take"):
        Encoding.learn(points, "y")
    with pytest.raises(
        DomainError, match=r"'y' \(.*: write points, or have them read by decimal=',' \(--decimal ,\)\)"
    ):
        Encoding.learn(read(tmp_path, "y,a\n" + "".join(f'"{row % 3},5",{row}\n' for row in range(9))), "y")


def test_rows_that_may_be_comments_are_refused_with_the_option(tmp_path: Path) -> None:
    text = "a,y\n1,2\n#2,3\n3,4\n4,6\n"
    with pytest.raises(DomainError, match=r"'#2' at row 2 \(line 3\): leave such lines out by comment='#' \(--comment"):
        Encoding.learn(read(tmp_path, text), "y")
    assert Encoding.learn(read(tmp_path, text, comment="#"), "y").inputs[0].kind == "number"
    with pytest.raises(DomainError, match=r"'#2' at row 2 \(line 3\): take them"):
        Encoding.learn(read(tmp_path, "y,a\n2,1\n3,#2\n4,3\n6,4\n"), "y")


@pytest.mark.parametrize("delimiter", [None, ",", ";"])
@pytest.mark.parametrize("sign", ["", "%"])
@pytest.mark.parametrize("beside", ["7", "2.125", "A.B, C"])
def test_three_digits_after_one_comma_are_asked_for(tmp_path: Path, delimiter: Any, sign: str, beside: str) -> None:
    mark = delimiter or ","
    cells = [f"1,125{sign}", f"2,250{sign}", f"300{sign}", "-"]
    text = f"a{mark}b\n" + "".join(f'"{cell}"{mark}"{beside}"\n' for cell in cells)
    options = {} if delimiter is None else {"delimiter": delimiter}
    with pytest.raises(
        DomainError,
        match=r"'1,125' in column 'a', decimals or thousands; pass decimal=',' \(--decimal ,\) for decimals, or "
        r"decimal='.' \(--decimal .\) for thousands",
    ):
        read(tmp_path, text, **options)
    for decimal, wanted in ((",", [1.125, 2.25, 300.0]), (".", [1125.0, 2250.0, 300.0])):
        column = read(tmp_path, text, decimal=decimal, **options).columns[0]
        assert column.values.tolist()[:3] == wanted
        assert column.kind == ("percentage" if sign else "number")


@pytest.mark.parametrize("delimiter", [",", ";"])
@pytest.mark.parametrize("beside", ["0.5", "1.0", "1.5e-3", "1,000,000", "2,000.5", "1.5e3"])
def test_what_other_columns_hold_decides_what_commas_are(tmp_path: Path, delimiter: str, beside: str) -> None:
    """Numbers of one file have one decimal mark."""
    table = read(tmp_path, f'a{delimiter}b\n"1,125"{delimiter}"{beside}"\n"2,250"{delimiter}"{beside}"\n')
    assert table.columns[0].values.tolist() == [1125.0, 2250.0]
    assert table.columns[1].kind == "number"
    assert noted(table, "marks between thousands in 'a'")


@pytest.mark.parametrize(
    ("beside", "what"), [("1.0", "points"), ("1.5e3", "points"), ("1,000,000", "commas between thousands")]
)
def test_no_number_becomes_text_by_the_decimal_mark_of_others(tmp_path: Path, beside: str, what: str) -> None:
    """Whole numbers too."""
    with pytest.raises(DomainError, match=f"decimal commas in column 'a' and .*{what} in column 'b'"):
        read(tmp_path, f"a;b\n1,5;{beside}\n2,5;{beside}\n")
    assert read(tmp_path, "a;b\n1,5;inf\n2,5;1\n").columns[0].values.tolist() == [1.5, 2.5]


@pytest.mark.parametrize(
    "cells",
    [
        ["+41 123 456", "+49 123 457"],
        ["555 123 456", "544 123 456"],
        ["12\u00a0345\u00a0678", "12\u00a0345\u00a0679"],
        ["+1 234", "5"],
    ],
)
def test_codes_in_groups_of_digits_are_asked_for(tmp_path: Path, cells: list[str]) -> None:
    table = read(tmp_path, "a;y\n" + "".join(f"{cell};{row}\n" for row, cell in enumerate(cells * 3)))
    with pytest.raises(
        DomainError, match=r"codes, or numbers with spaces .* at row 1.*spaces, or .*\(--categorical a\)"
    ):
        Encoding.learn(table, "y")
    with pytest.raises(DomainError, match="write numbers without spaces\\)"):
        Encoding.learn(table, "a")
    assert set(Encoding.learn(table, "y", categorical=["a"]).inputs[0].levels) == set(cells)


@pytest.mark.parametrize(
    "cells", [["1 234 567", "999"], ["12 345", "45 000"], ["1 234.5", "7 500.25"], ["+1 500", "-2 000"]]
)
def test_thousands_of_numbers_that_differ_in_size_are_numbers(tmp_path: Path, cells: list[str]) -> None:
    table = read(tmp_path, "a;y\n" + "".join(f"{cell};{row}\n" for row, cell in enumerate(cells * 3)))
    encoding = Encoding.learn(table, "y")
    assert encoding.inputs[0].kind == "number"
    one = read(tmp_path, f"a;y\n{cells[0]};1\n")
    assert encoding.apply(one, need_target=False).x.item() == float(cells[0].replace(" ", ""))


def test_what_has_two_readings_is_refused_with_a_way_out(tmp_path: Path) -> None:
    text = "a;b\n1.234;1,5\n2.000;2,5\n3.001;2,5\n"
    with pytest.raises(DomainError, match=r"pass decimal=',' \(--decimal ,\) if these are thousands"):
        read(tmp_path, text)
    assert read(tmp_path, text, decimal=",").columns[0].values.tolist() == [1234.0, 2000.0, 3001.0]
    with pytest.raises(DomainError, match="write all numbers with a point"):
        read(tmp_path, "a;b\n1.5;1,5\n2.25;2,5\n", decimal=",")


MARKS = ["None", "-", "--", ".", "#DIV/0!", "#N/A", "#VALUE!", "NULL", "n/a", "N/A", "missing", "\u2013", "\\N", "*"]


@pytest.mark.parametrize("mark", MARKS)
def test_marks_among_numbers_are_missing(tmp_path: Path, mark: str) -> None:
    column = read(tmp_path, f"a,b\n1.5,u\n{mark},v\n2.5,w\n").columns[0]
    assert column.kind == "number"
    np.testing.assert_array_equal(column.values, [1.5, np.nan, 2.5])
    first = read(tmp_path, f"{mark},7\n1.5,8\n2.5,9\n")
    assert not first.header, "a mark is no name"
    assert first.columns[0].kind == "number"


@pytest.mark.parametrize("mark", ["None", "-", "unknown", "."])
def test_marks_among_text_are_levels(tmp_path: Path, mark: str) -> None:
    column = read(tmp_path, f"a,y\nwood,1\n{mark},2\nbrick,3\n").columns[0]
    assert mark in column.levels
    assert not np.isnan(column.values).any()
    assert read(tmp_path, f"a,y\n{mark},1\n{mark},2\n").columns[0].levels == (mark,)


def test_marks_that_were_taken_for_missing_are_said(tmp_path: Path) -> None:
    for cells, said in ((("1", "-", "None", "2"), True), (("1", "", "3", "2"), False)):
        table = read(tmp_path, "a,y\n" + "".join(f"{cell},{row}\n" for row, cell in enumerate(cells)))
        notes = Encoding.learn(table, "y", missing="drop").apply(table, need_target=True).notes
        assert ("column 'a': cells with '-', 'None' are missing values." in notes) == said


@pytest.mark.parametrize(
    ("text", "header"),
    [
        ("1990,1991,1992\n3.5,4.5,5.5\n6.5,7.5,8.5\n", True),
        ("1990,1991,1992\n34000,35000,36000\n1000,2000,3000\n", True),
        ("country,1990,1991\nUlm,10,20\nBonn,30,40\n", True),
        ("0,1,2\n0.5,1.5,2.5\n3.5,1.5,0.5\n", True),
        ("1990,1991,1992\n1993,1994,1995\n1996,1997,1998\n", False),
        ("0,1\n1,0\n0,0\n", False),
        ("5,6,7\n1.5,2.5,3.5\n", False),
        ("1,2,3\n4,5,6\n7,8,9\n", False),
    ],
)
def test_a_header_of_numbers_that_count_up(tmp_path: Path, text: str, header: bool) -> None:
    table = read(tmp_path, text)
    assert table.header is header
    assert table.rows == text.count("\n") - header
    assert not read(tmp_path, text, header=False).header


@pytest.mark.parametrize(
    ("text", "header"),
    [
        ("08:00,09:00\n1,2\n3,4\n", True),
        ("5%,10%\n1.5,2\n2.5,3\n", True),
        ("2020-01,2020-02\n1,2\n3,4\n", True),
        ("01.01.2020;02.01.2020\n1,5;2,5\n3,5;4,5\n", True),
        ("station,2020-01-01,2020-01-02\nUlm,1,2\nBonn,2,3\n", True),
        ("day,08:00\n2020-01-01,5%\n2020-01-02,6%\n", True),
        ("08:00,2020-01-01,5%\n09:00,2020-01-02,6%\n", False),
        ("2020-01-01,1\n,2\n,3\n", False),
        ("0,2020-01-01\n1,2020-01-02\n", False),
    ],
)
def test_a_header_of_another_kind_than_the_cells_below(tmp_path: Path, text: str, header: bool) -> None:
    assert read(tmp_path, text).header is header


@pytest.mark.parametrize(
    ("text", "options", "names", "rows"),
    [
        ("# made by hand\n# twice\na,b\n1,2\n3,4\n", {}, ("a", "b"), 2),
        ("# a,b\n1,2\n3,4\n", {}, ("a", "b"), 2),
        ("# made, by hand, in May\n# a,b\n1,2\n# pause\n3,4\n", {}, ("a", "b"), 2),
        ("a,b\n1,2\n% pause\n3,4\n", {"comment": "%"}, ("a", "b"), 2),
        ("#id,b\n1,2\n3,4\n", {}, ("#id", "b"), 2),
        ('a,b\n1,"x\n# inside"\n3,y\n', {"comment": "#"}, ("a", "b"), 2),
        ("# one\u2028two\na,b\n1,2\n3,4\n", {}, ("a", "b"), 2),
        ("#a,b\n#red,1\n#blue,2\n", {}, ("#a", "b"), 2),
        ("#ff0000,1\n#00ff00,2\n", {}, ("column_1", "column_2"), 2),
        ("# colours\n\na,b\n#red,1\n#blue,2\n", {}, ("a", "b"), 2),
        ("# by hand, in May\na,b\n1,2\n3,4\n", {}, ("a", "b"), 2),
        ("# by hand, in May\na,b\n1,2\n3,4\n", {"header": True}, ("a", "b"), 2),
        ("# by hand; in May\na;b\nUlm;2020-01-05\nBonn;2020-01-06\n", {}, ("a", "b"), 2),
        ("# by hand, in May\na,b\n#red,2\n#blue,4\n", {}, ("a", "b"), 2),
        ("# a,b\nUlm,2020-01-05\nBonn,2020-01-06\n", {}, ("a", "b"), 2),
        ("# town,street\nUlm,Ring\nBonn,Markt\n", {"header": True}, ("town", "street"), 2),
        ("# 5,6\n1,2\n3,4\n", {}, ("column_1", "column_2"), 2),
        ("# a,b\n# 5,6\n# 6,7\n1,2\n3,4\n", {}, ("a", "b"), 2),
        ("# a,b,c\n# 5,6\n1,2\n3,4\n", {}, ("column_1", "column_2"), 2),
        ("# a,b\n1,2\n3,4\n", {"header": False}, ("column_1", "column_2"), 2),
        ("# 1990,1991\n3.5,4.5\n6.5,7.5\n", {}, ("1990", "1991"), 2),
    ],
)
def test_comment_lines(tmp_path: Path, text: str, options: Any, names: Any, rows: int) -> None:
    table = read(tmp_path, text, **options)
    assert table.names == names
    assert table.rows == rows
    if "inside" in text:
        assert table.columns[1].levels == ("x\n# inside", "y")


def test_comments_are_said_and_lines_are_those_of_the_file(tmp_path: Path) -> None:
    table = read(tmp_path, "# one\n# two\na,b\n1,2\n3,4\n")
    assert noted(table, "2 lines that begin with '#' are comments")
    assert table.where(0) == "row 1 (line 4)"
    assert noted(read(tmp_path, "# one\na,b\n1,2\n"), "1 line that begins with '#' is a comment: left out.")
    with pytest.raises(ShapeError, match=r"a header row alone \('a', 'b'\) and 1 line of comments"):
        read(tmp_path, "a,b\n#1,2\n", comment="#")
    with pytest.raises(DomainError, match="`comment` must be what begins a comment line"):
        read(tmp_path, "a\n1\n", comment=" ")


def test_comments_below_the_first_row_may_be_rows_and_are_said(tmp_path: Path) -> None:
    text = "# colours\nc,y\n#1,2\nred,3\n{},4\nred,5\n"
    table = read(tmp_path, text.format("#2"))
    assert table.rows == 2
    assert noted(table, "2 of them stand below the first row, the first at line 3: put the first cell in quotes where")
    way_out = read(tmp_path, text.format('"#2"').replace("#1", '"#1"'))
    assert way_out.columns[0].levels == ("#1", "#2", "red")
    assert noted(way_out, "1 line that begins with '#' is a comment")
    assert not noted(way_out, "below the first row")
    assert noted(read(tmp_path, "c,y\n1,2\n%1,3\n", comment="%"), "1 of them stands below the first row, the first at")


@pytest.mark.parametrize(
    "first", ["sep=;", '"sep=;"', "SEP=;", "\ufeffsep=;", "sep=; "], ids=["plain", "quoted", "upper", "mark", "space"]
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_first_line_that_names_the_delimiter(tmp_path: Path, first: str, end: str) -> None:
    table = read(tmp_path, f"{first}\na;y\n1,5;2\n2,5;3\n".replace("\n", end))
    assert table.names == ("a", "y")
    assert table.columns[0].values.tolist() == [1.5, 2.5]
    assert noted(table, "delimiter: semicolon, as the first line says")
    assert table.where(0) == "row 1 (line 3)"
    with pytest.raises(ShapeError, match="got 3 at line 4"):
        read(tmp_path, f"{first}\na;y\n1,5;2\n2,5;3;4\n".replace("\n", end))


def test_a_delimiter_that_is_named_by_the_first_line_or_by_the_user(tmp_path: Path) -> None:
    assert read(tmp_path, "sep=~\na~y\n1~2\n").names == ("a", "y")
    assert read(tmp_path, "sep=\t\n# by hand\na\ty\n1\t2\n").names == ("a", "y")
    assert read(tmp_path, "sep=;\na,y\n1,2\n", delimiter=",").names == ("a", "y")
    assert read(tmp_path, "sep=x,y\n1,2\n").names == ("sep=x", "y")
    assert read(tmp_path, "sep=1\n1\n2\n").names == ("sep=1",)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_errors_name_lines_of_the_file(tmp_path: Path, end: str) -> None:
    """Whatever comments, blank lines and cells of several lines are before them."""
    text = '# one\n\na,b\n1,2\n# two\n"3\n4",5\n\n   \n'.replace("\n", end)
    assert read(tmp_path, f"{text}6,inf{end}").where(2) == "row 3 (line 10)"
    with pytest.raises(ShapeError, match="got 3 at line 10, '7,8,9'"):
        read(tmp_path, f"{text}7,8,9{end}")
    with pytest.raises(DomainError, match="in the record that begins at line 10"):
        read(tmp_path, f'{text}7,"8{end}')


@pytest.mark.parametrize(
    ("encoding", "stored_as"),
    [
        ("utf-8", "utf-8"),
        ("UTF8", "utf-8"),
        ("utf-16-le", "utf-16-le"),
        ("utf-16-be", "utf-16-be"),
        ("cp1252", "utf-8"),
    ],
)
def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path: Path, encoding: str, stored_as: str) -> None:
    for first in ("a", '"a"'):
        data = f"\ufeff{first},y\n1,2\n".encode(stored_as)
        assert read(tmp_path, data, encoding=encoding).names == ("a", "y")


def test_encodings(tmp_path: Path) -> None:
    text = "ort,y\nK\u00f6ln,1\nUlm,2\n"
    with pytest.raises(DomainError, match="encoding='cp1252'"):
        read(tmp_path, text.encode("cp1252"))
    assert read(tmp_path, text.encode("cp1252"), encoding="cp1252").columns[0].levels == ("K\u00f6ln", "Ulm")
    assert read(tmp_path, text.encode("utf-16")).columns[0].levels == ("K\u00f6ln", "Ulm")
    with pytest.raises(DomainError, match="`encoding` must be one that Python knows, got 'latin99'"):
        read(tmp_path, text, encoding="latin99")


def test_names_of_rows_as_r_writes_them(tmp_path: Path) -> None:
    table = read(tmp_path, '"size","price"\n"1",60,210\n"2",80,330\n')
    assert table.names == ("column_1", "size", "price")
    assert table.columns[0].unnamed
    assert table.columns[2].values.tolist() == [210.0, 330.0]


def test_kept_cells_are_those_of_the_file(tmp_path: Path) -> None:
    text = "id,size,x\n007,1.50,a\n,2,b\n"
    kept = read(tmp_path, text, keep=["id,size"]).kept
    assert {name: cells.to_pylist() for name, cells in kept.items()} == {"id": ["007", ""], "size": ["1.50", "2"]}
    with pytest.raises(DomainError, match="`keep` must name a column"):
        read(tmp_path, text, keep=["nr"])


def test_addresses_and_versions_tell_no_decimal_mark(tmp_path: Path) -> None:
    """10.100.200.100 holds groups of three digits and is no number: y keeps its points."""
    path = tmp_path / "t.tsv"
    addresses = ("10.100.200.100", "192.168.1.2", "10.0.0.1")
    path.write_text("ip\tx\ty\n" + "".join(f"{addresses[i % 3]}\t{i}\t1.{i:03d}\n" for i in range(30)))
    table = read_table(str(path))
    assert table.columns[2].values.tolist() == [1 + i / 1000 for i in range(30)]
    assert table.columns[0].kind == "category"


def test_groups_of_other_than_three_digits_are_no_numbers(tmp_path: Path) -> None:
    assert read(tmp_path, "a;b\n1234,567.5;1\n20;2\n").columns[0].kind == "category"
