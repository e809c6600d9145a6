"""FullScaleOutputs: outputs with noise of their own by full scale, a state of each, of one layout and one A of rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from jaxtyping import Float64
from torch import Tensor

from flashgp.foundations.form import Rows
from flashgp.foundations.report import Report
from flashgp.inference.base_state import BaseState, UpdateState
from flashgp.inference.full_scale.factor import Sums
from flashgp.inference.full_scale.layout import Layout
from flashgp.inference.full_scale.state import FullScaleState
from flashgp.inference.prior import Prior
from flashgp.inference.replicates import Replicates, join
from flashgp.inference.run import Run
from flashgp.planner.plan import Sizes


@dataclass(frozen=True, eq=False)
class FullScaleOutputs(BaseState):
    """Fields: prior, of all outputs, detached; x (n, d) and y (n, outputs), the table; parts, the state of each output,
    of y without an axis for outputs; report, of all."""

    prior: Prior
    x: Tensor
    y: Tensor
    parts: tuple[FullScaleState, ...]
    report: Report
    factor: ClassVar[None] = None

    @property
    def layout(self) -> Layout:
        return self.parts[0].layout

    @property
    def sizes(self) -> Sizes:
        return self.parts[0].sizes

    @property
    def inducing(self) -> Tensor:
        return self.parts[0].inducing

    @property
    def rows(self) -> Rows:
        return self.parts[0].rows

    @property
    def run(self) -> Run:
        return self.parts[0].run

    @property
    def ranks(self) -> int:
        return self.parts[0].ranks

    @property
    def online(self) -> UpdateState:
        return self.parts[0].online

    @property
    def loss(self) -> str:
        return str(self.__dict__.get("lost") or "posterior.lost estimates it")

    @property
    def residual(self) -> Float64[Tensor, "u p"]:
        return torch.cat([part.residual for part in self.parts], -1)

    @property
    def noise(self) -> Float64[Tensor, "rows p"]:
        return torch.stack([part.noise for part in self.parts], -1)

    @property
    def representer_weights(self) -> Float64[Tensor, "u p"]:
        return torch.cat([part.representer_weights for part in self.parts], -1)

    @cached_property
    def replicates(self) -> Replicates | None:
        """The distinct rows, with the targets of all outputs."""
        joined = self.parts[0].replicates
        return None if joined is None else join(self.prior, self.x, self.y, joined.group)

    def obstacle(self, question: str) -> str | None:
        return super().obstacle(question) or self.parts[0].obstacle(question)

    def tensors(self) -> dict[str, Tensor]:
        each = [part.sums for part in self.parts]
        stacked = {name: torch.stack([getattr(one, name) for one in each]) for name in ("inner", "projected")}
        numbers = {"sums": torch.stack([one.numbers for one in each])}
        return self.parts[0].tensors() | super().tensors() | stacked | numbers

    def numbers(self) -> dict[str, Any]:
        sizes = self.sizes
        return {
            "kind": "full_scale_outputs", "block": sizes.block, "neighbours": sizes.neighbours,
            "predicting": sizes.predicting,
        }  # fmt: skip

    def under(self, prior: Prior, online: UpdateState) -> "FullScaleOutputs":
        return self._mapped(prior, lambda part, own: part.under(own, online))

    def with_prior(self, prior: Prior) -> "FullScaleOutputs":
        return self._mapped(prior.held(), FullScaleState.with_prior)

    def _mapped(self, prior: Prior, function: Callable[[FullScaleState, Prior], FullScaleState]) -> "FullScaleOutputs":
        parts = (function(part, prior.output(j, live=False)) for j, part in enumerate(self.parts))
        return replace(self, prior=prior, parts=tuple(parts))

    def log_marginal_likelihood(self) -> Tensor:
        """Sum over the outputs, nats."""
        return torch.stack([part.log_marginal_likelihood() for part in self.parts]).sum()


AnyFullScale = FullScaleState | FullScaleOutputs


def of_outputs(whole: FullScaleState, sums: Sequence[Sums], basis: Tensor | None) -> FullScaleOutputs:
    """The state of outputs with noise of their own, from one that has the targets of all of them.

    Args: sums, of each; basis, A of the rows, None where it is still to be computed.
    """
    parts = []
    basis = whole.basis if basis is None else basis
    for j, one in enumerate(sums):
        joined = None if whole.replicates is None else whole.replicates.of_output(j)
        part = replace(
            whole, prior=whole.prior.output(j, live=False), y=whole.y[:, j].contiguous(),
            noise=whole.noise[:, j].contiguous(), residual=whole.residual[:, j : j + 1].contiguous(), sums=one,
            replicates=joined,
            report=replace(whole.report, events=list(whole.report.events)),
        )  # fmt: skip
        part.__dict__["basis"] = basis
        parts.append(part)
    return FullScaleOutputs(whole.prior, whole.x, whole.y, tuple(parts), whole.report)
