"""Draws of the prior as functions, eqs. (M-94) and (M-95): random features, or a pivoted Cholesky of the training rows.

Both are approximate unless the kernel has a finite rank, and say by how much.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from flashgp import linalg
from flashgp.foundations.checks import check_seed
from flashgp.foundations.errors import DomainError
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.form import Rows, broadcast_batch
from flashgp.foundations.machine import available_bytes
from flashgp.inference.prior import Prior
from flashgp.kernels.random_features import RandomFeatures
from flashgp.operators.covariance import CovarianceOperator
from flashgp.pairwise.problem import PairProblem
from flashgp.processes.agreement import smallest
from flashgp.processes.group import ALONE, Group
from flashgp.solvers.direct.cholesky import factorise_keeping
from flashgp.solvers.preconditioners.pivoted_cholesky import common_pivots

__all__ = ["FeatureDraws", "PivotedDraws", "PriorDraws", "draw_seed", "pivots_of", "prior_covariance", "prior_draws"]

TILE_BYTES = 2**25  # of features alive at once: 32 MiB
SAMPLED = 256  # rows whose pairs measure the prior error
PIVOTED_SHARE = 8  # the columns of a pivoted Cholesky take at most one part in so many of the free memory


class PriorDraws(ABC):
    """Functions f0 of the prior without its mean; called on x (*batch, n, d), their values (*batch, n, columns)."""

    error: float | None = None

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor: ...

    @property
    @abstractmethod
    def event(self) -> Event:
        """What the draws are, for the report."""

    def missing(self, x: Tensor) -> float:
        """The largest share of the prior variance that is certainly missing at some of the points; 0 if none is."""
        return 0.0


class FeatureDraws(PriorDraws):
    """f0(x) = psi(x) . w with w normal, eq. (M-94).

    Args: features, psi; weights, (*batch, features, columns), standard normal; tile_bytes, of features alive at once.
    Cost: F (d + columns) flops per point, for F features.
    """

    def __init__(self, features: RandomFeatures, weights: Tensor, tile_bytes: int = TILE_BYTES) -> None:
        self.features = features
        self.weights = weights
        self.tile_bytes = tile_bytes
        self.exact = False

    @property
    def event(self) -> Event:
        error = None if self.exact else self.error
        return Event(EventKind.RANDOM_FEATURES, features=self.weights.shape[-2], exact=self.exact, error=error)

    def __call__(self, x: Tensor) -> Tensor:
        n = x.shape[-2]
        batch = broadcast_batch(self.weights.shape[:-2], x.shape[:-2]).numel()
        step = max(1, self.tile_bytes // (8 * max(1, self.weights.shape[-2] * batch)))
        if n <= step:
            return self._tile(x)
        kept = torch.is_grad_enabled()  # then only one tile's features are alive in the reverse pass as well
        parts = [
            checkpoint(self._tile, x[..., s : s + step, :], use_reentrant=False)
            if kept
            else self._tile(x[..., s : s + step, :])
            for s in range(0, n, step)
        ]
        return torch.cat(parts, dim=-2)

    def _tile(self, x: Tensor) -> Tensor:
        return self.features(x) @ self.weights

    def measure(self, prior: Prior, x: Tensor) -> None:
        """Set `error` from at most 256 of the points, eq. (M-95)."""
        if self.features.exact(x):
            self.error, self.exact = 0.0, True
            return
        self.error = _relative_error(self.features, prior, x)


def _relative_error(features: RandomFeatures, prior: Prior, x: Tensor) -> float:
    """Root mean square of (psi . psi' - k) / sqrt(k(x, x) k(x', x')) over pairs of some rows."""
    with torch.no_grad():
        some = x[..., :: max(1, -(-x.shape[-2] // SAMPLED)), :]
        psi = features(some)
        exact = prior_covariance(prior, prior.kernel.rows(some)).to_dense()
        scale = exact.diagonal(dim1=-2, dim2=-1).clamp_min(torch.finfo(exact.dtype).tiny).sqrt()
        error = (psi @ psi.mT - exact) / scale.unsqueeze(-1) / scale.unsqueeze(-2)
        return float(error.square().mean().sqrt())


class PivotedDraws(PriorDraws):
    """f0(x) = K(x, Z) L^-T g with L L^T = K(Z, Z) for pivots Z of the training rows, eq. (M-95).

    Its covariance is the Nystrom approximation K(x, Z) K(Z, Z)^-1 K(Z, x'): never more than the prior's, and less away
    from the pivots.

    Args: prior; x, training points (*batch, n, d); pivots, positions of Z; residual, the share of the trace that is
        missing over the training rows; normal, (*batch, pivots, columns).
    """

    def __init__(self, prior: Prior, x: Tensor, pivots: Tensor, residual: float, normal: Tensor) -> None:
        self.prior = prior
        self.rows = prior.kernel.rows(x[..., pivots, :])
        matrix = prior_covariance(prior, self.rows).to_dense()
        self.lower = factorise_keeping(matrix).lower
        self.coefficients = linalg.solve_triangular(
            self.lower.mT, normal, upper=True, device=linalg.own_device(self.lower)
        )
        self.error = residual

    @property
    def event(self) -> Event:
        return Event(EventKind.PIVOTED_DRAWS, pivots=self.rows.count, missing=self.error)

    def __call__(self, x: Tensor) -> Tensor:
        return prior_covariance(self.prior, self.prior.kernel.rows(x), self.rows) @ self.coefficients

    def missing(self, x: Tensor) -> float:
        if x.numel() == 0:
            return 0.0
        with torch.no_grad():
            rows = self.prior.kernel.rows(x[..., :: max(1, x.shape[-2] // 64), :].detach())
            prior = prior_covariance(self.prior, rows).diagonal()
            cross = prior_covariance(self.prior, self.rows, rows).to_dense()
            lower = self.lower.detach()
            drawn = linalg.solve_triangular(lower, cross, upper=False, device=linalg.own_device(lower))
            drawn = drawn.square().sum(-2)
            return float((1.0 - drawn / prior.clamp_min(torch.finfo(prior.dtype).tiny)).max().clamp_min(0.0))


def draw_seed(seed: int | None) -> int:
    """The seed itself, or one integer of torch's default generator."""
    return int(torch.randint(2**63 - 1, ()).item()) if seed is None else check_seed(seed)


def prior_covariance(prior: Prior, rows: Rows, cols: Rows | None = None) -> CovarianceOperator:
    """The prior covariance between rows, float64."""
    theta = [t.to(rows.device) for t in prior.kernel.theta()]
    return CovarianceOperator(PairProblem(prior.kernel.form, theta, rows, cols), torch.float64)


def prior_draws(
    prior: Prior,
    x: Tensor,
    batch: torch.Size,
    columns: int,
    features: int,
    generator: torch.Generator,
    group: Group = ALONE,
) -> PriorDraws:
    """Draws of the prior: by random features where the kernel has them, else by a pivoted Cholesky of the rows x.

    Args: x, training points; batch, of the posterior; columns, functions per model; features, how many; generator, on
        the CPU, so that every device draws the same; group, whose ranks draw together: the least free memory of any of
        them decides how many pivots there are.
    Raises: DomainError for a kernel without features and no rows to take pivots from.
    """
    psi = prior.kernel.features(features, generator)

    def normal(rows: int) -> Tensor:
        return torch.randn(*batch, rows, columns, generator=generator, dtype=torch.float64).to(x.device)

    if psi is not None:
        draws = FeatureDraws(psi, normal(psi(x[..., :0, :]).shape[-1]))
        if x.shape[-2]:
            draws.measure(prior, x)
        return draws
    if not x.shape[-2]:
        raise DomainError(
            "`kernel` has no random features and there are no training rows to take pivots from; use "
            "post.predict(x_test).sample(), or condition on data"
        )
    free = available_bytes(x.device) // (8 * PIVOTED_SHARE * max(1, batch.numel()) * x.shape[-2])
    limit = int(smallest(group, min(features, x.shape[-2], free)))
    pivots, _, residual = pivots_of(prior, x, max(1, limit), generator)
    return PivotedDraws(prior, x, pivots, residual, normal(pivots.numel()))


@torch.no_grad()
def pivots_of(prior: Prior, x: Tensor, limit: int, generator: torch.Generator) -> tuple[Tensor, Tensor, float]:
    """Rows of x by randomly pivoted Cholesky, as `common_pivots`. Cost: n m covariances for m pivots."""
    rows = prior.kernel.rows(x)

    def column(pivot: int) -> Tensor:
        index = torch.tensor([pivot], device=x.device)
        return prior_covariance(prior, rows, rows.take(index)).to_dense().squeeze(-1)

    return common_pivots(prior_covariance(prior, rows).diagonal().clone(), column, limit, generator)
