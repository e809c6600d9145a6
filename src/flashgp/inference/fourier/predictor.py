"""Predictions by Fourier series, eq. (M-435).

    mean(x)     = m(x) + sum_j w_j b_j exp(2 pi i nu_j . (x - centre))
    cov(x, x')  = phi(x)* B^-1 phi(x') + tail [x = x'],   phi_j = w_j exp(-2 pi i nu_j . (x - centre))

Means are one transform of all points. Variances come from a factor, or from a solve of each point, or from draws.
"""

import time
from functools import cached_property, partial

import torch
from torch import Tensor

from flashgp.foundations.checks import check_count
from flashgp.foundations.contexts import entered
from flashgp.foundations.determinism import EVENT
from flashgp.foundations.errors import DomainError
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.machine import available_bytes
from flashgp.foundations.report import Report
from flashgp.inference.extent import check_answer
from flashgp.inference.fourier.by_rows import ByRows
from flashgp.inference.fourier.grid import CPU
from flashgp.inference.fourier.local import near_variance, windows_that_serve
from flashgp.inference.fourier.state import FourierState
from flashgp.inference.predict.paths import Paths, repeated_mean
from flashgp.inference.predict.predictor import Predictor, Variance, check_joint
from flashgp.inference.predict.prior_draws import PriorDraws, draw_seed
from flashgp.planner.fourier_price import FourierPrice
from flashgp.planner.problem import PlanSettings

F64 = torch.float64
TAPED_POINTS = 256  # of means with gradients at once, for each of which all waves are there


