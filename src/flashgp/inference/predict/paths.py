"""Posterior functions by Matheron's rule, eq. (M-94): draws that can be evaluated, and differentiated, anywhere.

    f(x) = m(x) + f0(x) + K(x, X) K^-1 (y - m(X) - f0(X) - e),    e ~ N(0, noise of each row)

One solve for all of them; a point then costs O(n). The draw f0 of the prior is approximate, and says how much.
"""

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from flashgp.foundations.checks import check_count
from flashgp.foundations.contexts import entered
from flashgp.foundations.determinism import EVENT, contiguous_copy
from flashgp.foundations.errors import MemoryBudgetError, warn
from flashgp.foundations.events import StopReason
from flashgp.foundations.machine import available_bytes
from flashgp.foundations.quantities import readable_bytes
from flashgp.foundations.report import Report
from flashgp.inference.base_state import BaseState
from flashgp.inference.exact.solve import mean_goal
from flashgp.inference.output_states import AnyState
from flashgp.inference.predict.prior_draws import FeatureDraws, PriorDraws, draw_seed, prior_draws
from flashgp.inference.state import State
from flashgp.solvers.direct.cholesky import refine

# At the peak for each number of the right-hand sides, with a float64 factor and with solves: draws, targets, solvers'.
FACTOR_NUMBERS, SOLVE_NUMBERS = 9, 22
UNCHECKED_BYTES = 2**28  # below which the free memory is not asked for
TOLERANCE = 1e-3  # standard deviations of an observation, to which a float32 factor is corrected


class Paths:
    """Posterior functions, made by `post.paths(count)`; each call evaluates the same functions.

    Fields: count; prior_error of the draw of the prior, eq. (M-95), 0 when it is exact; report.
    """

    def __init__(
        self, state: BaseState, prior: PriorDraws, values: Callable[[Tensor], Tensor], count: int, report: Report
    ) -> None:
        """Args: prior, the draw f0; values, of the functions at points x, (*batch, n_test, count * outputs)."""
        self.count, self.report = count, report
        self._state, self._prior, self._values = state, prior, values

    @classmethod
    def of_outputs(
        cls, state: BaseState, draw: "Callable[..., Paths]", count: int, features: int, seed: int | None
    ) -> "Paths":
        """Functions of independent outputs. Args: state, of all; draw, functions of one output by its state."""
        generator = torch.Generator().manual_seed(draw_seed(seed))
        seeds = torch.randint(2**62, (len(state.parts),), generator=generator).tolist()
        each = [draw(part, count, features, own) for part, own in zip(state.parts, seeds, strict=True)]

        def values(x: Tensor) -> Tensor:
            return torch.stack([one._values(x) for one in each], -1).flatten(-2)

        return cls(state, each[0]._prior, values, each[0].count, each[0].report)

    @classmethod
    def mixed(cls, state: BaseState, draw: "Callable[[int], Paths]", which: Tensor) -> "Paths":
        """Functions of a mixture, each of one of its models. Args: draw, so many of every model, as a batch; which
        model each function is of, (count,)."""
        own = which.unsqueeze(1) == which  # the place of a function is the number of its model's before it
        places = own.tril(-1).sum(1)
        paths = draw(int(places.max()) + 1 if len(which) else 0)

        def values(x: Tensor) -> Tensor:
            each = paths._values(x).unflatten(-1, (paths.count, state.prior.outputs or 1))  # (k, n_test, ...)
            return each[which.to(x.device), :, places.to(x.device)].movedim(0, -2).flatten(-2)

        return cls(state, paths._prior, values, len(which), paths.report)

    @property
    def prior_error(self) -> float | None:
        """Root mean square of the error of k relative to the variances."""
        return self._prior.error

    @entered(lambda self, _: self._state.run.deterministic)
    def __call__(self, x: Any) -> Float[Tensor, "{self.count} *shape"]:
        """The functions at points x, (*batch, n_test, d): (count, *batch, n_test[, outputs]), in x's dtype.

        Differentiable in x. Raises: ShapeError, DomainError for points that do not fit.
        Cost: n (d + count) flops per point, and F (d + count) for F features; tile by tile.
        """
        state = self._state
        x = contiguous_copy(state.checked_points(x, "x"))
        outputs = state.prior.outputs
        with torch.set_grad_enabled(torch.is_grad_enabled() and (x.requires_grad or state.differentiable)):
            values = self._values(x).unflatten(-1, (self.count, outputs or 1)).movedim(-2, 0)
        self._note(x)
        return (values if outputs is not None else values.squeeze(-1)).to(x.dtype)

    def _note(self, x: Tensor) -> None:
        """Without data the error of features is measured at the first points."""
        if isinstance(self._prior, FeatureDraws) and self._prior.error is None and x.shape[-2]:
            self._prior.measure(self._state.prior, x.detach())
            self.report.events.append(self._prior.event)

    def __repr__(self) -> str:
        return f"{self.count:,} posterior functions of {self._state.count:,} rows\n{self.report}"

    def _repr_html_(self) -> str:
        return self.report._repr_html_()


