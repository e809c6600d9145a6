"""Conditioning by ranks, each with rows of its own, equals conditioning by one process on all rows."""

from pathlib import Path

import numpy
import pytest

from processes import condition_jobs
from processes.launch import Ranks

COUNTS = [(100, 101), (101, 97, 3, 0)]


def check(found: list[dict], one: dict, rtol: float, names: tuple[str, ...] = ()) -> None:
    for part in found:
        assert part["route"] == one["route"]
        for name in names or [name for name, value in one.items() if isinstance(value, numpy.ndarray)]:
            scale = max(1e-300, float(numpy.abs(one[name]).max()))
            numpy.testing.assert_allclose(part[name], one[name], rtol=0.0, atol=rtol * scale, err_msg=name)


@pytest.mark.parametrize("kind", ["plain", "variances", "repeated", "outputs", "float32"])
def test_a_factor_on_every_rank_is_that_of_one_process(ranks: Ranks, kind: str) -> None:
    one = condition_jobs.answers(None, kind, (201,), {})
    for counts in COUNTS:
        found = ranks.run(condition_jobs.answers, len(counts), kind, counts, {})
        check(found, one, 1e-10)
        for rank, part in enumerate(found):
            assert part["shared"]["counts"] == counts
            assert part["shared"]["sent"] > 4 * 3 * counts[rank]


@pytest.mark.parametrize(
    ("kind", "several"),
    [("plain", [(101, 97, 3)]), ("repeated", [(0, 1, 200)])],
)
def test_shared_solves_give_the_answers_of_one_process(ranks: Ranks, kind: str, several: list[tuple[int, ...]]) -> None:
    options = {"solver": "cg", "tolerance": 1e-9}
    one = condition_jobs.answers(None, kind, (201,), options)
    for counts in several:
        found = ranks.run(condition_jobs.answers, len(counts), kind, counts, options)
        check(found, one, 1e-6, ("mean", "x"))
        check(found, one, 1e-4, ("variance", "paths"))  # whose solves have a tolerance of their own
        for part in found:
            assert abs(part["iterations"] - one["iterations"]) <= 1
            assert abs(part["likelihood"] - one["likelihood"]) <= 1e-6 * abs(one["likelihood"])
            check([part], found[0], 0.0)  # the same bits on every rank


def test_gradients_of_the_likelihood_are_those_of_one_process(ranks: Ranks) -> None:
    one = condition_jobs.gradients(None, (201,))
    for counts in COUNTS:
        found = ranks.run(condition_jobs.gradients, len(counts), counts)
        for name in ("x", "y"):
            numpy.testing.assert_allclose(numpy.concatenate([part[name] for part in found]), one[name], rtol=1e-9)
        for part in found:
            for name in set(one) - {"x", "y"}:
                numpy.testing.assert_allclose(part[name], one[name], rtol=1e-10, err_msg=name)


def test_what_a_group_refuses(ranks: Ranks) -> None:
    told = ranks.run(condition_jobs.refusals, 3)
    assert told[0]["save"] == "saved"
    assert all("rank 0" in one["save"] for one in told[1:])
    for one in told:
        one.pop("save")
    assert told[0] == told[1] == told[2]
    said = told[0]
    for name in ("columns", "dtypes", "kernels", "parameters", "seeds", "time limit", "points", "variance"):
        assert said[name].startswith("RankMismatchError"), said[name]
    assert "columns is 3 on ranks 0, 1, 2 on rank 2" in said["columns"]
    assert said["shape"].startswith("ShapeError")
    assert said["not finite"].startswith("DomainError")
    assert "3 ranks and 1 row;" in said["no rows"]
    assert "variance=None" in said["mean alone"]
    assert said["memory"].startswith("MemoryBudgetError")
    for name in ("differentiable", "append", "stream", "drop"):
        assert said[name].startswith("DomainError"), said[name]


@pytest.mark.parametrize(("kind", "solver"), [("plain", "cholesky"), ("outputs", "cg")])
def test_the_means_of_many_points_are_shared(ranks: Ranks, kind: str, solver: str) -> None:
    """Each rank evaluates its part of the points; with a gradient by them, or with a factor, every rank all of them."""
    options = {"solver": solver, "tolerance": 1e-9}
    one = condition_jobs.means(None, (301,), kind, options)
    for counts in ((200, 97, 4, 0),):
        found = ranks.run(condition_jobs.means, len(counts), counts, kind, options)
        share = -(-701 // len(counts)) * 8 * (2 if kind == "outputs" else 1)
        for part in found:
            names = ("mean", "moved", *(["variance"] if "variance" in one else []))
            check([part], one, 1e-12 if solver == "cholesky" else 1e-6, names)
            if solver == "cholesky":
                assert part["sent"] == 0, "every rank has all that it needs"
            else:
                assert part["sent"] >= (len(counts) - 1) * share
            check([part], found[0], 0.0, ("mean",))


def test_rank_0_says_for_all_whether_variances_are_sampled(ranks: Ranks, tmp_path: Path) -> None:
    """(M-107) goes by a machine's rates, which differ between ranks."""
    found = ranks.run(condition_jobs.variances, 2, str(tmp_path))
    assert found[0]["sampled"]
    assert found[1]["sampled"]
    check([found[1] | {"route": ""}], found[0] | {"route": ""}, 0.0, ("variance",))


@pytest.mark.parametrize("options", [{}, {"approximation": "full_scale", "inducing": 8, "neighbours": 8}])
def test_functions_without_features_are_refused_over_ranks(ranks: Ranks, options: dict) -> None:
    """They depend on what each rank asks; samples at points that all give are the same on all."""
    (first, values), (second, others) = ranks.run(condition_jobs.drawn_as_asked, 2, options)
    assert first == second
    assert "over 2 ranks, which is drawn where each of them asks" in first
    assert first.endswith("post.predict(x).sample(count, seed=0)")
    numpy.testing.assert_array_equal(values, others)
