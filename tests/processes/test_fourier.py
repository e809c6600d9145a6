"""Fourier series over ranks give what one process with all rows gives, (M-452), or all ranks raise the same error."""

import pytest

from processes import fourier_jobs
from processes.launch import Ranks

pytest.importorskip("finufft")
TRANSFORM = 1e-7  # sums of parts of the rows are each as exact as a transform is
SEARCHED = 1e-4  # a search ends where a step gains next to nothing


@pytest.mark.parametrize("counts", [(61, 40), (70, 0, 31)])
def test_conditioning_equals_one_process(ranks: Ranks, counts: tuple[int, ...]) -> None:
    for found in ranks.run(fourier_jobs.conditioned, len(counts), counts):
        assert max(found) < TRANSFORM, found


@pytest.mark.parametrize(("counts", "each"), [((121, 80), False), ((90, 0, 61), True)])
def test_a_fit_is_that_of_one_process(ranks: Ranks, counts: tuple[int, ...], each: bool) -> None:
    told = ranks.run(fourier_jobs.fitted, len(counts), counts, each)
    assert all(one == told[0] for one in told)
    parameters, answers, size, kinds = told[0]
    assert parameters < SEARCHED
    assert answers < SEARCHED
    assert size == len(counts)
    assert {"SHARED", "FOURIER"} <= set(kinds)
    assert "NOTHING_EXPLAINED" not in kinds


def test_sites_are_those_of_one_process(ranks: Ranks) -> None:
    """(M-456): sites by passes, of rows held and read, and a fit."""
    told = ranks.run(fourier_jobs.of_counts, 2, (61, 40))
    assert told[0] == told[1]
    (held, read, fit), size, kinds = told[0]
    assert max(held, read) < 1e-5  # steps end alike
    assert fit < 10 * SEARCHED
    assert size == 2
    assert {"SHARED", "FOURIER", "FIT_SITES"} <= set(kinds)


def test_solves_draws_and_clocks_are_of_all_ranks(ranks: Ranks) -> None:
    """Draws take of each rank the part of its rows; time that is up on one is up on all."""
    told = ranks.run(fourier_jobs.without_factor, 2, (40, 21))
    assert told[0] == told[1]
    means, ratios, _ = told[0]
    assert means < 1e-4
    assert min(ratios) > 0.7
    assert max(ratios) < 1.4
    assert abs(sum(ratios) / len(ratios) - 1.0) < 0.05


def test_a_clock_that_ends_on_one_rank_ends_all_alike(ranks: Ranks) -> None:
    whole = ranks.run(fourier_jobs.limited_at, 2, None)
    readings = whole[1]["read"]
    for moment in (3, readings // 2, readings // 2 + 1, readings - 4, readings - 1):
        one, other = ranks.run(fourier_jobs.limited_at, 2, moment)
        assert one["answers"] == other["answers"], moment


def test_every_rank_is_told_the_same(ranks: Ranks) -> None:
    told = ranks.run(fourier_jobs.refused, 2)
    assert told[0] == told[1]
    bad, bad_fit, classes, classes_fit, columns, append, left_out, none = told[0]
    assert bad.startswith("DomainError")
    assert "`y`" in bad
    assert bad_fit == bad
    for text in (classes, classes_fit):
        assert "one noise for all outputs" in text
        assert '"full_scale"' in text
    assert columns.startswith("RankMismatchError")
    assert "a posterior of 2 ranks" in append
    assert "spread over ranks" in left_out
    assert "none on any rank" in none
