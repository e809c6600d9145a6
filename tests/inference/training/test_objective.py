"""The seam between objectives and their optimisers: another objective than the log joint, made here."""

import dataclasses
import math

import numpy
import pytest
import torch

import flashgp as fgp
from flashgp.inference.training.objective import Evaluation, Objective
from flashgp.inference.training.options import FitSettings
from flashgp.inference.training.settings import SearchSettings
from flashgp.inference.training.stochastic_objective import EstimatedLogJoint
from inference.plain_gp import data, model
from inference.training.tables import FEW_ROWS, planned, prior, table


class LeaveOneOut(Objective):
    """Minus the log density of each row given all others, Rasmussen & Williams (2006), eqs. 5.10 to 5.12."""

    def __call__(self, theta: numpy.ndarray) -> Evaluation:
        self.parameters.assign(theta)
        prior, x, y = self.problem.prior, self.problem.x, self.problem.y
        with torch.enable_grad():
            residual, noise, _, _ = prior.likelihood_inputs(x, y)
            covariance = prior.kernel.operator(x).to_dense() + torch.diag(noise.expand(len(x)))
            precision = torch.linalg.inv(covariance)
            variance = 1.0 / precision.diagonal()
            error = (precision @ residual)[:, 0] * variance
            value = 0.5 * (error.square() / variance + variance.log() + math.log(2.0 * math.pi)).sum()
            slopes = torch.autograd.grad(value, self.parameters.tensors, allow_unused=True)
        return Evaluation(value.item(), self.parameters.flat(slopes))


@pytest.mark.parametrize("rows", [400, 8])
def test_an_objective_from_outside_is_minimised(rows: int) -> None:
    """On all rows, or with a start chosen on some of them."""
    x, y = data(14)
    search = SearchSettings(start_rows=rows)
    settings = FitSettings(search=search, objective=LeaveOneOut)
    found = fgp.fit(model(), x, y, priors="given", starts=2, settings=settings)
    likely = fgp.fit(model(), x, y, priors="given", starts=2)
    scores = [float(fit.posterior.leave_one_out().log_prob.sum()) for fit in (found, likely)]
    assert scores[0] > scores[1] + 0.1
    assert max(e.value for e in found.history if e.start.startswith("start")) == pytest.approx(scores[0], rel=1e-9)


class EstimatedLeaveOneOut(EstimatedLogJoint):
    """Gradients of it without values, as searches of many rows take them."""

    def __call__(self, theta: numpy.ndarray) -> Evaluation:
        return Evaluation(None, LeaveOneOut(self.problem)(theta).gradient, self.estimate)


def test_an_objective_from_outside_is_minimised_where_gradients_are_estimated() -> None:
    """On the first rows by its values, which also say whether a later search diverged; on all rows by gradients."""
    x, y = table(220)
    few = dataclasses.replace(FEW_ROWS, first_rows=200)  # the curvature of the log joint is not that of this objective
    settings = FitSettings(stochastic=few, objective=LeaveOneOut, estimated=EstimatedLeaveOneOut)
    options = {"priors": "given", "starts": 1}
    found = fgp.fit(prior(), x, y, plan=planned(prior(), 220), settings=settings, **options)
    wanted = fgp.fit(prior(), x, y, settings=FitSettings(objective=LeaveOneOut), **options)
    likely = fgp.fit(prior(), x, y, **options)
    scores = [float(fit.posterior.leave_one_out().log_prob.sum()) for fit in (found, wanted, likely)]
    assert scores[0] > scores[1] - 1.0, "as good as by its exact gradients: an estimate may cost some tenths of a nat"
    assert scores[0] > scores[2] + 1.0, "and another optimum than that of the log joint"
    order = torch.randperm(220, generator=torch.Generator().manual_seed(0))[: few.first_rows].sort().values
    first = next(e for e in found.history if e.start.startswith("subset"))
    names = [name for name, _ in found.gp.named_parameters()]
    values = torch.tensor(first.theta, dtype=x.dtype).split([p.numel() for p in found.gp.parameters()])
    there = prior()
    there.load_state_dict({n: v.view(p.shape) for n, v, p in zip(names, values, there.parameters(), strict=True)})
    scored = there.condition(x[order], y[order]).leave_one_out().log_prob.sum()
    assert first.value == pytest.approx(float(scored), rel=1e-9)


def test_an_objective_without_estimated_gradients_is_refused_where_these_are_planned() -> None:
    x, y = table(220)
    settings = FitSettings(objective=LeaveOneOut)
    with pytest.raises(fgp.DomainError, match="`estimated` beside another `objective`"):
        fgp.fit(prior(), x, y, plan=planned(prior(), 220), settings=settings)
