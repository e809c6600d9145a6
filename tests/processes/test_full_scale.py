"""The full-scale approximation over ranks equals that of one process, eq. (M-204)."""

from pathlib import Path

import numpy
import pytest

from processes import full_scale_jobs
from processes.launch import Ranks

COUNTS = [(100, 101), (101, 97, 3, 0)]


def check(found: list[dict], one: dict, rtol: float) -> None:
    for part in found:
        for name, value in one.items():
            if isinstance(value, numpy.ndarray):
                scale = max(1e-3, float(numpy.abs(value).max(initial=0.0)))  # a gradient may be 0
                numpy.testing.assert_allclose(part[name], value, rtol=0.0, atol=rtol * scale, err_msg=name)


@pytest.mark.parametrize(("n", "sizes"), [(201, (12, 8, 20)), (201, (0, 8, 20)), (5, (2, 3, 2)), (3, (1, 3, 0))])
def test_values_and_gradients_are_sums_over_ranks(ranks: Ranks, n: int, sizes: tuple[int, int, int]) -> None:
    """Also with fewer blocks than ranks. A rank has A of the rows alone that its blocks need."""
    one = full_scale_jobs.passes(None, n, sizes)
    assert one["held"] == n
    for size in (2, 4):
        found = ranks.run(full_scale_jobs.passes, size, n, sizes)
        check(found, one, 1e-10)
        for part in found:
            assert part["value"] == pytest.approx(one["value"], rel=1e-11)
            assert part["reduced"] == one["reduced"]
            assert part["held"] <= n
            check([part], found[0], 0.0)  # the same bits on every rank
        assert n < 100 or sum(part["held"] for part in found) < 0.9 * size * n


@pytest.mark.parametrize("kind", ["plain", "variances", "repeated", "float32"])
def test_posteriors_are_those_of_one_process(ranks: Ranks, kind: str) -> None:
    one = full_scale_jobs.conditioned(None, kind, (201,), {})
    for counts in COUNTS:
        found = ranks.run(full_scale_jobs.conditioned, len(counts), kind, counts, {})
        check(found, one, 1e-9 if kind != "float32" else 1e-6)
        for part in found:
            assert part["likelihood"] == pytest.approx(one["likelihood"], rel=1e-10)
            assert part["lost"] == pytest.approx(one["lost"], rel=1e-7)
            assert tuple(part["counts"]) == counts


@pytest.mark.parametrize(("lengthscale", "few"), [(0.02, True), (2.0, False)])
def test_how_many_points_there_are_is_what_one_process_chooses(ranks: Ranks, lengthscale: float, *, few: bool) -> None:
    """Eq. (M-207) by the sums of all ranks."""
    one = full_scale_jobs.points_chosen(None, (201,), lengthscale)
    assert (one["sizes"][1] < 64) == few, one
    assert bool(one["events"][1]) == few
    for counts in COUNTS[1:]:
        for part in ranks.run(full_scale_jobs.points_chosen, len(counts), counts, lengthscale):
            assert part["sizes"] == one["sizes"]
            assert [len(events) for events in part["events"]] == [len(events) for events in one["events"]]
            assert part["likelihood"] == pytest.approx(one["likelihood"], rel=1e-8)


def test_how_many_neighbours_there_are_is_what_one_process_chooses(ranks: Ranks) -> None:
    """Eq. (M-209), likewise."""
    one = full_scale_jobs.neighbours_chosen(None, (1200,))
    assert (one["sizes"].neighbours, one["planned"], one["events"]) == (192, 192, 1)
    for part in ranks.run(full_scale_jobs.neighbours_chosen, 2, (500, 700)):
        assert part == {**one, "likelihood": pytest.approx(one["likelihood"], rel=1e-8)}


def test_fits_are_those_of_one_process(ranks: Ranks, tmp_path: Path) -> None:
    one = full_scale_jobs.fitted(None, (201,))
    for counts in COUNTS[1:]:
        for part in ranks.run(full_scale_jobs.fitted, len(counts), counts):
            assert part["evaluations"] == one["evaluations"]
            check([part], one, 1e-6)
    path = str(tmp_path / "fit.checkpoint")
    first = ranks.run(full_scale_jobs.fitted, 3, (101, 97, 3), path)
    for part in ranks.run(full_scale_jobs.fitted, 2, (1, 200), path):
        assert part["replayed"] == first[0]["evaluations"]
        assert part["history"] == first[0]["history"]
        check([part], {"mean": first[0]["mean"]}, 1e-8)


def test_a_clock_that_ends_on_one_rank_ends_all_alike(ranks: Ranks) -> None:
    whole = ranks.run(full_scale_jobs.limited, 2, None)
    readings = whole[1]["read"]
    assert not whole[0]["interrupted"]
    stopped = 0
    for moment in (readings // 2, readings - 3):
        one, other = ranks.run(full_scale_jobs.limited, 2, moment)
        stopped += one["interrupted"]
        for name in ("theta", "mean", "evaluations", "interrupted"):
            assert one[name] == other[name], moment
    assert stopped
