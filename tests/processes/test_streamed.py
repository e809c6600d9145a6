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
SHARES = [(61, 40), (101, 97, 3), (151, 0, 5, 24)]


@pytest.mark.parametrize("counts", SHARES)
def test_conditioning_equals_one_process(ranks: Ranks, counts: tuple[int, ...]) -> None:
    """(M-221), and moments and samples of all rows, (M-164)."""
    for found in ranks.run(streamed_jobs.conditioned, len(counts), counts):
        assert max(found[:4]) < TOLERANCE
        assert found[4] < 1e2 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize(
    ("counts", "settings"), [((61, 40), {}), ((101, 97, 3), {"priors": "given"}), ((151, 0, 5, 24), {})]
)
def test_a_fit_is_that_of_one_process(ranks: Ranks, counts: tuple[int, ...], settings: dict[str, Any]) -> None:
    told = ranks.run(streamed_jobs.fitted, len(counts), counts, settings)
    assert all(one == told[0] for one in told)
    parameters, answers, kinds = told[0]
    assert parameters < 1e-6
    assert answers < 1e-6
    assert "RANKS" in kinds


def test_a_checkpoint_is_one_file_that_all_ranks_go_on_from(ranks: Ranks, tmp_path: Path) -> None:
    for left, there, same in ranks.run(streamed_jobs.resumed, 2, str(tmp_path / "fit.safetensors")):
        assert (left, there, same) == (0, True, True)


def test_every_rank_is_told_the_same(ranks: Ranks) -> None:
    told = ranks.run(streamed_jobs.refused, 2)
    assert told[0] == told[1]
    (bad, columns, models, points, many, exact, exact_fit, full_scale, bad_fit, seeds, none, append, stream, memory) = (
        told[0]
    )
    assert bad.startswith("DomainError")
    assert "`y`" in bad
    assert columns.startswith("RankMismatchError")
    assert "columns" in columns
    assert "model is" in models
    assert "inducing is 5 on rank 0, 6 on rank 1" in points
    assert "at most the 80 rows" in many
    for text in (exact, exact_fit, full_scale):
        assert "`group` of 2 ranks is for inducing points" in text
    assert bad_fit == bad
    assert "seed is" in seeds
    assert "none on any rank" in none
    for text in (append, stream):
        assert "a posterior of 2 ranks" in text
    assert memory.startswith("MemoryBudgetError")


def test_time_ends_on_all_ranks_together(ranks: Ranks) -> None:
    told = ranks.run(streamed_jobs.limited, 2)
    assert told[0] == told[1]
