"""Plans of ranks: what is sent and held beside what was planned, refusals on every rank."""

import json
from pathlib import Path

import pytest
import torch

import flashgp as fgp
from flashgp.foundations.profile import BUILT_IN
from flashgp.inference.plan_settings import RowCounts, conditioning_problem
from flashgp.planner.problem import PlanSettings
from flashgp.planner.wire import solve_wire, table_wire
from processes import plan_jobs
from processes.launch import Ranks

WITHIN = 1.25  # planned over sent, at the passes that were made


@pytest.mark.parametrize("ranks_count", [4])
def test_as_much_is_sent_as_planned(ranks: Ranks, ranks_count: int) -> None:
    """Eqs. (M-226) to (M-228), at the passes that the solve took; a plan assumes 100.

    Rank 0 sends eigenvectors, too."""
    n = 3000
    found = ranks.run(plan_jobs.sent, ranks_count, n, {"route": "recomputed"})
    problem = conditioning_problem(plan_jobs.rough(), RowCounts(n, 3), PlanSettings(ranks=ranks_count))
    wire = table_wire(problem) + solve_wire(problem, 1, found[0]["rank"], found[0]["passes"])
    assert found[0]["sent"] > wire / WITHIN
    for one in found:
        assert one["sent"] <= found[0]["sent"] < WITHIN * wire
        assert one["planned"] == found[0]["planned"] > one["sent"]
        assert "planned" in one["text"]


def test_a_factor_sends_the_table(ranks: Ranks) -> None:
    for one in ranks.run(plan_jobs.sent, 2, 2000, {"route": "direct"}):
        assert one["planned"] / WITHIN < one["sent"] < WITHIN * one["planned"]


def test_an_exact_fit_sends_what_was_planned(ranks: Ranks) -> None:
    """(M-229), with what a plan itself and the comparison of arguments send, some kilobytes."""
    for one in ranks.run(plan_jobs.fitted, 4, 800):
        assert one["planned"] / 1.5 < one["sent"] < 1.5 * one["planned"]


def test_a_rank_holds_what_was_planned(ranks: Ranks) -> None:
    """Stored tiles of 8,000 rows are 32 MB of each of four ranks; the noise is so small that both preconditioners are
    made."""
    for one in ranks.run(plan_jobs.sent, 4, 8000, {"route": "stored"}, 1e-3):
        assert one["compared"]
        assert 0.5 * one["planned peak"] < one["peak"] < 1.1 * one["planned peak"]


def test_the_measured_peak_of_a_rank_was_planned(root: Path) -> None:
    """That of the record, of a process's memory as the system counts it."""
    cell = json.loads((root / "benchmark/records/ranks.json").read_text())["cells"]["memory/2"]
    kernel = 1.5 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.full((8,), 2.0))
    gp = fgp.GP(kernel, likelihood=fgp.likelihoods.Gaussian(0.05))
    plan = fgp.plan(gp, n=cell["n"], d=8, route="stored", memory="64GiB", ranks=2, profile=BUILT_IN)
    assert plan.peak_bytes / 1.1 < cell["bytes"] < 1.1 * plan.peak_bytes


@pytest.mark.parametrize("kind", ["full_scale", "sparse"])
@pytest.mark.parametrize("fitting", [False, True])
def test_approximations_send_what_was_planned(ranks: Ranks, kind: str, fitting: bool) -> None:
    """(M-231). A fit takes other evaluations than are usual, of which most of what it sends comes."""
    within = 4.0 if fitting else WITHIN
    found = ranks.run(plan_jobs.approximated, 4, 1500 if fitting else 4000, kind, fitting)
    assert found[0]["planned"] / within < found[0]["sent"]  # which has most to send
    for one in found:
        assert one["sent"] < within * one["planned"]
        assert one["shared"] == found[0]["shared"]
        if kind == "full_scale":
            assert one["events"] == [one["planned"]]


@pytest.mark.parametrize(("count", "sizes"), [(2, (300, 16, 48)), (3, (60, 32, 96))])
def test_a_rank_of_a_full_scale_model_holds_what_was_planned(
    ranks: Ranks, count: int, sizes: tuple[int, int, int]
) -> None:
    """(M-230): never more, and not much less: blocks that are near each other need fewer rows than planned."""
    gp, n = plan_jobs.rough(), 6000
    asked = {"approximation": "full_scale", "inducing": sizes[0], "neighbours": sizes[2], "memory": "8GiB"}
    plan = fgp.plan(gp, n=n, d=3, ranks=count, **asked)
    assert (plan.inducing, plan.block, plan.neighbours) == sizes
    gradient = sum(one.bytes for one in plan.allocations if one.during in ("all of it", "a gradient"))
    for one in ranks.run(plan_jobs.allocated, count, n, sizes):
        assert one["condition"] <= 1.1 * plan.peak_bytes
        assert plan.peak_bytes <= 2.5 * one["condition"]
        assert one["gradient"] <= 1.1 * gradient
        assert gradient <= 2.5 * one["gradient"]


def test_what_does_not_fit_one_rank_is_refused_by_all(ranks: Ranks) -> None:
    told = ranks.run(plan_jobs.refused, 3, 2)
    assert told[0] == told[1] == told[2]
    conditioned, fitted, planned, alone, fit_alone, afterwards = told[0]
    assert conditioned.startswith("MemoryBudgetError")
    assert fitted.startswith("MemoryBudgetError")
    assert "`plan` is for 7 ranks, each of which has its share of the work, got 3 ranks" in planned
    for said in (alone, fit_alone):
        assert "`plan` is for 1 rank, each of which has its share of the work, got 3 ranks" in said
        assert "make a plan with ranks=3" in said
    assert afterwards == "3.0"
