"""OutputStates: several outputs with noise of their own given data, as a state of each.

Outputs of one covariance function are independent given its parameters, and with noise of their own each has its own
matrix K + noise. Methods are applied per output and stacked. Outputs that share their noise
are one `State` with as many right-hand sides.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from flashgp.foundations.errors import DomainError
from flashgp.foundations.form import Rows
from flashgp.foundations.report import Report, joined_titles
from flashgp.inference.base_state import BaseState, UpdateState
from flashgp.inference.prior import Prior
from flashgp.inference.replicates import Replicates, join
from flashgp.inference.run import Run
from flashgp.inference.state import State
from flashgp.planner.plan import Plan


class StatesOfOutputs(BaseState):
    """Fields: prior, of all outputs, detached; parts, the state of each, all of the same x; report, of all."""

    prior: Prior
    parts: tuple[Any, ...]
    report: Report

    def common(self, name: str) -> Any:
        """The state of the first output, for what is the same of every one. Args: name, of what is asked, as a
        posterior has it."""
        return self.parts[0]

    @property
    def rows(self) -> Rows:
        return self.common("state.rows").rows

    @property
    def run(self) -> Run:
        return self.parts[0].run

    @property
    def online(self) -> UpdateState:
        return self.parts[0].online

    @property
    def residual(self) -> Float64[Tensor, "*batch u p"]:
        self.common("residual")
        return torch.cat([part.residual for part in self.parts], dim=-1)

    @property
    def representer_weights(self) -> Float64[Tensor, "*batch u p"]:
        self.common("representer_weights")
        return torch.cat([part.representer_weights for part in self.parts], dim=-1)

    @property
    def noise(self) -> Float64[Tensor, "*batch rows p"]:
        """The noise variance of each distinct row and output, with jitter, (*batch, u or 1, outputs)."""
        self.common("noise")
        return torch.stack([part.noise for part in self.parts], dim=-1)

    @cached_property
    def replicates(self) -> Replicates | None:
        """The distinct rows, with the targets of all outputs."""
        joined = self.common("replicates").replicates
        return None if joined is None else join(self.prior, self.x, self.y, joined.group)

    def under(self, prior: Prior, online: UpdateState) -> Self:
        return self._each(prior, lambda part, own: part.under(own, online))

    def with_prior(self, prior: Prior) -> Self:
        return self._each(prior.held(), lambda part, own: part.with_prior(own))

    def _each(self, prior: Prior, function: Callable[[Any, Prior], Any]) -> Self:
        """The states that a function makes of each and its prior."""
        parts = (function(part, prior.output(j, live=False)) for j, part in enumerate(self.parts))
        return replace(self, prior=prior, parts=tuple(parts))  # type: ignore[type-var]


@dataclass(frozen=True, eq=False)
class OutputStates(StatesOfOutputs):
    """Fields: as `StatesOfOutputs`; table, where cells are missing all rows and targets with NaN there, of which each
    part has its own rows."""

    prior: Prior
    parts: tuple[State, ...]
    report: Report
    table: tuple[Tensor, Tensor] | None = None
    exact: ClassVar[bool] = True

    def common(self, name: str) -> State:
        """The state of the first output, for what is the same of every one.

        Args: name, of what is asked, as a posterior has it. Raises: DomainError where cells miss.
        """
        if self.table is not None:
            raise DomainError(
                f"`{name}` needs outputs that were observed in the same rows, got missing cells of y; ask each output: "
                f"post.by_output[j].{name}"
            )
        return self.parts[0]

    @property
    def x(self) -> Tensor:
        """(*batch, n, d)."""
        return self.parts[0].x if self.table is None else self.table[0]

    @cached_property
    def y(self) -> Tensor:
        """(*batch, n, outputs)."""
        return torch.stack([part.y for part in self.parts], dim=-1) if self.table is None else self.table[1]

    @property
    def training_table(self) -> "OutputStates":
        self.common("importance")
        return self

    @property
    def theta(self) -> tuple[Tensor, ...]:
        """The kernel's parameters, the same for every output."""
        return self.parts[0].theta

    @property
    def distinct(self) -> int:
        return max(part.distinct for part in self.parts)

    @property
    def points(self) -> Float[Tensor, "*batch u d"]:
        return self.common("points").points

    @property
    def batch_shape(self) -> torch.Size:
        return self.parts[0].batch_shape

    @property
    def plan(self) -> Plan | None:
        return self.report.plan

    @property
    def differentiable(self) -> bool:
        return self.parts[0].differentiable

    @property
    def factor(self) -> None:
        raise DomainError(
            f"`factor` must be of one covariance matrix, got a posterior of {len(self.parts)} outputs with noise of "
            "their own; take post.by_output[j].factor"
        )

    @property
    def by_solves(self) -> bool:
        """True if answers of any output come from solves."""
        return any(part.by_solves for part in self.parts)

    @property
    def evidence_known(self) -> bool:
        return all(part.evidence_known for part in self.parts)

    def checked_points(self, x: Any, name: str) -> Tensor:
        """As `State.checked_points`."""
        return self.parts[0].checked_points(x, name)

    def obstacle(self, question: str) -> str | None:
        reasons = (one.obstacle(question) for one in self.parts)
        return self.obstacle_to_terms(question) or next((reason for reason in reasons if reason is not None), None)

    def tensors(self) -> dict[str, Tensor]:
        if self.table is not None:
            raise DomainError(
                "`model` must have all cells of y to be saved, got some that are missing; save each output: "
                "fgp.save(post.by_output[j], path), or condition again after loading its parameters"
            )
        return super().tensors() | {"residual": self.residual, "representer_weights": self.representer_weights}

    def mapped(
        self,
        function: Callable[[State, int], State],
        prior: Prior | None = None,
        table: tuple[Tensor, Tensor] | None = None,
    ) -> "OutputStates":
        """The states that a function makes of each, by its number, with the prior of all of them, and their table where
        cells are missing or were."""
        parts = tuple(function(part, j) for j, part in enumerate(self.parts))
        report = joined_report([part.report for part in parts])
        table = table or self.table
        missing = table is not None and bool(table[1].isnan().any())
        return OutputStates(prior or self.prior, parts, report, table if missing else None)


