"""The account of one solve, the same for every method: true residuals, the best values, what ends it.

Right-hand sides are scaled to norm 1, so that their size never meets the range of float32. Only residuals computed
with float64 products enter the account; recurrences decide when it is worth computing one.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from flashgp.foundations.errors import ShapeError
from flashgp.foundations.events import Event, EventKind, StopReason
from flashgp.solvers.contract import Goal, Limits, Solution, Step, System, check_residual

F64 = torch.float64


def noise_bound(system: System, residual: Tensor) -> Tensor:
    """|r| / sqrt(min noise) per column, (t,), eq. (M-76): inf where there is no noise, 0 for r = 0."""
    size = system.space.norm(residual)
    smallest = -float(system.space.max(-system.noise))
    return torch.where(size > 0.0, size / smallest**0.5, 0.0)


def product(system: System, v: Tensor, dtype: torch.dtype) -> Tensor:
    """A v in that dtype for v (n, t), float64; columns are brought to size 1 first, which float32 needs."""
    if dtype == F64:
        return system.multiply(v)
    size = system.space.max(v.abs()).clamp_min(torch.finfo(F64).tiny)
    return system.multiply((v / size).to(dtype)).double() * size


class Progress:
    """Progress of a solve in scaled units: each right-hand side has norm 1.

    Args:
        bound: of |e|_A from residuals (n, t) in scaled units, (t,).
        events: of the preparation.
    Fields: rhs, value (best so far), residual (of that value), (n, t), scaled; scale (t,); off (t,),
    scaled, by which the norms of residuals may be wrong where products are not of all pairs; relative and energy (t,),
    of the best values, energy in the caller's units; iterations; passes; events.
    """

    def __init__(
        self,
        name: str,
        system: System,
        goal: Goal,
        limits: Limits,
        bound: Callable[[Tensor], Tensor],
        events: Sequence[Event] = (),
    ) -> None:
        self.began = time.perf_counter()
        self.name, self.system, self.goal, self.limits, self.bound = name, system, goal, limits, bound
        self.space = system.space
        self.iterations, self.passes, self.events = 0, 0.0, list(events)
        self.pass_seconds = 0.0

    def begin(self, rhs: Tensor, start: Tensor | None) -> None:
        """Begin at zeros, or at a start where that is better. Raises: ShapeError; ConvergenceError."""
        _check_shape("rhs", rhs, self.system.count)
        check_residual(self.name, 0, rhs, "`rhs`")
        largest = self.space.max(rhs.abs()).clamp_min(0.0)
        safe = torch.where(largest > 0.0, largest, 1.0)
        self.scale = torch.where(largest > 0.0, safe * self.space.norm(rhs / safe), 1.0)
        self.rhs = rhs / self.scale
        self.value = torch.zeros_like(self.rhs)
        self.residual = self.rhs.clone()
        self.off = torch.zeros_like(self.scale)
        self.relative, self.energy = self._sizes(self.residual, slice(None))
        if start is not None:
            _check_shape("start", start, self.system.count, rhs.shape[1])
            check_residual(self.name, 0, start, "`start`")
            guess = start / self.scale
            self.record(slice(None), guess, self.true_residual(slice(None), guess))

    # -- true residuals ------------------------------------------------------------------------------------------
    def true_residual(self, columns: Tensor | slice, value: Tensor) -> Tensor:
        """b - A x of some columns in float64. Raises: ConvergenceError where it is not finite."""
        began = time.perf_counter()
        residual = self.rhs[:, columns] - self.system.multiply(value)
        self.pass_seconds = time.perf_counter() - began
        self.passes += 1.0
        check_residual(self.name, self.iterations, residual)
        return residual

    def record(self, columns: Tensor | slice, value: Tensor, residual: Tensor) -> None:
        """Keep the values that are better than the best so far; residuals are true ones."""
        relative, energy = self._sizes(residual, columns)
        better = self._merit(relative, energy) < self._merit(self.relative[columns], self.energy[columns])
        every = torch.arange(self.rhs.shape[1], device=better.device)
        chosen = every[columns][better]
        self.value[:, chosen], self.residual[:, chosen] = value[:, better], residual[:, better]
        self.relative[chosen], self.energy[chosen] = relative[better], energy[better]

    def verify(self, columns: Tensor, value: Tensor) -> Tensor:
        """The true residual of values, after they have been recorded."""
        residual = self.true_residual(columns, value)
        self.record(columns, value, residual)
        return residual

    def certify(self, columns: Tensor, correction: Tensor, residual: Tensor, solved: "Progress") -> None:
        """Bounds of |e|_A for the best values from z near A^-1 r, eq. (M-123).

        Args:
            columns: positions of these.
            correction: z, (n, t), of their residuals r, (n, t), in the caller's units.
            solved: the solve for it, which went on counting iterations and passes.
        """
        left = solved.residual * solved.scale  # r - A z
        square = self.space.sum(correction * (residual - left)).clamp_min(0.0)
        energy = torch.minimum(self.energy[columns], square.sqrt() + solved.energy)
        before, self.energy[columns] = self.energy[columns], energy
        iterations = solved.iterations - self.iterations
        self.iterations, self.passes = solved.iterations, solved.passes
        sharper = float((before / energy.clamp_min(torch.finfo(F64).tiny)).min())
        self.note(EventKind.CORRECTED, iterations=iterations, sharper=sharper)

    def at_rounding(self, rows: int, roundings: float) -> bool:
        """True if no open column has a backward error |r| / (|A| |x|) above so many rounding units of float64, by a
        lower bound of |A| from so many rows, (M-123): then no method in float64 is to be expected to leave less."""
        columns, system, space = self.open, self.system, self.space
        diagonal = system.diagonal() + system.noise
        count = space.count(diagonal)
        some = torch.linspace(0, count - 1, min(count, rows)).long().to(diagonal.device)
        if not len(columns) or not len(some):
            return False
        squares = space.sum(system.columns(some, F64).square()) / space.take(diagonal, some)
        largest = float(squares.max())
        allowed = roundings * torch.finfo(F64).eps * largest * space.norm(self.value[:, columns])
        return bool((space.norm(self.residual[:, columns]) <= allowed).all())

    @property
    def open(self) -> Tensor:
        """Positions of the columns that have not met the goal, int64."""
        return (~self.goal.met(self.relative, self.energy)).nonzero()[:, 0]

    def met(self, columns: Tensor, residual: Tensor, bound: Tensor | None = None) -> Tensor:
        """Columns that would meet the goal with these residuals; a bound of |e|_A, scaled, may be at hand."""
        relative = self.space.norm(residual)
        energy = noise_bound(self.system, residual)
        energy = energy if bound is None else torch.minimum(energy, bound)
        return self.goal.met(relative, energy * self.scale[columns])

    def excess(self, columns: Tensor | slice, residual: Tensor) -> float:
        """Factor by which the residuals are too large."""
        merit = self._merit(*self._sizes(residual, columns))
        return float(merit.max()) if len(merit) else 0.0

    def excess_off(self) -> float:
        """`excess` of residuals of 0 that are off."""
        return self.excess(slice(None), torch.zeros_like(self.rhs))

    # -- what ends a solve ---------------------------------------------------------------------------------------
    def interrupted(self) -> StopReason | None:
        """True if the time is up, counting the pass that measuring the answer takes, or the iterations."""
        # Until one was measured, an iteration and a float64 pass count as three of the passes there were.
        measuring = self.pass_seconds or 3.0 * (time.perf_counter() - self.began) / max(1.0, self.passes)
        if self.limits.deadline.passed(measuring):
            return StopReason.TIME
        return StopReason.ITERATIONS if self.iterations >= self.limits.iterations else None

    def has_room_for(self, iterations: int, passes: float) -> bool:
        """True if so many iterations more, and passes beside them, seem to fit before the deadline and the limit."""
        seconds = (iterations + passes) * (time.perf_counter() - self.began) / max(1.0, self.passes)
        return not self.limits.deadline.passed(seconds) and self.iterations + iterations <= self.limits.iterations

    def interrupted_by_hand(self) -> StopReason:
        """Meaning of a KeyboardInterrupt that is being handled: the end of the solve, or it goes on to the caller."""
        if self.limits.interrupted is None:
            raise
        self.limits.interrupted()
        return StopReason.INTERRUPT

    def step(self, columns: Tensor, residual: Tensor) -> bool:
        """Count an iteration and tell the callback; whether it asks to stop. Residuals of columns by recurrence."""
        self.iterations += 1
        if self.limits.callback is None:
            return False
        relative, energy = self.relative.clone(), self.energy.clone()
        relative[columns], energy[columns] = self._sizes(residual, columns)
        seconds = time.perf_counter() - self.began
        return bool(self.limits.callback(Step(self.name, self.iterations, self.passes, seconds, relative, energy)))

    def note(self, kind: EventKind, **fields: Any) -> None:
        self.events.append(Event(kind, solver=self.name, **fields))

    def finished(self, stopped: StopReason) -> Solution:
        """The best values. The goal counts however the solve ended."""
        return Solution(
            value=self.value * self.scale,
            relative_residual=self.relative,
            energy_bound=self.energy,
            iterations=self.iterations,
            passes=self.passes,
            seconds=time.perf_counter() - self.began,
            stopped=stopped if len(self.open) else StopReason.GOAL,
            events=self.events,
            residual=self.residual * self.scale,
        )

    def _sizes(self, residual: Tensor, columns: Tensor | slice) -> tuple[Tensor, Tensor]:
        """|r| / |b| and the bound of |e|_A, the latter in the caller's units."""
        energy, off = torch.minimum(noise_bound(self.system, residual), self.bound(residual)), self.off[columns]
        if bool(off.any()):
            energy = energy + off / (-float(self.space.max(-self.system.noise))) ** 0.5
        return self.space.norm(residual) + off, energy * self.scale[columns]

    def _merit(self, relative: Tensor, energy: Tensor) -> Tensor:
        """Distance from the goal: at most 1 where it is met; smaller is better."""
        tiny = torch.finfo(F64).tiny
        merit = relative / max(self.goal.relative, tiny)
        return merit if self.goal.energy <= 0.0 else torch.minimum(merit, energy / self.goal.energy)


def _check_shape(name: str, tensor: Tensor, rows: int, columns: int | None = None) -> None:
    wanted = f"({rows}, {'t' if columns is None else columns})"
    fits = tensor.dim() == 2 and tensor.shape[0] == rows and columns in (None, tensor.shape[-1])
    if not fits or tensor.dtype != F64:
        raise ShapeError(
            f"`{name}` must be float64 of shape {wanted}, got {tensor.dtype} of shape {tuple(tensor.shape)}; convert it"
        )
