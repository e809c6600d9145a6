"""The search for an optimum: starts, bounds, units, and L-BFGS-B on all rows or on a subset of them."""

import dataclasses
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy
import torch
from torch import Tensor

from flashgp.foundations.errors import NotPositiveDefiniteError
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.parameters import named_parameter_objects
from flashgp.foundations.report import Report
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.prior import Prior
from flashgp.inference.threads import quiet_openblas
from flashgp.inference.training.history import Recorder
from flashgp.inference.training.initial import RoleStart
from flashgp.inference.training.lockstep import Outcome, run_lockstep
from flashgp.inference.training.objective import FlatObjective

__all__ = [
    "best_of",
    "best_on_subset",
    "bounds_of",
    "minimise",
    "on_rows",
    "start_vectors",
    "subset_rows",
    "units_of",
    "vector_of",
    "wake",
]

log = logging.getLogger("flashgp.fit")
Objective = TypeVar("Objective", bound=FlatObjective)

SUBSET_ROWS = 400  # rows on which the start of a large problem is chosen
START_SPREAD = 1.0  # standard deviation of random starts around the data-driven one, in log units
LEAST_DECREASE = 1e-4  # nats: L-BFGS-B stops when a step improves the objective by less
LARGEST_GRADIENT = 1e-2  # or when no projected gradient entry is larger (nats per unit of log parameter)
SUBSET_ITERATIONS = 60
WAKE_RATIO = 1.5  # a lengthscale that ends longer than this times its start is asleep: its column hardly counts
SUBSET_WINDOW = math.log(30.0)  # how far from its start the subset may move a positive value: beyond lie plateaus


def vector_of(objective: FlatObjective, values: dict[str, Tensor]) -> numpy.ndarray:
    """The flat vector at given parameter values; tensors of foreign modules keep theirs."""
    theta = objective.vector()
    for name, parameter in named_parameter_objects(objective.gp):
        for slot in objective.slots:
            if slot.owner is parameter and name in values:
                theta[slot.start : slot.stop] = parameter.domain.raw(values[name]).reshape(-1).cpu().numpy()
    return theta


def start_vectors(
    objective: FlatObjective,
    roles: dict[Any, RoleStart],
    given: dict[str, Tensor],
    count: int,
    initial: str,
    seed: int,
) -> list[numpy.ndarray]:
    """Data-driven, given, then random around the data-driven (or given) values."""
    own = vector_of(objective, given)
    data = own.copy()
    for slot in objective.slots:
        role = roles.get(slot.owner) if slot.owner is not None else None
        if role is not None and slot.owner is not None:
            value = role.start.clamp(role.lower, role.upper)
            if slot.owner.domain.contains(value):
                data[slot.start : slot.stop] = slot.owner.domain.raw(value).reshape(-1).numpy()
    first = [own] if initial == "given" else [data, own]
    found = [theta for k, theta in enumerate(first) if not any(numpy.array_equal(theta, t) for t in first[:k])][:count]
    generator = numpy.random.default_rng(seed)
    while len(found) < count:
        theta = found[0].copy()
        for slot in objective.slots:
            if slot.owner is not None and slot.owner.domain.kind == "positive":
                theta[slot.start : slot.stop] += START_SPREAD * generator.standard_normal(slot.stop - slot.start)
        found.append(theta)
    return found


def bounds_of(objective: FlatObjective, roles: dict[Any, RoleStart]) -> list[tuple[float | None, float | None]]:
    """(low, high) of every entry of the flat vector, None for none: the data's idea of what is possible."""
    bounds: list[tuple[float | None, float | None]] = []
    for slot in objective.slots:
        role = roles.get(slot.owner) if slot.owner is not None else None
        low: float | None = None
        high: float | None = None
        if role is not None and slot.owner is not None and slot.owner.domain.kind == "positive":
            floor = slot.owner.domain.lower
            # The domain may begin above the data's idea of a lower bound: then a hair above its beginning.
            low = math.log(role.lower - floor if role.lower > floor else 1e-12 * role.upper)
            high = math.log(max(role.upper - floor, 2e-12 * role.upper))
        bounds += [(low, high)] * (slot.stop - slot.start)
    return bounds


