"""Latent variance from sampled deviations, for n where a solve per test point costs too much, eqs. (M-96), (M-97).

S draws of prior and noise, f_s and y_s = f_s(X) + e_s, and S solves u_s = K^-1 y_s serve every test point:

    d_s = f_s(x*) - k*.u_s             has variance v, what is wanted, and
    h_s = k*.u_s - c.(C y_s)           has variance v_C - v, independent of d_s,

where c.(C y) is the best predictor of f(x*) from few numbers C y (a low-rank factor, and the rows nearest to x*), whose
error v_C >= v is known exactly. Two independent estimates of one v: the one that is certain wins, point by point.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from flashgp import linalg
from flashgp.foundations.checks import check_count, check_points
from flashgp.foundations.contexts import entered
from flashgp.foundations.determinism import contiguous_copy
from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.foundations.events import StopReason
from flashgp.foundations.form import Rows
from flashgp.inference.exact.solve import mean_goal
from flashgp.inference.predict.paths import representers
from flashgp.inference.predict.prior_draws import FeatureDraws, draw_seed, pivots_of
from flashgp.inference.state import State
from flashgp.planner.variances import FEATURES, STRIP_BYTES, ProbeSizes
from flashgp.solvers.contract import NO_LIMITS, Limits

LARGEST = ProbeSizes()
SAMPLED_SEED = 2**33  # added to a seed for the draws that variances are sampled from
TOLERANCE = 1e-5  # standard deviations of an observation: h is small where C predicts well
DRAWN_ROWS = 2048  # of a prior draw at once: their features stay in the cache
UNSEEN = 8.0  # times as much of a unit of v_C - v as of one of k - v_C may the residuals hold, (M-263)
MOST_LEFT = 0.05  # of what C explains, that residuals may hold where h says what v_C - v is
MORE_TIME = 1.5  # times the seconds that solves had: with as much again they go on
LEVEL = 0.95  # the probability of the interval
BISECTIONS = 60  # halve the range of a log odds, 80 wide, to rounding
FURTHEST_ODDS = 40.0  # v / v_C is looked for between e^-40 and 1 - e^-40


@dataclass(frozen=True)
class SampledVariance:
    """Latent variances at test points, each (n_test,), float64, units of y squared, eq. (M-97).

    Fields: variance, the estimate; standard_error; lower and upper, the interval that holds the truth with 95 %
    probability, point by point; bound, v_C, which the truth never exceeds; dispersion, how much wider than Gaussian
    deviations make them the standard errors and intervals are (1 for no wider).
    """

    variance: Tensor
    standard_error: Tensor
    lower: Tensor
    upper: Tensor
    bound: Tensor
    dispersion: float


@dataclass(frozen=True)
class VarianceProbes:
    """Samples that the variance at any point is estimated from; made by `variance_probes`, called on points.

    Fields: state; draws, one prior function per sample; drawn, their values at the rows, and errors, standard normal,
    (n, S) each, with which y_s = f_s + e_s is noisy, (n, S); solutions, K^-1 y_s, (n, S); residuals, theirs, (n, S),
    where the solves ended before their goal; actions, C, (k, n), with orthonormal rows; across, K C' without noise,
    (n, k); neighbours, how many near rows join C; seconds, which the solves were given.
    """

    state: State
    draws: list[FeatureDraws]
    drawn: Tensor
    errors: Tensor
    solutions: Tensor
    residuals: Tensor | None
    actions: Tensor
    across: Tensor
    neighbours: int
    seconds: float = math.inf

    @functools.cached_property
    def noisy(self) -> Tensor:
        """y_s, (n, S)."""
        return noisy_draws(self.state, self.drawn, self.errors)

    @functools.cached_property
    def _white(self) -> tuple[Tensor, Tensor, Tensor]:
        """C' T with T' C A C' T near the identity, (n, k), its image by A, (n, k), and C A C' so, (k, k)."""
        noise = self.state.noise.expand(self.state.distinct)
        images = self.across + noise.unsqueeze(-1) * self.actions.mT
        lower, root = _scaled_factor(self.actions @ images)
        back = torch.linalg.solve_triangular(lower, root.diag(), upper=False).mT
        few, images = self.actions.mT @ back, images @ back
        return few, images, few.mT @ images

    @entered(lambda self: self.state.run.deterministic)
    @torch.no_grad()
    def of_rows(self) -> SampledVariance:
        """The variances at the distinct rows of the state, (n,), where the draws are known."""
        return self._at(self.state.points, self.drawn)

    @entered(lambda self, _: self.state.run.deterministic)
    @torch.no_grad()
    def __call__(self, x_test: Tensor) -> SampledVariance:
        """The variances at x_test, (n_test, d). Cost: n (d + S + k) flops per point, (k + neighbours)^3 / 3 more."""
        x_test = contiguous_copy(check_points(x_test, "x_test", like=self.state.x))
        if x_test.dim() != 2:
            raise ShapeError(f"`x_test` must have shape (n_test, d), got {tuple(x_test.shape)}; pass one table")
        return self._at(x_test)

    def _at(self, x: Tensor, drawn: Tensor | None = None) -> SampledVariance:
        size = self.neighbours * (self.neighbours + self.actions.shape[0])
        step = max(1, STRIP_BYTES // (8 * (self.state.distinct + 3 * size)))
        moments, bounds, lacks = [], [], []
        for start in range(0, max(1, x.shape[0]), step):
            some = slice(start, start + step)
            d, h, bound, lack = self._deviations(x[some], None if drawn is None else drawn[some])
            moments.append(deviation_moments(d, h, bound))
            bounds.append(bound)
            lacks.append(lack)
        every, bound = torch.cat(moments, dim=-1), torch.cat(bounds)
        found = deviation_interval(every, self.drawn.shape[1], bound)
        return found if self.residuals is None else widened(found, torch.cat(lacks, dim=-1), every[1] * bound)

    def _deviations(self, x: Tensor, drawn: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(d, h, v_C, (k - v_C, q1)) at a strip of points: (b, S), (b, S), (b,), (2, b), eqs. (M-96), (M-263)."""
        state = self.state
        rows = state.prior.kernel.rows(x)
        cross = state.covariance_to(rows, torch.float64).to_dense()
        prior = state.prior_covariance(rows).diagonal()
        drawn = torch.cat([draw(x) for draw in self.draws], dim=-1) if drawn is None else drawn
        predicted = cross @ self.solutions
        near = self._nearest(cross)
        few, images, among = self._white
        by_few, covariance, across = cross @ few, self._near_covariance(near), images[near]
        right = cross.gather(-1, near)
        # Of the best predictor's system G c = b the part of C is the identity, but for rounding.
        c_near = _solved(covariance - across @ across.mT, right - _times(across, by_few))
        c_few = by_few - _times(across.mT, c_near)
        # For whatever c this is the variance of its error, so that rounding in c does no harm.
        bound = prior - 2.0 * ((c_few * by_few).sum(-1) + (c_near * right).sum(-1))
        bound = bound + (c_few * (c_few @ among)).sum(-1)
        bound = bound + (c_near * (2.0 * _times(across, c_few) + _times(covariance, c_near))).sum(-1)
        best = self._from_few((c_few, c_near), near, self.noisy)
        lack = torch.stack([prior - bound, torch.zeros_like(bound)])
        if self.residuals is not None:
            left = self._from_few((c_few, c_near), near, self.residuals)
            predicted, lack[1] = predicted + left, left.square().mean(-1)
        return drawn - predicted, predicted - best, bound.clamp_min(0.0), lack

    def _from_few(self, c: tuple[Tensor, Tensor], near: Tensor, values: Tensor) -> Tensor:
        """c.C w for columns w of the rows, (b, S)."""
        few, _, _ = self._white
        return c[0] @ (few.mT @ values) + (c[1].unsqueeze(-2) @ values[near]).squeeze(-2)

    def _nearest(self, cross: Tensor) -> Tensor:
        """The rows of largest correlation with each point, (b, neighbours)."""
        state = self.state
        variance = state.prior_covariance(state.rows).diagonal() + state.noise
        deviation = variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()
        return (cross.abs() / deviation).topk(self.neighbours, dim=-1).indices

    def _near_covariance(self, near: Tensor) -> Tensor:
        """A of the near rows of each point, (b, m, m)."""
        state, (count, m) = self.state, near.shape
        rows = Rows(
            tuple(f[near] for f in state.rows.features), tuple(a[near] for a in state.rows.scalars), m,
            torch.Size([count]), state.rows.place,
        )  # fmt: skip
        covariance = state.prior_covariance(rows).to_dense()
        covariance.diagonal(dim1=-2, dim2=-1).add_(state.noise.expand(state.distinct)[near])
        return covariance


