"""The tables in data/ hold the numbers of the published copy they come from."""

import gzip
from pathlib import Path

import pytest


def read(path: Path) -> list[str]:
    with gzip.open(path, "rt") as file:
        return file.read().splitlines()


def test_elevators_is_the_published_table_with_a_header(root: Path) -> None:
    head, *rows = read(root / "data" / "elevators.csv.gz")
    assert head.split(",")[0::18] == ["climbRate", "Goal"]
    assert {row.count(",") for row in (head, *rows)} == {18}
    assert len(rows) == 16_599
    marks = read(root / "data" / "elevators_split.csv.gz")
    assert (len(marks), marks.count("1"), marks.count("0")) == (16_599, 1_659, 14_940)


def test_elevators_and_its_split_are_those_of_the_shared_copy(root: Path, shared_data: Path) -> None:
    source = shared_data / "uci" / "elevators"
    assert read(root / "data" / "elevators.csv.gz")[1:] == read(source / "data.csv.gz")
    first = [row.split(",")[0] for row in read(source / "test_mask.csv.gz")]
    assert read(root / "data" / "elevators_split.csv.gz") == first


@pytest.mark.parametrize(
    ("name", "folder", "rows", "columns"), [("airfoil", "airfoil", 1_503, 6), ("kin40k_6000", "kin40k", 6_000, 9)]
)
def test_streamed_tables_are_those_of_the_shared_copy(
    root: Path, shared_data: Path, name: str, folder: str, rows: int, columns: int
) -> None:
    head, *found = read(root / "data" / f"{name}.csv.gz")
    assert len(head.split(",")) == columns
    assert len(found) == rows
    assert found == read(shared_data / "uci" / folder / "data.csv.gz")[:rows]
