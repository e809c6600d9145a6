"""FourierState: a prior given rows, by Fourier series: weights of frequencies, whatever the number of rows."""

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from jaxtyping import Float64
from torch import Tensor

from flashgp.foundations.errors import NotPositiveDefiniteError
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.report import Report
from flashgp.inference.base_state import UpdateState
from flashgp.inference.fourier.by_rows import ByRows
from flashgp.inference.fourier.grid import Grid
from flashgp.inference.fourier.grids import Series, series_of
from flashgp.inference.fourier.local import WindowSettings, near_variance
from flashgp.inference.fourier.passes import SeriesValues
from flashgp.inference.fourier.spectrum import GridSettings, coefficients, left_out
from flashgp.inference.fourier.sums import FourierSums, WeightPosterior
from flashgp.inference.fourier.system import Solution, SolveSettings
from flashgp.inference.prior import Prior
from flashgp.inference.run import Run
from flashgp.inference.streamed.rows import noise_of
from flashgp.inference.streamed.state import OF_ROWS, StateOfPasses
from flashgp.kernels.base import Kernel, terms
from flashgp.likelihoods import Likelihood
from flashgp.processes.group import ALONE, Group
from flashgp.sources.group_survey import SEED_APART
from flashgp.sources.source import Held
from flashgp.sources.survey import Block

F64 = torch.float64
DRAWN_SEED = 2**36  # added to a seed for the draws that variances are sampled from


@dataclass(frozen=True)
class FourierSettings:
    """Fields: grid; solves; windows; draws that variances are sampled from; sampled_error, relative, of their solves;
    sampled_accuracy, of the transforms that draw noise; solved_numbers, of transforms, that variances of points may
    take by solves; most_rows, of which there may be a factor for variances; sites_dense, frequencies up to which there
    is a factor where sites are found by iteration, whose steps take the variance of every row."""

    grid: GridSettings = field(default_factory=GridSettings)
    solves: SolveSettings = field(default_factory=SolveSettings)
    windows: WindowSettings = field(default_factory=WindowSettings)
    draws: int = 32
    sampled_error: float = 1e-2
    sampled_accuracy: float = 1e-4
    solved_numbers: int = 2**28
    most_rows: int = 8_000
    sites_dense: int = 5000

    @classmethod
    def of(cls, likelihood: Likelihood) -> "FourierSettings":
        found = cls()
        if likelihood.underlying.has_sites:
            return found
        return replace(found, solves=replace(found.solves, dense=found.sites_dense))


@dataclass(frozen=True)
class Truncation:
    """Loss of Fourier series against exact inference: the variance of f that is treated as noise.

    Fields: tail, that variance; noise, the least of a row; nats, which the tail costs a row at most in predictive
    density, log(1 + tail / noise) / 2; error, of the mean, in units of y, None where it is not known; standard_error,
    0.
    """

    tail: float
    noise: float
    error: float | None = None
    standard_error: float = 0.0

    @property
    def nats(self) -> float:
        return 0.5 * math.log1p(self.tail / self.noise) if self.noise > 0.0 else math.inf

    @property
    def event(self) -> Event:
        percent = 100.0 * self.tail / self.noise
        return Event(EventKind.FOURIER_TAIL, tail=self.tail, percent=percent, nats=self.nats, error=self.error)

    def __str__(self) -> str:
        return str(self.event)


@dataclass(frozen=True, eq=False)
class Term:
    """A term of f, eq. (M-447). Fields: whole, the state of f; part of each coefficient that is of it, (*shape)."""

    whole: "FourierState"
    part: Tensor


