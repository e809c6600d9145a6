"""Predictions of a full-scale posterior: each point from the inducing values and its own nearest rows, (M-154).

With c the rows nearest to x, S their covariance that A leaves, with noise, k~ = k(c, x) - A_c a(x) and v = S^-1 k~:

    mean(x)     = m(x) + v^T r_c + g^T w,                          g = a(x) - A_c^T v
    variance(x) = s^2 + |L_M^-1 g|^2,                              s^2 = k(x, x) - |a|^2 - v^T k~
    covariance  = g^T M^-1 g' + Cov(e - v^T (e_c + noise), e' - v'^T (e_c' + noise)),       e ~ GP(0, k - a^T a')

A function of the point alone, so that what is said of one does not depend on the others asked about, and one Gaussian
process: the errors of local predictors have the covariance that the prior gives them, whatever the set of points. With
all rows as neighbours all of it is exact.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from flashgp.foundations.checks import check_count
from flashgp.foundations.contexts import entered
from flashgp.foundations.determinism import EVENT
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.form import Rows
from flashgp.foundations.report import Report
from flashgp.inference.extent import check_answer
from flashgp.inference.full_scale.factor import rounding_of
from flashgp.inference.full_scale.layout import scaled_points
from flashgp.inference.full_scale.state import Asked, FullScaleState
from flashgp.inference.predict.paths import Paths
from flashgp.inference.predict.predictor import Predictor, Variance, check_joint
from flashgp.inference.predict.prior_draws import PriorDraws, draw_seed, prior_draws
from flashgp.inference.threads import side_by_side
from flashgp.operators.covariance import CovarianceOperator
from flashgp.pairwise.problem import PairProblem
from flashgp.pairwise.torch.tiles import TileSettings, TorchTiles
from flashgp.solvers.direct.strided import add_gram_, factorise_
from flashgp.solvers.preconditioners.near_rows import nearest_rows

Made = TypeVar("Made")
F64 = torch.float64
LEAST_NEIGHBOURS = 64  # of which all are taken
SHARES = (8, 4, 2)  # of the neighbours that are tried
AT_ONCE = 4  # points whose matrices are made together
TILES = 4  # that the covariance of their rows is made in, by rows: what is below the diagonal of these is left out
TRIED = 32  # training rows that are left out
NEGLIGIBLE = 0.005  # nats a row
NEGLIGIBLE_BY_SITES = 0.001  # the same of labels and counts, which say less than a number: all of magic's are .29 nats


@dataclass(frozen=True, eq=False)
class Local:
    """Local parts of some points.

    Fields: shift, m(x) + v^T r_c, (s, p); inner, g, (s, m); own, s^2, (s,); where they are kept index, c, and solved,
    v, (s, q).
    """

    shift: Tensor
    inner: Tensor
    own: Tensor
    index: Tensor | None = None
    solved: Tensor | None = None


class FullScalePredictor(Predictor):
    """Predictor of a state at points. A new one for every prediction: it keeps what mean and variance share."""

    def __init__(self, state: FullScaleState, *, deterministic: bool) -> None:
        self._asked, self.deterministic = state.asked, deterministic
        self._state = self._asked.state
        self._x: Tensor | None = None
        self._parts: Local | None = None
        self.report = Report(
            route=state.report.route, device=str(state.x.device), dtype="float64",
            events=[EVENT] if deterministic else [],
        )  # fmt: skip

    def mean(self, x: Tensor) -> Tensor:
        local = self._local(x)
        value = local.shift + local.inner @ self._state.weights
        check_answer(value, "x_test")
        return value

    def variance(self, x: Tensor) -> Variance:
        local = self._local(x)
        value = local.own + self._half(local.inner).square().sum(-1)
        check_answer(value.unsqueeze(-1), "x_test")
        return Variance(value.unsqueeze(-1).expand(*value.shape, self._state.residual.shape[-1]))

    @entered(lambda self, x: self.deterministic)
    def covariance(self, x: Tensor) -> Tensor:
        n, state = x.shape[-2], self._state
        check_joint(n, 8 * n * (4 * n + 2 * state.function.rank), x.device)
        with torch.set_grad_enabled(self.wants_graph(x)):
            local = local_parts(self._asked, x, state.residual, keep=True)
            half = self._half(local.inner)
            joint = half @ half.mT + _errors(self._asked, x, local)
            return joint - torch.diag_embed(joint.diagonal() - local.own - half.square().sum(-1))

    def rounding(self, x: Tensor) -> Tensor:
        """Rounding of the prior's entries, which the covariance is a difference of."""
        asked, summands = self._asked, self._state.sizes.predicting + len(x)
        return rounding_of(asked.function, asked.prior.kernel.rows(x), summands)

    def paths(self, count: int, features: int, seed: int | None) -> Paths:
        return draw_paths(self._state, count, features, seed)

    def forget(self) -> None:
        self._parts = None

    # -- work ------------------------------------------------------------------------------------------------------
    def _half(self, inner: Tensor) -> Tensor:
        """L_M^-1 g, as rows."""
        return torch.linalg.solve_triangular(self._state.sums.inner.mT, inner, upper=True, left=False)

    @entered(lambda self, x: self.deterministic)
    def _local(self, x: Tensor) -> Local:
        if x is not self._x or self._parts is None:
            began = time.perf_counter()
            suffice = near_enough(self._state)
            if suffice.event is not None and suffice.event not in self.report.events:
                self.report.events.append(suffice.event)
            with torch.set_grad_enabled(self.wants_graph(x)):
                self._x, self._parts = x, local_parts(self._asked, x, self._state.residual)
            self.report.seconds = (self.report.seconds or 0.0) + time.perf_counter() - began
        return self._parts


