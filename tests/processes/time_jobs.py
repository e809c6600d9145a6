"""What ranks do in tests of time limits: clocks that end on one rank alone."""

import dataclasses
import warnings
from typing import Any

import torch

import flashgp as fgp
from flashgp.foundations.deadline import Deadline
from flashgp.inference.condition import condition
from flashgp.inference.data import Data
from flashgp.inference.run import Run
from flashgp.inference.settings import ConditionSettings, TimeSettings
from flashgp.inference.training.exact_fit import fit_exact
from flashgp.inference.training.options import FitOptions, FitSettings
from flashgp.inference.training.settings import SearchSettings, StochasticSettings
from flashgp.processes.agreement import deadline_of
from flashgp.processes.group import Group
from flashgp.processes.shares import Shares
from processes.condition_jobs import model, table

ROWS = 301
TIME = TimeSettings(min_rows=50, negligible_seconds=0.0, grace_seconds=0.0)
LIMIT = 60.0


class EndsAt:
    """A clock that stands still until so many readings, and from then on is past every end; None for never."""

    def __init__(self, readings: int | None) -> None:
        self.left, self.read = readings, 0

    def __call__(self) -> float:
        self.read += 1
        return 0.0 if self.left is None or self.read <= self.left else 1e6


def answered(process_group: Any, what: str, route: str, ends_on: int, moment: int | None) -> dict[str, Any]:
    """A posterior within a time limit that ends on one rank, after so many readings of its clock."""
    group = Group.of(process_group)
    x, y, _, z = table(ROWS)
    part = Shares.even(ROWS, group.size).slice(group.rank)
    clock = EndsAt(moment if group.rank == ends_on else None)
    deadline = Deadline(LIMIT, LIMIT, clock)
    gp = model("plain")
    plan = dataclasses.replace(fgp.plan(gp, n=ROWS, d=3, route=route, memory="1GiB", ranks=group.size), seconds=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fgp.FlashGPWarning)
        if what == "condition":
            run = Run(tolerance=1e-8, group=group, deadline=deadline)
            settings = ConditionSettings(run, plan=plan, time=TIME)
            post = fgp.Posterior(condition(gp, Data.of(gp, x[part], y[part]), settings))
            report, theta = post.report, []
        else:
            if route == "stored":
                plan = dataclasses.replace(plan, training=plan.route, training_rank=40, training_factor_passes=0)
            tuning = FitSettings(
                search=SearchSettings(start_rows=60), time=TIME,
                stochastic=dataclasses.replace(StochasticSettings(), first_rows=100, min_draws=16),
            )  # fmt: skip
            run = Run(deadline=deadline, tolerance=1e-6, group=group)
            asked = FitOptions(starts=1, max_iterations=10, run=run, plan=plan, settings=tuning)
            fit = fit_exact(gp, Data.of(gp, x[part], y[part]), asked)
            post, report, theta = fgp.Posterior(fit.state), fit.report, [entry.theta for entry in fit.history]
        mean = post.predict(z).mean
    return {
        "mean": mean.tolist(), "rows": len(post.x), "theta": theta, "iterations": report.iterations,
        "events": sorted({event.kind.name for event in report.events}), "read": clock.read,
    }  # fmt: skip


def late(process_group: Any, seconds: tuple[float, ...], left: float) -> list[bool]:
    """Whether ranks take work for too late that each of them expects to take other seconds; and that they go on."""
    group = Group.of(process_group)
    deadline = deadline_of(group, Deadline(LIMIT, left, lambda: 0.0))
    answers = [TimeSettings().late(deadline, seconds[group.rank])]
    return [*answers, float(group.sum(torch.ones(()))) == group.size]