def units_of(objective: FlatObjective, roles: dict[Any, RoleStart]) -> numpy.ndarray:
    """What one step of the optimiser is in each entry: 1 for logarithms, the scale of y (over that of x) for means.

    Without it a mean of targets of size 1e12 would never move, and one of targets of size 1e-8 nothing else would.
    Bounds belong to entries of unit 1.
    """
    unit = numpy.ones(objective.size)
    for slot in objective.slots:
        role = roles.get(slot.owner) if slot.owner is not None else None
        if role is not None and role.unit is not None and slot.owner is not None and slot.owner.domain.kind == "real":
            unit[slot.start : slot.stop] = role.unit.reshape(-1).numpy()
    return unit


def minimise(
    objective: FlatObjective,
    roles: dict[Any, RoleStart],
    thetas: list[numpy.ndarray],
    max_iterations: int,
    recorder: Recorder,
    label: str,
    least_decrease: float = LEAST_DECREASE,
) -> None:
    """L-BFGS-B from every vector, in lockstep, until a step gains less than `least_decrease` nats; results are in the
    recorder."""
    if objective.size == 0:  # nothing to train
        recorder.record_round([(f"{label} 0", thetas[0], objective.batch(thetas[:1])[0])])
        return
    from scipy.optimize import minimize

    bounds = bounds_of(objective, roles)
    low = numpy.array([-numpy.inf if b[0] is None else b[0] for b in bounds])
    high = numpy.array([numpy.inf if b[1] is None else b[1] for b in bounds])
    unit = units_of(objective, roles)

    def evaluate(asked: dict[int, numpy.ndarray]) -> dict[int, Outcome]:
        answers: dict[int, Outcome] = {}
        for run, theta in asked.items():
            known = recorder.evaluations.recall(f"{label} {run}", theta)
            if known is not None:
                answers[run] = known if known[0] < math.inf else NotPositiveDefiniteError("as the checkpoint says")
        waiting = [run for run in asked if run not in answers]
        if waiting:
            results = objective.batch([asked[run] for run in waiting])
            answers.update(zip(waiting, results, strict=True))
        recorder.record_round([(f"{label} {run}", theta, answers[run]) for run, theta in asked.items()])
        return answers

    def run_one(run: int, start: numpy.ndarray, ask: Callable[[numpy.ndarray], Outcome]) -> None:
        last: list[tuple[float, numpy.ndarray]] = []
        base: list[float] = []

        def function(scaled: numpy.ndarray) -> tuple[float, numpy.ndarray]:
            outcome = ask(scaled * unit)
            if not isinstance(outcome, NotPositiveDefiniteError):
                last[:] = [outcome]
                # Counted from the first value: SciPy's stopping rule is relative, and units of y only add a constant.
                base.append(outcome[0])
                return outcome[0] - base[0], outcome[1] * unit
            if not last:
                raise outcome
            # The line search has gone where the matrix cannot be factorised: a value well above sends it back.
            worst = last[0][0] - base[0]
            return worst + 10.0 * (1.0 + abs(worst)), numpy.zeros_like(scaled)

        try:
            minimize(
                function,
                numpy.clip(start, low, high) / unit,
                jac=True,
                method="L-BFGS-B",
                bounds=bounds,
                options={
                    "maxiter": max_iterations,
                    "maxfun": 2 * max_iterations + 20,
                    "ftol": least_decrease / max(1, objective.rows),
                    "gtol": LARGEST_GRADIENT,
                },
            )
        except NotPositiveDefiniteError:
            log.debug("%s %d could not be evaluated at its start", label, run)

    with quiet_openblas():
        run_lockstep(thetas, run_one, evaluate)


