"""Writing results whole or not at all, and dividing rows into training and test."""

import gzip
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.table import Table, read_split, read_table, require_format, split_rows, write_predictions

FIRST_SPLIT = [1, 2, 3]  # the three smallest of the first ten words of PCG64(0)
COLUMNS = {"mean": np.array([0.1, np.nan, -1e300]), "std": np.array([0.1, 1.0, 2.0])}


# --- writing


def test_compressed_bytes_depend_on_the_content_alone(tmp_path):
    for name in ("a.csv.gz", "b.csv.gz"):
        write_predictions(tmp_path / name, COLUMNS)
    data = (tmp_path / "a.csv.gz").read_bytes()
    assert data == (tmp_path / "b.csv.gz").read_bytes()
    assert data[3:8] == bytes(5)  # neither a name nor a time inside (RFC 1952)
    assert gzip.decompress(data).startswith(b"mean,std\n")


def test_a_new_file_replaces_the_old_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text("old")
    (tmp_path / "link.csv").symlink_to(path)
    write_predictions(tmp_path / "link.csv", COLUMNS)
    assert path.read_text().startswith("mean,")
    assert (tmp_path / "link.csv").is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["link.csv", "p.csv"]
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask


@pytest.mark.parametrize("failing", ["fsync", "replace"])
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet"])
def test_a_failure_leaves_the_old_file_and_no_debris(tmp_path, monkeypatch, failing, suffix):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow", reason="the [table] extra is not installed")
    path = tmp_path / f"p{suffix}"
    path.write_text("old")

    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(DomainError, match="No space left on device"):
        write_predictions(path, COLUMNS)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == [path.name]


def test_places_and_suffixes_that_are_refused(tmp_path):
    (tmp_path / "folder.csv").mkdir()
    for path in (tmp_path / "absent" / "p.csv", tmp_path / "folder.csv"):
        with pytest.raises(DomainError, match="file that can be written"):
            write_predictions(path, COLUMNS)
    with pytest.raises(DomainError, match=r"`out` must end in \.csv, \.csv\.gz, \.parquet, got 'p\.xlsx'"):
        require_format("p.xlsx", "out")
    assert require_format(Path("P.CSV.GZ")) == ".csv.gz"
    assert os.listdir(tmp_path) == ["folder.csv"]


# --- splits


def table_with_mask(folder: Path, mask: str, rows: int, name: str = "test_mask.csv.gz") -> Table:
    data = mask.encode()
    (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    (folder / "data.csv").write_text("x\n" + "1\n" * rows)
    return read_table(folder / "data.csv")


def test_published_split(tmp_path):
    table = table_with_mask(tmp_path, "0,1\n1,0\n0,0\n", 3)
    assert read_split("0", table).tolist() == [False, True, False]
    assert read_split("1", table).tolist() == [True, False, False]
    table = table_with_mask(tmp_path, "0\n1\n", 2, "own.csv")
    assert read_split(str(tmp_path / "own.csv"), table).tolist() == [False, True]


@pytest.mark.parametrize(
    ("text", "split", "rows", "error", "message"),
    [
        ("0,1\n1,0\n", "2", 2, DomainError, "must be 0 to 1"),
        ("0,1\n1,0\n", "0", 3, ShapeError, "3 rows, got 2"),
        ('0\n""\n', "0", 2, DomainError, "0 and 1 alone"),
        ("a,1\nb,0\n", "0", 2, DomainError, "0 and 1 alone"),
        ("0,1\n0,1\n", "0", 2, DomainError, "got 0 test rows of 2"),
    ],
)
def test_splits_that_are_refused(tmp_path, text, split, rows, error, message):
    with pytest.raises(error, match=message):
        read_split(split, table_with_mask(tmp_path, text, rows))


def test_split_without_its_file(tmp_path):
    table = table_with_mask(tmp_path, "0,1\n1,0\n", 2, "own.csv")
    with pytest.raises(DomainError, match="got no test_mask"):
        read_split("0", table)
    with pytest.raises(ShapeError, match="one column, got 2"):
        read_split(str(tmp_path / "own.csv"), table)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.integers(2, 300), st.floats(1e-6, 1 - 1e-6), st.integers(0, 2**40))
def test_random_split_divides_the_rows(rows, fraction, seed):
    train, test = split_rows(rows, fraction, seed)
    assert sorted([*train, *test]) == list(range(rows))
    assert np.all(np.diff(train) > 0)
    assert np.all(np.diff(test) > 0)
    assert min(len(train), len(test)) >= 1
    assert abs(len(test) - rows * fraction) <= 1
    again = split_rows(rows, fraction, seed)
    assert np.array_equal(again[0], train)
    assert np.array_equal(again[1], test)


def test_random_split_is_the_same_everywhere():
    assert split_rows(10, 0.3, 0)[1].tolist() == FIRST_SPLIT
    assert split_rows(1000, 0.1, 1)[1].tolist() != split_rows(1000, 0.1, 2)[1].tolist()
