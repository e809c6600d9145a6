"""Draws of the prior as functions: random features, eqs. (M-94) and (M-95), or values drawn where they are asked for.

Features are approximate unless the kernel has a finite rank, and say by how much.
"""

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from flashgp.foundations.checks import check_seed
from flashgp.foundations.errors import DomainError
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.form import broadcast_batch
from flashgp.foundations.machine import available_bytes
from flashgp.inference.predict.growing_draws import GrowingDraws, PriorDraws, prior_covariance
from flashgp.inference.prior import Prior
from flashgp.kernels.random_features import RandomFeatures
from flashgp.solvers.preconditioners.pivoted_cholesky import common_pivots

__all__ = ["FeatureDraws", "PriorDraws", "draw_seed", "pivots_of", "prior_draws"]


TILE_BYTES = 2**25  # of features alive at once: 32 MiB
SAMPLED = 256  # rows whose pairs measure the prior error


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


def draw_seed(seed: int | None) -> int:
    """The seed itself, or one integer of torch's default generator."""
    return int(torch.randint(2**62, ()).item()) if seed is None else check_seed(seed)


def prior_draws(
    prior: Prior,
    x: Tensor,
    batch: torch.Size,
    columns: int,
    features: int,
    generator: torch.Generator,
    ranks: int = 1,
) -> PriorDraws:
    """Draws of the prior: by random features where the kernel has them, else where they are asked for.

    Args: x, training points; batch, of the posterior; columns, functions per model; features, how many; generator, on
        the CPU, so that every device draws the same; ranks, that have the same posterior.
    Raises: DomainError for a kernel without features over several ranks: what is drawn depends on what was asked, and
        a call on one rank tells the others nothing.
    """
    psi = prior.kernel.features(features, generator)
    if psi is None:
        if ranks > 1:
            raise DomainError(
                "`paths` of a group must be of a kernel with random features, so that all ranks have the same "
                f"functions, got {prior.title} over {ranks} ranks, which is drawn where each of them asks; "
                "draw at points that all ranks give, post.predict(x).sample(count, seed=0)"
            )
        return GrowingDraws(prior, x, batch, columns, generator, available_bytes(x.device))
    normal = torch.randn(*batch, psi(x[..., :0, :]).shape[-1], columns, generator=generator, dtype=torch.float64)
    draws = FeatureDraws(psi, normal.to(x.device))
    if x.shape[-2]:
        draws.measure(prior, x)
    return draws


@torch.no_grad()
def pivots_of(prior: Prior, x: Tensor, limit: int, generator: torch.Generator) -> tuple[Tensor, Tensor, float]:
    """Rows of x by randomly pivoted Cholesky, as `common_pivots`. Cost: n m covariances for m pivots."""
    rows = prior.kernel.rows(x)

    def column(pivot: int) -> Tensor:
        index = torch.tensor([pivot], device=x.device)
        return prior_covariance(prior, rows, rows.take(index)).to_dense().squeeze(-1)

    return common_pivots(prior_covariance(prior, rows).diagonal().clone(), column, limit, generator)
