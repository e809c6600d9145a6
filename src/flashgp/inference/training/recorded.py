"""An evaluation of an objective as its checkpoint has it, or computed within the time that is left."""

import contextlib
import dataclasses
import math

import numpy
import torch

from flashgp.foundations.errors import ConvergenceError, NotPositiveDefiniteError
from flashgp.inference.training.history import Recorder, Run, Solving, TimeUp
from flashgp.inference.training.objective import Evaluation, Objective
from flashgp.processes.group import Group


def evaluation_of_first(evaluation: Evaluation, group: Group) -> Evaluation:
    """Rank 0's evaluation, which every rank goes on from: a last bit could send a search another way."""
    if group.size == 1:
        return evaluation
    value = evaluation.value
    own = numpy.append(evaluation.gradient, 0.0 if value is None else value)
    numbers = group.from_first(torch.from_numpy(own)).numpy()
    value = None if value is None else float(numbers[-1])
    return dataclasses.replace(evaluation, value=value, gradient=numbers[:-1])


def _computed(objective: Objective, theta: numpy.ndarray, recorder: Recorder) -> Evaluation:
    """The evaluation that all ranks go on from. Raises: as `recalled_or_computed`, on all ranks."""
    evaluation, workspace = None, objective.problem.direct.workspace
    with recorder.group.together() as group, contextlib.suppress(TimeUp):  # which comes on all ranks
        evaluation = recorder.evaluate(objective, theta, objective.cost_rows, objective.cost_power, workspace)
    if evaluation is None:
        raise TimeUp
    return evaluation_of_first(evaluation, group)


def recalled_or_computed(objective: Objective, theta: numpy.ndarray, run: Run, recorder: Recorder) -> Evaluation:
    """The evaluation at a vector, of a group at that of rank 0, which the caller records; that there is none is
    recorded here.

    Args: run: its name; what the objective is solved by is added, and that of a checkpoint taken over.
    Raises: NotPositiveDefiniteError, ConvergenceError; TimeUp.
    """
    if recorder.group.size > 1:  # other ranks may have come to it with other roundings
        theta = recorder.group.from_first(torch.from_numpy(theta)).numpy()
    known = None
    for solving in dict.fromkeys((objective.solving, *Solving)):
        known = recorder.evaluations.recall(str(dataclasses.replace(run, solving=solving)), theta)
        if known is not None:
            objective.solve_by(solving)
            break
    try:
        if known is None:
            evaluation = _computed(objective, theta, recorder)
        elif known[0] == math.inf:
            raise NotPositiveDefiniteError("no gradient there, as the checkpoint says")
        else:
            evaluation = Evaluation(*known)
        if not numpy.isfinite(evaluation.gradient).all():
            raise NotPositiveDefiniteError("the gradient has entries that are not finite there")
    except (NotPositiveDefiniteError, ConvergenceError):
        recorder.record_failure(dataclasses.replace(run, solving=objective.solving), theta)
        raise
    return evaluation