class FourierPredictor(Predictor):
    """Predictor of a state at points. A new one for every prediction: its report is of that."""

    def __init__(self, state: FourierState, *, deterministic: bool) -> None:
        self._state, self.deterministic = state, deterministic
        self.report = Report(
            route=state.report.route,
            device="cpu",
            dtype="float64",
            error_bound=state.report.error_bound,
            events=[EVENT] if deterministic else [],
        )

    @entered(lambda self, x: self.deterministic)
    def mean(self, x: Tensor) -> Tensor:
        began = time.perf_counter()
        self.check(x)
        coefficients = self._state.coefficients
        with torch.set_grad_enabled(self.wants_graph(x)):
            if self.wants_graph(x):
                parts = [self._taped(part, coefficients) for part in x.cpu().split(TAPED_POINTS)]
                found = torch.cat(parts).to(x.device) if parts else x.new_zeros(0, len(coefficients), dtype=F64)
            else:
                found = self._state.grid.forward(x, coefficients).mT
            value = self._state.prior.mean_at(x) + found
        check_answer(value, "x_test")
        low, high = self._state.corners
        outside = bool(((x.detach() < low) | (x.detach() > high)).any())
        self.report.error_bound = self._state.error_bound(outside=outside)
        self._took(began)
        return value

    @entered(lambda self, x: self.deterministic)
    def variance(self, x: Tensor) -> Variance:
        began, state = time.perf_counter(), self._state
        self.check(x)
        with torch.set_grad_enabled(self.wants_graph(x)):
            found = self._variance(x.cpu())
        self._took(began)
        outputs = len(state.coefficients)
        return found.mapped(lambda t: t.to(x.device).unsqueeze(-1).expand(*t.shape, outputs))

    def _variance(self, x: Tensor) -> Variance:
        state = self._state
        system, tail, part = state.weights.system, state.tail + state.untold, state.part
        if self.by_rows is not None:
            self.report.events.append(Event(EventKind.FOURIER_ROWS, rows=state.count))
            return Variance(self.by_rows.variance(x))
        if self.wants_graph(x):
            half = self._phi(x)
            return Variance(state.grid.dot(half, self._solved(half)) + state.tail)
        if system.dense or self._by_solves(len(x)):
            return Variance(system.inverse_variance_at(x, part) + tail)
        near = near_variance(system, state.prior.kernel, x, tail, state.settings.windows) if part is None else None
        if near is not None:
            value, share = near
            error = share * (value + tail)
            self.report.events.append(Event(EventKind.FOURIER_WINDOWS, error=share))
        elif state.drawn is None and state.held is None:
            return Variance(system.inverse_variance_at(x, part) + tail)
        else:
            value = state.grid.forward(x, state.functions(state.sampled)).square().mean(0)
            share = (2.0 / state.settings.draws) ** 0.5
            error = value * share
            self.report.events.append(Event(EventKind.FOURIER_VARIANCE, draws=state.settings.draws, error=share))
        return Variance(value + tail, error, (value - 2.0 * error).clamp_min(0.0) + tail, value + 2.0 * error + tail)

    @cached_property
    def _rows_serve(self) -> bool:
        """Whether a factor of the rows takes less time than what variances come from without one of the weights, and
        half of the memory at most."""
        state, n = self._state, self._state.count
        whole = state.rows_learned is not None and state.term is None
        fits = n <= state.settings.most_rows and 16 * n**2 <= available_bytes(CPU)
        if state.weights.system.dense or not (whole and fits):
            return False
        return n**3 / 3.0 / self._gemm <= self._other_seconds(state.settings.draws)

    @property
    def by_rows(self) -> ByRows | None:
        """The factor of the rows, where it serves; what they tell of the tail is in it."""
        return self._state.by_rows if self._rows_serve else None

    @property
    def unknown(self) -> float:
        """Variance that answers have beside that of the series."""
        return self._state.tail + self._state.untold if self.by_rows is None else 0.0

    @property
    def _gemm(self) -> float:
        return PlanSettings(deterministic=self.deterministic).rates.rates(CPU).gemm(F64)

    def seconds(self, points: int) -> float:
        """About what means and variances of so many points take: with a factor as the passes took over as many rows,
        else that, and what it takes without."""
        state = self._state
        system, passes = state.weights.system, points * (state.report.seconds or 0.0) / max(1, state.count)
        if system.dense:
            return passes
        if self._rows_serve:
            return passes + (state.count / 3.0 + points) * state.count**2 / self._gemm
        return passes + self._other_seconds(points)

    def _other_seconds(self, points: int) -> float:
        """Of variances of points without a factor: windows, and solves of those that are checked, or of draws."""
        state, settings, system = self._state, self._state.settings, self._state.weights.system
        local = windows_that_serve(system, state.prior.kernel, state.sample.x.shape[-1], settings.windows)
        local = local if state.part is None and not self._by_solves(points) else []
        solves = min(points, settings.windows.checked if local else settings.draws)
        numbers = state.weights.solution.iterations * state.grid.size * 2**state.grid.d
        return solves * numbers * FourierPrice.number_seconds + sum(each.flops for each in local[:1]) / self._gemm

    def _by_solves(self, points: int) -> bool:
        """True if a solve of each point takes little work, by the iterations of that of the mean."""
        grid, solution = self._state.grid, self._state.weights.solution
        return points * solution.iterations * grid.size * 2**grid.d <= self._state.settings.solved_numbers

    @entered(lambda self, x: self.deterministic)
    def covariance(self, x: Tensor) -> Tensor:
        self.check(x)
        numbers = 2 * self._state.count if self._rows_serve else 4 * self._state.grid.size
        check_joint(len(x), 8 * len(x) * numbers, x.device)
        with torch.set_grad_enabled(self.wants_graph(x)):
            if self.by_rows is not None:
                return self.by_rows.covariance(x.cpu()).to(x.device)
            phi = self._phi(x.cpu())
            solved = self._solved(phi)
            weighted = solved * self._state.grid.multiplicity
            joint = torch.view_as_real(phi).flatten(1) @ torch.view_as_real(weighted).flatten(1).mT
            return (0.5 * (joint + joint.mT) + self._state.tail * torch.eye(len(x), dtype=F64)).to(x.device)

    def paths(self, count: int, features: int, seed: int | None) -> Paths:
        return draw_paths(self._state, count, features, seed)

    # -- work ------------------------------------------------------------------------------------------------------
    def _phi(self, x: Tensor) -> Tensor:
        return self._state.weights.system.root * self._state.grid.waves(x)

    def _solved(self, phi: Tensor) -> Tensor:
        """Covariances of the weights with what phi weighs, with gradients to phi as they are symmetric."""
        return _Solve.apply(phi, self._state) if phi.requires_grad else _solve(phi.detach(), self._state)

    def _taped(self, x: Tensor, coefficients: Tensor) -> Tensor:
        waves = self._state.grid.waves(x)
        return torch.stack([self._state.grid.dot(waves, one.expand_as(waves)) for one in coefficients], -1)

    def check(self, x: Tensor, name: str = "x_test") -> None:
        """DomainError for points outside the box, where functions repeat."""
        grid, settings = self._state.grid, self._state.settings.grid
        room = settings.beyond[grid.d - 1]
        low, high = self._state.corners
        wide = high - low
        outside = ((x.detach().double() < low - room * wide) | (x.detach().double() > high + room * wide)).any(-1)
        if bool(outside.any()):
            row = int(outside.nonzero()[0])
            other = 'approximation="sparse"'
            if self._state.held is not None:
                other = 'approximation="full_scale", or condition exactly'
            raise DomainError(
                f"`{name}` must lie within {room:.0%} of the range of the rows by Fourier series, got "
                f"{int(outside.sum()):,} points outside, the first is row {row}; pass {other}"
            )

    def _took(self, began: float) -> None:
        self.report.seconds = (self.report.seconds or 0.0) + time.perf_counter() - began