def _times(matrices: Tensor, vectors: Tensor) -> Tensor:
    return (matrices @ vectors.unsqueeze(-1)).squeeze(-1)


def _scaled_factor(system: Tensor) -> tuple[Tensor, Tensor]:
    """L and d with L L' = d G d, of matrices that are singular where actions coincide: with a jitter of rounding."""
    root = system.diagonal(dim1=-2, dim2=-1).clamp_min(torch.finfo(system.dtype).tiny).rsqrt()
    scaled = root.unsqueeze(-1) * system * root.unsqueeze(-2)
    scaled.diagonal(dim1=-2, dim2=-1).add_(10 * system.shape[-1] * torch.finfo(system.dtype).eps)
    return linalg.cholesky(scaled, device=linalg.own_device(scaled)), root


def _solved(system: Tensor, right: Tensor) -> Tensor:
    """c near that with G c = b."""
    lower, root = _scaled_factor(system)
    return root * torch.cholesky_solve((root * right).unsqueeze(-1), lower).squeeze(-1)


def widened(found: SampledVariance, seen: Tensor, control: Tensor) -> SampledVariance:
    """The variance with the rest of the solves in errors and intervals, and on the safe side, eq. (M-263).

    Args: seen, (2, n_test), k - v_C, and mean squares q1 of corrections by C; control, mean squares of h, (n_test,).
    """
    whole, lack = seen
    share = lack / whole.clamp_min(torch.finfo(whole.dtype).tiny)
    unknown = torch.maximum(found.bound - found.lower, control)  # v_C - v at most, where h is of what is solved
    lack = torch.where(share > MOST_LEFT, lack, torch.minimum(lack, UNSEEN * share * unknown))
    more = lack + 2.0 * (lack * (found.bound - found.variance).clamp_min(0.0)).sqrt()
    more = torch.minimum(more, found.bound)
    return replace(
        found, variance=torch.minimum(found.variance + more, found.bound),
        standard_error=(found.standard_error.square() + more.square()).sqrt(),
        lower=(found.lower - more).clamp_min(0.0), upper=torch.minimum(found.upper + more, found.bound),
    )  # fmt: skip