AnyState = State | OutputStates


def joined_report(reports: Sequence[Report]) -> Report:
    """One report of the work on each output: sums of seconds, the worst of residuals and bounds, every event once."""
    first = reports[0]

    def largest(name: str) -> float | None:
        return max((value for report in reports if (value := getattr(report, name)) is not None), default=None)

    def total(name: str) -> float | None:
        values = [value for report in reports if (value := getattr(report, name)) is not None]
        return sum(values) if values else None

    def texts(name: str) -> str:
        return joined_titles(*(getattr(report, name) for report in reports))

    jitters = [report.jitter for report in reports]
    errors = [report.standard_error for report in reports if report.standard_error is not None]
    return replace(
        first,
        route=texts("route"),
        backend=texts("backend"),
        dtype=texts("dtype"),
        iterations=None if (most := largest("iterations")) is None else int(most),
        relative_residual=largest("relative_residual"),
        error_bound=largest("error_bound"),
        standard_error=sum(error * error for error in errors) ** 0.5 if errors else None,
        jitter=None if jitters.count(None) == len(jitters) else [_largest(jitter) for jitter in jitters],
        predicted_bytes=None if (most := largest("predicted_bytes")) is None else int(most),
        peak_bytes=None if (most := largest("peak_bytes")) is None else int(most),
        predicted_seconds=largest("predicted_seconds"),
        seconds=total("seconds"),
        compile_seconds=total("compile_seconds"),
        events=list(dict.fromkeys(event for report in reports for event in report.events)),
    )


def _largest(jitter: float | list[float] | None) -> float:
    return 0.0 if jitter is None else max(jitter) if isinstance(jitter, list) else jitter
