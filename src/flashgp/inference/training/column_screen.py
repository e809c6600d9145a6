"""Columns whose effect is shorter than a search that begins with long lengthscales can see, eq. (M-385).

With d columns lengthscales begin at sqrt(d) standard deviations. A column that matters at a short distance alone has
no slope there: a search sends it away with those that say nothing. So columns that a model ignores are tried one by
one, by how much their own covariance explains of what the model leaves.
"""

import dataclasses

import numpy
import torch
from torch import Tensor

from flashgp.foundations.errors import ConvergenceError, NotPositiveDefiniteError
from flashgp.foundations.events import Event, EventKind
from flashgp.inference.training.history import Recorder, Reset, Stage
from flashgp.inference.training.lbfgs import evaluated, minimise
from flashgp.inference.training.objective import LogJoint, Objective
from flashgp.inference.training.settings import SearchSettings

Array = numpy.ndarray


def search_ignored_columns(
    objective: Objective, stage: Stage, recorder: Recorder, settings: SearchSettings, max_iterations: int
) -> None:
    """More runs from the best vector of a stage, each with one ignored column at a short lengthscale, while they gain.

    Cost: of each round a factor, n^2 for each column, a few evaluations, and a run where one of them gains.
    """
    if not isinstance(objective, LogJoint) or objective.problem.x.dim() != 2:
        return
    screen, found = settings.columns, 0
    first = recorder.best_of(stage)
    while found < screen.max_columns and (best := recorder.best_of(stage)) is not None:
        run, value, theta = best
        again = dataclasses.replace(run, reset=Reset.COLUMNS)
        tried: list[tuple[float, Array]] = []
        try:
            for entry, log_scale in _candidates(objective, theta, settings):
                changed = theta.copy()
                changed[entry] = log_scale
                recorded = evaluated(objective, changed, again, recorder)
                assert recorded.value is not None
                tried.append((recorded.value, changed))
        except (NotPositiveDefiniteError, ConvergenceError):
            pass
        if not tried or min(tried, key=_value)[0] > value + screen.slack * objective.rows:
            break
        minimise(objective, min(tried, key=_value)[1], again, recorder, settings, max_iterations)
        if not recorder.best_of(stage)[1] < value - 10.0 * settings.min_decrease:  # type: ignore[index]
            break
        found += 1
    last = recorder.best_of(stage)
    if found and first is not None and last is not None:
        recorder.note(Event(EventKind.COLUMNS_FOUND, columns=found, gain=first[1] - last[1]))


def _value(tried: tuple[float, Array]) -> float:
    return tried[0]


@torch.no_grad()
def _candidates(objective: LogJoint, theta: Array, settings: SearchSettings) -> list[tuple[int, float]]:
    """Entries of ignored columns' lengthscales that promise most, and the logarithms of short ones."""
    problem, screen = objective.problem, settings.columns
    ignored: list[tuple[int, int, float]] = []  # entry, column of x, log of its standard deviation
    owners = {slot.owner: slot for slot in objective.parameters.slots if slot.owner is not None}
    for leaf in problem.prior.kernel.leaves():
        for name, role in getattr(leaf, "roles", {}).items():
            slot = owners.get(getattr(leaf, name))
            if role != "input_scale" or slot is None or not slot.positive or slot.role is None:
                continue
            dims = list(getattr(leaf, "active_dims", None) or range(problem.x.shape[-1]))
            if slot.tensor.numel() != len(dims) or len(dims) < screen.min_columns:
                continue
            spread = slot.role.start.reshape(-1).log().numpy() - 0.5 * numpy.log(len(dims))
            long = theta[slot.entries] > spread + numpy.log(screen.ignored)
            ignored += [(slot.entries.start + j, dims[j], spread[j]) for j in numpy.flatnonzero(long)]
    if not ignored:
        return []
    scores = _scores(objective, theta, [(column, numpy.exp(log)) for _, column, log in ignored], screen.scales[0])
    order = [k for k in numpy.argsort(-scores)[: screen.tries] if scores[k] > screen.least_score]
    return [(ignored[k][0], ignored[k][2] + numpy.log(scale)) for k in order for scale in screen.scales]


def _scores(objective: LogJoint, theta: Array, columns: list[tuple[int, float]], scale: float) -> Array:
    """a' K_j a / tr(K^-1 K_j) of columns and their standard deviations, K_j exp(-(u - u')^2 / 2) of one of them: 1 is
    what a model leaves of a column that says nothing, (M-385)."""
    objective.at(theta)
    prior, x, y = objective.problem.with_sites, objective.problem.x, objective.problem.y
    residual, noise, _, _ = prior.likelihood_inputs(x, y)
    matrix = prior.kernel(x).to_dense().double()
    noise = noise if not prior.separate else noise.mean(-1)
    matrix.diagonal().add_(noise.expand(matrix.shape[-1]))
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if int(failed):
        return numpy.zeros(len(columns))
    inverse = torch.cholesky_inverse(factor)
    weights = inverse @ residual  # (n, p)
    outer = weights @ weights.mT / weights.shape[-1]
    scores = []
    for column, deviation in columns:
        own: Tensor = x[:, column].double() / (scale * deviation)
        covariance = torch.exp(-0.5 * (own.unsqueeze(1) - own).square())
        scores.append(float((outer * covariance).sum() / (inverse * covariance).sum()))
    return numpy.array(scores)