def local_parts(asked: Asked, x: Tensor, targets: Tensor, *, keep: bool = False) -> Local:
    """Parts that predictions at points (n_test, d) are made of, some points at a time, on one thread each.

    Args: targets: in place of r, (u, t); keep: whether v is kept, n_test q numbers.
    Cost: for each point, with q neighbours, q^2 (m + q / 3) flops, q^2 / 2 evaluations and as many distances as
        `nearest_rows` takes.
    """
    state, rows = asked.state, asked.prior.kernel.rows(x)
    with torch.no_grad():
        points = scaled_points(state.prior, state.prior.kernel.rows(x), x)
        index = nearest_rows(points, state.near_points, state.layout.conditioned, near_enough(state).count)
    basis, mean, q = asked.function.taped(rows), asked.prior.mean_at(x), index.shape[1]
    left = (asked.covariance(rows).diagonal() - basis.square().sum(-1)).clamp_min(0.0)
    every = torch.arange(len(x), device=x.device)

    def found(part: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        own = basis[part]
        lower, cross, known = _local(asked, index[part], rows.sets(part.unsqueeze(1)), own)
        half = torch.linalg.solve_triangular(lower, cross, upper=False)
        solved = torch.linalg.solve_triangular(lower.mT, half, upper=True).mT  # (s, 1, q)
        shift, inner = (solved @ targets[index[part]]).squeeze(1), own - (solved @ known).squeeze(1)
        return shift, inner, half.square().sum((-2, -1)), solved.squeeze(1) if keep else solved[:, 0, :0]

    made = _in_parts(state, found, every)
    if not made:
        return Local(mean.expand(0, targets.shape[1]), basis, left, index, left.new_zeros(0, q))
    shift, inner, explained, solved = (torch.cat(parts) for parts in zip(*made, strict=True))
    own_variance = (left - explained).clamp_min(0.0)
    shift = shift + mean.repeat(1, shift.shape[1] // mean.shape[1])
    return Local(shift, inner, own_variance, index, solved if keep else None)


@dataclass(frozen=True)
class NearEnough:
    """Neighbours of a point that is predicted. Fields: count; event, where they are fewer than planned."""

    count: int
    event: Event | None = None


@torch.no_grad()
def near_enough(state: FullScaleState) -> NearEnough:
    """The least share of the neighbours with which observations of rows that are left out are known as well, (M-309).

    Kept with the state: what is said of a point does not depend on the others asked about.
    Cost: of TRIED points, what they take with all neighbours.
    """
    known: NearEnough | None = state.__dict__.get("near_enough")
    if known is None:
        known = state.__dict__["near_enough"] = _near_enough(state)
    return known


def _near_enough(state: FullScaleState) -> NearEnough:
    n, most = state.distinct, min(state.sizes.predicting, state.distinct)
    if most <= LEAST_NEIGHBOURS or n <= most + 1:
        return NearEnough(most)
    form, theta = state.prior.kernel.form, state.theta
    own = torch.randperm(n, generator=torch.Generator().manual_seed(state.run.seed))[:TRIED].to(state.x.device)
    near = nearest_rows(state.near_points[own], state.near_points, state.layout.conditioned, most + 1)
    others = (near == own.unsqueeze(1)).int().argsort(stable=True)[:, :most]  # the row itself behind all
    near, at = near.gather(1, others), state.basis[own]
    diagonal = CovarianceOperator(PairProblem(form, theta, state.rows.take(own)), F64).diagonal()
    counts = [most // share for share in SHARES] + [most]

    def variances(part: Tensor) -> Tensor:
        basis = at[part]
        lower, cross, known = _local(state.asked, near[part], state.rows.sets(own[part].unsqueeze(1)), basis)
        half = torch.linalg.solve_triangular(lower, cross, upper=False)
        each = []
        for q in counts:  # the first rows of a factor are the factor of the first rows
            of_x = half[:, :q]
            solved = torch.linalg.solve_triangular(lower[:, :q, :q].mT, of_x, upper=True).mT
            inner = basis - (solved @ known[:, :q]).squeeze(1)
            rest = torch.linalg.solve_triangular(state.sums.inner.mT, inner, upper=True, left=False)
            left = diagonal[part] - basis.square().sum(-1) - of_x.square().sum((1, 2))
            each.append(left + rest.square().sum(-1))
        return torch.stack(each)

    found = _in_parts(state, variances, torch.arange(len(own), device=own.device))
    whole = torch.cat(found, -1).clamp_min(0.0) + state.noise_of_rows[own]  # of observations, (counts, rows)
    negligible = NEGLIGIBLE if state.prior.likelihood.underlying.has_sites else NEGLIGIBLE_BY_SITES
    losses = 0.5 * (whole / whole[-1]).log().mean(-1)
    for count, loss in zip(counts[:-1], losses.tolist(), strict=False):
        if count >= LEAST_NEIGHBOURS // 2 and loss <= negligible:
            return NearEnough(count, Event(EventKind.NEAR_ENOUGH, kept=count, planned=most, gain=max(loss, 0.0)))
    return NearEnough(most)


def _in_parts(state: FullScaleState, make: Callable[[Tensor], Made], points: Tensor) -> list[Made]:
    """What is made of some points at a time, in parallel unless gradients are asked for."""
    for kept in ("basis", "noise_of_rows"):
        getattr(state, kept)  # once, before threads ask for it
    tasks = [partial(make, part) for part in points.split(AT_ONCE)]
    if torch.is_grad_enabled():
        return [task() for task in tasks]
    return side_by_side(tasks, points.device)


def _local(asked: Asked, near: Tensor, points: Rows, basis: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """L of S for sets of rows, (s, q), k~ of one point each, (s, q, 1), and A_c, (s, q, m)."""
    state, (s, q) = asked.state, near.shape
    form, theta = state.prior.kernel.form, state.theta
    rows, known = state.rows.sets(near), state.basis.index_select(0, near.flatten()).view(s, q, state.function.rank)
    with torch.no_grad():
        lower = _factor(state, PairProblem(form, theta, rows), known, near)
    cross = asked.covariance(asked.rows.sets(near), points).to_dense()
    return lower, cross.expand(s, q, 1) - known @ basis.unsqueeze(-1), known


def _factor(state: FullScaleState, sets: PairProblem, known: Tensor, near: Tensor) -> Tensor:
    """Cholesky factors of S, (s, q, q); those that rounding leaves without one are of fewer, nearest rows."""
    s, q = near.shape
    noise, pairs = state.noise_of_rows[near], TorchTiles(settings=TileSettings(pairs=max(1, s * q * q // TILES)))

    def residual(whole: bool) -> Tensor:
        block = pairs.block(sets, dtype=F64, upper=not whole)
        matrix = (block if block.shape == (s, q, q) else block.expand(s, q, q)).contiguous()
        matrix.diagonal(dim1=-2, dim2=-1).add_(noise)
        return matrix

    lower = residual(False).mT  # whose upper triangle was made
    add_gram_(lower, known.mT, alpha=-1.0)
    left = factorise_(lower).nonzero()[:, 0]
    if not len(left):
        return lower
    matrix = residual(True)[left].baddbmm_(known[left], known[left].mT, alpha=-1.0)
    own, kept, failed = torch.eye(q, dtype=F64, device=matrix.device), q, left
    while len(failed):
        kept //= 2
        inside = torch.arange(q, device=matrix.device) < kept
        matrix = torch.where(inside.unsqueeze(-1) & inside, matrix, own * torch.finfo(F64).max ** 0.5)
        lower[failed], info = torch.linalg.cholesky_ex(matrix)
        failed, matrix = failed[info > 0], matrix[info > 0]
    return lower


def _errors(asked: Asked, x: Tensor, local: Local) -> Tensor:
    """The covariance of e - v^T (e_c + noise) at the points, (n_test, n_test), eq. (M-154).

    Cost: u^2 evaluations and 2 u^2 n_test flops for u rows that are neighbours of any of the points.
    """
    state, rows = asked.state, asked.prior.kernel.rows(x)
    assert local.index is not None
    assert local.solved is not None
    used, place = local.index.unique(return_inverse=True)
    v = torch.zeros(len(x), len(used), dtype=F64, device=x.device).scatter_add(1, place, local.solved)
    known, basis = state.basis[used], asked.function.taped(rows)
    among = CovarianceOperator(PairProblem(state.prior.kernel.form, state.theta, state.rows.take(used)), F64)
    inside = v @ known
    around = (among @ v.mT).mT - inside @ known.mT + v * state.noise_of_rows[used]
    cross = asked.covariance(rows, asked.rows.take(used)).to_dense() - basis @ known.mT
    here = asked.covariance(rows).to_dense() - basis @ basis.mT
    mixed = cross @ v.mT
    joint = here - mixed - mixed.mT + around @ v.mT
    return 0.5 * (joint + joint.mT)


@dataclass(frozen=True, eq=False)
class _Draw:
    """Draw of all functions side by side, t of them: prior, f0; values, L_zz^-1 f0 at the inducing points, (m, t);
    weights, inducing values, (m, t); targets, y - m - e - noise at the training rows, (u, t)."""

    prior: PriorDraws
    values: Tensor
    weights: Tensor
    targets: Tensor

    def at(self, state: FullScaleState, x: Tensor) -> Tensor:
        """The functions at points, (n_test, t), with e = f0 - a^T L_zz^-1 f0(Z)."""
        local = local_parts(state.asked, x, self.targets)
        rest = self.prior(x) - state.function.taped(state.prior.kernel.rows(x)) @ self.values
        return local.inner @ self.weights + local.shift + rest


@entered(lambda state, *_, **__: state.run.deterministic)
@torch.no_grad()
def draw_paths(state: FullScaleState, count: int, features: int, seed: int | None) -> Paths:
    """See `Posterior.paths`: inducing values from their posterior, what they leave by Matheron's rule with each point's
    own neighbours, eq. (M-155). Cost: n t numbers; n (features + m) t flops."""
    began = time.perf_counter()
    count = check_count(count, "count", 0)
    generator = torch.Generator().manual_seed(draw_seed(seed))
    (n, p), function, device = state.residual.shape, state.function, state.x.device
    prior = prior_draws(state.prior, state.points, torch.Size(), count * p, features, generator, state.ranks)
    report = Report(route=state.report.route, device=str(device), dtype="float64")
    if prior.error is not None:
        report.events.append(prior.event)

    def normal(rows: int) -> Tensor:
        return torch.randn(rows, count * p, generator=generator, dtype=F64).to(device)

    values = torch.linalg.solve_triangular(function.lower, prior(state.layout.inducing), upper=False)
    spread = torch.linalg.solve_triangular(state.sums.inner.mT, normal(function.rank), upper=True)
    weights = state.weights.repeat(1, count) + spread
    drawn = prior(state.points) - state.basis @ values + state.noise_of_rows.sqrt().unsqueeze(-1) * normal(n)
    draw = _Draw(prior, values, weights, state.residual.repeat(1, count) - drawn)
    report.seconds = time.perf_counter() - began
    return Paths(state, prior, partial(draw.at, state), count, report)
