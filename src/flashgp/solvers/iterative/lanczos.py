"""Stochastic Lanczos quadrature: log|A| of a system that is never factorised, with a standard error.

Probes pass through the preconditioned matrix, whose spectrum is narrow, so that few steps and few probes tell its log
determinant; that of the preconditioner is known, a control variate. Lanczos runs with full reorthogonalisation: the
number of steps is modest, and without it small eigenvalues would appear several times. It gives a value, not a
gradient.
Sources: Ubaru, Chen & Saad (2017), Fast estimation of tr(f(A)) via stochastic Lanczos quadrature; Gardner et al.
(2018), GPyTorch, section 4.1, for the preconditioned form.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from flashgp import linalg
from flashgp.solvers.contract import System, check_residual
from flashgp.solvers.preconditioners.preconditioner import Preconditioner
from flashgp.solvers.settings import DEFAULTS, LanczosSettings

F64 = torch.float64


@dataclass(frozen=True)
class LogDeterminant:
    """Fields: value; standard_error of the mean over probes; probes; steps, the float64 passes it took."""

    value: float
    standard_error: float
    probes: int
    steps: int


def log_determinant(
    system: System, preconditioner: Preconditioner, settings: LanczosSettings = DEFAULTS.lanczos, *, seed: int = 0
) -> LogDeterminant:
    """log|A| = log|P| + E z^T log(L^-1 A L^-T) z with P = L L^T and random signs z, eq. (M-99).

    It ends once a step changes the estimates by little of their standard error. With a factor of A in float32 as P
    little is left to estimate.
    Raises: ConvergenceError as soon as a number that is not finite appears.
    Cost: one float64 pass, two half solves, and 4 n probes steps flops per step;
        8 n probes steps bytes, counted as the steps come.
    """
    n, probes = system.space.count(system.noise), settings.probes
    generator = torch.Generator().manual_seed(seed)
    signs = system.space.local(torch.randint(0, 2, (n, probes), generator=generator)).to(system.device, F64) * 2.0 - 1.0

    def preconditioned(v: Tensor) -> Tensor:
        return preconditioner.half_solve(system.multiply(preconditioner.half_solve_transposed(v)))

    samples, taken = _quadrature(preconditioned, signs, system, settings)
    mean, error = float(samples.mean()), float(samples.std()) / math.sqrt(probes)
    return LogDeterminant(preconditioner.log_determinant + mean, error, probes, taken)


def _quadrature(
    multiply: Callable[[Tensor], Tensor], start: Tensor, system: System, settings: LanczosSettings
) -> tuple[Tensor, int]:
    """z^T log(M) z for every column z of `start`, (t,), and the steps taken."""
    (n, t), space = start.shape, system.space
    rows = space.count(start)
    steps = min(settings.max_steps, rows)
    size = space.norm(start)
    basis = [start / size]
    diagonal: list[Tensor] = []
    beside = start.new_zeros(0, t)
    samples = torch.zeros(t, dtype=F64, device=start.device)
    for step in range(steps):
        with system.workspace.hold(8 * n * t * (step + 4)):
            image = multiply(basis[-1])
            check_residual("Lanczos", step + 1, image, "a product with the covariance matrix")
            diagonal.append(space.sum(basis[-1] * image))
            for _ in range(2):  # twice is enough: Parlett (1998), The symmetric eigenvalue problem, section 6.9
                for known in basis:
                    image = image - known * space.sum(known * image)
        last, samples = samples, size.square() * log_of_tridiagonal(torch.stack(diagonal), beside)
        change = float((samples - last).abs().max())
        allowed = settings.settled * float(samples.std()) / math.sqrt(t)
        allowed += settings.min_settled * float(samples.abs().max())
        length = space.norm(image)
        exhausted = bool((length <= rows * torch.finfo(F64).eps * torch.stack(diagonal).abs().amax(0)).all())
        if (step and change <= allowed) or exhausted:
            return samples, step + 1
        beside = torch.cat([beside, length.unsqueeze(0)])
        basis.append(image / length.clamp_min(torch.finfo(F64).tiny))
    return samples, steps


def log_of_tridiagonal(diagonal: Tensor, beside: Tensor) -> Tensor:
    """e_1^T log(T) e_1 of tridiagonal T, (t,), from their entries (m, t) and (m - 1, t). An eigenvalue that rounding
    made 0 or less counts as the least."""
    matrix = torch.diag_embed(diagonal.mT)
    matrix.diagonal(1, dim1=-2, dim2=-1).copy_(beside.mT)
    matrix.diagonal(-1, dim1=-2, dim2=-1).copy_(beside.mT)
    values, vectors = linalg.eigh(matrix, device=linalg.own_device(matrix))
    least = torch.finfo(F64).eps * values[:, -1:].clamp_min(torch.finfo(F64).tiny)
    return (vectors[:, 0].square() * torch.maximum(values, least).log()).sum(-1)