def probes_of(
    state: State, sizes: ProbeSizes = LARGEST, limits: Limits = NO_LIMITS, before: VarianceProbes | None = None
) -> VarianceProbes:
    """Samples of the variances of a state, from a stream of its own beside that of the solves: made once, and again
    where more samples are wanted. Solves that the time ended go on where there is more time than they had.

    Args: sizes, of those that are made; limits, of their solves; before, as `variance_probes`.
    Raises: ShapeError, DomainError as `variance_probes`.
    """
    made: VarianceProbes | None = state.cache.variance_probes
    if made is None or made.drawn.shape[1] < sizes.samples:
        made = variance_probes(state, sizes, limits=limits, seed=state.run.seed + SAMPLED_SEED, before=before)
    elif made.residuals is not None and limits.deadline.left > MORE_TIME * made.seconds:
        seconds = made.seconds + limits.deadline.left
        solutions, residuals = _solved_draws(state, made.noisy, limits, made.solutions)
        made = replace(made, solutions=solutions, residuals=residuals, seconds=seconds)
    state.cache.variance_probes = made
    return made


@entered(lambda state, *_, **__: state.run.deterministic)
@torch.no_grad()
def variance_probes(
    state: State,
    sizes: ProbeSizes = LARGEST,
    *,
    factor: Tensor | None = None,
    features: int = FEATURES,
    limits: Limits = NO_LIMITS,
    seed: int | None = None,
    before: VarianceProbes | None = None,
) -> VarianceProbes:
    """Draws and solves from which the variance is estimated at any point, eq. (M-96): `variance_probes(state)(x_test)`.

    Args:
        sizes: S samples, of which each takes a solve: a relative standard error of at most (2 / S)^(1/2), less where C
            predicts well; the rank of F, and the rows near each test point that C holds as well.
        factor: F, (n, k), with F F' near the prior covariance of the rows, as a preconditioner has it; None makes one.
        features: of each draw of the prior. Each sample has features of its own, so that the estimate is unbiased
            however few they are.
        limits: of the solves; what they lack where these end them is in the errors, eq. (M-263).
        seed: as `Posterior.paths`.
        before: of the same rows and sizes under other noise: draws and C are its own, solves begin at its solutions.
    Raises: ShapeError for a batch of models; DomainError without data, or for a kernel without random features.
    Cost: S solves, one product with k columns, n F S flops for the draws.
    Source: the pathwise view of Wilson et al. (2020), with the best predictor from few numbers of Wenger et al. (2022),
        Posterior and computational uncertainty in Gaussian processes, as control.
    """
    if state.batch_shape or state.x.dim() != 2:
        raise ShapeError(
            f"`posterior` must be one model, got batch shape {tuple(state.batch_shape)}; take one at a time"
        )
    samples = check_count(sizes.samples, "samples", 2)
    if not state.count or not state.prior.kernel.has_features:
        raise DomainError(
            "`posterior` must have data and a kernel with random features; use predict(x_test).variance, which is exact"
        )
    seconds = limits.deadline.left
    if before is not None:
        noisy = noisy_draws(state, before.drawn, before.errors)
        solutions, residuals = _solved_draws(state, noisy, limits, before.solutions)
        return replace(before, state=state, solutions=solutions, residuals=residuals, seconds=seconds)
    generator = torch.Generator().manual_seed(draw_seed(seed))
    draws = [_draw(state, features, generator) for _ in range(samples)]
    noise = state.noise.expand(state.distinct)
    errors = torch.randn(state.distinct, samples, generator=generator, dtype=torch.float64).to(state.x.device)
    parts = state.points.split(DRAWN_ROWS)
    drawn = torch.cat([torch.cat([draw(part) for part in parts]) for draw in draws], dim=-1)
    solutions, residuals = _solved_draws(state, noisy_draws(state, drawn, errors), limits)
    if factor is None:
        rank = min(sizes.rank, state.distinct)
        factor = pivots_of(state.prior, state.points, rank, generator)[1] if rank else drawn[:, :0]
    elif factor.dim() != 2 or factor.shape[0] != state.distinct:
        raise ShapeError(
            f"`factor` must have shape ({state.distinct}, k), got {tuple(factor.shape)}; one row per row of x"
        )
    weight = noise if bool((noise > 0).all()) else torch.ones_like(noise)
    weighted = factor.double() / weight.unsqueeze(-1)
    basis, _ = linalg.qr(weighted, device=linalg.own_device(weighted))
    actions = basis[:, : state.distinct].mT.contiguous()
    across = torch.zeros_like(actions.mT)
    if len(actions):  # a pass over the pairs
        across = state.prior_covariance(state.rows) @ actions.mT
    near = max(0, min(sizes.neighbours, state.distinct - actions.shape[0]))
    return VarianceProbes(state, draws, drawn, errors, solutions, residuals, actions, across, near, seconds)