@dataclass(frozen=True, eq=False)
class FourierState(StateOfPasses):
    """Fields: prior, detached; weights, of the posterior; tail, variance that the grid leaves out; sample, some rows,
    float64; dtype, of x; report; run; held, the rows where the caller holds them, else None; settings; online, how many
    rows joined since conditioning; draws, B^-1/2 times normal vectors, where rows were read, else None;
    corners, least and largest numbers of each column of x; term of f that it is the state of, else None; ranks, of
    which each has seen a part of the rows; grid_errors, of the mean, between the rows and outside, as measured
    when the rows were conditioned on, (M-465), None where they are not known."""

    prior: Prior
    weights: WeightPosterior
    tail: float
    sample: Block
    dtype: torch.dtype
    report: Report
    run: Run = field(default_factory=Run)
    held: Held | None = None
    settings: FourierSettings = field(default_factory=FourierSettings)
    online: UpdateState = field(default_factory=UpdateState)
    drawn: Tensor | None = None
    corners: tuple[Tensor, Tensor] = (torch.zeros(0), torch.zeros(0))
    term: Term | None = None
    ranks: int = 1
    grid_errors: tuple[float, float] | None = None
    parts: ClassVar[tuple[()]] = ()

    @property
    def grid(self) -> Series:
        return self.weights.sums.grid

    @property
    def coefficients(self) -> Tensor:
        """Those of the posterior mean beside the prior's, (p, *shape)."""
        return self.functions(self.weights.solution.value)

    def functions(self, weights: Tensor) -> Tensor:
        """Coefficients of the functions that have such weights b, (k, *shape); of a term, of its part of them."""
        found = self.weights.system.root * weights
        return found if self.part is None else self.part * found

    # -- terms -----------------------------------------------------------------------------------------------------
    @torch.no_grad()
    def of_term(self, prior: Prior) -> "FourierState":
        d, spectrum = self.sample.x.shape[-1], self.weights.system.spectrum
        part = coefficients(prior.kernel, self.grid, d) / self._of_terms.clamp_min(torch.finfo(F64).tiny)
        tail = float(left_out(prior.kernel, self.grid, part * spectrum, d))
        report = replace(self.report, error_bound=None)  # errors of terms need not cancel
        return replace(self, prior=prior, tail=tail, term=Term(self, part), grid_errors=None, report=report)

    @cached_property
    def _of_terms(self) -> Tensor:
        """Spectra of all terms together, (*shape)."""
        kernels, d = [*terms(self.prior.kernel)], self.sample.x.shape[-1]
        return torch.stack([coefficients(kernel, self.grid, d) for kernel in kernels]).sum(0)

    @property
    def part(self) -> Tensor | None:
        """Of each coefficient of the spectrum what is of the term, (*shape); None for all of f."""
        return None if self.term is None else self.term.part

    @cached_property
    def untold(self) -> float:
        """Variance of a term, but for its tail, that no rows tell from the other terms, eq. (M-447)."""
        if (part := self.part) is None:
            return 0.0
        return float(self.grid.total(self.weights.system.spectrum * part * (1.0 - part)))

    @cached_property
    def noise_of_rows(self) -> float:
        """The least noise variance of a row of the sample."""
        return float(noise_of(self.prior_of(self.sample), self.sample._replace(numbers={})).min())

    @cached_property
    def sampled(self) -> Tensor:
        """Draws of b - mean, (draws, *shape), kept once asked for. Cost: a pass over the rows, and a solve of each."""
        if self.drawn is not None:
            return self.drawn
        if self.term is not None:
            return self.term.whole.sampled
        return self.weight_draws(self.settings.draws, self.run.seed + DRAWN_SEED)

    def weight_draws(self, count: int, seed: int) -> Tensor:
        """So many draws of b - mean, (count, *shape). Raises: DomainError where that needs rows that were read."""
        system = self.weights.system
        if system.dense:
            return system.inverse_root(self.grid.normal(count, torch.Generator().manual_seed(seed)))
        rows = self.of_rows("paths")
        return drawn_weights(self.weights, [(rows.x, self.variance_of(rows))], count, self.settings, seed)

    @cached_property
    def by_rows(self) -> ByRows | None:
        """The factor of the rows that are held; None where there is none in float64."""
        with contextlib.suppress(NotPositiveDefiniteError), torch.no_grad():
            return ByRows.of(self.prior, self.of_rows("x").x, self.noise)
        return None

    @property
    def values(self) -> SeriesValues:
        """q of the weights, which sites of other rows are made from."""
        weights = self.weights
        return SeriesValues(weights.sums, weights.system.spectrum, self.tail, self.settings.solves, known=weights)

    def variance_of(self, rows: Held) -> Tensor:
        """Noise and tail of rows, (n,)."""
        block = Block(rows.x, rows.y, rows.numbers)
        noise = self.prior_of(block).sites(rows.y).variance.detach()
        return (noise.double() + self.tail).expand(len(rows.x))

    # -- rows ------------------------------------------------------------------------------------------------------
    def not_held(self, name: str) -> str:
        return (
            f"`{name}` is of posteriors that hold their rows, got one of {self.count:,} rows that were read, or are "
            "spread over ranks; judge rows held out by post.judge(x, y), or condition on the rows that count"
        )

    def obstacle(self, question: str) -> str | None:
        if self.held is None and (question in OF_ROWS or (question == "paths" and not self.weights.system.dense)):
            return self.not_held(question)
        if question in ("importance", "noise") and not self.prior.likelihood.has_sites:
            return (
                f"`{question}` of Fourier series needs sites that are kept, got those of {self.prior.likelihood.name}, "
                "found in passes; hold all rows in one process"
            )
        return super().obstacle(question)

    @property
    def representer_weights(self) -> Float64[Tensor, "n p"]:
        """(K + S)^-1 (y - m), (n, p)."""
        rows = self.of_rows("representer_weights")
        fitted = self.grid.forward(rows.x, self.coefficients).mT
        return (self.residual - fitted) / self.variance_of(rows).unsqueeze(-1)

    @property
    def noise(self) -> Tensor:
        """The noise variance of each row, (n,), or (1,) where rows were read."""
        if self.held is None:
            return self.prior_of(self.sample).sites(self.sample.y).variance[..., :1]
        return self.variance_of(self.held) - self.tail

    @property
    def count(self) -> int:
        return self.weights.sums.count

    @property
    def like(self) -> tuple[Tensor, Tensor]:
        outputs = () if self.prior.outputs is None else (self.prior.outputs,)
        x = self.sample.x[:0].to(self.dtype)
        return x, x.new_empty(0, *outputs)

    # -- what is said of it ------------------------------------------------------------------------------------------
    @property
    def lost(self) -> Truncation:
        return Truncation(self.tail, self.noise_of_rows, None if self.grid_errors is None else self.grid_errors[0])

    def error_bound(self, *, outside: bool = False) -> float | None:
        """Of the mean, in units of y: of the solve, in root mean square over the rows, (M-434), and of the grid. Args:
        outside, of points that are not between the rows. None where it is not known, as after more rows have joined
        than the error was measured with."""
        if self.grid_errors is None or 2 * self.online.appended > self.count:
            return None
        least = self.noise_of_rows + self.tail
        return self.weights.error * (least / max(1, self.count)) ** 0.5 + self.grid_errors[outside]

    @property
    def loss(self) -> str:
        return str(self.lost)

    @cached_property
    def evidence(self) -> float:
        """log p(y) of the model with the tail as noise, nats; estimated where there is no factor."""
        scale = None if self.held is None else self.prior.log_scale(self.held.y)
        found = self.weights.log_likelihood(self.weights.system.log_determinant(self.run.seed)[0])
        return found if scale is None else found + float(scale)

    def log_marginal_likelihood(self) -> Float64[Tensor, ""]:
        return torch.tensor(self.evidence, dtype=F64)

    # -- files -------------------------------------------------------------------------------------------------------
    def tensors(self) -> dict[str, Tensor]:
        grid, sums = self.grid, self.weights.sums
        parts, entries = grid.parts, sums.entries
        columns, centre, lengths, orders, reach = (
            [number for part in parts for number in getattr(part, f.name)] for f in fields(Grid)
        )
        found = {
            "columns": torch.tensor(columns), "orders": torch.tensor(orders),
            "grids": torch.tensor([part.d for part in parts]),
            "box": torch.tensor([centre, lengths, reach], dtype=F64), "corners": torch.stack(self.corners),
            "entries": torch.view_as_real(entries.reshape(-1)) if entries.is_complex() else entries,
            "projected": _flat(sums.projected),
            "weights": _flat(self.weights.solution.value), "errors": self.weights.solution.error,
            "squares": sums.squares, **super().tensors(),
        }  # fmt: skip
        if self.drawn is not None:
            found["drawn"] = _flat(self.drawn)
        if self.grid_errors is not None:
            found["grid_errors"] = torch.tensor(self.grid_errors, dtype=F64)
        return found

    def numbers(self) -> dict[str, Any]:
        return {"kind": "fourier", "count": self.count, "logs": self.weights.sums.logs, "tail": self.tail}


