"""Dates in all forms: the numbers of ISO dates, or a question; never categories."""

import datetime as dt
import json
import re
from pathlib import Path

import numpy as np
import pytest

import flashgp as fgp
from flashgp.foundations.errors import DomainError, ModelFileError
from flashgp.table import Encoding, FrameEncoding, Table, read_table, table_of
from flashgp.table.dates import calendar_days, clock_hours, likely_dates, read_dates, shown_date

DAYS = [dt.date(2000, 1, 1) + dt.timedelta(days=30 * i) for i in range(40)]
MOMENTS = [dt.datetime(2000, 1, 1, 7, 30) + dt.timedelta(days=30 * i, hours=5 * i, minutes=i) for i in range(40)]
FORMS = (
    "%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%b %d %Y", "%B %d, %Y",
    "%d %B %Y", "%d-%b-%Y", "%d%b%Y", "%Y-%b-%d", "%Y%m%d", "%a, %d %b %Y", "%G-W%V-%u",
)  # fmt: skip
TIMES = ("%Y-%m-%dT%H:%M", "%d.%m.%Y %H:%M:%S", "%m/%d/%Y %I:%M %p", "%b %d, %Y, %I:%M %p", "%Y%m%dT%H%M%S",
         "%Y/%m/%d %H:%M:%S.000", "%Y-%m-%d %H:%MZ", "%d/%m/%Y %H:%M+00:00", "%a, %d %b %Y %H:%M:%S GMT")  # fmt: skip
ASKED = ("%d/%m/%y", "%d-%b-%y", "%b-%y", "%d.%m.%y")


def table(cells: list[str], tmp_path: Path, how: str, shares: int = 1) -> Table:
    """A column of dates beside a number and a target, each date in so many rows, as a file or a frame."""
    each = [cell for cell in cells for _ in range(shares)]
    rows = range(len(each))
    columns = {"day": each, "share": [row % 3 for row in rows], "y": [0.5 + row for row in rows]}
    if how == "csv":
        text = "".join(f'"{day}",{share},{y}\n' for day, share, y in zip(*columns.values(), strict=True))
        (tmp_path / "t.csv").write_text("day,share,y\n" + text)
        return read_table(tmp_path / "t.csv")
    if how == "polars":
        return table_of(pytest.importorskip("polars").DataFrame(columns))
    if how == "pandas":
        pandas = pytest.importorskip("pandas")
        return table_of(pandas.DataFrame(columns).astype({"day": object}))
    pytest.importorskip("pyarrow.parquet").write_table(
        pytest.importorskip("pyarrow").table(columns), tmp_path / "t.parquet"
    )
    return read_table(tmp_path / "t.parquet")


def days_of(read: Table, **options) -> list[float]:
    encoding = Encoding.learn(read, "y", **options)
    assert encoding.inputs[0].kind == "date"
    return encoding.apply(read, need_target=True).x[:, 0].tolist()


@pytest.mark.parametrize("shares", [1, 3])
@pytest.mark.parametrize("how", ["csv", "pandas", "polars", "parquet"])
def test_every_form_is_what_iso_is(tmp_path, how, shares):
    for forms, moments in ((FORMS, DAYS), (TIMES, MOMENTS)):
        wanted = [(np.datetime64(m) - np.datetime64("1970-01-01")) / np.timedelta64(1, "D") for m in moments]
        for form in forms:
            found = days_of(table([moment.strftime(form) for moment in moments], tmp_path, how, shares))
            assert found == pytest.approx(np.repeat(wanted, shares), abs=1e-9), form


@pytest.mark.parametrize("form", ["%Y-%m", "%Y/%m", "%b %Y", "%B-%Y", "%Y-%b", "%YM%m"])
def test_months_are_their_first_day(tmp_path, form):
    firsts = [day.replace(day=1) for day in DAYS]
    found = days_of(table([day.strftime(form) for day in firsts], tmp_path, "csv", 3))
    assert found == [(day - dt.date(1970, 1, 1)).days for day in np.repeat(firsts, 3)]


