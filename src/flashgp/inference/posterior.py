"""Posterior: a prior conditioned on data, as a value. Factor once, reuse in every prediction.

With K^ = K + noise and r = y - m(x): representer_weights = K^-1 r, eq. (M-30). The posterior owns a detached copy of
the prior, so changing parameters afterwards changes nothing here.
"""

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flashgp.foundations.checks import check_points, check_targets
from flashgp.foundations.errors import DomainError, FlashGPWarning, ShapeError
from flashgp.foundations.form import Rows
from flashgp.foundations.modes import exact_precision, ordinary_tensors
from flashgp.foundations.report import Report
from flashgp.foundations.workspace import Workspace
from flashgp.inference.gp import GP
from flashgp.inference.likelihood_gradient import LOG_2PI, DirectSettings, factorise_covariance
from flashgp.inference.planning import check_plan, check_prediction_plan, plan_for, planned_device
from flashgp.inference.prediction import Prediction
from flashgp.operators.covariance import CovarianceOperator
from flashgp.operators.multiplication import LEAST_PAIRS, Orders
from flashgp.pairwise.torch_tiles import TorchTiles, tile_rows
from flashgp.planner.plan import Plan, allowed_bytes
from flashgp.planner.products import ProductPlan
from flashgp.solvers.cholesky import Factor, factorise_keeping, refine

__all__ = ["LeaveOneOut", "Posterior", "condition"]


@dataclass(frozen=True)
class LeaveOneOut:
    """Predictions of every training row from all the others, eqs. (M-39) and (M-40).

    Fields: mean (*batch, n[, outputs]); variance of the observation, the same shape; log_prob of the observed y.
    """

    mean: Tensor
    variance: Tensor
    log_prob: Tensor


