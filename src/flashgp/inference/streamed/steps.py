"""Sites of rows that pass by, made anew from q(u) in every pass, and the steps to the q(u) of its own sites.

With w and M of q(u) = N(w, M^-1), whitened, and d_i what the inducing points leave of a row, eq. (M-273):

    q(f_i) = N(m(x_i) + a_i^T w, a_i^T M^-1 a_i + d_i s_i / (s_i + d_i))

of each latent function, whose w, M and sites are its own and whose A and d_i are those of all (M-400).
The site s_i depends on that and it on the site, row by row. A step is one in A^T S^-1 A and A^T S^-1 r, so that nothing
is kept of a row. Where sites need no iteration one pass says everything (bound.py).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor

from flashgp.foundations.errors import ConvergenceError
from flashgp.foundations.form import Rows
from flashgp.inference.full_scale.factor import Basis, solve_rows_
from flashgp.inference.prior import Prior
from flashgp.inference.site_methods import Marginals
from flashgp.inference.sites import ROUNDING, SiteSettings, local_sites, settle
from flashgp.inference.streamed.bound import BoundSums, block, parts_of
from flashgp.inference.threads import side_by_side
from flashgp.likelihoods import Likelihood, Sites
from flashgp.likelihoods.base import LEAST
from flashgp.processes.group import Group

ROUNDS = 40  # of Aitken's extrapolation, each of which squares the error, or of bisection where that leads elsewhere
EXACT = 1e-9  # of a logarithm of a variance
OF_SEVERAL = 1e-4  # where functions share a row, whose expectations take long: e of it changes the bound by e^2 / 4


@dataclass(frozen=True, eq=False)
class InducingValues:
    """q(u). Fields: basis, A of rows; sums, whose w and M it has; floor, below which no variance of a site is, (M-148);
    new, whether rows are such that it has not seen."""

    basis: Basis
    sums: BoundSums
    floor: float
    new: bool = False

    @classmethod
    def of_prior(cls, basis: Basis, floor: float, shape: Sequence[int] = (1,)) -> "InducingValues":
        """Args: shape, see `BoundSums.none`."""
        return cls(basis, BoundSums.none(basis.rank, shape, basis.lower.device), floor)

    def none(self, *, new: bool = False) -> "InducingValues":
        """Those of the prior. Args: new, whether rows are by themselves."""
        return replace(self.of_prior(self.basis, self.floor, self.sums.shape), new=new)

    def of(self, sums: BoundSums) -> "InducingValues":
        """q(u) that these sums have."""
        return InducingValues(self.basis, sums, self.floor)

    def bound(self, sums: BoundSums) -> float:
        """The bound (M-274), nats. Args: sums, of the sites that were made from here."""
        return sums.lower_at(self.sums)

    def towards(self, sums: BoundSums, share: float) -> "InducingValues":
        """q(u) after a part of the step to that of some sums."""
        gram, projected = (
            torch.lerp(one, other, share)
            for one, other in ((self.sums.gram, sums.gram), (self.sums.projected, sums.projected))
        )
        return replace(self, sums=replace(sums, gram=gram, projected=projected))

    def divergence(self, other: "InducingValues") -> float:
        """KL(self || other), nats."""
        own, its = self.sums.inner, other.sums.inner
        spread = torch.linalg.solve_triangular(own, its, upper=False)
        apart = its.mT @ (self.sums.weights - other.sums.weights)
        logs, its_logs = (one.diagonal(dim1=-2, dim2=-1).log() for one in (own, its))
        squares = spread.square().sum() - logs.numel() + apart.square().sum()
        return float(0.5 * squares + logs.sum() - its_logs.sum())

    @torch.no_grad()
    def sites(self, prior: Prior, x: Tensor, y: Tensor, rows: Rows) -> tuple[Sites, Marginals, tuple[Tensor, Tensor]]:
        """Sites of some rows, q(f) under them, (M-273), and `block` of the rows.

        Cost: 2 b m^2 flops of b rows, and some ten expectations under the likelihood for each.
        """

        def of_part(part: slice) -> tuple[Sites, Marginals, tuple[Tensor, Tensor]]:
            index = torch.arange(part.start, part.stop, device=x.device)
            own = prior.with_likelihood(prior.likelihood.rows(index))
            return self._sites(own, x[part], y[part], rows.part(part.start, part.stop))

        parts = parts_of(rows.count, self.basis.rank) if x.device.type == "cpu" else [slice(0, rows.count)]
        found = side_by_side([partial(of_part, part) for part in parts], x.device)
        sites, at, blocks = zip(*found, strict=True)
        return (
            Sites(torch.cat([one.targets for one in sites]), torch.cat([one.variance for one in sites])),
            Marginals(torch.cat([one.mean for one in at]), torch.cat([one.variance for one in at])),
            (torch.cat([one for one, _ in blocks]), torch.cat([one for _, one in blocks])),
        )

    def _sites(self, prior: Prior, x: Tensor, y: Tensor, rows: Rows) -> tuple[Sites, Marginals, tuple[Tensor, Tensor]]:
        """`sites` of the rows that a thread takes at a time."""
        a, left = known = block(self.basis, rows)
        inner, weights = (t if t.dim() == 3 else t.unsqueeze(0) for t in (self.sums.inner, self.sums.weights))
        mean = prior.mean_at(x) + torch.cat([a @ one for one in weights], -1)
        spread, left = torch.stack([_spread(a, one) for one in inner], -1), left.unsqueeze(-1)
        alone = prior.outputs is None
        if alone:
            mean, spread, left = (t.squeeze(-1) for t in (mean, spread, left))
        if self.new:
            return *local_sites(prior.likelihood, y, Marginals(mean, spread + left)), known
        least, floor = LEAST * (spread + left), self.floor

        def after(log_own: Tensor) -> Tensor:
            precision = 1.0 / prior.likelihood.sites_at(y, mean, spread + log_own.exp(), None).variance.clamp_min(floor)
            return (left / (1.0 + left * precision)).maximum(least).log()

        own = high = left.maximum(least).log()
        low = least.log()
        for _ in range(ROUNDS):
            one = after(own)
            if not bool(((one - own).abs() > (EXACT if alone else OF_SEVERAL)).any()):
                break
            if alone:  # others move what is between
                low, high = torch.where(one > own, own, low), torch.where(one > own, high, own)
            two = after(one)
            bend = two - 2.0 * one + own
            aim = torch.where(bend == 0.0, two, own - (one - own).square() / bend.where(bend != 0.0, 1.0))
            between = 0.5 * (low + high if alone else own + one)
            own = torch.where((aim >= low) & (aim <= high), aim, between)
        at = Marginals(mean, spread + own.exp())
        sites = prior.likelihood.sites_at(y, at.mean, at.variance, None)
        return replace(sites, variance=sites.variance.clamp_min(self.floor)), at, known  # as sums of them will have it


def _spread(a: Tensor, inner: Tensor) -> Tensor:
    """The diagonal of A M^-1 A^T, (b,). Args: inner, the Cholesky factor of M."""
    solved = a.clone()
    solve_rows_(inner, solved)
    return torch.linalg.vector_norm(solved, dim=-1).square_()


class PassValues(Protocol):
    """What sites of a pass are made from, and sums of these lead to: q(u), or q of the weights of a series, as
    `InducingValues` has its methods."""

    @property
    def sums(self) -> Any: ...
    def none(self, *, new: bool = False) -> Self: ...
    def of(self, sums: Any) -> Self: ...
    def towards(self, sums: Any, share: float) -> Self: ...
    def bound(self, sums: Any) -> float: ...
    def divergence(self, other: Any) -> float: ...


Q = TypeVar("Q", bound=PassValues)


@dataclass(frozen=True)
class Pass(Generic[Q]):
    """A pass over all rows. Fields: before, q(u) that sites are made from; sums, of those; value, the bound at that
    q(u), (M-274); size of the step that led there; steps to it, and moved, nats by which a whole one would move q(u).
    """

    before: Q
    sums: Any
    value: float
    size: float = 1.0
    steps: int = 1
    moved: float = 0.0


def settled_pass(
    likelihood: Likelihood, start: Q, sums_at: Callable[[Q], Any], least: float, tolerance: float,
    settings: SiteSettings, group: Group,
) -> Pass[Q]:  # fmt: skip
    """The pass whose sums are a whole step from a q(u) that has settled.

    Args: start; sums_at, of a pass; least, the bound of the prior or about, where steps begin if the start has a lower
        one; group, whose ranks it is of, and whose rank 0 decides.
    Raises: ConvergenceError where no step raises the bound, TimeUp.
    """

    def at(q: Q, size: float = 1.0) -> Pass[Q]:
        sums = sums_at(q)
        return Pass(q, sums, group.number_of_first(q.bound(sums)), size)

    def divergence(one: Pass[Q], other: Pass[Q]) -> float:
        return group.number_of_first(one.before.divergence(other.before))

    first, passes = at(start), 1
    if not first.value >= least:  # NaN too
        first, passes = at(start.none()), 2
    if not math.isfinite(first.value):  # under a wide prior: from sites of rows by themselves
        first, passes = at(start.of(sums_at(start.none(new=True)))), passes + 2
    tolerance = settings.of_rows(tolerance, first.sums.count)
    last, steps, moved = settle(
        likelihood, first, lambda kept, size: at(kept.before.towards(kept.sums, size), size),
        divergence, tolerance, settings,
    )  # fmt: skip
    most = settings.slack * last.sums.count
    foreseen = moved <= most and moved * last.size**2 > ROUNDING
    if last.size < likelihood.step and not foreseen:  # the answer, a whole step, may be where nothing is finite
        passes, whole = passes + 1, at(last.before.towards(last.sums, 1.0)).value
        if not whole >= last.value - most:
            raise ConvergenceError(
                f"`likelihood` {likelihood.name}: its sites did not settle in {steps} steps, and a whole one takes the "
                f"bound from {last.value:.3g} to {whole:.3g}; scale the targets, take more inducing points, or "
                "give the kernel a smaller variance",
                iterations=steps, residual=moved, tolerance=tolerance,
            )  # fmt: skip
    return replace(last, steps=passes + steps, moved=moved)
