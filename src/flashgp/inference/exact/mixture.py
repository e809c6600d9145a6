"""MixtureState: one table given to several draws of the hyperparameters, whose answers are averaged, eq. (M-380).

The draws are a batch of models, conditioned in one tensor program. The first one is the best, and stands for the
mixture where an answer is of one model. Several outputs have their draws in common.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from flashgp.foundations.checks import check_points
from flashgp.foundations.errors import ShapeError
from flashgp.foundations.form import Rows
from flashgp.foundations.parameters import named_parameter_objects
from flashgp.foundations.report import Report
from flashgp.inference.base_state import BaseState, UpdateState
from flashgp.inference.exact.restore import STORED, restore
from flashgp.inference.output_states import AnyState
from flashgp.inference.prior import Prior
from flashgp.inference.replicates import Replicates
from flashgp.inference.run import Run
from flashgp.inference.state import State
from flashgp.planner.plan import Plan
from flashgp.solvers.direct.cholesky import Factor, TriangularFactor

P = TypeVar("P", bound=Prior)


@dataclass(frozen=True, eq=False)
class MixtureState(BaseState):
    """Fields: each, the states of k draws as a batch; log_weights, logarithms of their probabilities, (k,); report."""

    each: AnyState
    log_weights: Float64[Tensor, "k"]
    report: Report
    exact: ClassVar[bool] = True

    @cached_property
    def point(self) -> AnyState:
        """The state of the first draw alone."""
        return self.alone(0)

    def alone(self, draw: int) -> AnyState:
        """The state of one draw."""

        def of_draw(part: State, _: int) -> State:
            factor = part.factor
            assert factor is not None
            numbers = {name: getattr(part, name) for name in STORED}
            numbers |= {name: numbers[name][draw] for name in ("representer_weights", "residual")}
            group = None if part.replicates is None else part.replicates.group
            factors = [Factor(factor.lower[draw], factor.jitter[draw], factor.attempts)]
            found = restore(one_of(part.prior, draw), numbers, factors, self.report, group=group, run=part.run)
            assert isinstance(found, State)
            return found

        return self.each.mapped(of_draw, one_of(self.each.prior, draw))

    # -- what is the same for all draws, and of one model that of the first ---------------------------------------
    @property
    def stored(self) -> AnyState:
        return self.each

    @property
    def prior(self) -> Prior:  # type: ignore[override]
        return self.point.prior

    @property
    def x(self) -> Tensor:
        return self.each.x

    @property
    def y(self) -> Tensor:
        return self.each.y

    @property
    def rows(self) -> Rows:
        return self.point.rows

    @property
    def replicates(self) -> Replicates | None:
        return self.point.replicates

    @property
    def residual(self) -> Tensor:
        return self.point.residual

    @property
    def noise(self) -> Tensor:
        return self.point.noise

    @property
    def representer_weights(self) -> Tensor:
        return self.point.representer_weights

    @property
    def run(self) -> Run:
        return self.each.run

    @property
    def online(self) -> UpdateState:
        return self.each.online

    @property
    def factor(self) -> TriangularFactor | None:
        return self.point.factor

    @property
    def parts(self) -> tuple[State, ...]:
        return self.point.parts

    @property
    def of_outputs(self) -> "tuple[MixtureState, ...]":
        return tuple(replace(self, each=part, report=part.report) for part in self.each.parts)

    @property
    def distinct(self) -> int:
        return self.each.distinct

    @property
    def draws(self) -> int:
        return len(self.log_weights)

    @property
    def plan(self) -> Plan | None:
        return self.report.plan

    @property
    def training_table(self) -> AnyState:
        return self.point.training_table

    def obstacle(self, question: str) -> str | None:
        if question == "refine":
            return (
                f"`{question}` needs one set of hyperparameters, got a mixture of {self.draws}; fit again, "
                "or go on from posterior.gp.condition(x, y), which is of the best of them"
            )
        return super().obstacle(question)

    def obstacle_to_terms(self, question: str) -> str | None:
        return None  # no draw has any

    def checked_points(self, x: Any, name: str) -> Tensor:
        x = check_points(x, name, like=self.x)
        if x.dim() != 2:
            raise ShapeError(
                f"`{name}` must be of shape (n_test, d) for a mixture over hyperparameters, got {tuple(x.shape)}; pass "
                f"x.reshape(-1, {x.shape[-1]})"
            )
        return x

    def with_prior(self, prior: Prior) -> "MixtureState":
        """Of the draws, whose parameters the prior given need not have."""
        drawn = dict(self.each.prior.named_parameters())
        batch = batch_of(prior, {name: drawn[name] for name, _ in prior.named_parameters() if name in drawn})
        return replace(self, each=self.each.with_prior(batch))

    def tensors(self) -> dict[str, Tensor]:
        named = named_parameter_objects(self.each.prior)
        drawn = {f"draws.{name}": one.raw.detach() for name, one in named if one.batch_shape}
        return self.each.tensors() | {"log_weights": self.log_weights} | drawn


def batch_of(prior: P, values: Mapping[str, Tensor]) -> P:
    """A batch of priors: a copy whose parameters have other unconstrained values, (k, *event), by name."""
    prior = copy.deepcopy(prior)
    for name, parameter in named_parameter_objects(prior):
        if f"{name}.raw" in values:
            raw = values[f"{name}.raw"]
            parameter.raw = nn.Parameter(raw.clone(), requires_grad=parameter.raw.requires_grad)
    return prior


def one_of(prior: Prior, draw: int) -> Prior:
    """One prior of a batch."""
    named = named_parameter_objects(prior)
    return batch_of(prior, {f"{name}.raw": one.raw.detach()[draw] for name, one in named if one.batch_shape})


def in_own_memory(state: AnyState) -> AnyState:
    """The state with weights in the order that a file gives them back in."""

    def kept(part: State, _: int) -> State:
        return replace(part, weights=part.representer_weights.clone(memory_format=torch.contiguous_format))

    return state.mapped(kept)