def noisy_draws(state: State, drawn: Tensor, errors: Tensor) -> Tensor:
    """y_s, (n, S)."""
    return drawn + state.noise.expand(state.distinct).sqrt().unsqueeze(-1) * errors


def _solved_draws(
    state: State, noisy: Tensor, limits: Limits, start: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """(u, r): K^-1 y, (n, S), and its residual where the solve ended before its goal. Args: start, of the solve."""
    if state.solves is None:
        return representers(state, noisy, TOLERANCE)[0], None
    solution = state.solves.solve(noisy, mean_goal(state.solves.system, TOLERANCE).goal, start=start, limits=limits)
    finished = solution.stopped is StopReason.GOAL
    return solution.value, None if finished else solution.residual


def _draw(state: State, features: int, generator: torch.Generator) -> FeatureDraws:
    psi = state.prior.kernel.features(features, generator)
    assert psi is not None
    width = psi(state.points[:0]).shape[-1]
    return FeatureDraws(psi, torch.randn(width, 1, generator=generator, dtype=torch.float64).to(state.x.device))


def deviation_moments(d: Tensor, h: Tensor, bound: Tensor) -> Tensor:
    """Means over samples of d^2, h^2, d^4, h^4 and d^2 h^2, (5, b), in units of the bound, in which v is below 1."""
    scale = bound.clamp_min(torch.finfo(bound.dtype).tiny).unsqueeze(-1)
    d, h = d.square() / scale, h.square() / scale
    return torch.stack([part.mean(-1) for part in (d, h, d.square(), h.square(), d * h)])


def deviation_interval(moments: Tensor, samples: int, bound: Tensor) -> SampledVariance:
    """v from d ~ N(0, v) and h ~ N(0, v_C - v), independent: the most likely value and its interval, eq. (M-97).

    Args: moments, (5, n_test), of `deviation_moments`; samples, S; bound, v_C, (n_test,).
    Cost: 180 evaluations of the likelihood per point.
    """
    D, H, D2, H2, DH = moments
    odds = _crossing(lambda v, w: _slope(D, H, v, w), torch.full_like(D, -FURTHEST_ODDS), FURTHEST_ODDS)
    v, w = torch.sigmoid(odds), torch.sigmoid(-odds)
    information = 0.5 * (v.square() + w.square()) / (v * w).square()
    # The mean square of the slope of each sample's likelihood, (d - v) / v^2 - (h - w) / w^2 by half.
    of_d, of_h = D2 / v.square() - 2.0 * D / v + 1.0, H2 / w.square() - 2.0 * H / w + 1.0
    of_both = DH / (v * w) - D / v - H / w + 1.0
    slopes = 0.25 * (of_d / v.square() + of_h / w.square() - 2.0 * of_both / (v * w))
    spread = slopes / information
    dispersion = max(1.0, float(spread.mean())) if len(bound) else 1.0
    quantile = 2.0 * float(torch.erfinv(torch.tensor(LEVEL, dtype=torch.float64))) ** 2 * dispersion / samples
    highest = _likelihood(D, H, v, w) - quantile

    def excess(a: Tensor, b: Tensor) -> Tensor:
        return _likelihood(D, H, a, b) - highest

    lower = torch.sigmoid(_crossing(lambda a, b: -excess(a, b), torch.full_like(D, -FURTHEST_ODDS), odds))
    upper = torch.sigmoid(_crossing(excess, odds, FURTHEST_ODDS))
    error = (dispersion / (samples * information)).sqrt()
    return SampledVariance(bound * v, bound * error, bound * lower, bound * upper, bound, dispersion)


def _likelihood(D: Tensor, H: Tensor, v: Tensor, w: Tensor) -> Tensor:
    """Twice the log likelihood per sample, without its constant."""
    return -(v.log() + D / v + w.log() + H / w)


def _slope(D: Tensor, H: Tensor, v: Tensor, w: Tensor) -> Tensor:
    """A positive multiple of the derivative of the likelihood by v."""
    return (D - v) * w.square() - (H - w) * v.square()


def _crossing(function: Callable[[Tensor, Tensor], Tensor], low: Tensor, high: Tensor | float) -> Tensor:
    """The log odds of v at which a function of (v, 1 - v) falls through zero, between low and high, by bisection."""
    high = torch.as_tensor(high, dtype=low.dtype, device=low.device).expand_as(low)
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        above = function(torch.sigmoid(middle), torch.sigmoid(-middle)) > 0.0
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return 0.5 * (low + high)
