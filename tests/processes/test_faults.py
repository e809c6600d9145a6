"""Faults of one rank: an error becomes the error of all, a kill is told, and the fit goes on from its checkpoint."""

import numpy
import pytest

from processes import fault_jobs
from processes.launch import Ranks


@pytest.mark.parametrize(("kind", "count"), [("condition", 4), ("fit", 3)])
def test_an_error_planted_on_one_rank_is_raised_by_all(ranks: Ranks, kind: str, count: int) -> None:
    every, again, _ = ranks.run(fault_jobs.collectives, 3, kind)
    assert every == again > 2 * count
    places = sorted({int(place) for place in numpy.linspace(0, every - 1, count)})
    assert len(places) == count
    told = ranks.run(fault_jobs.planted, 3, kind, places)
    assert told[0] == told[1] == told[2]
    for text in told[0]:
        assert text.startswith("ZeroDivisionError: planted before ")
        assert text.endswith("raised on rank 1 of 3")
