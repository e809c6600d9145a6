"""Fisher information from simulated scores, against its definition."""

import numpy
import pytest
import torch

import flashgp as fgp
from flashgp.inference.replicates import equal_rows, join
from flashgp.inference.training.fisher_scoring import fisher_information
from flashgp.inference.training.objective import LogJoint
from inference.training.tables import prior, problem, table


def test_fisher_information_from_scores():
    """(M-103), (M-104): 1/2 tr(K^-1 dK_i K^-1 dK_j) for covariance parameters, m'^T K^-1 m' for the mean."""
    x, y = table(40)
    gp = prior()
    exact = LogJoint(problem(gp, x, y))
    theta = exact.parameters.values()
    found = fisher_information(exact, theta, 300, 0)

    def matrix(raw: numpy.ndarray) -> torch.Tensor:
        exact.parameters.assign(raw)
        with torch.no_grad():
            return gp.kernel.operator(x).to_dense() + torch.diag(gp.likelihood.diagonal(40, x.device).expand(40))

    step = 1e-5 * numpy.eye(len(theta))
    slopes = torch.stack([(matrix(theta + one) - matrix(theta - one)) / 2e-5 for one in step])
    inverse = torch.linalg.inv(matrix(theta))
    scaled = inverse @ slopes
    wanted = 0.5 * torch.einsum("iab,jba->ij", scaled, scaled)
    for slot in exact.parameters.slots:
        if slot.name.startswith("mean"):
            wanted[slot.entries, slot.entries] += inverse.sum()
    wanted = wanted.numpy()
    diagonal = numpy.diag(numpy.diag(wanted))
    wanted = 0.9 * wanted + 0.1 * diagonal
    scale = numpy.sqrt(numpy.outer(numpy.diag(wanted), numpy.diag(wanted)))
    assert (numpy.abs(found - wanted) < 0.25 * scale).all()


@pytest.mark.parametrize(("outputs", "shared"), [(None, False), (2, True), (2, False)])
def test_fisher_information_counts_what_repeats_say_about_the_noise(outputs, shared):
    """(M-109): the information of the joined rows with their factors is that of all rows, which is known."""
    x, y = table(30, outputs=outputs)
    times = torch.arange(30) % 6 + 1
    x, y = x.repeat_interleave(times, 0), y.repeat_interleave(times, 0)
    y = y + 0.3 * torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    gp = prior(outputs=outputs)
    if shared:
        gp.likelihood = fgp.likelihoods.Gaussian(0.1, shared=True)
    whole = LogJoint(problem(gp, x, y))
    wanted = fisher_information(whole, whole.parameters.values(), 200, 0)
    joined = join(gp, x, y, equal_rows(gp, x, y))
    gp.likelihood = joined.likelihood
    few = LogJoint(problem(gp, joined.x, joined.y))
    assert few.parameters.names() == whole.parameters.names()
    found = fisher_information(few, few.parameters.values(), 200, 1)
    scale = numpy.sqrt(numpy.outer(numpy.diag(wanted), numpy.diag(wanted)))
    # Of 200 draws a variance is known to sqrt(2 / 200), the difference of two to 0.14: four of these.
    assert (numpy.abs(found - wanted) < 0.57 * scale).all()
    own, excess = outputs is not None and not shared, gp.likelihood.excess
    noises = [i for i, name in enumerate(few.parameters.names()) if name.startswith("likelihood")]
    assert len(noises) == (2 if own else 1)
    variances = gp.likelihood.diagonal(len(joined.x), x.device).detach()
    repeats = gp.likelihood.scale_information(x.device, outputs or 1)
    sharing = 1 if own else outputs or 1
    assert torch.allclose(repeats * variances.square(), 0.5 * sharing * (excess.unsqueeze(-1) if own else excess))
    half = 0.5 * sharing * (len(x) - 30)
    for noise in noises:
        assert found[noise, noise] > 0.8 * half, "in the logarithm of the noise variance: half of the excess"