def subset_rows(n: int, rows: int, seed: int) -> Tensor:
    """Positions of a random subset of n rows, ascending; a smaller subset of the same seed is part of a larger one."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))[: min(rows, n)].sort().values


@contextmanager
def on_rows(
    gp: Prior,
    x: Tensor,
    y: Tensor,
    settings: DirectSettings,
    roles: dict[Any, RoleStart],
    weak: bool,
    index: Tensor,
    make: Callable[..., Objective],
) -> Iterator[Objective]:
    """The objective of some of the rows, while the block runs: the gp's likelihood is that of these rows then."""
    index = index.to(x.device)
    likelihood = gp.likelihood
    gp.likelihood = likelihood.rows(index)
    try:
        rows_y = y[..., index] if gp.outputs is None else y[..., index, :]
        rows_x = x[..., index, :]
        part = dataclasses.replace(settings, repair=lambda: gp.repairable(rows_x, rows_y))
        yield make(gp, rows_x, rows_y, part, roles, weak)
    finally:
        gp.likelihood = likelihood


def best_on_subset(
    gp: Prior,
    x: Tensor,
    y: Tensor,
    settings: DirectSettings,
    roles: dict[Any, RoleStart],
    weak: bool,
    thetas: list[numpy.ndarray],
    seed: int,
    recorder: Recorder,
) -> numpy.ndarray:
    """Fit every start on a random subset of rows; the best vector found there."""
    with on_rows(
        gp, x, y, settings, roles, weak, subset_rows(x.shape[-2], SUBSET_ROWS, seed), FlatObjective
    ) as objective:
        minimise(objective, roles, thetas, SUBSET_ITERATIONS, recorder, "subset")
    runs = [run for run in sorted(recorder.best) if run.startswith("subset")]
    if not runs:
        return thetas[0]
    winner = min(runs, key=lambda run: recorder.best[run][0])
    best, start = recorder.best[winner][1], thetas[int(winner.split()[1])]
    # Few rows may send a lengthscale off to where the gradient of all rows is zero: hold it within sight.
    window = numpy.full(len(best), numpy.inf)
    for slot in objective.slots:
        if slot.owner is not None and slot.owner.domain.kind == "positive":
            window[slot.start : slot.stop] = SUBSET_WINDOW
    return numpy.clip(best, start - window, start + window)


def wake(
    objective: FlatObjective,
    roles: dict[Any, RoleStart],
    max_iterations: int,
    recorder: Recorder,
    report: Report,
    label: str = "start",
    least_decrease: float = LEAST_DECREASE,
) -> None:
    """One more run from the best vector, with every lengthscale beyond WAKE_RATIO times its start put back to it.

    The likelihood is flat where a lengthscale is long, so that a run that once let go of a column never meets it
    again: on tables with redundant columns several such optima exist, many nats apart, and subsets of rows rank them
    wrongly. Cost: one more run.
    """
    best = best_of(recorder, label)
    if best is None:
        return
    woken, columns = best.copy(), 0
    for slot in objective.slots:
        role = roles.get(slot.owner) if slot.owner is not None else None
        if role is None or slot.owner is None or not role.input_scale or slot.owner.domain.kind != "positive":
            continue
        start = slot.owner.domain.raw(role.start.clamp(role.lower, role.upper)).reshape(-1).numpy()
        asleep = best[slot.start : slot.stop] > start + math.log(WAKE_RATIO)
        woken[slot.start : slot.stop][asleep] = start[asleep]
        columns += int(asleep.sum())
    if columns == 0:
        return
    before = min(value for run, (value, _) in recorder.best.items() if run.startswith(label))
    minimise(objective, roles, [woken], max_iterations, recorder, f"{label} woken", least_decrease)
    gain = before - min(value for run, (value, _) in recorder.best.items() if run.startswith(label))
    if gain > 10 * LEAST_DECREASE:
        report.events.append(Event(EventKind.LENGTHSCALES_RESET, lengthscales=columns, gain=gain))


def best_of(recorder: Recorder, label: str) -> numpy.ndarray | None:
    """The best vector of the runs whose name begins so; None where none could be evaluated."""
    found = [pair for run, pair in sorted(recorder.best.items()) if run.startswith(label)]
    return min(found, key=lambda pair: pair[0])[1] if found else None
