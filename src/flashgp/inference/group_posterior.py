"""Posterior of a group: `gp.condition(x, y, group=)` and what it answers, the same on every rank.

Every rank has all rows of x and y, and the factor where there is one: each answers for itself then, nothing is sent.
Without a factor what solves take is shared: all ranks call the same methods in the same order, points and options are
compared before work begins, and an error on one rank is raised by all of them. Reading a property sends nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from flashgp.foundations.checks import check_points
from flashgp.foundations.errors import DomainError
from flashgp.foundations.report import Report
from flashgp.inference.exact.evidence import evidence_is_known
from flashgp.inference.gathered import (
    tensor_mark,
)
from flashgp.inference.output_states import AnyState, OutputStates
from flashgp.inference.posterior import Posterior
from flashgp.inference.predict.exact_predictor import Waiting, predict
from flashgp.inference.predict.importance import Importance
from flashgp.inference.predict.leave_one_out import LeaveOneOut
from flashgp.inference.predict.paths import Paths
from flashgp.inference.predict.prediction import Prediction
from flashgp.inference.predict.predictor import Predictor, Variance
from flashgp.inference.predict.progress import ToldProgress
from flashgp.planner.products import ProductPlan
from flashgp.processes.group import ALONE, Group


class GroupPosterior(Posterior):
    """A posterior that the ranks of a group have in common. Made by `gp.condition` and `fgp.fit` with `group=`.

    All of `Posterior`, but for learning online; fields as there: x, y and weights are those of all rows, in the order
    of the ranks. `fgp.save` on rank 0 writes a file that one process loads. Methods that need all ranks say so below;
    those of a prediction without a factor (`covariance`, `sample`, `joint_log_prob`) are among them.

    Fields: group.
    """

    def __init__(self, state: AnyState, units: str = "") -> None:
        super().__init__(state, units)
        self.group: Group = state.settings.group

    def in_units(self, units: str) -> "GroupPosterior":
        return GroupPosterior(self.state, units)

    @property
    def by_output(self) -> "tuple[Posterior, ...]":
        parts = self.state.parts if isinstance(self.state, OutputStates) else ()
        return tuple(GroupPosterior(part, self.units) for part in parts)

    def predict(
        self,
        x_test: Any,
        *,
        variance: str | None = "auto",
        plan: ProductPlan | None = None,
        memory: str | int | None = None,
        deterministic: bool = False,
        time_limit: float | None = None,
        progress: ToldProgress = None,
    ) -> Prediction:
        """See `Posterior.predict`. Without a factor all ranks call it, and mean and variance are computed within.

        Args: variance, also None: the mean alone, which is quicker without a factor.
        """
        with self._asked("predict") as group:
            if group.size > 1:
                points = check_points(x_test, "x_test", like=self.state.x)
                options = f"{variance=} {deterministic=} {time_limit=} gradients={torch.is_grad_enabled()}"
                group.compare(x_test=tensor_mark(points), options=options)
            prediction = predict(
                self.state, x_test, variance=variance or "auto", plan=plan, memory=memory, deterministic=deterministic,
                waiting=Waiting(time_limit, progress), group=group,
            )  # fmt: skip
            if group.size > 1:
                prediction = prediction.asking(lambda predictor: _Together(predictor, group, variance is not None))
                _ = prediction.mean, variance and prediction.variance  # kept, while all ranks are here
            return prediction

    def paths(self, count: int, *, features: int = 2048, seed: int | None = None) -> Paths:
        """See `Posterior.paths`. All ranks call it: without a seed they take rank 0's, and get the same functions."""
        with self.group.together(asked="paths") as group:
            if seed is None:  # one draw for all ranks, of rank 0's generator
                seed = int(group.from_first(torch.randint(2**62, ())))
            group.compare(count=count, features=features, seed=seed)
            return super().paths(count, features=features, seed=seed)

    def log_marginal_likelihood(self) -> Float64[Tensor, "*batch"]:
        if evidence_is_known(self.state):  # to every rank, of which one may print it
            return super().log_marginal_likelihood()
        with self.group.together(asked="log_marginal_likelihood") as group:
            return group.from_first(super().log_marginal_likelihood())

    def leave_one_out(self) -> LeaveOneOut:
        with self._asked("leave_one_out"):
            return super().leave_one_out()

    def importance(self, *arguments: Any, **options: Any) -> Importance:
        with self._asked("importance"):
            return super().importance(*arguments, **options)

    @contextmanager
    def _asked(self, method: str) -> Iterator[Group]:
        """The ranks that a method needs: none but this one where it has a factor that no shared solves correct."""
        parts = self.state.parts if isinstance(self.state, OutputStates) else (self.state,)
        if all(part.factor is not None and part.solves is None for part in parts):
            yield ALONE
            return
        with self.group.together(asked=method) as group:
            yield group

    def _of(self, state: AnyState) -> "GroupPosterior":
        return self if state is self.state else GroupPosterior(state, self.units)


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

    def forget(self) -> None:
        self._predictor.forget()
