"""Training of outputs with noise of their own: the objective is the sum of those of single outputs."""

import numpy
import pytest
import torch

import flashgp as fgp
from flashgp.foundations.determinism import deterministically
from flashgp.inference.replicates import equal_rows, join
from flashgp.inference.training.history import Solving
from flashgp.inference.training.objective import LogJoint
from inference.training.tables import objectives, problem, table

F64 = torch.float64
NOISE = torch.tensor([0.05, 2.0], dtype=F64)


def two(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = table(n, outputs=2, noise=1e-8)
    generator = torch.Generator().manual_seed(7)
    return x, y + NOISE.sqrt() * torch.randn(n, 2, generator=generator, dtype=F64)


def kernel() -> fgp.kernels.Kernel:
    return 1.5 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.full((3,), 1.2, dtype=F64))


def together() -> fgp.GP:
    prior = torch.distributions.LogNormal(torch.log(NOISE), 1.0)
    noise = fgp.likelihoods.Gaussian(fgp.Parameter(NOISE, prior=prior), outputs=2)
    return fgp.GP(kernel(), fgp.means.Constant([0.2, -0.4], outputs=2), noise, outputs=2)


def alone(j: int) -> fgp.GP:
    noise = fgp.Parameter(NOISE[j], prior=torch.distributions.LogNormal(torch.log(NOISE[j]), 1.0))
    return fgp.GP(kernel(), fgp.means.Constant([0.2, -0.4][j]), fgp.likelihoods.Gaussian(noise))


@pytest.mark.parametrize(("n", "general"), [(60, False), (60, True), (500, False)])
@pytest.mark.parametrize("joined", [False, True])
def test_the_objective_is_the_sum_over_outputs(n: int, general: bool, joined: bool) -> None:
    x, y = two(n)
    if joined:
        x, y = torch.cat([x, x[:20]]), torch.cat([y, y[:20] + 0.3])
    found, wanted = {}, {}
    for gp, targets, into in [(together(), y, found), *((alone(j), y[:, j], wanted) for j in range(2))]:
        rows = x
        if joined:
            replicates = join(gp, x, targets, equal_rows(gp, x, targets))
            rows, targets, gp.likelihood = replicates.x, replicates.y, replicates.likelihood
        objective = LogJoint(problem(gp, rows, targets))
        with deterministically(general):  # leaves NumPy out
            one = objective(objective.parameters.values())
        into["value"] = into.get("value", 0.0) + one.value
        for slot in objective.parameters.slots:
            part = one.gradient[slot.entries]
            if slot.name.startswith("kernel"):
                into[slot.name] = into.get(slot.name, 0.0) + part
            else:
                into[slot.name] = numpy.concatenate([into.get(slot.name, numpy.zeros(0)), part])
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        numpy.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-9 * abs(wanted["value"]))


@pytest.mark.parametrize("factors", [Solving.ITERATIONS, Solving.FLOAT32_FACTOR])
def test_estimated_gradients_are_unbiased_for_each_output(factors: Solving) -> None:
    """(M-102), within four standard errors."""
    x, y = two(120)
    gp = together()
    exact, _ = objectives(gp, x, y)
    theta = exact.parameters.values()
    wanted, found = exact(theta).gradient, []
    for seed in range(8):
        _, large = objectives(gp, x, y, seed=seed)
        large.solve_by(factors)
        found.append(large(theta).gradient)
        again = large(theta + 1e-9).gradient
        assert numpy.allclose(again, found[-1], rtol=1e-2, atol=1e-2), "the same probes until they are refreshed"
    mean, error = numpy.mean(found, axis=0), numpy.std(found, axis=0, ddof=1) / len(found) ** 0.5
    assert (numpy.abs(mean - wanted) < 4.0 * error + 2e-2 * numpy.abs(wanted) + 0.5).all()
    large.refresh(theta)
    assert numpy.abs(large(theta).gradient - again).max() > 1e-3
