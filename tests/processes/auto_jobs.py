"""What ranks do in tests of approximation="auto", against one process with all rows."""

import dataclasses
from typing import Any

import numpy
import torch
from torch import Tensor

import flashgp as fgp
from clocks import Clock
from flashgp.foundations.deadline import NO_DEADLINE, Deadline
from flashgp.foundations.events import EventKind, of_kind
from flashgp.inference.approximation import Approximation
from flashgp.inference.data import Data
from flashgp.inference.fit import fit_as
from flashgp.inference.over_ranks import counts_over
from flashgp.inference.run import Run
from flashgp.inference.training.options import FitOptions
from flashgp.processes.group import Group
from flashgp.processes.shares import Shares
from flashgp.sources.source import source_of
from processes import fourier_jobs
from processes.condition_jobs import case, model, table
from processes.full_scale_jobs import FEW, here, quiet

PASSES = 300  # of rows that are read, to be many


def rows_of(kind: str, n: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """x, y and the variance of each row; the first rows come again at the end, on another rank, and 0.0 as -0.0."""
    x, y, variance, _ = case("plain" if kind == "repeated" else kind, n)
    if kind != "plain":
        x[0] = 0.0
        x[-7:] = x[:7]
        x[-7] = -0.0
    if variance is not None:
        variance[-7:-2] = variance[:5]
    return x, y, variance


def counted(process_group: Any, kind: str, counts: tuple[int, ...]) -> tuple[Any, ...]:
    """The sizes of the table of all ranks."""
    x, y, variance = rows_of(kind, sum(counts))
    part = here(process_group, counts)
    prior = model(kind, None if variance is None else variance[part])
    with Group.of(process_group).together() as group:
        return dataclasses.astuple(counts_over(group, prior, Data.of(prior, x[part], y[part])))[:6]


@quiet
def chosen(process_group: Any, counts: tuple[int, ...], fitting: bool, options: dict[str, Any]) -> dict[str, Any]:
    """What "auto" takes and answers."""
    x, y, _, z = table(sum(counts))
    part = here(process_group, counts)
    asked = {"approximation": "auto", "group": process_group, **options}
    if fitting:
        fit = fgp.fit(model("plain"), x[part], y[part], progress=False, starts=1, settings=FEW, **asked)
        post, report = fit.posterior, fit.report
    else:
        post = model("plain").condition(x[part], y[part], **asked)
        report = post.report
    (event,) = of_kind(report.events, EventKind.APPROXIMATION_CHOSEN)
    assert of_kind(post.report.events, EventKind.APPROXIMATION_CHOSEN) == [event]
    prediction, plan = post.predict(z), report.plan
    sizes = None if event.fields["chosen"] == "exact" else dataclasses.astuple(plan.sizes)
    return {
        "kind": event.fields["chosen"], "reason": str(event.fields["reason"]), "sizes": sizes,
        "mean": prediction.mean.numpy(), "variance": prediction.variance.numpy(), "event": str(event.to_json()),
    }  # fmt: skip


@quiet
def series(process_group: Any, counts: tuple[int, ...], fitting: bool, read: bool) -> tuple[float, list[str], str]:
    """How far answers are from one process's, what one process and ranks have taken, and the event, where Fourier
    series are quick."""
    x, y = fourier_jobs.table(sum(counts))
    posteriors, taken, event = [], list[str](), None
    for rows, of in ((slice(None), None), (here(process_group, counts), process_group)):
        asked: dict[str, Any] = {"approximation": "auto", "group": of}
        data: Any = (x[rows], y[rows])
        if read:
            data = ([data] * (1 if fitting else PASSES) * bool(len(x[rows])),)
        elif not fitting:  # no room for an exact factor
            exact = fgp.plan(fourier_jobs.model(), n=len(x), d=1, dtype=torch.float64, memory="8GiB")
            asked |= {"dtype": torch.float64, "memory": exact.peak_bytes - 1}
        if fitting:
            fit = fgp.fit(fourier_jobs.model(), *data, progress=False, starts=1, settings=fourier_jobs.FEW, **asked)
            post, events = fit.posterior, fit.report.events
        else:
            post = fourier_jobs.model().condition(*data, **asked)
            events = post.report.events
        (event,) = of_kind(events, EventKind.APPROXIMATION_CHOSEN)
        posteriors.append(post)
        taken.append(f"{event.fields['chosen']}, {event.fields['reason']}")
    one, ours = map(fourier_jobs.answers, posteriors)
    compared = slice(None, None, 3 if fitting and read else 1)  # ranks search another sample: mean and evidence
    return fourier_jobs.apart(one[compared], ours[compared]), taken, str(event.to_json())


@quiet
def left(process_group: Any, counts: tuple[int, ...], read: bool) -> tuple[list[str], list[float]]:
    """What series are left for, what the plan is of, and means, where the first rows ask for more frequencies than are
    quick: without noise, and where rows are read with one far off, which they may not have."""
    x = fourier_jobs.table(sum(counts))[0]
    x[0] = 25.0 if read else x[0]
    x = x[here(process_group, counts)]
    rows = (x, (8.0 * x[:, 0]).sin().abs())
    gp = fgp.GP(1.0 * fgp.kernels.Matern(nu=1.5))
    run = Run(group=Group.of(process_group), deadline=Deadline(3.0, 3.0, Clock(0.03)) if read else NO_DEADLINE)
    options = FitOptions(1, run=run, settings=fourier_jobs.FEW)
    source = source_of([rows] * bool(len(x))) if read else Data.of(gp, *rows)
    fit = fit_as(gp, source, options, Approximation("auto" if read else "fourier"))
    told = [str(event.fields["taken"]) for event in of_kind(fit.report.events, EventKind.SERIES_LEFT)]
    return [*told, fit.report.plan.approximation], fit.posterior.predict(
        torch.linspace(0.0, 1.0, 9)[:, None]
    ).mean.tolist()


def refusals(process_group: Any) -> dict[str, str]:
    """What is said on every rank; and that the group works afterwards."""
    group = Group.of(process_group)
    x, y, _, z = table(60)
    last, gp = group.rank == group.size - 1, model("plain")
    part = Shares.even(60, group.size).slice(group.rank)
    x, y = x[part], y[part]

    def condition(x: Tensor = x, **options: Any) -> Any:
        return gp.condition(x, y[: len(x)], **{"approximation": "auto", "group": process_group, **options})

    def fit(**options: Any) -> Any:
        asked = {"approximation": "auto", "group": process_group, "starts": 1, **options}
        return fgp.fit(gp, x, y, progress=False, **asked)

    sparse = {"approximation": "sparse", "inducing": 5}
    asked = {
        "exact": lambda: condition(approximation=None if last else "auto"),
        "full scale": lambda: condition(approximation="full_scale" if last else "auto"),
        "sparse": lambda: condition(**sparse if last else {}),
        "memory": lambda: condition(memory="2GiB" if last else "1GiB"),
        "sizes": lambda: condition(neighbours=5 + last),
        "points": lambda: condition(inducing=z[: 4 + last]),
        "time limit": lambda: condition(time_limit=1e3 + last),
        "dtype": lambda: condition(dtype=torch.float64 if last else None),
        "seed": lambda: fit(seed=int(last)),
        "starts": lambda: fit(starts=1 + last),
        "fit sparse": lambda: fit(**sparse if last else {}),
        "columns": lambda: condition(x[:, :2] if last else x),
        "not finite": lambda: condition(x * (float("nan") if last else 1.0)),
        "too many ranks": lambda: condition(x[: int(not group.rank)]),
        "nothing fits": lambda: condition(memory=1000),
        "fit does not": lambda: fit(memory=1000),
        "bad points": lambda: condition(inducing=z[:, :2]),  # which the rank that decides finds
        "batch": lambda: gp.condition(
            torch.stack([x, x]), torch.stack([y, y]), approximation="auto", group=process_group
        ),
        "differentiable": lambda: condition(differentiable=True),
    }
    out = {}
    for name, ask in asked.items():
        try:
            ask()
            out[name] = "nothing"
        except (fgp.FlashGPError, ValueError, MemoryError) as error:
            out[name] = f"{type(error).__name__}: {error}"
    again = condition()
    assert numpy.isfinite(again.predict(z).mean.numpy()).all()
    return out
