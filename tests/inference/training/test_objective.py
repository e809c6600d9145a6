"""The seam between objectives and their optimisers: another objective than the log joint, made here."""

import math

import numpy
import pytest
import torch

import flashgp as fgp
from flashgp.inference.training.objective import Evaluation, Objective, log_values
from flashgp.inference.training.options import FitSettings
from flashgp.inference.training.settings import SearchSettings
from inference.plain_gp import data, model
from inference.training.tables import planned, prior, table


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


@pytest.mark.filterwarnings("error")
def test_values_whose_exponential_overflows_have_a_density() -> None:
    """A search tries such steps; their logarithms are finite."""
    theta, lower = numpy.array([-900.0, -1.0, 2.0, 900.0]), numpy.array([0.0, 0.5, 0.0, 0.5])
    value, slope = log_values(lower, theta)
    assert numpy.allclose(value[1:3], numpy.log(lower[1:3] + numpy.exp(theta[1:3])), rtol=1e-15)
    assert value[[0, 3]].tolist() == [-900.0, 900.0]
    step = 1e-6
    slopes = (log_values(lower, theta + step)[0] - log_values(lower, theta - step)[0]) / (2.0 * step)
    assert numpy.allclose(slope, slopes, atol=1e-6)


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


def test_an_objective_without_estimated_gradients_is_refused_where_these_are_planned() -> None:
    x, y = table(220)
    settings = FitSettings(objective=LeaveOneOut)
    with pytest.raises(fgp.DomainError, match="`estimated` beside another `objective`"):
        fgp.fit(prior(), x, y, plan=planned(prior(), 220), settings=settings)
