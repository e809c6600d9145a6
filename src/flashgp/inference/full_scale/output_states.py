"""FullScaleOutputs: outputs with noise of their own by full scale, a state of each, of one layout and one A of rows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from flashgp.foundations.report import Report
from flashgp.inference.full_scale.factor import Sums
from flashgp.inference.full_scale.layout import Layout
from flashgp.inference.full_scale.state import FullScaleState
from flashgp.inference.output_states import StatesOfOutputs
from flashgp.inference.prior import Prior
from flashgp.planner.plan import Sizes


@dataclass(frozen=True, eq=False)
class FullScaleOutputs(StatesOfOutputs):
    """Fields: as `StatesOfOutputs`, each part of y without an axis for outputs; x (n, d) and y (n, outputs)."""

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
    def ranks(self) -> int:
        return self.parts[0].ranks

    @property
    def loss(self) -> str:
        return str(self.__dict__.get("lost") or "posterior.lost estimates it")

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
