"""What columns are for: codes that are categories, missing cells of text, names of rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet
import pytest

import flashgp as fgp
from flashgp.data.table_parts import EncodedRows, ParquetParts
from flashgp.table import Encoding, FrameEncoding, read_table, table_of
from flashgp.table.parts import learn_encoding


def written(folder: Path, text: str) -> Any:
    (folder / "t.csv").write_text(text)
    return read_table(folder / "t.csv")


@pytest.mark.parametrize("missing", ["error", "drop"])
def test_missing_text_is_a_category(tmp_path: Path, missing: Any) -> None:
    table = written(tmp_path, "energy,size,y\nA,1,1\n,2,2\nB,3,3\nNA,4,4\n")
    encoding = Encoding.learn(table, "y", missing=missing)
    assert encoding.inputs[0].levels == ("A", "B", "missing")
    assert any("2 cells without a value are a category, 'missing'" in note for note in encoding.notes)
    data = encoding.apply(table, need_target=True)
    assert data.x[:, 0].tolist() == [0.0, 2.0, 1.0, 2.0]
    back = Encoding.from_json(encoding.to_json())
    for text in ("energy,size,y\n,1,1\n", "energy,size,y\n,1,1\nB,2,2\n"):
        assert back.apply(written(tmp_path, text), need_target=False).x[0, 0] == 2.0


def test_missing_numbers_and_text_that_had_all_its_cells_are_as_before(tmp_path: Path) -> None:
    encoding = Encoding.learn(written(tmp_path, "energy,size,y\nA,1,1\nB,2,2\nB,3,3\n"), "y")
    with pytest.raises(fgp.DomainError, match="must have no missing values"):
        encoding.apply(written(tmp_path, "energy,size,y\nA,1,1\n,2,2\n"), need_target=False)
    with pytest.raises(fgp.DomainError, match="1 of 3 rows with one, the first at row 2"):
        Encoding.learn(written(tmp_path, "energy,size,y\nA,1,1\nB,,2\nB,3,3\n"), "y")


def test_frames_and_parts_have_the_same_category(tmp_path: Path) -> None:
    frame = pd.DataFrame({"energy": ["A", None, "B", "A"] * 3, "size": np.arange(12.0), "y": np.arange(12.0) % 5})
    assert FrameEncoding.learn(table_of(frame[["energy", "size"]])).inputs[0].levels == ("A", "B", "missing")
    for number, rows in enumerate((frame[:5], frame[5:])):
        pyarrow.parquet.write_table(pyarrow.Table.from_pandas(rows), tmp_path / f"part-{number}.parquet")
    parts = ParquetParts(str(tmp_path / "part-*.parquet"))
    for missing in ("error", "drop"):
        whole = Encoding.learn(table_of(frame), "y", missing=missing)  # type: ignore[arg-type]
        found, _ = learn_encoding(parts, "y", (), missing)  # type: ignore[arg-type]
        assert found == whole
        rows = np.concatenate([x for _, x, *_ in EncodedRows(parts, found).batches()])
        assert np.array_equal(rows, whole.apply(table_of(frame), need_target=True).x)


def test_codes_are_categories_where_they_are_named(tmp_path: Path) -> None:
    zone = np.array([3, 1, 20, 1, 3, 20] * 4)
    table = {"zone": zone, "ward": zone + 0.5, "x": np.arange(24.0), "y": np.where(zone == 20, 9.0, zone * 1.0)}
    model = fgp.TableModel(starts=1, target_transform="none").fit(table, "y", categorical=["zone", "ward"])
    assert model.encoding.inputs[0].levels == ("1", "20", "3")
    assert model.encoding.inputs[1].levels == ("1.5", "20.5", "3.5")
    assert np.abs(model.predict(table).mean - table["y"]).max() < 1.0
    with pytest.raises(fgp.DomainError, match="must hold categories seen in training"):
        model.predict({**table, "zone": zone + 1})
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "part-1.parquet")
    found, _ = learn_encoding(ParquetParts(str(tmp_path / "part-*.parquet")), "y", (), "error", None, ("zone", "ward"))
    assert found == model.encoding
    days = {**table, "day": np.datetime64("2020-01-01") + np.arange(24)}
    with pytest.raises(fgp.DomainError, match="columns of numbers, booleans or text, got 'day'"):
        fgp.TableModel().fit(days, "y", categorical="day")
    with pytest.raises(fgp.DomainError, match="`categorical` must name a column"):
        fgp.TableModel().fit(table, "y", categorical="ort")


def applied(folder: Path, encoding: Encoding, *cells: str) -> list[float]:
    """New cells of the column a, as the codes that they get."""
    rows = "".join(f"{cell},{row}\n" for row, cell in enumerate(cells))
    return encoding.apply(written(folder, f"a,y\n{rows}"), need_target=False).x[:, 0].tolist()


def test_what_is_a_category_of_the_model_is_no_missing_value(tmp_path: Path) -> None:
    """Whatever the other new cells are, and whatever else the same text may mean."""
    levels = ("#N/A", "-", ".", "1", "2", "?", "NA", "None", "n.a.")
    encoding = Encoding.from_json(
        {"version": 1, "inputs": [{"name": "a", "kind": "category", "position": 0, "levels": list(levels)}],
         "target": "y", "target_position": 1, "header": True, "table_columns": 2, "left_out": [], "missing": "error"}
    )  # fmt: skip
    for level in levels:
        code = float(levels.index(level))
        assert applied(tmp_path, encoding, level, "1") == [code, 3.0]
        assert applied(tmp_path, encoding, level, level) == [code, code]
    with pytest.raises(fgp.DomainError, match="got '--' at row 2"):
        applied(tmp_path, encoding, "1", "--")
    with pytest.raises(fgp.DomainError, match="must have no missing values, got 1 of 2 rows with one, the first at"):
        applied(tmp_path, encoding, "1", "null")


def test_codes_of_a_file_are_categories_as_they_are_written(tmp_path: Path) -> None:
    table = written(tmp_path, "a,y\n01,1\n02,2\n10,3\n1,4\n1.50,5\n-,6\nNA,7\n0012,8\n00012,9\n")
    encoding = Encoding.learn(table, "y", categorical=["a"])
    assert encoding.inputs[0].levels == ("-", "00012", "0012", "01", "02", "1", "1.50", "10", "missing")
    assert encoding.apply(table, need_target=True).x[:, 0].tolist() == [3.0, 4.0, 7.0, 5.0, 6.0, 0.0, 8.0, 2.0, 1.0]
    assert applied(tmp_path, encoding, "1", "01", "1.0", "1.5", "NA") == [5.0, 3.0, 5.0, 6.0, 8.0]
    for cell in ("2", "001", "12"):
        with pytest.raises(fgp.DomainError, match=f"seen in training .* got '{cell}' at row 2"):
            applied(tmp_path, encoding, "01", cell)
    (tmp_path / "t.csv").write_text("a,y\n" + "".join(f"0{row % 3},{row % 3}\n" for row in range(12)))
    model = fgp.TableModel(starts=1, target_transform="none").fit(tmp_path / "t.csv", "y", categorical="a")
    assert model.encoding.inputs[0].levels == ("00", "01", "02")
    assert np.abs(model.predict(tmp_path / "t.csv").mean - np.arange(12) % 3).max() < 0.5


@pytest.mark.parametrize("texts", [[f"s{row}" for row in range(40)], [*range(40)]])
def test_categories_that_are_asked_for_may_be_many_but_not_one_each_row(texts: list[str | int]) -> None:
    table = table_of({"a": [*texts[:-1], texts[0]], "b": [*range(40)], "y": [*range(40)]})
    assert len(Encoding.learn(table, "y", categorical=["a"]).inputs[0].levels) == 39
    alone = table_of({"a": texts, "b": [*range(40)], "y": [*range(40)]})
    advice = "have it as numbers, not as categories" if texts[0] == 0 else "each in one alone, which says nothing"
    with pytest.raises(fgp.DomainError, match=rf"'a' \(40 categories in 40 rows.*{advice}.*leave out 'a'"):
        Encoding.learn(alone, "y", categorical=["a"])
    if texts[0] == 0:
        assert Encoding.learn(alone, "y").inputs[0].kind == "number"


def test_many_categories_of_a_typed_file_are_the_same_by_parts(tmp_path: Path) -> None:
    texts = pyarrow.array([*(f"s{row}" for row in range(39)), "s0"]).dictionary_encode()
    pyarrow.parquet.write_table(pyarrow.table({"a": texts, "y": [*range(40)]}), tmp_path / "t.parquet")
    encoding, _ = learn_encoding(ParquetParts(str(tmp_path / "t.parquet")), "y", (), "error")
    assert encoding.inputs == Encoding.learn(read_table(tmp_path / "t.parquet"), "y").inputs


@pytest.mark.parametrize(
    ("text", "inputs"),
    [
        (",size,y\n1,5,1\n2,6,2\n3,9,3\n", ["size"]),
        (",size,y\n17,5,1\n4,6,2\n9,9,3\n", ["size"]),
        (",size,y\nMazda,5,1\nFiat,6,2\nOpel,9,3\n", ["size"]),
        ('"","size","y"\n"1",5,1\n"2",6,2\n', ["size"]),
        ('"size","y"\n"1",5,1\n"2",6,2\n', ["size"]),
        ("Unnamed: 0,size,y\n0,5,1\n1,6,2\n", ["size"]),
        ("rownames,size,y\n1,5,1\n2,6,2\n", ["size"]),
        (",size,y\n1.5,5,1\n2.5,6,2\n3.25,9,3\n", ["column_1", "size"]),
        (",size,y\n1,5,1\n1,6,2\n2,9,3\n", ["column_1", "size"]),
        ("nr,size,y\n1,5,1\n2,6,2\n3,9,3\n", ["nr", "size"]),
        ("size,,y\n5,1,1\n6,2,2\n9,3,3\n", ["size", "column_2"]),
    ],
)
def test_names_of_rows_are_no_input(tmp_path: Path, text: str, inputs: list[str]) -> None:
    encoding = Encoding.learn(written(tmp_path, text), "y")
    assert [column.name for column in encoding.inputs] == inputs
    assert any("names the rows: left out" in note for note in encoding.notes) == (len(inputs) == 1)
    assert len(encoding.apply(written(tmp_path, text), need_target=True).rows) == text.count("\n") - 1


def test_numbers_that_are_text_are_called_that() -> None:
    model = fgp.TableModel(starts=1, kernel="RBF()").fit({"a": [1.0, 4.0, 2.0], "y": [1.0, 2.0, 3.0]}, "y")
    with pytest.raises(fgp.DomainError, match="numbers that are kept as text: convert the column") as refused:
        model.predict({"a": ["1.0", "4.0"]})
    assert "first that is not" not in str(refused.value)
    with pytest.raises(fgp.DomainError, match="numbers that are kept as text: convert the column") as refused:
        Encoding.learn(table_of({"a": [1.0, 2.0], "y": ["0", "1"]}), "y")
    assert "decimal" not in str(refused.value)
    with pytest.raises(fgp.DomainError, match="numbers with decimal commas"):
        Encoding.learn(table_of({"a": [1.0, 2.0], "y": ["0,5", "1"]}), "y")


def test_an_error_names_the_argument_of_the_door() -> None:
    for text in ("Matern(nu=9)", "RBF(", "RBF(active_dims=other)", ""):
        with pytest.raises(fgp.DomainError, match=r"^`kernel` "):
            fgp.TableModel(kernel=text).fit({"a": [1.0, 4.0, 2.0], "y": [1.0, 2.0, 3.0]}, "y")


def test_a_table_of_names_of_rows_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(fgp.DomainError, match="Give it another name in the header to use it"):
        Encoding.learn(written(tmp_path, ",y\n1,5\n2,6\n"), "y")


def column(folder: Path, cells: list[str], name: str = "a") -> Any:
    """A file with one column of these cells, a number and a target."""
    rows = "".join(f'"{cell}",{row % 5},{row}.5\n' for row, cell in enumerate(cells))
    return written(folder, f'"{name}",b,y\n{rows}')


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (["0", "1", "2", "3+"] * 6, r"18 of 24 cells are numbers, the first that is not is '3\+' at row 4 \(line 5\)"),
        (["4", "5", "1-2-10", "6"] * 6, "18 of 24 cells are numbers, the first that is not is '1-2-10'"),
        (["2000-01-05", "2000-01-06", "winter"] * 4, "8 of 12 cells are dates, the first that is not is 'winter'"),
        (["5%", "10%", "much"] * 4, "8 of 12 cells are percentages, the first that is not is 'much'"),
        (["1:10", "1:20", "1:100"] * 4, "8 of 12 cells are clock times, .* '1:100' .*: write ratios as one number, or"),
        (["12:75", "12:30", "9:10"] * 4, "8 of 12 cells are clock times, the first that is not is '12:75'"),
        (["1,5", "2,5", "4"] * 6, r"\(numbers with decimal commas, the first '1,5' at row 1 .*: write points, or"),
        (["+41 100 456", "+41 101 456"] * 6, "codes, or numbers with spaces.*: write numbers without spaces, or"),
        ([f"+41 {row} 456" for row in range(100, 124)], r"spaces.*: write numbers without spaces\)"),
        ([f"s{row % 23}" for row in range(40)], "text with 23 distinct values in 40 rows"),
        ([f"s{row}" for row in range(24)], r"text with 24 distinct values in 24 rows, the first is 's0' at row 1 .*\)"),
        ([*map(str, range(23)), "2a"], r"23 of 24 cells are numbers, the first that is not is '2a' at row 24 .*\)"),
    ],
)
@pytest.mark.parametrize("name", ["a", "the first"])
def test_a_refusal_names_categories_where_they_work(tmp_path: Path, cells: list[str], said: str, name: str) -> None:
    table = column(tmp_path, cells, name)
    with pytest.raises(fgp.DomainError, match=said) as refused:
        Encoding.learn(table, "y")
    message = str(refused.value)
    option = name if name == "a" else "'the first'"
    named = f"take them as categories by categorical=['{name}'] (--categorical {option})" in message
    if named:
        assert Encoding.learn(table, "y", categorical=[name]).inputs[0].levels == tuple(sorted({*cells}))
    else:
        assert "categorical" not in message
        with pytest.raises(fgp.DomainError, match="24 categories in 24 rows, each in one alone"):
            Encoding.learn(table, "y", categorical=[name])
    assert f"drop with --drop {option}, or correct the values" in message
    assert [one.name for one in Encoding.learn(table, "y", drop=[name]).inputs] == ["b"]
    assert "of which" not in message
    with pytest.raises(fgp.DomainError, match=r"\); correct the values\.$"):
        Encoding.learn(table, "y", drop=["b"])  # which leaves no other input


def test_a_refusal_of_parts_counts_what_is_known(tmp_path: Path) -> None:
    cells = ["0", "1", "2", "3+"]
    pyarrow.parquet.write_table(pyarrow.table({"a": cells * 9, "y": [*range(36)]}), tmp_path / "t.parquet")
    parts = ParquetParts(str(tmp_path / "t.parquet"))
    said = r"'a' \(3 of 4 distinct values are numbers, the first that is not is '3\+' at one of its rows: take"
    with pytest.raises(fgp.DomainError, match=said):
        learn_encoding(parts, "y", (), "error")
    assert learn_encoding(parts, "y", (), "error", None, ("a",))[0].inputs[0].levels == tuple(cells)


def test_a_refusal_of_a_frame_names_types_of_categories_where_they_work() -> None:
    for cells, work in ((["0", "1", "2", "3+"] * 6, True), ([*map(str, range(23)), "2a"], False)):
        frame = pd.DataFrame({"a": cells, "y": [*range(24)]})
        with pytest.raises(fgp.DomainError) as refused:
            Encoding.learn(table_of(frame), "y")
        assert ("give them a type of categories" in str(refused.value)) == work
        typed = table_of(frame.astype({"a": "category"}))
        if work:
            assert len(Encoding.learn(typed, "y").inputs[0].levels) == 4
        else:
            with pytest.raises(fgp.DomainError, match="24 categories in 24 rows"):
                Encoding.learn(typed, "y")


@pytest.mark.parametrize("cells", [["1:10", "1:20", "1:50"], ["0:30", "24:00", "12:59:59"]])
def test_times_that_a_clock_shows_stay_times(tmp_path: Path, cells: list[str]) -> None:
    assert Encoding.learn(column(tmp_path, cells * 3), "y").inputs[0].kind == "time"


@pytest.mark.parametrize(
    ("cells", "kind", "said"),
    [
        (
            ["01234", "10115", "02345"] * 3,
            "category",
            "holds digits after a zero, such as '01234', so each is a category",
        ),
        (["01", "1", "2", "-", "NA"] * 3, "category", "so each is a category: write them without these zeros where"),
        (
            [f"{row:05d}" for row in range(990, 1020)],
            "number",
            "taken as numbers: leave it out by drop=['a'] (--drop a)",
        ),
        (
            [f"{row % 25:03d}" for row in range(30)],
            "number",
            "taken as numbers: take them as categories by categorical=",
        ),
        (
            [f"{row:03d}" for row in range(9)],
            "number",
            "taken as numbers: take them as categories by categorical=['a']",
        ),
        (["05", "5.5", "12.25"] * 3, "number", "taken as numbers: take them as categories by categorical=['a']"),
        (["-05", "0.5", "0", "10", "00.5"] * 3, "number", ""),
        (["007", "007"], None, ""),
    ],
)
def test_digits_after_a_zero_are_codes(tmp_path: Path, cells: list[str], kind: str | None, said: str) -> None:
    table = column(tmp_path, cells)
    encoding = Encoding.learn(table, "y", missing="drop")
    assert [one.kind for one in encoding.inputs if one.name == "a"] == ([] if kind is None else [kind])
    assert not said or any(said in note for note in encoding.notes)
    assert any("after a zero" in note for note in encoding.notes) == bool(said)
    if "categorical" in said:
        encoding = Encoding.learn(table, "y", categorical=["a"])
        assert encoding.inputs[0].levels == tuple(sorted({*cells}))
        assert not any("after a zero" in note for note in encoding.notes)
    elif "drop" in said:
        assert [one.name for one in Encoding.learn(table, "y", drop=["a"]).inputs] == ["b"]
    elif kind == "category":
        assert encoding.apply(column(tmp_path, cells[:1]), need_target=False).x[0, 0] == sorted({*cells}).index(
            cells[0]
        )
        unpadded = column(tmp_path, [cell.lstrip("0") for cell in cells])
        assert Encoding.learn(unpadded, "y", missing="drop").inputs[0].kind == "number"
    assert Encoding.learn(table, "a", missing="drop").target == "a"