def _flat(vectors: Tensor) -> Tensor:
    """Vectors (k, *shape) as real numbers, (k, frequencies, 2)."""
    return torch.view_as_real(vectors.reshape(len(vectors), -1))


def restored_grid(tensors: Mapping[str, Tensor]) -> Series:
    """The grid of what was computed before."""
    columns, orders = tensors["columns"].tolist(), tensors["orders"].tolist()
    centre, lengths, reach = tensors["box"].tolist()
    parts, start = list[Grid](), 0
    for d in tensors["grids"].tolist() if "grids" in tensors else [len(columns)]:
        own = slice(start, start + d)
        parts.append(Grid(*(tuple(each[own]) for each in (columns, centre, lengths, orders, reach))))
        start += d
    return series_of(parts)


@torch.no_grad()
def restore(
    prior: Prior, tensors: Mapping[str, Tensor], numbers: Mapping[str, float], how: tuple[Report, Run, UpdateState]
) -> FourierState:
    """A state from what was computed before; the spectrum is computed again. Args: prior, held; tensors and numbers, as
    the state has them; how it was made. Raises: NotPositiveDefiniteError for sums without a factor."""
    (report, run, online), settings = how, FourierSettings.of(prior.likelihood)
    grid = restored_grid(tensors)

    def vectors(name: str) -> Tensor:
        return torch.view_as_complex(tensors[name].contiguous()).reshape(-1, *grid.shape)

    entries = tensors["entries"]
    if isinstance(grid, Grid):
        entries = torch.view_as_complex(entries.contiguous()).reshape(grid.doubled.shape)
    count, prefix = int(numbers["count"]), "sample_"
    known = {name.removeprefix(prefix): each for name, each in tensors.items() if name.startswith(prefix)}
    known = {name: each for name, each in known.items() if name not in ("x", "y")}
    sample = Block(tensors["sample_x"], tensors["sample_y"], known)
    sums = FourierSums(grid, count, entries, vectors("projected"), tensors["squares"], numbers["logs"])
    spectrum, _ = spectrum_of(prior, grid, sample.x.shape[-1])
    system = sums.system(spectrum, settings.solves)
    _ = system.factor  # which may fail
    weights = WeightPosterior(sums, system, Solution(vectors("weights"), tensors["errors"], report.iterations or 0))
    held, dtype = None, F64
    if "x" in tensors:
        held, dtype = Held(tensors["x"], tensors["y"], prior.likelihood.row_tensors), tensors["x"].dtype
    low, high = tensors["corners"]
    drawn = vectors("drawn") if "drawn" in tensors else None
    errors = tuple(tensors["grid_errors"].tolist()) if "grid_errors" in tensors else None
    report = report if errors else replace(report, error_bound=None)  # of an earlier version
    return FourierState(
        prior, weights, numbers["tail"], sample, dtype, report, run, held, settings, online, drawn, (low, high),
        grid_errors=errors,
    )  # fmt: skip


