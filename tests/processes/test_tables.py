"""Tables that every rank reads whole: what one process finds, and rank 0's choices on all ranks."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from processes import table_jobs
from processes.launch import Ranks

pytest.importorskip("pyarrow")
pytest.importorskip("typer")


def lines(rows: int, seed: int = 0) -> str:
    a = torch.rand(rows, generator=torch.Generator().manual_seed(seed)).tolist()
    cells = [f"{x:.6f},{('Ulm', 'Bonn')[i % 2]},{2.0 + math.sin(4 * x) + i % 2:.6f}" for i, x in enumerate(a)]
    return "a,city,y\n" + "\n".join(cells) + "\n"


@pytest.fixture(scope="module")
def csv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("table") / "table.csv"
    path.write_text(lines(151))
    return path


# The same rows are factored, at parameters that a search of the same evaluations finds.
TOLERANCE = 1e-9


@pytest.mark.parametrize("settings", [{"kernel": "auto"}, {"target_transform": "log"}])
def test_a_table_by_ranks_is_that_of_one(ranks: Ranks, csv: Path, settings: dict[str, Any]) -> None:
    for apart, same_units, more in ranks.run(table_jobs.fitted, 2, str(csv), settings):
        assert max(apart) < TOLERANCE
        assert same_units
        assert more == {"SHARED"}


def test_rank_0_chooses_the_transform(ranks: Ranks) -> None:
    told = ranks.run(table_jobs.chosen, 2)
    assert told[0] == told[1]
    assert "log" in told[0][0]


def test_rank_0_decides_between_exact_and_approximate(ranks: Ranks) -> None:
    exact = ranks.run(table_jobs.decided, 2, (None, 1.0))
    assert exact[0] == exact[1]
    assert exact[0][0] is None
    sparse = ranks.run(table_jobs.decided, 2, (20.0, None))
    assert sparse[0] == sparse[1]
    assert sparse[0][0] == "sparse"


def test_every_rank_is_refused_alike(ranks: Ranks, tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"table-{rank}.csv").write_text(lines(40, seed=rank))
    told = ranks.run(table_jobs.refused, 2, str(tmp_path))
    assert told[0] == told[1]
    held_out = ranks.run(table_jobs.split, 2)
    assert held_out[0] == held_out[1]
    assert "rows_fitted is" in held_out[0]
    other, frame = told[0]
    assert other.startswith("RankMismatchError")
    assert "x is" in other
    assert "got dict" in frame
