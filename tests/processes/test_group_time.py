"""A time limit over ranks: it is up when it is on any of them, for all of them at once."""

import pytest

from processes import time_jobs
from processes.launch import Ranks

UP = {"POSTERIOR_OF_PART", "SOLVE_ENDED", "FIT_TIME_UP"}
CASES = [("condition", "direct"), ("condition", "stored"), ("fit", "direct"), ("fit", "stored")]


@pytest.mark.parametrize(("what", "route"), CASES)
def test_a_clock_that_ends_on_one_rank_ends_all_alike(ranks: Ranks, what: str, route: str) -> None:
    """At moments from the first question to the last: every rank has the same posterior, by the same way."""
    whole = ranks.run(time_jobs.answered, 3, what, route, 1, None)
    assert not UP & set(whole[0]["events"])
    readings, ended = whole[1].pop("read"), []
    moments = sorted({0, *(round(readings * part) for part in (0.3, 0.7, 0.99))})
    for number, moment in enumerate(moments):
        found = ranks.run(time_jobs.answered, 3, what, route, 2 * (number % 2), moment)
        for one in found:
            one.pop("read")
        assert found[0] == found[1] == found[2]
        ended.append(bool(UP & set(found[0]["events"])))
    assert ended[0]  # at the first question
    assert sum(ended) >= 2 or readings < 10  # and in the midst of the work


@pytest.mark.parametrize(("seconds", "left", "wanted"), [((0.01, 90.0), 60.0, True), ((0.01, 0.02), -1e6, False)])
def test_ranks_that_expect_other_seconds_answer_alike(
    ranks: Ranks, seconds: tuple[float, float], left: float, wanted: bool
) -> None:
    """Also where it is negligible work for some of them, which is done however late it is."""
    assert ranks.run(time_jobs.late, 2, seconds, left) == [[wanted, True]] * 2