@torch.no_grad()
def drawn_weights(
    weights: WeightPosterior, blocks: Any, count: int, settings: FourierSettings, seed: int, group: Group = ALONE
) -> Tensor:
    """Draws of N(0, B^-1): B^-1 (z + W E* S^-1/2 e), z and e standard normal, (count, *shape).

    Args: blocks, (x, variance) of all rows, one after the other; of several ranks of this one's.
    """
    grid = weights.system.toeplitz.grid
    generator = torch.Generator().manual_seed(seed + SEED_APART * group.rank)
    total = grid.normal(count, generator) * (group.rank == 0)
    for x, variance in blocks:
        root = variance.double().rsqrt().expand(len(x)).cpu()
        for start in range(0, count, 2):
            pair = torch.randn(min(2, count - start), len(x), generator=generator, dtype=F64) * root
            total[start : start + 2] += weights.system.root * grid.adjoint(x, pair, accuracy=settings.sampled_accuracy)
    total = torch.view_as_complex(group.sum(torch.view_as_real(total)))
    return weights.system.solve(total, 0.0, settings.sampled_error).value


@torch.no_grad()
def variance_at(
    weights: WeightPosterior, kernel: Kernel, x: Tensor, variance: Tensor, settings: FourierSettings, seed: int
) -> Tensor:
    """phi* B^-1 phi at the rows x, of noise and tail `variance`: by a factor, by windows, or by draws, (n,)."""
    system = weights.system
    if system.dense:
        return system.inverse_variance_at(x.cpu()).to(x.device)
    near = near_variance(system, kernel, x.cpu(), 0.0, settings.windows)
    if near is not None:
        return near[0].to(x.device)
    drawn = drawn_weights(weights, [(x, variance)], settings.draws, settings, seed + DRAWN_SEED)
    return weights.sums.grid.forward(x, system.root * drawn).square().mean(0)


@torch.no_grad()
def spectrum_of(prior: Prior, grid: Series, d: int) -> tuple[Tensor, float]:
    """c on the grid, and the tail, which rounding may make 0."""
    found = coefficients(prior.kernel, grid, d)
    return found, float(left_out(prior.kernel, grid, found, d))
