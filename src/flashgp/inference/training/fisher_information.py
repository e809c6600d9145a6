"""The Fisher information of a GP's parameters from simulated scores: the curvature of its likelihood, without one
matrix per parameter.

If y came from the model, a = K^-1 (y - m) ~ N(0, K^-1), and the score of any parameter psi is

    s_psi(a) = 1/2 a^T (dK/dpsi) a + (dm/dpsi)^T a + const,      F = Cov s(a)                     (M-103, M-104)

so F is the covariance of the scores of draws a = L^-T z: each takes one pass over the pairs. For covariance
parameters this is 1/2 tr(K^-1 dK_i K^-1 dK_j), Rasmussen & Williams (2006), section 5.4.1. Where rows stand for several
observations, the scatter of these around their mean says something about the noise too, independently of a:

    F_noise += sum_g  p e_g / (2 s_g^2)  (ds_g/dpsi) (ds_g/dpsi)^T                                     (M-109)
"""

import numpy
import torch

from flashgp import linalg
from flashgp.inference.exact.likelihood import factorise_covariance
from flashgp.inference.training.fisher_scoring import Curvature
from flashgp.inference.training.objective import LogJoint
from flashgp.inference.training.settings import StochasticSettings
from flashgp.pairwise.cpu.backend import CpuTiles
from flashgp.pairwise.problem import PairProblem

REPEATS_SEED = 2**33  # added to a seed for the draws of what repeated rows say
SHRINKAGE = 0.1  # towards the diagonal: so few draws know small eigenvalues badly


def fisher_information(objective: LogJoint, theta: numpy.ndarray, draws: int, seed: int) -> numpy.ndarray:
    """The Fisher information at a flat vector, (p, p), positive definite, without the curvature of priors.

    Args:
        objective: of the rows that count, exact; draws: simulated data sets, several times p.
    Raises: NotPositiveDefiniteError. Cost: n^3 / 3 flops for each covariance matrix and `draws` passes over the pairs.
    """
    objective.parameters.assign(theta)
    problem, size = objective.problem, objective.parameters.size
    prior, direct, form = problem.prior, problem.direct, problem.prior.kernel.form
    with torch.no_grad():
        residual, noise, rows, values = prior.likelihood_inputs(problem.x, problem.y)
        repeats = prior.likelihood.scale_information(residual.device, residual.shape[-1])
    generator = torch.Generator().manual_seed(seed)
    shape = (*residual.shape, draws)
    weights = torch.randn(shape, generator=generator, dtype=torch.float64).to(residual.device)  # L^-T of them below
    matrices = [(noise[..., j], slice(j, j + 1)) for j in range(prior.factors)] if prior.separate else None
    for noise_of_rows, columns in matrices or [(noise, slice(None))]:
        with torch.no_grad():
            lower = factorise_covariance(direct, form, values, rows, noise_of_rows).lower.double()
        normal = weights[:, columns].flatten(1)
        solved = linalg.solve_triangular(lower.mT, normal, upper=True, device=linalg.own_device(lower))
        weights[:, columns] = solved.unflatten(1, (-1, draws))
        del lower
    spread = None
    if repeats is not None:  # their own generator: these draws are independent of those of a
        generator = torch.Generator().manual_seed(seed + REPEATS_SEED)
        draws_of_repeats = torch.randn((draws, *repeats.shape), generator=generator, dtype=torch.float64)
        spread = repeats.sqrt() * draws_of_repeats.to(repeats.device)
    # Compiled loops: as many passes as this are worth their compile at any size.
    backend = CpuTiles.for_every_size() if residual.device.type == "cpu" else direct.backend
    scores = numpy.empty((draws, size))
    for k in range(draws):
        one = weights[..., k]
        with torch.enable_grad():
            residual, noise, rows, values = prior.likelihood_inputs(problem.x, problem.y)
            inputs = (residual, noise, *rows.tensors, *values)
            with torch.no_grad():
                pairs = PairProblem(form, values, rows).detached()
                pulled = backend.bilinear_gradient(pairs, 0.5 * one, one, workspace=direct.workspace)
            by_noise = 0.5 * one.square()
            by_noise = by_noise if prior.separate else by_noise.sum(-1)
            by_noise = by_noise if spread is None else by_noise + spread[k]  # of that covariance, as (M-109) wants it
            slopes = [-one, by_noise, *pulled.rows, *pulled.theta]
            _, scores[k] = objective.pull(inputs, slopes)
    centred = scores - scores.mean(axis=0)
    information = centred.T @ centred / max(1, draws - 1)
    information = (1.0 - SHRINKAGE) * information + SHRINKAGE * numpy.diag(numpy.diag(information))
    return information + 1e-6 * max(float(numpy.trace(information)) / max(1, size), 1e-6) * numpy.eye(size)


def log_joint_curvature(
    objective: LogJoint, theta: numpy.ndarray, rows: int, settings: StochasticSettings, seed: int
) -> Curvature:
    """The curvature of the log joint at an optimum of few rows: their Fisher information, and what priors add when it
    is scaled to `rows`.

    Raises: NotPositiveDefiniteError.
    """
    draws = max(settings.min_draws, settings.draws_per_parameter * objective.parameters.size)
    matrix = fisher_information(objective, theta, draws, seed)
    step, priors = 1e-3, objective.priors.value_and_gradient  # independent of each other: a diagonal, by differences
    change = (priors(theta - step)[1] - priors(theta + step)[1]) / (2.0 * step)
    return Curvature(matrix + numpy.diag(numpy.maximum(0.0, change)) * (objective.rows / rows))