@entered(lambda state, *_, **__: state.run.deterministic)
def draw_paths(
    state: AnyState, count: int, features: int, seed: int | None, unchecked_bytes: int = UNCHECKED_BYTES
) -> Paths:
    """See `Posterior.paths`; below `unchecked_bytes` the free memory is not asked for."""
    started = time.perf_counter()
    count = check_count(count, "count", 0)
    generator = torch.Generator().manual_seed(draw_seed(seed))
    state.common("paths")
    gp, x = state.prior, state.points
    outputs = gp.outputs or 1
    report = Report(
        route=state.report.route, device=str(x.device), dtype=state.report.dtype, jitter=state.report.jitter
    )  # fmt: skip
    report.events += [EVENT] if state.run.deterministic else []
    report.predicted_bytes = _checked_bytes(state, count, outputs, unchecked_bytes)
    with torch.set_grad_enabled(state.differentiable):
        prior = prior_draws(gp, x, state.batch_shape, count * outputs, features, generator, state.run.group.size)
        if prior.error is not None:
            report.events.append(prior.event)
        weights = None
        if state.count:
            noise = state.noise.unsqueeze(-1)
            if gp.separate:  # (*batch, u or 1, count * outputs)
                noise = state.noise.unsqueeze(-2).expand(*state.noise.shape[:-1], count, outputs).flatten(-2)
            normal = torch.randn(
                *state.batch_shape, state.distinct, count * outputs, generator=generator, dtype=torch.float64
            ).to(x.device)
            wanted = state.residual.unsqueeze(-2).expand(*state.batch_shape, state.distinct, count, outputs).flatten(-2)
            targets = wanted - prior(x) - noise.sqrt() * normal
            weights, report.relative_residual = representers(state, targets)
            report.error_bound = _bound(state, targets, report.relative_residual)
    report.seconds = time.perf_counter() - started
    return Paths(state, prior, partial(_values, state, prior, weights), count, report)


def _values(state: AnyState, prior: PriorDraws, weights: Tensor | None, x: Tensor) -> Tensor:
    """m + f0 + K(x, X) weights, (*batch, n_test, t). Args: weights, K^-1 (y - m - f0 - e), (*batch, n, t); None without
    data."""
    values = prior(x)
    if weights is not None:
        values = values + state.parts[0].covariance_to(state.prior.kernel.rows(x), torch.float64) @ weights
    return values + repeated_mean(state.prior.mean_at(x), values.shape[-1])


def repeated_mean(mean: Tensor, columns: int) -> Tensor:
    """m of points, (*batch, n_test, outputs or 1), for functions side by side, (*batch, n_test, columns)."""
    return mean.repeat(*(1,) * (mean.dim() - 1), columns // mean.shape[-1])


def _checked_bytes(state: AnyState, count: int, outputs: int, unchecked_bytes: int) -> int:
    """Peak bytes of so many functions, a right-hand side per output. Raises: MemoryBudgetError, not free."""
    numbers = SOLVE_NUMBERS if state.by_solves else FACTOR_NUMBERS
    one = 8 * numbers * state.distinct * outputs * max(1, state.batch_shape.numel())
    needed = one * count
    if needed > unchecked_bytes and needed > (free := available_bytes(state.x.device)):
        most = free // one
        advice = f"draw at most {most:,} at a time, with seeds of their own" if most else "free some memory"
        raise MemoryBudgetError(
            f"`count` asks for {count * outputs:,} solves with {state.distinct:,} rows at once, which need "
            f"{readable_bytes(needed)} with {readable_bytes(free)} free; {advice}",
            needed_bytes=needed,
            available_bytes=free,
        )
    return needed


def representers(state: AnyState, targets: Tensor, tolerance: float = TOLERANCE) -> tuple[Tensor, float | None]:
    """K^-1 targets, (*batch, n, t), and the relative residual: the one place where draws are solved for.

    The residual is taken in float64. Without a float64 factor, by solves to a tolerance in standard deviations of an
    observation. None where a graph is kept. Outputs with noise of their own, (*batch, n, count * outputs), have each
    its own matrix.
    """
    if targets.numel() == 0:
        return targets, None
    if state.prior.separate:
        split = targets.unflatten(-1, (-1, len(state.parts)))
        solved = [representers(part, split[..., j], tolerance) for j, part in enumerate(state.parts)]
        known = [relative for _, relative in solved if relative is not None]
        return torch.stack([weights for weights, _ in solved], dim=-1).flatten(-2), max(known, default=None)
    return _solved(state.parts[0], targets, tolerance)


def _solved(state: State, targets: Tensor, tolerance: float) -> tuple[Tensor, float | None]:
    if state.solves is not None:
        solution = state.solves.solve(targets, mean_goal(state.solves.system, tolerance).goal)
        residual = float(solution.relative_residual.max())
        if solution.stopped is not StopReason.GOAL:
            warn(
                f"the solve of these draws ended ({solution.stopped}) with a relative residual of {residual:.1e}; pass "
                "a larger memory= to condition, or dtype=torch.float64"
            )
        return solution.value, residual
    factor = state.factor
    assert factor is not None

    def solve(rhs: Tensor) -> Tensor:
        return factor.solve(rhs.to(factor.dtype)).double()

    if state.differentiable:
        return solve(targets), None
    noise = state.noise.unsqueeze(-1)
    covariance = state.prior_covariance(state.rows)
    weights, relative, _ = refine(solve, lambda v: covariance @ v + noise * v, targets, 0.0, limit=0)
    return weights, relative


def _bound(state: AnyState, targets: Tensor, relative: float | None) -> float | None:
    """Bound of the error of a path at the training rows by the relative residual of a solve, eq. (M-37); None without
    noise."""
    if relative is None or targets.numel() == 0:
        return None
    smallest = float(state.noise.detach().min())
    if not smallest > 0.0:
        return None
    one = state.parts[0]
    largest = float(one.prior_covariance(one.rows).diagonal().detach().max())
    return relative * math.sqrt(largest / smallest) * float(targets.detach().norm(dim=-2).amax())