def test_quarters(tmp_path):
    for cells in (["2000Q1", "2000-Q2", "2001 Q4"], ["Q1 2000", "Q2-2000", "Q4/2001"]):
        assert days_of(table(cells, tmp_path, "csv")) == [10957.0, 11048.0, 11596.0]


@pytest.mark.parametrize("how", ["csv", "pandas"])
def test_open_orders_are_asked_for_and_taken(tmp_path, how):
    cells = ["05/01/2000", "06/02/2000", "12/03/2000", "07/07/2000"]
    read = table(cells, tmp_path, how, 2)
    with pytest.raises(
        DomainError,
        match=r"'day' \(dates of which day and month are open, '05/01/2000' at row \d.* 2000-01-05 by dmy or "
        r"2000-05-01 by mdy: say which by dates='dmy' \(--dates dmy\) or dates='mdy'",
    ):
        Encoding.learn(read, "y")
    for order, form in (("dmy", "%d/%m/%Y"), ("mdy", "%m/%d/%Y")):
        wanted = [(dt.datetime.strptime(cell, form) - dt.datetime(1970, 1, 1)).days for cell in np.repeat(cells, 2)]
        assert days_of(read, dates=order) == wanted
    assert Encoding.learn(read, "y", drop=["day"]).inputs[0].name == "share"  # nothing is asked of what is not used
    with pytest.raises(DomainError, match="`dates` must be None, 'dmy' or 'mdy', got 'ymd'"):
        Encoding.learn(read, "y", dates="ymd")


@pytest.mark.parametrize("form", ASKED)
def test_two_digits_of_a_year_are_asked_for_and_taken(tmp_path, form):
    cells = [day.strftime(form) for day in DAYS]
    with pytest.raises(DomainError, match=r"years of two digits.*dates='dmy'.*YYYY-MM-DD"):
        Encoding.learn(table(cells, tmp_path, "csv", 3), "y")
    wanted = [(dt.datetime.strptime(cell, form) - dt.datetime(1970, 1, 1)).days for cell in cells]
    assert days_of(table(cells, tmp_path, "csv"), dates="dmy") == wanted
    assert read_dates(["68-1-1", "1/1/68", "1/1/69"]) is None
    assert [shown_date(day) for day in read_dates(["1/1/68", "1/1/69"]).days] == ["2068-01-01", "1969-01-01"]


@pytest.mark.parametrize(
    ("cells", "readings", "day"),
    [
        (["Jan-20", "Feb-20", "Dec-31"], "'Jan-20' at .* as the month 2020-01 or the day 01-20 without a year", 18262),
        (["Jan-20", "Mar-21", "", "NA"], "'Jan-20' at .* as the month 2020-01 or the day 01-20 without a year", 18262),
        (["Jan-20", "Feb-45"], "'Jan-20' at .* as 2020-01-01 or 1920-01-01", 18262),
        (["05-Jan-00", "06-Jan-00"], "'05-Jan-00' at .* as 2000-01-05 or 1900-01-05", 10961),
        (["Jan 5, 70", "Jan 6, 70"], "'Jan 5, 70' at .* as 1970-01-05 or 2070-01-05", 4),
        (["31/12/70", "1/1/71"], "'31/12/70' at .* as 1970-12-31 or 2070-12-31", 364),
        (["1/1/70", "2/2/70"], "'1/1/70' at .* as 1970-01-01 or 2070-01-01", 0),
        (["5/1/70", "2/2/70"], "'5/1/70' at .* as 1970-01-05 by dmy or 1970-05-01 by mdy", 4),
        (["1/1/1970", "2/2/1970"], "'1/1/1970' at .* as 1970-01-01 by either", 0),
    ],
)
@pytest.mark.parametrize("how", ["csv", "parquet"])
def test_the_readings_of_a_question_differ(tmp_path, how, cells, readings, day):
    read = table(cells, tmp_path, how, 4)
    which = "which" if " by " in readings else "the first"
    with pytest.raises(DomainError, match=rf"{readings}: say {which} by dates='dmy' \(--dates dmy\).*YYYY-MM-DD"):
        Encoding.learn(read, "y")
    learned = Encoding.learn(read, "y", dates="dmy", missing="drop")  # the first
    assert learned.apply(read, need_target=True, missing="drop").x[0, 0] == day


