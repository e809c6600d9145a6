"""From columns to numbers: what an encoding learns, says, refuses, and how it comes back from a model file."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashgp.foundations.errors import DomainError, ModelFileError, ShapeError
from flashgp.table import Encoding, Table, read_table, table_of

TEXT = """\
city,day,open,size,constant,price
ulm,1970-01-02,true,1,7,10
bonn,1970-01-03,false,2,7,20
ulm,1970-01-04,true,3,7,30
"""


@pytest.fixture
def read(tmp_path: Path):
    def write_and_read(text: str, **options) -> Table:
        path = tmp_path / "t.csv"
        path.write_text(text)
        return read_table(path, **options)

    return write_and_read


def said(notes: tuple[str, ...], text: str) -> bool:
    return any(text in note for note in notes)


# --- learning


def test_every_kind_becomes_numbers_and_it_is_said(read):
    table = read(TEXT)
    encoding = Encoding.learn(table, "price")
    data = encoding.apply(table, need_target=True)
    assert data.x.tolist() == [[1.0, 1.0, 1.0, 1.0], [0.0, 2.0, 0.0, 2.0], [1.0, 3.0, 1.0, 3.0]]
    assert data.y.tolist() == [10.0, 20.0, 30.0]
    assert data.rows.tolist() == [0, 1, 2]
    assert [(c.name, c.kind) for c in encoding.inputs] == [
        ("city", "category"),
        ("day", "date"),
        ("open", "boolean"),
        ("size", "number"),
    ]
    assert encoding.category_positions == (0,)
    assert said(encoding.notes, "'city' is text: 2 categories ('bonn', 'ulm')")
    assert said(encoding.notes, "'day' holds dates")
    assert said(encoding.notes, "'open' is true or false")
    assert said(encoding.notes, "'constant' is constant (7): left out")
    assert encoding.left_out == ("constant",)


def test_dropped_columns_and_positions(read):
    encoding = Encoding.learn(read(TEXT), "-1", drop=["city", "2", "-4"])
    assert [c.name for c in encoding.inputs] == ["size"]
    assert encoding.left_out == ("city", "day", "open", "constant")


def test_an_identifier_is_refused_by_name_until_dropped(read):
    rows = "".join(f"u{i},{'ab'[i % 2]},{i}\n" for i in range(30))
    table = read("id,group,y\n" + rows)
    with pytest.raises(DomainError, match=r"'id' \(text with 30 distinct values in 30 rows.*--drop id"):
        Encoding.learn(table, "y")
    assert [c.name for c in Encoding.learn(table, "y", drop=["id"]).inputs] == ["group"]


@pytest.mark.parametrize(("levels", "rows", "usable"), [(20, 20, True), (21, 41, False), (21, 42, True)])
def test_how_many_levels_a_category_may_have(read, levels, rows, usable):
    table = read("c,y\n" + "".join(f"u{i % levels},{i}\n" for i in range(rows)))
    if usable:
        assert len(Encoding.learn(table, "y").inputs[0].levels) == levels
    else:
        with pytest.raises(DomainError, match="'c'"):
            Encoding.learn(table, "y")


def test_a_slip_in_a_numeric_column_is_pointed_out(read):
    rows = "".join(f"{i},{i}\n" for i in range(40))
    with pytest.raises(
        DomainError, match=r"40 of 41 cells are numbers, the first that is not is '12a' at row 41 \(line 42\)"
    ):
        Encoding.learn(read("x,y\n" + rows + "12a,3\n"), "y")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("city", r"`target` must be a numeric column, got 'city' \(text with 2 distinct values.*'ulm' at row 1"),
        ("day", r"`target`.*'day' \(dates\)"),
        ("nothing", r"`target` must name a column .*'nothing'.*'price'"),
    ],
)
def test_targets_that_are_refused(read, target, message):
    with pytest.raises(DomainError, match=message):
        Encoding.learn(read(TEXT), target)


def test_the_target_cannot_be_dropped(read):
    table = read(TEXT)
    with pytest.raises(DomainError, match=r"`drop` must not contain the target"):
        Encoding.learn(table, "price", drop=["price"])
    with pytest.raises(DomainError, match="`drop` must name"):
        Encoding.learn(table, "price", drop=["prize"])


def test_no_input_left(read):
    for text in ("y\n1\n2\n", "a,y\n5,1\n5,2\n"):
        with pytest.raises(DomainError, match="must have an input that varies"):
            Encoding.learn(read(text), "y")


# --- missing and infinite values


def test_missing_values_are_refused_with_their_place_or_dropped_with_their_count(read):
    table = read("a,b,c,y\n1,2,5,3\n4,,5,6\n7,8,5,\n9,1,,2\n")
    with pytest.raises(DomainError, match=r"2 of 4 rows with one, the first at row 2 \(line 3\), column 'b'"):
        Encoding.learn(table, "y")  # c is constant: its gap does not count
    encoding = Encoding.learn(table, "y", missing="drop")
    assert said(encoding.notes, "2 of 4 rows have missing values and are left out")
    data = encoding.apply(table, need_target=True)
    assert data.x.tolist() == [[1.0, 2.0], [9.0, 1.0]]
    assert data.y.tolist() == [3.0, 2.0]
    assert data.rows.tolist() == [0, 3]
    assert encoding.apply(table, need_target=False).rows.tolist() == [0, 2, 3]  # the target's gap matters no more
    with pytest.raises(DomainError, match="1 of 4 rows"):
        encoding.apply(table, need_target=False, missing="error")


def test_columns_without_values_or_constant_after_dropping_rows(read):
    table = read("a,b,c,y\n1,2,,1\n1,3,,2\n2,,,3\n", header=True)
    encoding = Encoding.learn(table, "y", missing="drop")
    assert [c.name for c in encoding.inputs] == ["b"]
    assert said(encoding.notes, "'c' has no values")
    assert said(encoding.notes, "'a' is constant (1)")
    with pytest.raises(DomainError, match="must have a row without missing values"):
        Encoding.learn(read("a,b,y\n1,,1\n2,,2\n,3,3\n,4,4\n"), "y", missing="drop")


@pytest.mark.parametrize("missing", ["error", "drop"])
def test_infinite_values_are_refused_with_their_place(read, missing):
    table = read("a,b,y\n1,2,3\n4,-inf,6\n1e999,5,6\n")
    with pytest.raises(DomainError, match=r"got -inf at row 2 \(line 3\), column 'b' \(2 rows in all\)"):
        Encoding.learn(table, "y", missing=missing)


# --- applying to another table


def test_columns_are_matched_by_name(read):
    encoding = Encoding.learn(read(TEXT), "price")
    data = encoding.apply(read("extra,size,open,day,city\n9,5,false,1970-02-01,bonn\n"), need_target=False)
    assert data.x.tolist() == [[0.0, 31.0, 0.0, 5.0]]
    assert data.y is None
    assert encoding.apply(read(TEXT), need_target=False).notes == ()  # target and left-out columns are known
    assert data.notes == ("columns unknown to the model are ignored: 'extra'.",)
    with pytest.raises(DomainError, match=r"missing 'day', 'size'; it has 'city', 'open'"):
        encoding.apply(read("city,open\nulm,true\n"), need_target=False)
    with pytest.raises(DomainError, match="missing 'price'"):
        encoding.apply(read(TEXT.replace("price", "cost")), need_target=True)


def test_without_header_columns_are_matched_by_position(read):
    encoding = Encoding.learn(read("1,10,100\n2,20,300\n"), "2")
    full = encoding.apply(read("5,6,7\n", header=encoding.header), need_target=True)
    assert (full.x.tolist(), full.y.tolist()) == ([[5.0, 7.0]], [6.0])
    assert encoding.apply(read("5,7\n"), need_target=False).x.tolist() == [[5.0, 7.0]]
    with pytest.raises(ShapeError, match=r"must have 3 columns in the order .* got 2"):
        encoding.apply(read("5,7\n"), need_target=True)
    with pytest.raises(ShapeError, match=r"must have 3 columns, or 2 without the target, .* got 1"):
        encoding.apply(read("5\n"), need_target=False)
    assert said(encoding.apply(read("a,b,c\n1,2,3\n"), need_target=False).notes, "matched by position")


def test_unseen_categories(read):
    encoding = Encoding.learn(read(TEXT), "price", drop=["day", "open"])
    table = read("city,size\nulm,1\nrome,2\nrome,3\nkiel,4\n")
    with pytest.raises(DomainError, match=r"column 'city' .*\('bonn', 'ulm'\), got 'rome' at row 2 \(line 3\)"):
        encoding.apply(table, need_target=False)
    data = encoding.apply(table, need_target=False, unseen="new")
    assert data.x[:, 0].tolist() == [1.0, 2.0, 2.0, 2.0]
    assert said(data.notes, "3 rows have a category that training did not see, the first 'rome'")


def test_a_category_may_come_back_as_numbers_or_booleans(read):
    encoding = Encoding.learn(read("c,b,y\n1,true,1\n2,maybe,2\n3+,FALSE,3\n4+,FALSE,3\n"), "y")
    data = encoding.apply(read("c,b\n2,True\n1,false\n"), need_target=False)
    assert data.x.tolist() == [[1.0, 2.0], [0.0, 0.0]]
    with pytest.raises(DomainError, match=r"got '3' at row 2"):
        encoding.apply(read("c,b\n2,true\n3,false\n"), need_target=False)
    alike = Encoding.learn(read("c,x,y\n1,1,1\n01,2,2\nx,3,3\n"), "y")
    with pytest.raises(DomainError, match=r"got 1, which may be any of '01', '1'"):
        alike.apply(table_of({"c": [1], "x": [2]}), need_target=False)
    assert alike.apply(read("c,x\n1,2\n01,2\n"), need_target=False).x[:, 0].tolist() == [1.0, 0.0]


def test_another_kind_of_column_is_refused(read):
    encoding = Encoding.learn(read(TEXT), "price")
    good = {"city": "ulm", "day": "1970-01-01", "open": "true", "size": "1"}
    for name, value in {"day": "5", "open": "2", "size": "big", "city": "1970-01-01"}.items():
        cells = {**good, name: value}
        with pytest.raises(DomainError, match=f"column '{name}'"):
            encoding.apply(read(f"{','.join(cells)}\n{','.join(cells.values())}\n", header=True), need_target=False)
    cells = {**good, "open": "1"}  # 0 and 1 pass for a boolean
    data = encoding.apply(read(f"{','.join(cells)}\n{','.join(cells.values())}\n"), need_target=False)
    assert data.x[0, 2] == 1.0


def test_a_column_of_an_unknown_type_is_refused_until_dropped(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="the [table] extra is not installed")
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"v": [[1], [2]], "x": [1, 2], "y": [1.0, 2.0]}), tmp_path / "t.parquet")
    table = read_table(tmp_path / "t.parquet")
    with pytest.raises(DomainError, match="'v' \\(stored as 'list"):
        Encoding.learn(table, "y")
    encoding = Encoding.learn(table, "y", drop=["v"])
    assert encoding.apply(table, need_target=True).x.tolist() == [[1.0], [2.0]]


# --- the model file


def test_json_form_comes_back_equal(read):
    encoding = Encoding.learn(read(TEXT), "price", missing="drop")
    back = Encoding.from_json(json.loads(json.dumps(encoding.to_json())))
    assert back == encoding
    table = read(TEXT)
    assert np.array_equal(back.apply(table, need_target=True).x, encoding.apply(table, need_target=True).x)


VALID = {
    "version": 1,
    "inputs": [
        {"name": "c", "kind": "category", "position": 0, "levels": ["a", "b"]},
        {"name": "x", "kind": "number", "position": 2, "levels": []},
    ],
    "target": "y",
    "target_position": 1,
    "header": True,
    "table_columns": 4,
    "left_out": ["z"],
    "missing": "error",
}


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("table_columns",), 10**30, "table_columns"),
        (("target",), "x", "distinct"),
        (("target",), "\ud800", "Unicode"),
        (("target_position",), 2, "inputs"),
        (("inputs", 0, "kind"), "other", r"inputs\[0\].kind"),
        (("inputs", 0, "kind"), "number", r"inputs\[0\].levels"),
    ],
)
def test_hostile_json_is_refused_by_field(path, value, message):
    data = copy.deepcopy(VALID)
    assert Encoding.from_json(data).table_columns == 4
    if not path:
        data = value
    else:
        place = data
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
    with pytest.raises(ModelFileError, match=message):
        Encoding.from_json(data)


@pytest.mark.parametrize("key", VALID)
def test_json_with_an_absent_field_is_refused(key):
    with pytest.raises(ModelFileError, match=key):
        Encoding.from_json({k: v for k, v in VALID.items() if k != key})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*VALID, "kind"]), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.sampled_from(list(VALID)), json_values)
def test_any_json_is_an_encoding_or_a_model_file_error(key, value):
    try:
        encoding = Encoding.from_json({**VALID, key: value})
    except ModelFileError:
        return
    assert Encoding.from_json(encoding.to_json()) == encoding


# --- whole numbers that float64 merges, and labels


def test_identifiers_that_float64_merges_are_refused_by_name_until_dropped(read):
    rows = "".join(f"{10**17 + i},{i % 7},{i}\n" for i in range(20))
    table = read("id,x,y\n" + rows)
    with pytest.raises(DomainError, match=r"'id' \(100000000000000001 at row 2 \(line 3\).*subtract one.*--drop id"):
        Encoding.learn(table, "y")
    assert [c.name for c in Encoding.learn(table, "y", drop=["id"]).inputs] == ["x"]
    with pytest.raises(DomainError, match=r"`target` must be a numeric column, got 'id' \(100000000000000001 at row 2"):
        Encoding.learn(table, "id")


@pytest.mark.parametrize("kind", ["int64", "uint64", "decimal128(38, 0)", "text"])
def test_so_are_those_of_typed_files_and_frames(tmp_path, kind):
    pyarrow = pytest.importorskip("pyarrow")
    values = [None, *(2**60 + 64 * i for i in range(299))]
    if kind == "text":
        (tmp_path / "t.csv").write_text(
            "id,y\n" + "".join(f"{'' if v is None else v},{i}\n" for i, v in enumerate(values))
        )
        table = read_table(tmp_path / "t.csv")
    else:
        types = {"int64": pyarrow.int64(), "uint64": pyarrow.uint64()}
        column = pyarrow.array(values, types.get(kind, pyarrow.decimal128(38, 0)))
        table = table_of(pyarrow.table({"id": column, "y": list(range(300))}))
    with pytest.raises(DomainError, match=r"'id' \(1152921504606847040 at row"):
        Encoding.learn(table, "y", missing="drop")


@pytest.mark.parametrize("labels", [["no", "yes"], ["false", "true"], ["1", "2"]])
def test_a_target_of_labels_is_one_of_classes_unless_that_is_refused(read, labels):
    table = read("x,label\n" + "".join(f"{i},{labels[i % 2]}\n" for i in range(30)))
    encoding = Encoding.learn(table, "label", classes=None)
    assert (encoding.target_kind, encoding.target_levels) == ("category", tuple(labels))
    assert encoding.apply(table, need_target=True).y.tolist() == [i % 2 for i in range(30)]
    assert Encoding.from_json(encoding.to_json()) == encoding
    if labels == ["1", "2"]:
        assert Encoding.learn(table, "label").target_kind == "number"
        return
    with pytest.raises(DomainError, match=r"`target` .* got 'label' .*which are classes: leave out likelihood="):
        Encoding.learn(table, "label")
    numbers = Encoding.learn(read("x,label\n1,5\n2,6\n3,7\n"), "label")
    with pytest.raises(DomainError, match=r"column 'label' .* must hold values of kind number"):
        numbers.apply(table, need_target=True)


def test_new_rows_are_refused_too(read):
    encoding = Encoding.learn(read("a,y\n1,1\n2,2\n"), "y")
    with pytest.raises(DomainError, match=r"column 'a' .* got 100000000000000001 at row 1 \(line 2\)"):
        encoding.apply(read("a\n100000000000000001\n"), need_target=False)
