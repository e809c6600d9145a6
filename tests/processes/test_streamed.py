"""Inducing points over ranks give what one process with all rows gives, (M-221), or all ranks raise the same error."""

from pathlib import Path
from typing import Any

import pytest
import torch

from processes import streamed_jobs
from processes.launch import Ranks

EPS = torch.finfo(torch.float64).eps
# Sums in another order: errors grow with the condition of K_zz, whose noise floor is 1e-8.
TOLERANCE = EPS * 1e8
# A search ends where a step gains next to nothing: its rounding moves the end by the root of that.
SEARCHED = 1e-4
SHARES = [(61, 40), (151, 0, 5, 24)]


@pytest.mark.parametrize("counts", SHARES)
def test_a_sample_does_not_depend_on_ranks(ranks: Ranks, counts: tuple[int, ...]) -> None:
    assert all(same and rows for same, rows in ranks.run(streamed_jobs.sampled, len(counts), counts))


@pytest.mark.parametrize("counts", SHARES)
def test_conditioning_equals_one_process(ranks: Ranks, counts: tuple[int, ...]) -> None:
    """(M-221), and moments and samples of all rows, (M-164)."""
    for found in ranks.run(streamed_jobs.conditioned, len(counts), counts):
        assert max(found[:4]) < TOLERANCE
        assert found[4] < 1e2 * torch.finfo(torch.float32).eps


def test_numbers_of_rows_are_those_of_one_process(ranks: Ranks) -> None:
    """Weights in one unit, (M-251)."""
    for found in ranks.run(streamed_jobs.with_numbers, 2, (70, 31)):
        assert max(found) < TOLERANCE


@pytest.mark.parametrize(("counts", "settings"), [((101, 97, 3), {"priors": "given"}), ((151, 0, 5, 24), {})])
def test_a_fit_is_that_of_one_process(ranks: Ranks, counts: tuple[int, ...], settings: dict[str, Any]) -> None:
    told = ranks.run(streamed_jobs.fitted, len(counts), counts, settings)
    assert all(one == told[0] for one in told)
    parameters, answers, kinds = told[0]
    assert parameters < SEARCHED
    assert answers < SEARCHED
    assert "SHARED" in kinds


def test_a_checkpoint_is_one_file_that_all_ranks_go_on_from(ranks: Ranks, tmp_path: Path) -> None:
    for left, there, same in ranks.run(streamed_jobs.resumed, 2, str(tmp_path / "fit.safetensors")):
        assert (left, there, same) == (0, True, True)


def test_every_rank_is_told_the_same(ranks: Ranks) -> None:
    told = ranks.run(streamed_jobs.refused, 2)
    assert told[0] == told[1]
    bad, columns, models, points, many, bad_fit, seeds, none, append, stream, memory = told[0]
    assert bad.startswith("DomainError")
    assert "`y`" in bad
    assert columns.startswith("RankMismatchError")
    assert "columns" in columns
    assert "model is" in models
    assert "inducing is 5 on rank 0, 6 on rank 1" in points
    assert "at most the 80 rows" in many
    assert bad_fit == bad
    assert "seed is" in seeds
    assert "none on any rank" in none
    for text in (append, stream):
        assert "a posterior of 2 ranks" in text
    assert memory.startswith("RankMismatchError")


def test_a_clock_that_ends_on_one_rank_ends_all_alike(ranks: Ranks) -> None:
    """Also within an evaluation of the sample, which each rank goes through by itself."""
    whole = ranks.run(streamed_jobs.limited_at, 2, None)
    readings = whole[1]["read"]
    for moment in (*range(readings // 2, readings // 2 + 3), readings - 4):
        one, other = ranks.run(streamed_jobs.limited_at, 2, moment)
        assert one["answers"] == other["answers"], moment


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of unequal row groups; text, missing values."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    folder = tmp_path_factory.mktemp("files")
    generator = torch.Generator().manual_seed(3)
    for part, sizes in enumerate(((70, 33), (8, 8, 50, 31))):
        rows = sum(sizes)
        a, b = torch.rand(2, rows, generator=generator, dtype=torch.float64)
        cities = [("Ulm", "Bonn", f"Köln {part}")[i % 3] for i in range(rows)]
        y = torch.exp(torch.sin(5.0 * a) + b) + 0.1
        table = pyarrow.table({"a": a.numpy(), "b": b.numpy(), "city": cities, "y": y.numpy()})
        writer = parquet.ParquetWriter(folder / f"part-{part}.parquet", table.schema)
        for start, size in zip(torch.tensor([0, *sizes]).cumsum(0).tolist(), sizes, strict=False):
            writer.write_table(table.slice(start, size))
        writer.close()
    holes = table.set_column(0, "a", pyarrow.array([None, *a[1:].tolist()]))
    parquet.write_table(holes, folder / "holes.parquet", row_group_size=40)
    (folder / "broken-1.parquet").write_bytes(b"PAR1")
    parquet.write_table(table, folder / "broken-0.parquet")
    return folder


@pytest.mark.parametrize("size", [2, 4])
def test_row_groups_are_dealt_so_that_each_row_is_read_once(ranks: Ranks, files: Path, size: int) -> None:
    """(M-164) and (M-221) over files."""
    told = ranks.run(streamed_jobs.parquet, size, str(files / "part-*.parquet"))
    assert [one[0][0] for one in told] == [one[0][1] for one in told]
    assert sum(one[0][0] for one in told) == 200
    assert sum(one[0][0] > 0 for one in told) >= 2
    for _, conditioned, shift, fitted in told:
        assert conditioned < TOLERANCE
        assert shift < 10 * EPS
        assert fitted < SEARCHED


def test_a_table_is_learned_by_ranks_as_by_one(ranks: Ranks, files: Path) -> None:
    told = ranks.run(streamed_jobs.table_model, 2, str(files / "holes.parquet"), {"target_transform": "log"})
    assert told[0] == told[1]
    apart, same, notes = told[0]
    assert apart < SEARCHED
    assert same
    assert any("1 of 97 rows have missing values" in note for note in notes)


def test_other_files_on_one_rank_are_told_to_all(ranks: Ranks, files: Path) -> None:
    told = ranks.run(streamed_jobs.differing, 2, str(files))
    assert told[0] == told[1]
    good, other, broken = told[0]
    assert good == "nothing"
    assert other.startswith("RankMismatchError: ")
    assert "files is 1 files" in other
    assert broken.startswith("DomainError: ")
    assert "broken-1.parquet" in broken