def _solve(phi: Tensor, state: FourierState) -> Tensor:
    """B^-1 phi, or for a term (M-447)."""
    system, part = state.weights.system, state.part
    if part is None:
        return system.solve(phi, 0.0, 1e-6).value
    return part * (system.solve_anywhere(part * phi) + (1.0 - part) * phi)


class _Solve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, phi: Tensor, state: FourierState) -> Tensor:
        ctx.state = state  # type: ignore[attr-defined]
        return _solve(phi.detach(), state)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> tuple[Tensor, None]:
        state: FourierState = ctx.state  # type: ignore[attr-defined]
        weights = state.grid.multiplicity
        return _Solve.apply(gradient / weights, state) * weights, None


class NoDraws(PriorDraws):
    """No draw of the prior: weights are drawn from the posterior, without an error but for the tail."""

    error = 0.0

    def __call__(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    @property
    def event(self) -> Event:
        raise NotImplementedError


@entered(lambda state, *_, **__: state.run.deterministic)
@torch.no_grad()
def draw_paths(state: FourierState, count: int, features: int, seed: int | None) -> Paths:
    """See `Posterior.paths`: f = m + sum_j w_j (b_j + d_j) exp(...), d ~ N(0, B^-1); the tail is left out."""
    began, count = time.perf_counter(), check_count(count, "count", 0)
    outputs = len(state.coefficients)
    system = state.weights.system
    drawn = state.weight_draws(count * outputs, draw_seed(seed))
    functions = system.root * drawn + state.coefficients.repeat(count, *(1,) * len(state.grid.shape))
    report = Report(route=state.report.route, device="cpu", dtype="float64", seconds=time.perf_counter() - began)
    return Paths(state, NoDraws(), partial(_values, state, functions), count, report)


def _values(state: FourierState, functions: Tensor, x: Tensor) -> Tensor:
    if torch.is_grad_enabled() and x.requires_grad:
        waves = state.grid.waves(x.cpu())
        found = torch.stack([state.grid.dot(waves, one.expand_as(waves)) for one in functions], -1).to(x.device)
    else:
        found = state.grid.forward(x, functions).mT
    return found + repeated_mean(state.prior.mean_at(x), found.shape[-1])


def predictor(state: FourierState, *, deterministic: bool) -> Predictor:
    """Predictor of a state."""
    return FourierPredictor(state, deterministic=deterministic)


def predict_seconds(state: FourierState, points: int) -> float:
    """About what a prediction of so many points takes."""
    return FourierPredictor(state, deterministic=state.run.deterministic).seconds(points)