def test_a_column_that_tells_its_order_refuses_another(tmp_path):
    read = table([day.strftime("%d/%m/%Y") for day in DAYS], tmp_path, "csv")
    with pytest.raises(
        DomainError, match=r"order mdy of `dates`, got '31/01/2000' at row 2 \(line 3\), which is 2000-01-31"
    ):
        Encoding.learn(read, "y", dates="mdy")


def test_the_order_holds_for_new_rows_and_in_files(tmp_path):
    encoding = Encoding.learn(table([day.strftime("%d/%m/%Y") for day in DAYS], tmp_path, "csv"), "y")
    assert any("holds dates, the day before the month" in note for note in encoding.notes)
    again = Encoding.from_json(json.loads(json.dumps(encoding.to_json())))
    assert again == encoding
    for cells in (["05/01/2000", "06/01/2000"], ["2000-01-05", "2000-01-06"], ["20000105", "20000106"],
                  ["5 Jan 2000", "6 Jan 2000"], ["5.1.2000", "6.1.2000"]):  # fmt: skip
        new = table(cells, tmp_path, "csv")
        assert again.apply(new, need_target=False).x[:, 0].tolist() == [10961.0, 10962.0]
    with pytest.raises(DomainError, match="order dmy as in training, got '01/13/2000' at row 1"):
        again.apply(table(["01/13/2000"], tmp_path, "csv"), need_target=False)
    plain = Encoding.learn(table([str(day) for day in DAYS], tmp_path, "csv"), "y")
    assert "order" not in plain.to_json()["inputs"][0]  # as files of older versions have it
    with pytest.raises(
        DomainError,
        match=r"in one way, got dates of which day and month are open.*by mdy; the dates that the model was fitted to "
        r"do not tell: write them as YYYY-MM-DD$",  # and no option to say it by, which these commands have not
    ):
        plain.apply(table(["05/01/2000", "06/01/2000"], tmp_path, "csv"), need_target=False)
    with pytest.raises(DomainError, match=r"kind date as in training.*2 of 3 cells are dates.*'soon'"):
        plain.apply(table(["2000-01-05", "2000-01-06", "soon"], tmp_path, "csv"), need_target=False)
    broken = encoding.to_json()
    broken["inputs"][0]["order"] = "ymd"
    with pytest.raises(ModelFileError, match="order"):
        Encoding.from_json(broken)


@pytest.mark.parametrize(
    ("cells", "kind", "values"),
    [
        (["45%", "4.5 %", "100%"], "percentage", [45.0, 4.5, 100.0]),
        (["14:30", "2:45 PM", "0:00"], "time", [14.5, 14.75, 0.0]),
        (["14:30:36", "", "23:59:24"], "time", [14.51, np.nan, 23.99]),
    ],
)
@pytest.mark.parametrize("how", ["csv", "pandas", "parquet"])
def test_percentages_and_clock_times_are_numbers(tmp_path, how, cells, kind, values):
    read = table(cells, tmp_path, how, 4)
    encoding = Encoding.learn(read, "y", missing="drop")
    assert encoding.inputs[0].kind == kind
    known = np.repeat(values, 4)
    assert encoding.apply(read, need_target=True).x[:, 0] == pytest.approx(known[~np.isnan(known)])
    with pytest.raises(DomainError, match=f"kind {kind} as in training, got number"):
        encoding.apply(table_of({"day": [0.45], "share": [1], "y": [1.0]}), need_target=False)


def test_a_target_of_percentages_stays_one(tmp_path):
    read = table_of({"x": [1.0, 2, 3], "y": ["10%", "20%", "40%"]})
    encoding = Encoding.learn(read, "y")
    assert encoding.apply(read, need_target=True).y.tolist() == [10.0, 20.0, 40.0]
    assert Encoding.from_json(json.loads(json.dumps(encoding.to_json()))) == encoding
    with pytest.raises(DomainError, match="kind percentage"):
        encoding.apply(table_of({"x": [1.0], "y": [0.1]}), need_target=True)
    assert encoding.observed(table_of({"x": [1.0], "y": [0.1]}))[0] is None


