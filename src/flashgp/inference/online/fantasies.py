"""Fantasies: many posteriors at once, each with a few hypothetical rows of its own beside the rows of one posterior.

Member b has the rows F_b. With K^ = L L^T and the whitened residual z = L^-1 r of the posterior, eq. (M-114):

    S_b = L^-1 K_oF,   C_b C_b^T = K_FF + noise - S_b^T S_b,   u_b = C_b^-1 (r_F - S_b^T z)
    mean = m + S*^T z + W_b^T u_b,   variance = k** - |S*|^2 - |W_b|^2,   W_b = C_b^-1 (K_F* - S_b^T S*)

The factor of the posterior is shared and never written; points that several members have in common are solved for once.
A mixture over hyperparameters has the fantasies of each draw, which are weighed by their targets, eq. (M-424).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from flashgp import linalg
from flashgp.foundations.checks import as_float_tensor, check_count, check_finite, check_points, check_targets
from flashgp.foundations.contexts import entered
from flashgp.foundations.errors import DomainError, NotPositiveDefiniteError, ShapeError
from flashgp.foundations.form import Rows
from flashgp.inference.exact.mixture import MixtureState
from flashgp.inference.online.update import in_dtype_of
from flashgp.inference.output_states import AnyState
from flashgp.inference.predict.joint import joint_moments
from flashgp.inference.predict.prior_draws import draw_seed
from flashgp.inference.state import State
from flashgp.solvers.growing.panels import PIVOT

F64 = torch.float64


@dataclass(frozen=True, eq=False)
class FantasyPrediction:
    """Every member's posterior at its points.

    Fields: mean, (*s, *b, m) or (*s, *b, m, outputs), units of y; variance of the function, (*b, m), with outputs that
    share their noise (*b, m, 1), with noise of their own (*b, m, outputs): hypothetical targets do not change it, but
    that of a mixture, which has the shape of mean; observation_variance, with the noise. In x's dtype.
    """

    mean: Float[Tensor, "*means"]
    variance: Float[Tensor, "*variances"]
    observation_variance: Float[Tensor, "*variances"]


@dataclass(frozen=True, eq=False)
class _Corner:
    """Rows of members beside those of a state, eq. (M-114), whatever their targets are.

    Fields: x, (*b, q, d); half, (L^-1 K_oF)^T of the distinct points, (u, n), and place, which of them each row is;
    lower, C_b, (B, q, q); whitened, z, (n, p); mean of the posterior at the rows, (B, q, p).
    """

    state: State
    x: Tensor
    half: Float64[Tensor, "u n"] | None
    place: Int64[Tensor, "rows"] | None
    lower: Float64[Tensor, "members q q"]
    whitened: Float64[Tensor, "n p"]
    mean: Float64[Tensor, "members q p"]

    def scores(self, y: Tensor) -> Float64[Tensor, "*s members q p"]:
        """u_b of targets."""
        batch, own = self.x.shape[:-2], self.lower
        targets = y.double() if self.state.prior.outputs is not None else y.double().unsqueeze(-1)
        lead = targets.shape[: targets.dim() - 2 - len(batch)]
        targets = targets.reshape(*lead, batch.numel(), *targets.shape[-2:])
        return linalg.solve_triangular(own, targets - self.mean, upper=False, device=linalg.own_device(own))


class Fantasies:
    """Made by `Posterior.fantasize`; immutable.

    Fields: posterior, of the real rows; x, (*b, q, d); y, (*s, *b, q) or (*s, *b, q, outputs), their targets.
    """

    posterior: Any  # the `Posterior` that made it

    def __init__(
        self, corner: _Corner, y: Float[Tensor, "*targets"], scores: Float64[Tensor, "*s members q p"]
    ) -> None:
        self._corner, self._state, self._x, self._y = corner, corner.state, corner.x, y
        self._half, self._place, self._lower, self._whitened = corner.half, corner.place, corner.lower, corner.whitened
        self._scores = scores  # u_b

    @property
    def x(self) -> Float[Tensor, "*b q d"]:
        """The rows of every member; a copy."""
        return self._x.clone()

    @property
    def y(self) -> Float[Tensor, "*targets q"] | Float[Tensor, "*targets q p"]:
        """Targets of the members; a copy."""
        return self._y.clone()

    def with_targets(self, y: Float[Tensor, "*targets"]) -> "Fantasies":
        """The same rows with other targets, of the shape of `y`."""
        return Fantasies(self._corner, y, self._corner.scores(y))

    @property
    def log_density(self) -> Float64[Tensor, "*members"]:
        """log p(y_F | y) of every member but for a constant, (*s, *b)."""
        per_output = self._lower.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        value = -0.5 * self._scores.square().sum((-2, -1)) - self._scores.shape[-1] * per_output
        batch = self._x.shape[:-2]
        return value.unflatten(-1, batch) if batch else value.squeeze(-1)

    @entered(lambda self, x_test: self._state.run.deterministic)
    def predict(self, x_test: Any) -> FantasyPrediction:
        """The posteriors of all members at x_test: (m, d), points that they share, or (*b, m, d), their own.

        Differentiable in x_test and in what the fantasies were made from. Raises: ShapeError, DomainError.
        Cost: n^2 flops and n (q + 1) for each point, of each member where it has its own.
        """
        state = self._state
        x_test = check_points(x_test, "x_test", like=state.x)
        batch, d = self._x.shape[:-2], self._x.shape[-1]
        if x_test.dim() != 2 and x_test.shape[:-2] != batch:
            raise ShapeError(
                f"`x_test` must have shape (m, {d}), or {(*batch, 'm', d)} with points of each member, got "
                f"{tuple(x_test.shape)}"
            )
        shared, m = x_test.dim() == 2, x_test.shape[-2]
        members = batch.numel()
        graph = torch.is_grad_enabled() and (
            state.differentiable or any(t.requires_grad for t in (x_test, self._x, self._scores, self._lower))
        )
        with torch.set_grad_enabled(graph):
            points = x_test if shared else x_test.reshape(members, m, d)
            means, variances = [], []
            for mine, part in self._strips(members, m, shared, graph):
                mean, variance = self._strip(mine, points[part] if shared else points[mine])
                means.append(mean)
                variances.append(variance)
            along = -2 if shared else -3
            mean = torch.cat(means, along) if len(means) > 1 else means[0]
            variance = torch.cat(variances, -1 if shared else -2) if len(variances) > 1 else variances[0]
            mean = mean + state.prior.mean_at(points)
            mean = mean.unflatten(-3, batch) if batch else mean.squeeze(-3)
            variance = variance.clamp_min(0.0).reshape(*batch, m)
            noise = state.prior.additive_noise(state.x.device)
            observed = variance + noise
            if state.prior.outputs is None:
                mean = mean.squeeze(-1)
            else:
                variance, observed = variance.unsqueeze(-1), observed.unsqueeze(-1)
            dtype = x_test.dtype
            return FantasyPrediction(mean.to(dtype), variance.to(dtype), observed.to(dtype))

    def joint(self, x_test: Any) -> tuple[Float[Tensor, "*means m"], Float[Tensor, "*covariances m m"]]:
        """Mean and covariance of every member at points of its own, (*b, m, d), whose batch is any that goes with that
        of the targets, (*s, *b), by broadcasting. Of one output. Cost: n^2 flops a point, of all at once."""
        state, q, batch = self._state, self._x.shape[-2], self._x.shape[:-2]
        lower, scores = (one.unflatten(-3, batch) if batch else one.squeeze(-3) for one in (self._lower, self._scores))
        here = joint_moments(state, x_test)
        between = state.prior_covariance(state.prior.kernel.rows(self._x), here.rows).to_dense()
        if here.half is not None:
            between = between - self._halves(slice(None)).reshape(*batch, q, -1) @ here.half
        solved = linalg.solve_triangular(lower, between, upper=False, device=linalg.own_device(lower))
        mean, covariance = here.mean + solved.mT @ scores, here.covariance - solved.mT @ solved
        return mean.squeeze(-1).to(here.dtype), covariance.to(here.dtype)

    def _strips(self, members: int, m: int, shared: bool, graph: bool) -> Iterator[tuple[slice, slice]]:
        """(members, test points) that fit a strip's memory; everything at once where a graph keeps it all anyway."""
        everything = slice(0, members), slice(0, m)
        q, n = self._x.shape[-2], self._state.distinct
        numbers = max(1, self._state.run.online.strip_bytes // 8)
        if graph or not members or not m:
            yield everything
        elif shared:
            step = max(1, numbers // (n + 3 * members * q))
            for start in range(0, m, step):
                yield everything[0], slice(start, start + step)
        else:
            step = max(1, numbers // (m * (n + 3 * q) + q * n))
            for start in range(0, members, step):
                yield slice(start, start + step), everything[1]

    def _strip(self, mine: slice, points: Tensor) -> tuple[Tensor, Tensor]:
        """Moments of some members at points (m, d) or (B, m, d): mean without the prior's, (*s, B, m, p); variance, (B,
        m)."""
        state = self._state
        x, lower = self._x.reshape(-1, *self._x.shape[-2:])[mine], self._lower[mine]
        scores = self._scores[..., mine, :, :]
        rows = state.prior.kernel.rows(points)
        between = state.prior_covariance(state.prior.kernel.rows(x), rows).to_dense()
        variance = state.prior_covariance(rows).diagonal()
        mean: Tensor | float = 0.0
        if self._half is not None:
            flat = points.reshape(-1, points.shape[-1])
            half = _solved(state, state.prior.kernel.rows(flat))  # (points, n)
            half = half.reshape(*points.shape[:-1], half.shape[-1])
            variance = variance - half.square().sum(-1)
            mean = half @ self._whitened
            if points.dim() == 2 and self._place is not None:
                between = between - (self._half @ half.mT)[self._place.reshape(-1, x.shape[-2])[mine]]
            else:
                between = between - self._halves(mine) @ half.mT
        # W_b, (B, q, m)
        solved = linalg.solve_triangular(lower, between, upper=False, device=linalg.own_device(lower))
        return mean + solved.mT @ scores, variance - solved.square().sum(-2)

    def _halves(self, mine: slice) -> Tensor:
        """S_b^T of some members, (B, q, n)."""
        assert self._half is not None
        return _of_members(self._half, self._place, self._x.shape[-2], mine)

    def __repr__(self) -> str:
        shape = " x ".join(map(str, (*self._y.shape[: self._y.dim() - (2 if self._state.prior.outputs else 1)],)))
        return f"Fantasies: {shape or '1'} of {self._x.shape[-2]:,} rows beside {self._state.count:,}"


class OutputFantasies(Fantasies):
    """Fantasies of outputs with noise of their own.

    Args: each, the fantasies of every output; state, of all outputs.
    """

    def __init__(self, state: AnyState, each: Sequence[Fantasies]) -> None:
        self._each = each
        self._state, self._x = state.parts[0], each[0]._x
        self._y = torch.stack([one._y for one in each], dim=-1)

    def with_targets(self, y: Tensor) -> Fantasies:
        return OutputFantasies(self._each[0]._state, [one.with_targets(y[..., j]) for j, one in enumerate(self._each)])

    @property
    def log_density(self) -> Tensor:
        return torch.stack([one.log_density for one in self._each]).sum(0)

    def predict(self, x_test: Any) -> FantasyPrediction:
        return FantasyPrediction(*_stacked([one.predict(x_test) for one in self._each], -1))

    def __repr__(self) -> str:
        return f"{self._each[0]!r}, of {len(self._each)} outputs"


class MixtureFantasies(Fantasies):
    """Fantasies of a mixture over hyperparameters, eqs. (M-380) and (M-424).

    Args: each, the fantasies by every draw, of the same targets; log_weights, of the draws before, (k,).
    """

    def __init__(self, each: Sequence[Fantasies], log_weights: Float64[Tensor, "k"]) -> None:
        self._each, self._state, self._x, self._y = each, each[0]._state, each[0]._x, each[0]._y
        densities = torch.stack([one.log_density for one in each])
        before = log_weights.reshape(-1, *(1,) * (densities.dim() - 1))
        self._weights = torch.softmax(before + densities, 0)  # (k, *s, *b)

    def predict(self, x_test: Any) -> FantasyPrediction:
        means, *variances = _stacked([one.predict(x_test) for one in self._each], 0)
        dtype, means = means.dtype, means.double()
        weights = self._weights.reshape(*self._weights.shape, *(1,) * (means.dim() - self._weights.dim()))
        mean = (weights * means).sum(0)
        between = (weights * (means - mean).square()).sum(0)

        def mixed(values: Tensor) -> Tensor:
            more = (1,) * (means.dim() - values.dim())  # of targets
            values = values.double().reshape(len(values), *more, *values.shape[1:])
            return ((weights * values).sum(0) + between).to(dtype)

        return FantasyPrediction(mean.to(dtype), *map(mixed, variances))

    def __repr__(self) -> str:
        return f"{self._each[0]!r}, by {len(self._each)} sets of hyperparameters"


def _stacked(parts: Sequence[FantasyPrediction], dim: int) -> list[Tensor]:
    """Mean, variance and observation variance of several predictions."""
    names = ("mean", "variance", "observation_variance")
    return [torch.stack([getattr(part, name) for part in parts], dim) for name in names]


def fantasize_mixture(
    state: MixtureState, x: Any, y: Any, samples: int | None, seed: int | None, row_variance: Any = None
) -> MixtureFantasies:
    """See `Posterior.fantasize`. Targets that are drawn are of a draw of hyperparameters of their own."""
    models = [state.alone(k) for k in range(state.draws)]
    if samples is None:
        return MixtureFantasies([fantasize(one, x, y, None, None, row_variance) for one in models], state.log_weights)
    generator = torch.Generator().manual_seed(draw_seed(seed))
    seeds = torch.randint(2**62, (len(models),), generator=generator).tolist()
    each = [fantasize(one, x, y, samples, own, row_variance) for one, own in zip(models, seeds, strict=True)]
    drawn = torch.stack([one._y for one in each])  # (k, samples, *b, q[, outputs])
    shape, batch = drawn.shape[1:], each[0]._x.shape[:-2]
    members = (shape[0], *batch)
    weights = state.log_weights.exp().cpu()
    count = math.prod(members)
    which = torch.multinomial(weights, max(1, count), replacement=True, generator=generator)[:count]
    which = which.reshape(1, *members, *(1,) * (len(shape) - len(members))).expand(1, *shape)
    y = drawn.gather(0, which.to(drawn.device)).squeeze(0)
    return MixtureFantasies([one.with_targets(y) for one in each], state.log_weights)


def fantasize(
    state: AnyState, x: Any, y: Any, samples: int | None, seed: int | None, row_variance: Any = None
) -> Fantasies:
    """See `Posterior.fantasize`."""
    if not state.prior.separate:
        return _fantasize(state.parts[0], x, y, samples, seed, row_variance)
    outputs = len(state.parts)
    if y is not None:
        x = check_points(in_dtype_of(x, "x", state.x), "x", like=state.x)
        y = check_targets(in_dtype_of(y, "y", state.y), "y", x, outputs)
    seeds: list[int | None] = [seed] * outputs
    if samples is not None:  # draws of different outputs are independent
        generator = torch.Generator().manual_seed(draw_seed(seed))
        seeds = torch.randint(2**62, (outputs,), generator=generator).tolist()
    each = [
        _fantasize(part, x, None if y is None else y[..., j], samples, seeds[j], row_variance)
        for j, part in enumerate(state.parts)
    ]
    return OutputFantasies(state, each)


@entered(lambda state, *_: state.run.deterministic)
def _fantasize(state: State, x: Any, y: Any, samples: int | None, seed: int | None, row_variance: Any) -> Fantasies:
    x = check_points(in_dtype_of(x, "x", state.x), "x", like=state.x).clone()  # read again by predictions
    if (y is None) == (samples is None):
        raise DomainError(
            "`y` or `samples` must be given, and not both; samples=1 draws the targets from the posterior"
        )
    samples = None if samples is None else check_count(samples, "samples", 1)
    outputs, batch, (q, d) = state.prior.outputs, x.shape[:-2], x.shape[-2:]
    if q == 0:
        raise ShapeError(f"`x` must have at least one row of each member, got shape {tuple(x.shape)}; pass one")
    if y is not None:
        y = check_targets(in_dtype_of(y, "y", state.y), "y", x, outputs).clone()
        tail = 1 if outputs is None else 2
        if y.shape[y.dim() - tail - len(batch) : y.dim() - tail] != batch:
            raise ShapeError(f"`y` must have shape (*s, *{tuple(batch)}, {q}) like the rows of x, got {tuple(y.shape)}")
    noise = state.prior.additive_noise(state.x.device).expand(x.shape[:-1])
    if row_variance is not None:
        noise = noise + _checked_variance(row_variance, x)
    graph = torch.is_grad_enabled() and (state.differentiable or x.requires_grad or (y is not None and y.requires_grad))
    with torch.set_grad_enabled(graph):
        members, flat = x.reshape(-1, q, d), x.reshape(-1, d)
        half = place = None
        whitened = torch.zeros(0, outputs or 1, dtype=F64, device=x.device)
        if state.count:
            assert state.factor is not None
            if not x.requires_grad:  # each copy of a point has a derivative of its own
                flat, place = torch.unique(flat, dim=0, return_inverse=True)
                place = None if len(flat) == members.shape[0] * q else place
                flat = flat if place is not None else x.reshape(-1, d)
            half = _solved(state, state.prior.kernel.rows(flat))
            kept = state.whitened_residual
            whitened = state.factor.half_solve(state.residual) if kept is None or graph else kept
        lower, mean = _corners(state, members, noise.reshape(-1, q), half, place, whitened)
        corner = _Corner(state, x, half, place, lower, whitened, mean)
        if samples is not None:
            generator = torch.Generator(device=x.device).manual_seed(draw_seed(seed))
            scores = torch.randn(samples, *mean.shape, generator=generator, dtype=F64, device=x.device)
            y = (mean + lower @ scores).unflatten(-3, batch) if batch else (mean + lower @ scores).squeeze(-3)
            y = (y if outputs is not None else y.squeeze(-1)).to(state.y.dtype)
        else:
            assert y is not None
            scores = corner.scores(y)
    return Fantasies(corner, y, scores)


def _checked_variance(row_variance: Any, x: Tensor) -> Tensor:
    """Variances of the rows of x, (*b, q). Raises: ShapeError, DomainError."""
    variance = as_float_tensor(row_variance, "row_variance")
    if variance.shape != x.shape[:-1]:
        raise ShapeError(f"`row_variance` must have shape {tuple(x.shape[:-1])} like `x`, got {tuple(variance.shape)}")
    check_finite(variance, "row_variance")
    if bool((variance < 0.0).any()):
        raise DomainError(f"`row_variance` must not be negative, got {float(variance.min()):g}; pass variances")
    return variance.to(x.device, F64)


def _solved(state: State, rows: Rows) -> Tensor:
    """(L^-1 K_o*)^T for k rows, (k, n), strip by strip where no graph is wanted."""
    assert state.factor is not None
    if torch.is_grad_enabled():
        return state.factor.half_solve(state.covariance_to(rows, F64).to_dense().mT).mT
    out = torch.empty(rows.count, state.distinct, dtype=F64, device=state.x.device)
    step = max(1, state.run.online.strip_bytes // (8 * state.distinct))
    for start in range(0, rows.count, step):
        cross = state.covariance_to(rows.part(start, start + step), F64).to_dense()
        out[start : start + step] = state.factor.half_solve(cross.mT).mT
    return out


def _of_members(half: Tensor, place: Tensor | None, q: int, mine: slice) -> Tensor:
    """Rows (u, n) of distinct points as those of some members, (B, q, n)."""
    if place is None:
        return half.reshape(-1, q, half.shape[-1])[mine]
    return half[place.reshape(-1, q)[mine]]


def _corners(
    state: State, members: Tensor, noise: Tensor, half: Tensor | None, place: Tensor | None, whitened: Tensor
) -> tuple[Tensor, Tensor]:
    """C_b, (B, q, q), and the mean of the posterior at each member's rows, (B, q, p).

    Raises: NotPositiveDefiniteError for a member with a row that others determine up to rounding.
    """
    prior, (count, q, _) = state.prior, members.shape
    mean = prior.mean_at(members).expand(count, q, prior.outputs or 1)
    corner = state.prior_covariance(prior.kernel.rows(members)).to_dense()
    corner = corner.expand(count, q, q) + torch.diag_embed(noise)
    prior_variance = corner.detach().diagonal(dim1=-2, dim2=-1)
    if half is not None:
        step = count if torch.is_grad_enabled() else max(1, state.run.online.strip_bytes // (8 * q * half.shape[-1]))
        less, more = [], []
        for start in range(0, max(1, count), max(1, step)):
            part = _of_members(half, place, q, slice(start, start + step))
            less.append(part @ part.mT)
            more.append(part @ whitened)
        corner, mean = corner - torch.cat(less), mean + torch.cat(more)
    try:
        lower = linalg.cholesky(corner, device=linalg.own_device(corner))
    except NotPositiveDefiniteError as error:
        lower, wrong = corner, [member for (member,) in error.indices]
    else:
        rounding = PIVOT * (state.distinct + q) * torch.finfo(F64).eps * prior_variance
        small = (lower.detach().diagonal(dim1=-2, dim2=-1).square() <= rounding).any(-1)
        wrong = small.nonzero()[:, 0].tolist()
    if wrong:
        member = wrong[0]
        raise NotPositiveDefiniteError(
            f"the covariance matrix of every fantasy must be positive definite, but member {member} has a row that "
            "others determine up to rounding: it repeats one of them, with next to no noise. Give the likelihood "
            "more, or leave it out",
            indices=[(member,)],
        )
    return lower, mean
