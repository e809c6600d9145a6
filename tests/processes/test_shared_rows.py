"""Rows shared by ranks: spaces, products, gradients and solves equal those of one process, eqs. (M-200) and (M-201)."""

import numpy
import pytest

import flashgp as fgp
from flashgp.foundations.profile import BUILT_IN
from flashgp.operators.sharing import share_of_tiles
from flashgp.planner.conditioning import plan_conditioning
from flashgp.planner.plan import Plan
from flashgp.planner.problem import ConditioningProblem, Features, PlanSettings
from processes import space_jobs
from processes.launch import Ranks

COUNTS = [(201,), (100, 101), (101, 97, 3), (101, 97, 3, 0), (0, 2, 0, 3)]


def test_spaces_equal_one_process(ranks: Ranks) -> None:
    found = {counts: ranks.run(space_jobs.space_laws, len(counts), counts) for counts in COUNTS}
    for counts, parts in found.items():
        for part in parts:
            for name, R in part.items():
                assert numpy.array_equal(R, parts[0][name])  # the same bits on every rank
                if sum(counts) == 201 and len(counts) > 1:  # and the same matrix on any number of them
                    numpy.testing.assert_allclose(R, found[COUNTS[1]][0][name], rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("kernel", ["matern", "sum", "periodic", "custom"])
def test_products_and_gradients_equal_one_process(ranks: Ranks, kernel: str) -> None:
    n = 1100
    parts = ranks.run(space_jobs.products, 3, kernel, n)
    evaluated = [part["evaluated"] for part in parts]
    assert n * (n + 1) / 2 <= sum(evaluated) <= 1.05 * n * (n + 1) / 2
    assert max(evaluated) <= 1.05 * sum(evaluated) / 3
    assert [part["stored"] for part in parts] == evaluated


@pytest.mark.parametrize("single", [False, True], ids=["float64", "float32 products"])
def test_solves_equal_one_process(ranks: Ranks, single: bool) -> None:
    n = 700
    one = space_jobs.solves(None, n, single)
    for size in (2, 4) if single else (3,):
        for part in ranks.run(space_jobs.solves, size, n, single):
            assert part["rank"] == one["rank"]
            assert part["stopped"] == one["stopped"]
            assert abs(part["iterations"] - one["iterations"]) <= 1
            assert part["residual"] <= 1e-9
            for name in ("low", "slack", "determinant"):
                assert part[name] == pytest.approx(one[name], rel=1e-9)
            scale = numpy.abs(one["value"]).max()
            numpy.testing.assert_allclose(part["value"], one["value"], rtol=0.0, atol=1e-7 * scale)
            numpy.testing.assert_allclose(part["sample"], one["sample"], rtol=0.0, atol=1e-9)
            assert part["sent"] > 0


@pytest.mark.parametrize(
    ("kind", "n", "rank", "sizes"),
    [
        ("points", 600, 20, (16, 24)),
        ("points", 601, 0, (16, 24)),
        ("points", 603, 20, (16, 0)),
        ("grid", 600, 20, (16, 24)),
        ("points", 3, 1, (2, 2)),
        ("points", 1, 0, (4, 4)),
    ],
)
def test_full_scale_preconditioners_equal_one_process(
    ranks: Ranks, kind: str, n: int, rank: int, sizes: tuple[int, int]
) -> None:
    """Eq. (M-203), with equal distances, fewer blocks than ranks and fewer rows than ranks."""
    one = space_jobs.full_scale_laws(None, kind, n, rank, sizes)
    for size in (2, 4) if kind == "points" else (3,):
        for part in ranks.run(space_jobs.full_scale_laws, size, kind, n, rank, sizes):
            assert (part["reduced"], part["rank"]) == (one["reduced"], one["rank"])
            assert part["determinant"] == pytest.approx(one["determinant"], rel=1e-12)
            for name in ("half", "transposed", "solve"):
                scale = float(numpy.abs(one[name]).max())
                numpy.testing.assert_allclose(part[name], one[name], rtol=0.0, atol=1e-10 * scale, err_msg=name)


@pytest.mark.parametrize(("refused", "at_once"), [("", -1.0), ("larger", -1.0), ("both", -1.0), ("larger", 1.0)])
def test_comparisons_of_preconditioners_equal_one_process(ranks: Ranks, refused: str, at_once: float) -> None:
    """The same decision on every rank, also where one of them has no memory for what it would win."""
    goal = 1e-3 if refused == "both" else 1e-6  # a hundred iterations later rounding has its say
    one = space_jobs.comparisons(None, 700, refused, goal, at_once)
    assert one["outcome"] == ("refused" if refused == "both" else "kept")
    assert one["size"] == (0 if refused else 1)
    for size in (2,) if refused == "both" else (3,):
        parts = ranks.run(space_jobs.comparisons, size, 700, refused, goal, at_once)
        for part in parts:
            assert abs(part["iterations"] - one["iterations"]) <= 1
            assert [part[name] for name in ("events", "outcome", "size")] == [
                one[name] for name in ("events", "outcome", "size")
            ]
            assert part["why"] == parts[0]["why"]
            scale = float(numpy.abs(one["value"]).max())
            numpy.testing.assert_allclose(part["value"], one["value"], rtol=0.0, atol=10.0 * goal * scale)


@pytest.mark.parametrize("n", [1, 5, 16, 200, 1000, 5000, 20_000])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_every_tile_is_in_one_share(n: int, size: int) -> None:
    shares = [share_of_tiles(n, rank, size) for rank in range(size)]
    every = numpy.concatenate([share.pairs for share in shares])
    assert len(numpy.unique(every, axis=0)) == len(every)
    assert sum(share.pair_count for share in shares) == n * n
    if n >= 1000:
        assert max(len(share.pairs) for share in shares) - min(len(share.pairs) for share in shares) <= 1


def test_a_plan_of_ranks_is_that_of_each_of_them() -> None:
    """Tiles, the low rank and time are shared; what has all rows on every rank is not."""
    form = fgp.kernels.Matern(nu=1.5).form

    def plan(ranks: int, memory: str | int = "64GiB") -> Plan:
        problem = ConditioningProblem(form, 40_000, 8, Features(8), ranks=ranks)
        return plan_conditioning(problem, PlanSettings(memory, profile=BUILT_IN, route="stored"))

    one, four = plan(1, plan(1).peak_bytes - 1), plan(4)  # without float64 tiles, which ranks do not keep
    brought = 8 * 40_000 * four.rank  # rows of F that the blocks of a rank need, here all of them
    assert 0.25 * one.peak_bytes < four.peak_bytes - brought < 0.3 * one.peak_bytes
    assert four.seconds < 0.26 * one.seconds
    assert "ranks          4: bytes and seconds are those of each of them" in str(four)