class Posterior:
    """A Gaussian process given data. Made by `gp.condition`; immutable.

    Fields: gp, the prior as it was (a detached copy); x, y, the training data; representer_weights K^-1 (y - m),
    (*batch, n, outputs or 1), float64; factor, the Cholesky factor of K + noise (None without data); report; plan.
    """

    def __init__(
        self,
        gp: GP,
        x: Tensor,
        y: Tensor,
        rows: Rows,
        theta: tuple[Tensor, ...],
        factor: Factor | None,
        representer_weights: Tensor,
        residual: Tensor,
        report: Report,
        differentiable: bool = False,
    ) -> None:
        self.gp = gp
        self.x = x
        self.y = y
        self.rows = rows
        self.theta = theta
        self.factor = factor
        self.representer_weights = representer_weights
        self.residual = residual
        self.report = report
        self.differentiable = differentiable

    @property
    def plan(self) -> Plan | None:
        return self.report.plan

    @property
    def count(self) -> int:
        """The number of training rows."""
        return self.x.shape[-2]

    def predict(
        self,
        x_test: Any,
        *,
        plan: ProductPlan | None = None,
        memory: str | int | None = None,
        deterministic: bool = False,
    ) -> Prediction:
        """The posterior at x_test, (*batch, n_test, d): lazy, tile by tile, differentiable in x_test.

        From 1e7 pairs of training and test rows on it follows a plan, which its report carries.

        Args:
            plan: how to compute it, as `flashgp.plan(gp, n=, d=, n_test=)` made it; by default one is made when the
                mean or the variance is asked for. memory: its budget, what is free by default; deterministic: with
                built-in rates.
        Raises: ShapeError, DomainError for points or a plan that do not fit; where the result is asked for,
            MemoryBudgetError if nothing fits.
        Cost: n n_test (d + 1) for the mean; n^2 n_test flops for the variance; never n x n_test numbers at once.
        """
        x_test = check_points(x_test, "x_test", like=self.x)
        try:
            torch.broadcast_shapes(x_test.shape[:-2], self.batch_shape)
        except RuntimeError:
            raise ShapeError(
                f"`x_test` has batch shape {tuple(x_test.shape[:-2])}, which does not broadcast with the model's "
                f"{tuple(self.batch_shape)}; give it the same leading dimensions, or none"
            ) from None
        return Prediction(self, x_test, self._planner(x_test, plan, memory, deterministic))

    def _planner(
        self, x_test: Tensor, plan: ProductPlan | None, memory: str | int | None, deterministic: bool
    ) -> Callable[[bool], ProductPlan] | None:
        """What makes the plan of a prediction, with its variance or without; None where no plan is worth its time."""
        n_test, d = x_test.shape[-2:]
        if plan is None and memory is None and (self.factor is None or n_test * self.count < LEAST_PAIRS):
            return None
        members = torch.broadcast_shapes(x_test.shape[:-2], self.batch_shape).numel()
        if plan is not None:
            check_prediction_plan(plan, (n_test, self.count, self.gp.outputs or 1, members), memory, x_test.device)
            return lambda variance: plan
        return lambda variance: plan_for(
            self.gp, self.count, d, n_test=n_test, batch=max(1, members // self.gp.kernel.batch_shape.numel()),
            memory=memory, device=x_test.device, variance=variance, deterministic=deterministic,
        )  # fmt: skip

    @property
    def batch_shape(self) -> torch.Size:
        return self.representer_weights.shape[:-2]

    def log_marginal_likelihood(self) -> Tensor:
        """log p(y | x) of eq. (M-33), (*batch,), nats, from the stored factor. Cost: O(n)."""
        if self.factor is None:
            return torch.zeros(self.batch_shape, dtype=torch.float64, device=self.x.device)
        n, p = self.representer_weights.shape[-2:]
        fit = (self.residual * self.representer_weights).sum((-2, -1))
        return -0.5 * (fit + p * self.factor.log_determinant + n * p * LOG_2PI)

    def leave_one_out(self) -> LeaveOneOut:
        """Each observation predicted from the others, without refitting, eqs. (M-39) and (M-40).

        Source: Rasmussen & Williams (2006), section 5.4.2. Cost: n^3 / 3 flops, one strip of the inverse factor.
        """
        if self.factor is None:
            empty = self.y.new_zeros(self.y.shape)
            return LeaveOneOut(empty, empty, empty)
        precision = _inverse_diagonal(self.factor).unsqueeze(-1)
        y = self.y.to(torch.float64)
        y = y if self.gp.outputs is not None else y.unsqueeze(-1)
        error = self.representer_weights / precision
        variance = (1.0 / precision).expand_as(error)
        log_prob = -0.5 * (error.square() / variance + variance.log() + math.log(2.0 * math.pi))
        parts = [y - error, variance, log_prob]
        if self.gp.outputs is None:
            parts = [part.squeeze(-1) for part in parts]
        return LeaveOneOut(*(part.to(self.result_dtype) for part in parts))

    @property
    def result_dtype(self) -> torch.dtype:
        return self.x.dtype

    def covariance_to(
        self, rows: Rows, dtype: torch.dtype, workspace: Workspace | None = None, plan: ProductPlan | None = None
    ) -> CovarianceOperator:
        """The prior covariance between other rows and the training rows; plan: of its products."""
        orders = None if plan is None else Orders(plan)
        return CovarianceOperator(self.gp.kernel.form, self.theta, rows, self.rows, dtype, workspace, orders)

    def __repr__(self) -> str:
        return f"Posterior of {self.count:,} rows\n{self.gp!r}\n{self.report}"

    def _repr_html_(self) -> str:
        return f"{self.gp._repr_html_()}{self.report._repr_html_()}"


@ordinary_tensors
@exact_precision
def condition(
    gp: GP,
    x: Any,
    y: Any,
    *,
    plan: Plan | None,
    memory: str | int | None,
    device: str | torch.device | None,
    dtype: torch.dtype | None,
    tolerance: float,
    jitter: float | None,
    differentiable: bool,
) -> Posterior:
    """See `GP.condition`."""
    started = time.perf_counter()
    if not isinstance(tolerance, int | float) or not tolerance > 0:
        raise DomainError(
            f"`tolerance` must be positive, in standard deviations of an observation, got {tolerance!r}; "
            "for example 1e-3"
        )
    x = check_points(x, "x")
    y = check_targets(y, "y", x, gp.outputs)
    events: list[str] = []
    n, d = x.shape[-2:]
    if plan is None:
        where = x.device if device is None else device
        plan = plan_for(gp, n, d, batch=x.shape[:-2].numel(), memory=memory, device=where, dtype=dtype)
        target = planned_device(plan, device, x)
    else:
        target = planned_device(plan, device, x)
        check_plan(plan, gp, x, memory, dtype, target)
    if target != x.device:
        events.append(f"moved {x.numel() * x.element_size():,} bytes of x from {x.device} to {target}")
        x, y = x.to(target), y.to(target)
    if not differentiable:
        x, y = x.detach(), y.detach()
        gp = gp.held()
    if differentiable and plan.torch_dtype != torch.float64:
        raise DomainError("`dtype` must be torch.float64 with differentiable=True, got torch.float32; leave dtype out")
    workspace = Workspace(allowed_bytes(plan.peak_bytes))
    settings = DirectSettings(
        TorchTiles(), plan.torch_dtype, jitter, repair=lambda: gp.repairable(x, y), workspace=workspace
    )
    with torch.set_grad_enabled(differentiable):
        rows = gp.kernel.rows(x)
        theta = tuple(t.to(target) for t in gp.kernel.theta())
        residual = gp.residual(x, y)
        noise = gp.likelihood.diagonal(n, target)
        batch = torch.broadcast_shapes(
            rows.batch_shape, *(t.shape for t in theta), residual.shape[:-2], noise.shape[:-1]
        )
        residual = residual.expand(*batch, *residual.shape[-2:])
        report = Report(
            route=plan.route, device=str(target), dtype=plan.dtype,
            predicted_bytes=plan.peak_bytes, predicted_seconds=plan.seconds, events=events, plan=plan,
        )  # fmt: skip
        if n == 0:
            report.events.append("no data: the posterior is the prior")
            factor, weights = None, residual
        elif differentiable:
            factor, weights = _solve_with_graph(settings, gp, rows, theta, residual, noise)
        else:
            factor, weights = _solve(settings, gp, rows, theta, residual, noise, tolerance, report)
    _report_jitter(report, settings, factor)
    report.events += workspace.events
    report.backend = workspace.backend
    report.peak_bytes = workspace.peak_bytes
    report.compile_seconds = workspace.compile_seconds or None
    report.seconds = time.perf_counter() - started - workspace.compile_seconds
    return Posterior(gp, x, y, rows, theta, factor, weights, residual, report, differentiable)


def _solve(
    settings: DirectSettings,
    gp: GP,
    rows: Rows,
    theta: tuple[Tensor, ...],
    residual: Tensor,
    noise: Tensor,
    tolerance: float,
    report: Report,
) -> tuple[Factor, Tensor]:
    """Factor, representer weights, and the certificate: a float64 residual and the bound on the mean's error."""
    form = gp.kernel.form
    factor = factorise_covariance(settings, form, theta, rows, noise)
    if residual.numel() == 0:  # a batch of no models
        return factor, residual
    diagonal = (noise + factor.jitter.double().unsqueeze(-1)).unsqueeze(-1)

    def multiply(v: Tensor) -> Tensor:
        product = settings.backend.product(form, theta, rows, None, v, workspace=settings.workspace)
        return product + diagonal * v

    def solve(v: Tensor) -> Tensor:
        return factor.solve(v.to(settings.dtype)).double()

    # Float64 needs no correction; it is measured all the same. Float32 corrects until the answer is good enough.
    smallest = float(diagonal.min())
    largest = float(settings.backend.diagonal(form, theta, rows, dtype=torch.float64).max())
    norm = float(residual.norm(dim=-2).amax())
    single = settings.dtype == torch.float32
    per_residual = math.sqrt(largest / smallest) * norm if smallest > 0 else math.inf
    target = 0.0
    if single:
        target = min(1e-6, tolerance * math.sqrt(smallest) / per_residual) if 0 < per_residual < math.inf else 1e-6
    weights, relative, steps = refine(solve, multiply, residual, target, limit=12 if single else 0)
    report.relative_residual = relative
    report.error_bound = relative * per_residual if per_residual < math.inf else None
    if single:
        report.iterations = steps
        report.events.append(f"float32 factor, {steps} float64 corrections of the weights")
        if relative > target:
            warnings.warn(
                f"float32 refinement stopped at a relative residual of {relative:.1e} (target {target:.1e}): the mean "
                f"is off by at most {relative * per_residual:.2e} in units of y; use dtype=torch.float64",
                FlashGPWarning,
                stacklevel=4,
            )
    return factor, weights


def _solve_with_graph(
    settings: DirectSettings, gp: GP, rows: Rows, theta: tuple[Tensor, ...], residual: Tensor, noise: Tensor
) -> tuple[Factor, Tensor]:
    """The same in autograd: the matrix has a closed-form pullback, the factorisation is torch's."""
    matrix = CovarianceOperator(gp.kernel.form, theta, rows, None, settings.dtype, settings.workspace).to_dense()
    matrix = matrix + torch.diag_embed(noise.to(matrix.dtype).expand(*matrix.shape[:-1]))
    factor = factorise_keeping(matrix, settings.jitter, repair=settings.repair)
    settings.jitters += factor.attempts
    weights = torch.cholesky_solve(residual.to(matrix.dtype), factor.lower).double()
    return factor, weights


def _report_jitter(report: Report, settings: DirectSettings, factor: Factor | None) -> None:
    if factor is None or not settings.jitters:
        return
    added = factor.jitter
    report.jitter = float(added) if added.dim() == 0 else added.tolist()
    tried = ", ".join(f"{r:.1e}" for r in settings.jitters)
    report.events.append(f"jitter added to the diagonal: {report.jitter} (relative steps tried: {tried})")
    if settings.jitter is None:
        members = "" if added.dim() == 0 else f" in batch members {added.nonzero().squeeze(-1).tolist()}"
        warnings.warn(
            f"the covariance matrix was not positive definite in {report.dtype}{members}; a jitter of "
            f"{float(added.max()):.2e} was added to its diagonal (relative steps tried: {tried}). More noise, or fewer "
            "repeated rows, avoids this",
            FlashGPWarning,
            stacklevel=4,
        )


def _inverse_diagonal(factor: Factor) -> Tensor:
    """The diagonal of K^-1 by strips of L^-1, (*batch, n), float64."""
    lower = factor.lower
    n = lower.shape[-1]
    step = tile_rows(n, lower.shape[:-2].numel(), lower.device)
    parts = []
    for start in range(0, n, step):
        stop = min(n, start + step)
        # Columns start..stop of L^-1 are zero above `start`: only the trailing block is solved.
        strip = torch.zeros(n - start, stop - start, dtype=lower.dtype, device=lower.device)
        strip.diagonal().fill_(1.0)
        solved = torch.linalg.solve_triangular(
            lower[..., start:, start:], strip.expand(*lower.shape[:-2], *strip.shape), upper=False
        )
        parts.append(solved.square().sum(-2))
    return torch.cat(parts, dim=-1).double()