@pytest.mark.parametrize(
    ("good", "bad", "what"),
    [
        (["2000-01-05", "2000-02-05"], "soon", "dates"),
        (["2000-01-05", "2000-02-05"], "05.01.2000", "dates written alike"),
        (["2000-01-05 10:00", "2000-02-05 10:00"], "2000-01-05 10:00Z", "dates written alike"),
        (["13.01.2000", "14.01.2000"], "01.15.2000", "dates written alike"),
        (["2000-02-28", "2000-02-29"], "2000-02-30", "dates"),
        (["Jan-00", "Feb-00"], "winter", "dates"),
        (["45%", "50%"], "half", "percentages"),
        (["14:30", "15:00"], "noon", "clock times"),
        (["1.5", "12"], "12a", "numbers"),
    ],
)
@pytest.mark.parametrize("how", ["csv", "pandas"])
def test_a_slip_among_them_is_no_category(tmp_path, how, good, bad, what):
    cells = [*good * 6, bad, *good]
    with pytest.raises(DomainError, match=rf"14 of 15 cells are {what}, the first that is not is '{bad}' at row 1[23]"):
        Encoding.learn(table(cells, tmp_path, how), "y")
    cells[12] = ""  # the way out
    assert Encoding.learn(table(cells, tmp_path, how), "y", missing="drop", dates="dmy").inputs[0].kind != "other"


@pytest.mark.parametrize("how", ["csv", "pandas"])
@pytest.mark.parametrize(
    "cells",
    [
        ["1.2.3", "10.4.1", "1.12.10"], ["192.168.1.1", "10.0.0.1", "8.8.8.8"], ["A1", "B2", "C3"],
        ["1.234,56 €", "12.050,00 €", "3.100,10 €"], ["$5", "$10", "$12"], ["AB-12-03", "AB-01-02", "CD-05-06"],
        ["12-345", "10-200", "11-111"], ["Jan", "Feb", "Mar"], ["K1A 0B1", "01234", "02345"], ["3:1", "2:2", "0:1"],
        ["2000/2001", "2001/2002", "2002/2003"], ["1/2", "3/4", "5/6"], ["Mon", "Tue", "Wed"],
    ],
)  # fmt: skip
def test_what_only_looks_like_a_date_is_a_category(tmp_path, how, cells):
    assert Encoding.learn(table(cells, tmp_path, how, 4), "y").inputs[0].kind == "category"


def season(year: int, mark: str = "-") -> str:
    return f"{year}{mark}{(year + 1) % 100:02d}"


@pytest.mark.parametrize("how", ["csv", "pandas", "parquet"])
@pytest.mark.parametrize(
    ("cells", "why"),
    [
        ([season(year) for year in range(2000, 2011)], "seasons of two years, or months, '2000-01' at"),
        ([season(year, "/") for year in (2005, 2006, 2006)], "seasons of two years, or months, '2005/06' at"),
        ([season(year) for year in range(1996, 2006)], "seasons of two years, the first '1996-97' at"),
        (["2012\u201313", "2013\u201314"], "seasons of two years, the first '2012\u201313' at"),
        (
            ["2005-06", "2006-07", "2007-08", "summer"],
            "6 of 8 cells are seasons of two years, the first that is not is 'summer' at",
        ),
        (["10 May", "11 Jun", "31 July"], "days without a year, the first '10 May' at"),
        (["10-May", "29-Feb", "1st-Jul"], "days without a year"),
        (["May 5", "May 10"], "days without a year"),
        (["May 10", "Jun 11"], "days without a year, or months of years of two digits, 'May 10' at"),
        (["5/13", "6/1"], "days without a year"),
        (["13.5.", "1.6."], "days without a year"),
        (
            ["2000-01-05", "25.1.2000", "5 Feb 2000"],
            "2 of 6 cells are dates written alike, the first that is not is '25.1.2000' at",
        ),
        (["2000-01-05 10:00", "2000-01-05 10:00Z"], "2 of 4 cells are dates written alike, the first that is not is"),
    ],
)
def test_dates_of_which_something_is_open_are_asked_for(tmp_path, how, cells, why):
    read = table(cells, tmp_path, how, 2)
    for dates in (None, "dmy"):
        with pytest.raises(DomainError, match=rf"{re.escape(why)}.*: .*(?:YYYY-MM|one year)"):
            Encoding.learn(read, "y", dates=dates)
    assert Encoding.learn(read, "y", categorical=["day"]).inputs[0].levels == tuple(sorted({*cells}))


