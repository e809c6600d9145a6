"""Faults of one rank: an error becomes the error of all, a kill is told, and the fit goes on from its checkpoint."""

import json
import time
from pathlib import Path

import numpy
import pytest

from forked import Forked
from processes import fault_jobs
from processes.launch import Ranks


@pytest.mark.parametrize(("kind", "count"), [("condition", 8), ("fit", 6)])
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


@pytest.mark.slow
def test_a_killed_rank_is_told_and_the_fit_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    def fit(folder: Path, size: int, kill_at: int) -> list[int]:
        code = "from processes.fault_jobs import run; run({}, {}, {!r}, {})"
        processes = [Forked(code.format(rank, size, str(folder), kill_at)) for rank in range(size)]
        began = time.monotonic()
        while any(process.poll() is None for process in processes) and time.monotonic() - began < 200.0:
            time.sleep(0.1)
        for process in processes:  # none is left
            process.kill()
        return [process.wait() for process in processes]

    whole, disturbed = tmp_path / "whole", tmp_path / "disturbed"
    whole.mkdir()
    disturbed.mkdir()
    assert fit(whole, 2, -1) == [0, 0]
    for kill_at in (3, 12):
        assert fit(disturbed, 2, kill_at) == [3, -9]
        assert "ProcessGroupError" in (disturbed / f"error0-{kill_at}").read_text()
    assert fit(disturbed, 3, -1) == [0, 0, 0]
    wanted, evaluations = json.loads((whole / "theta0--1").read_text())
    for rank in range(3):
        theta, count = json.loads((disturbed / f"theta{rank}--1").read_text())
        assert count == evaluations
        numpy.testing.assert_allclose(theta, wanted, rtol=0.0, atol=1e-8)
