"""Answers that the ranks of a group give together: each has all rows, and they share what takes solves.

All ranks ask the same in the same order; points and options are compared before work begins, and an error on one rank
is raised by all of them.
"""

from typing import Any

import torch
from torch import Tensor

from flashgp.foundations.checks import check_points
from flashgp.foundations.errors import DomainError
from flashgp.foundations.report import Report
from flashgp.inference.base_state import BaseState
from flashgp.inference.gathered import tensor_mark
from flashgp.inference.output_states import AnyState
from flashgp.inference.predict.exact_predictor import predict
from flashgp.inference.predict.paths import Paths, draw_paths
from flashgp.inference.predict.plan import Wanted
from flashgp.inference.predict.prediction import Prediction
from flashgp.inference.predict.predictor import Predictor, Variance
from flashgp.processes.group import ALONE, Group

_SHARED = ("predict", "leave_one_out", "importance")  # what takes solves where there is no factor


def ranks_of(state: BaseState, question: str) -> Group:
    """The ranks that a question needs: this one alone where a factor answers. Args: question, a name of `Posterior`."""
    group = state.run.group
    if group.size == 1:
        return ALONE
    if question in _SHARED:
        needed = any(part.factor is None or part.solves is not None for part in state.parts)
    else:
        needed = question == "paths" or (question == "log_marginal_likelihood" and not state.evidence_known)
    return group if needed else ALONE


def predict_together(state: AnyState, x_test: Any, wanted: Wanted) -> Prediction:
    """See `Posterior.predict`. Mean and variance are computed while all ranks are there."""
    group, variance = ranks_of(state, "predict"), wanted.variance
    if group.size > 1:
        points = check_points(x_test, "x_test", like=state.x)
        deterministic, time_limit = wanted.deterministic, wanted.time_limit
        options = f"{variance=} {deterministic=} {time_limit=} gradients={torch.is_grad_enabled()}"
        group.compare(x_test=tensor_mark(points), options=options)
    if variance is None and state.ranks > 1:
        wanted = wanted._replace(variance="auto")
    prediction = predict(state, x_test, wanted, group)
    if group.size > 1:
        prediction = prediction.asking(lambda predictor: _Together(predictor, group, variance is not None))
        _ = prediction.mean, variance and prediction.variance  # kept, while all ranks are here
    return prediction


def draw_paths_together(state: AnyState, count: int, features: int, seed: int | None) -> Paths:
    """See `Posterior.paths`. Without a seed all ranks take one draw of rank 0's generator."""
    group = ranks_of(state, "paths")
    if group.size > 1:
        seed = int(group.from_first(torch.randint(2**62, ()))) if seed is None else seed
        group.compare(count=count, features=features, seed=seed)
    return draw_paths(state, count, features, seed)


class _Together(Predictor):
    """A predictor whose errors all ranks share. Args: predictor, of every rank; group; varies, else the mean alone."""

    def __init__(self, predictor: Predictor, group: Group, varies: bool) -> None:
        self._predictor, self._group, self._varies = predictor, group, varies
        self.deterministic, self.differentiable = predictor.deterministic, predictor.differentiable
        self.separate = predictor.separate

    @property
    def report(self) -> Report:  # type: ignore[override]
        return self._predictor.report

    def mean(self, x: Tensor) -> Tensor:
        with self._group.together(asked="predict"):
            return self._predictor.mean(x)

    def variance(self, x: Tensor) -> Variance:
        if not self._varies:
            raise DomainError(
                "`variance` must be asked for while all ranks are there, got predict(variance=None), the mean; call "
                'predict(x_test, variance="auto") on every rank'
            )
        with self._group.together(asked="predict"):
            return self._predictor.variance(x)

    def covariance(self, x: Tensor) -> Tensor:
        with self._group.together(asked="covariance"):
            return self._predictor.covariance(x)

    def paths(self, count: int, features: int, seed: int | None) -> Any:
        with self._group.together(asked="paths"):
            return self._predictor.paths(count, features, seed)

    def rounding(self, x: Tensor) -> Tensor:
        return self._predictor.rounding(x)

    quick = False

    def forget(self) -> None:
        self._predictor.forget()