@pytest.mark.parametrize("cells", [["2005-06", "2005-07", "2006-07"], ["2005-06", "2006-05"], ["2005M06", "2006M07"]])
def test_months_are_no_seasons(tmp_path, cells):
    learned = Encoding.learn(table(cells, tmp_path, "csv", 2), "y")
    assert learned.inputs[0].kind == "date"
    one = table(["2005-06"], tmp_path, "csv")
    assert learned.apply(one, need_target=False).x[0, 0] == 12935.0


def test_parts_are_seasons_where_all_are(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet")
    from flashgp.data.table_parts import ParquetParts
    from flashgp.table.parts import learn_encoding

    for last in ("2007-08", "2007-09"):
        for at, days in enumerate((["2005-06", "2006-07"], ["2006-07", last])):
            pyarrow.parquet.write_table(pyarrow.table({"day": days, "y": [1.0, 2.0]}), tmp_path / f"part-{at}.parquet")
        parts = ParquetParts(str(tmp_path / "part-*.parquet"))
        if last == "2007-09":
            assert learn_encoding(parts, "y", (), "error")[0].inputs[0].kind == "date"
            continue
        with pytest.raises(DomainError, match="seasons of two years, or months"):
            learn_encoding(parts, "y", (), "error")


def test_names_of_digits_stay_what_they_are():
    codes = ["01234", "02345", "20000105"]
    frame = table_of({"zip": codes * 4, "id": [31415926, 20000101, 20009999] * 4, "y": [0.5 + i for i in range(12)]})
    assert [column.kind for column in Encoding.learn(frame, "y").inputs] == ["category", "number"]


def test_numbers_kept_as_text_are_called_that():
    encoding = Encoding.learn(table_of({"a": [1.0, 4.0, 2.5], "y": [1.0, 2.0, 3.0]}), "y")
    with pytest.raises(DomainError, match="numbers that are kept as text: convert the column to numbers"):
        encoding.apply(table_of({"a": ["1.0", "4.0"]}), need_target=False)


def test_numbers_that_are_all_dates_are_dates_in_tables_and_numbers_to_the_estimator():
    frame = table_of({"day": [20000105, 20000229, 19991231], "y": [20000101.0, 20000102.0, 20000103.0]})
    encoding = Encoding.learn(frame, "y")
    assert encoding.apply(frame, need_target=True).x[:, 0].tolist() == [10961.0, 11016.0, 10956.0]
    assert any("written as YYYYMMDD" in note for note in encoding.notes)
    assert encoding.apply(frame, need_target=True).y[0] == 20000101.0
    with pytest.raises(DomainError, match="kind date as in training, got number"):
        encoding.apply(table_of({"day": [20000230]}), need_target=False)
    assert FrameEncoding.learn(frame).inputs[0].kind == "number"
    assert calendar_days(np.array([20000230.0])) is None


def test_declared_categories_are_not_read_for_slips():
    pyarrow = pytest.importorskip("pyarrow")
    for cells, kind in ((["1", "2", "3+"], "category"), (["01/02/2000", "03/04/2000", "02/02/2000"], "category"),
                        (["2005-06", "2006-07", "2007-08"], "category"), (["May 10", "Jun 11"] , "category"),
                        (["2000-01-05", "2000-01-06", "2000-01-07"], "date")):  # fmt: skip
        frame = table_of(pyarrow.table({"a": pyarrow.array(cells).dictionary_encode(), "y": [1.0, 2, 4][: len(cells)]}))
        assert Encoding.learn(frame, "y").inputs[0].kind == kind


def test_a_learned_category_may_come_back_as_what_looks_like_times():
    frame = table_of({"when": ["14:30", "noon", "late", "dawn"] * 2, "y": [float(i) for i in range(8)]})
    encoding = Encoding.learn(frame, "y")
    assert encoding.apply(table_of({"when": ["14:30"]}), need_target=False).x.tolist() == [[0.0]]


def test_parts_of_a_table_decide_together(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet")
    from flashgp.data.table_parts import EncodedRows, ParquetParts
    from flashgp.table.parts import learn_encoding

    def write(*files: list[str]) -> ParquetParts:
        for at, cells in enumerate(files):
            y = [float(i) for i in range(len(cells))]
            pyarrow.parquet.write_table(pyarrow.table({"day": cells, "y": y}), tmp_path / f"part-{at}.parquet")
        return ParquetParts(str(tmp_path / "part-*.parquet"))

    parts = write(["05/01/2000", "06/01/2000"], ["25/01/2000", "06/02/2000"])
    encoding, _ = learn_encoding(parts, "y", (), "error")
    assert encoding.inputs[0].order == "dmy"
    x = np.concatenate([x for _, x, _, _ in EncodedRows(parts, encoding).batches()])
    assert x[:, 0].tolist() == [10961.0, 10962.0, 10981.0, 10993.0]
    with pytest.raises(DomainError, match=r"of kind date by dmy as in 'part-0.parquet', got date, by mdy"):
        learn_encoding(write(["25/01/2000"], ["01/25/2000"]), "y", (), "error")
    parts = write(["05/01/2000", "06/01/2000"], ["05/02/2000"])
    with pytest.raises(DomainError, match="day and month are open"):
        learn_encoding(parts, "y", (), "error")
    assert learn_encoding(parts, "y", (), "error", "mdy")[0].inputs[0].order == "mdy"


def test_numbers_of_parts_are_dates_where_all_are(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet")
    from flashgp.data.table_parts import ParquetParts
    from flashgp.table.parts import learn_encoding

    for last, kind in ((20000301, "date"), (20009999, "number")):
        for at, days in enumerate(([20000105, 20000106], [20000229, last])):
            pyarrow.parquet.write_table(pyarrow.table({"day": days, "y": [1.0, 2.0]}), tmp_path / f"part-{at}.parquet")
        encoding, _ = learn_encoding(ParquetParts(str(tmp_path / "part-*.parquet")), "y", (), "error")
        assert encoding.inputs[0].kind == kind


def test_the_keyword_reaches_models_and_estimators(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"day": ["05/01/2000", "06/02/2000", "07/03/2000"], "y": [1.0, 2.0, 4.0]})
    with pytest.raises(DomainError, match="dates='dmy'"):
        fgp.TableModel().fit(frame, target="y")
    with pytest.raises(DomainError, match="dates='dmy'"):
        fgp.GPRegressor().fit(frame[["day"]], frame["y"])
    quick = {"starts": 1, "target_transform": "none"}
    model = fgp.TableModel(**quick).fit(frame, target="y", dates="dmy")
    assert model.encoding.inputs[0].order == "dmy"
    estimator = fgp.GPRegressor(dates="dmy", optimise=False, **quick).fit(frame[["day"]], frame["y"])
    assert estimator.X_train_[:, 0].tolist() == [10961.0, 10993.0, 11023.0]
    model.save(tmp_path / "m.safetensors")
    again = fgp.load(tmp_path / "m.safetensors")
    assert again.predict(frame).mean.tolist() == model.predict(frame).mean.tolist()


def test_the_form_that_most_cells_have():
    texts = ["2000-01-05", "5.1.2000", "6.1.2000", "13.13.2000"]
    dates, alike = likely_dates(texts, np.array([2, 1, 2, 9]))
    assert dates.tolist() == [True, True, True, False]
    assert alike.tolist() == [False, True, True, False]
    hours, known = clock_hours(["24:00", "24:01", "12:00 am", "13:00 pm", "7:05"])
    assert known.tolist() == [True, False, True, False, True]
    assert hours[known] == pytest.approx([24.0, 0.0, 7 + 1 / 12])
