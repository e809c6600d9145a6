"""States from numbers that are at hand: those of a model file, or of another prior with the same covariance matrix."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from flashgp.foundations.report import Report
from flashgp.inference.base_state import UpdateState
from flashgp.inference.output_states import AnyState, OutputStates
from flashgp.inference.prior import Prior
from flashgp.inference.replicates import Replicates, join
from flashgp.inference.run import Run
from flashgp.inference.state import State
from flashgp.solvers.direct.cholesky import TriangularFactor

STORED = ("representer_weights", "residual", "x", "y")  # properties of a state, from which it is restored


@torch.no_grad()
def restore(
    prior: Prior,
    data: Mapping[str, Tensor],
    factors: Sequence[TriangularFactor] | None,
    report: Report,
    *,
    group: Tensor | None = None,
    run: Run | None = None,
    online: UpdateState | None = None,
) -> AnyState:
    """A state from what was computed before; features and kernel parameters are computed again.

    Args:
        prior: held.
        data: tensors by the names of STORED.
        factors: one, or of outputs with noise of their own one of each; None where solves answer.
        group: (n,), the distinct row that each row of x joined; None where no row repeats.
    """
    x, y, whole = data["x"], data["y"], prior
    replicates = None if group is None else join(prior, x, y, group)
    rows = prior.kernel.rows(x if replicates is None else replicates.x)
    theta = tuple(value.to(x.device) for value in prior.kernel.theta())

    def state(prior: Prior, y: Tensor, joined: Replicates | None, columns: slice, report: Report) -> State:
        numbers = {name: data[name] for name in ("residual", "representer_weights")}
        if prior is not whole:  # in the order of memory that conditioning left them in
            numbers = {name: value[..., columns].contiguous() for name, value in numbers.items()}
        return State(
            prior, x, y, rows, theta, numbers["residual"],
            None if factors is None else factors[columns.start or 0], report,
            numbers["representer_weights"], replicates=joined, run=run or Run(),
            online=online or UpdateState(),
        )  # fmt: skip

    if not prior.separate:
        return state(prior, y, replicates, slice(None), report)
    parts = []
    for j in range(prior.factors):
        joined = None if replicates is None else replicates.of_output(j)
        own = replace(report, events=list(report.events))
        parts.append(state(prior.output(j, live=False), y[..., j].contiguous(), joined, slice(j, j + 1), own))
    return OutputStates(prior, tuple(parts), report)
