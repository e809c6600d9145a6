"""Conditioning by Fourier series: the grid at the given parameters, one pass over the rows, one solve."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import astuple, replace
from typing import Any

import torch
from torch import Tensor

from flashgp.foundations.contexts import entered
from flashgp.foundations.deadline import NO_DEADLINE, Deadline, TimeUp
from flashgp.foundations.determinism import EVENT
from flashgp.foundations.errors import DomainError, MemoryBudgetError, warn
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.machine import available_bytes, parse_bytes
from flashgp.foundations.quantities import readable_bytes
from flashgp.foundations.report import Report
from flashgp.inference.approximation import Approximation
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.extent import check_residual
from flashgp.inference.fourier.grid import PIECE, Grid, library, library_of
from flashgp.inference.fourier.grids import Series, coordinates_of, series_of
from flashgp.inference.fourier.local import windows_that_serve
from flashgp.inference.fourier.passes import SeriesValues, settled, sums_at
from flashgp.inference.fourier.planned import sizes_of, unfit
from flashgp.inference.fourier.row_objective import FourierRowLogJoint
from flashgp.inference.fourier.spectrum import GridSettings, NoGridError, coarser_grid, grid_of
from flashgp.inference.fourier.state import DRAWN_SEED, FourierSettings, FourierState, drawn_weights, spectrum_of
from flashgp.inference.fourier.sums import FourierSums, WeightPosterior
from flashgp.inference.prior import Prior
from flashgp.inference.run import Run, with_run
from flashgp.inference.settings import ConditionSettings
from flashgp.inference.sites import IteratedSites, SiteSettings, steps_event
from flashgp.inference.streamed.part import on_time
from flashgp.inference.streamed.rows import (
    blocks_on_time,
    first_pass,
    noise_of,
    numbers_to_likelihood,
    numbers_to_rows,
    prior_of_rows,
    survey_of,
)
from flashgp.inference.training.objective import Problem
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.planner.plan import Plan
from flashgp.planner.problem import chosen_device
from flashgp.processes.agreement import decided_by_first
from flashgp.processes.group import ALONE, Group
from flashgp.sources.source import Held, RowSource
from flashgp.sources.survey import Survey

F64 = torch.float64
ROUTE = "fourier"
MOST_ERROR = 30.0  # times the tolerance, of means at any point, in standard deviations of f there
MEASURED = 512  # rows, and as many points near them and anywhere, at which the error of a grid is measured
MEASURED_SEED = 2**37
MORE = 2  # times the iterations of a solve, or of LEAST_ITERATIONS, that of the other grid may take
LEAST_ITERATIONS = 200
CLOSER = 0.1  # times the error of a solve, that of the other grid, so that the difference has that of this solve too
ROUNDED = 1e-8  # of the largest mean, more than transforms are off
SAFE = 3.0  # times the difference of two grids, by which the mean of the finer is taken to be off
ROOM = 3.0  # times the error that was asked for, up to which nothing is said but the report's bound


def refuse_unfit(prior: Prior, survey: Survey, device: str | torch.device | None) -> None:
    """DomainError for models that have no Fourier series, and for a device where the rows are not;
    BackendUnavailableError without the library of that device."""
    if refusal := unfit(prior, survey.width):
        raise DomainError(f"`approximation` {refusal.text}")
    asked = survey.device if device in (None, "auto") else chosen_device(device, survey.x)
    other = asked.type == "cuda" and asked.index not in (None, survey.device.index)
    if other or asked.type != survey.device.type:
        raise DomainError(
            f"`device` of Fourier series is that of the rows, got {str(device)!r} for rows on {survey.device}; "
            "move them there"
        )
    library(survey.device)


def condition(
    asked: Approximation, prior: Prior, rows: RowSource | Survey, settings: ConditionSettings
) -> FourierState:
    """The state of a prior given rows, this rank's or all. Raises: as `GP.condition`."""
    settings.of_approximation()
    began, run, own = time.perf_counter(), settings.run, prior
    prior, survey = first_pass(prior, rows, asked, run)
    rows = survey.source
    refuse_unfit(prior, survey, run.device)
    if prior.likelihood.has_sites or not isinstance(rows, Held) or run.group.size > 1:
        return condition_on(prior, survey, settings)
    prior, told = found_sites(own, rows, survey, run)
    state = condition_on(*with_sites(prior, rows.x, rows.y, asked, run), with_run(settings, deadline=NO_DEADLINE))
    state.report.events += told
    state.report.seconds = time.perf_counter() - began
    return state


def found_sites(prior: Prior, rows: Held, survey: Survey, run: Run) -> tuple[Prior, list[Event]]:
    """The prior with the sites that iteration finds of all rows, and events of a report. Raises: ConvergenceError."""
    prior, x, y, options = prior.held(), rows.x.double(), rows.y.double(), FourierSettings.of(prior.likelihood)
    sites = IteratedSites.of(prior, x, y, SiteSettings())
    problem = Problem(prior, x, y, DirectSettings(TorchTiles()), sites=sites)
    grid = grid_for(problem.with_sites, survey, options, problem.with_sites.sites(y).variance)
    check_memory(grid, run.memory, options)
    return FourierRowLogJoint(problem, grid, options, run.seed).with_sites(run.deadline)


def with_sites(prior: Prior, x: Tensor, y: Tensor, asked: Approximation, run: Run) -> tuple[Prior, Survey]:
    """A prior whose sites are held with the rows, and the survey of these."""
    prior, rows = numbers_to_rows(prior, Held(x, y), run.group)
    return prior, survey_of(prior, rows, asked, run.seed)


def grid_for(
    prior: Prior, survey: Survey, settings: FourierSettings, noise: Tensor | None = None, *, search: bool = False
) -> Series:
    """The grid at the parameters that a prior has. Args: noise, of rows; None for that of the sample's. Raises:
    DomainError, on every rank."""
    low, high = survey.x_moments.low.cpu(), survey.x_moments.high.cpu()

    @torch.no_grad()
    def grid() -> Series:
        known = noise_of(prior, survey.sample) if noise is None else noise
        level = 1.0 / float((1.0 / known).mean())  # (M-449)
        try:
            return grid_of(prior.kernel, low, high, level, settings.grid, settings.solves.dense, search=search)
        except NoGridError as reason:
            raise DomainError(f"`approximation` {reason}") from None

    return _of_first(survey.group, grid)


def _of_first(group: Group, grid: Callable[[], Series]) -> Series:
    """Of ranks rank 0's grid, as a last bit could decide a number of frequencies."""

    def to_json(found: Series) -> list[Any]:
        return [astuple(part) for part in found.parts]

    return decided_by_first(group, grid, to_json, lambda parts: series_of([Grid(*map(tuple, part)) for part in parts]))


def goal_of(sums: FourierSums, run: Run) -> float:
    """Error of a solve in the norm of B that keeps the mean within the tolerance of a run, in standard deviations of an
    observation, in root mean square over the rows, and within MOST_ERROR times that of those of f anywhere."""
    return run.tolerance * min(MOST_ERROR, max(1, sums.count) ** 0.5)


def check_memory(grid: Series, memory: str | int | None, settings: FourierSettings) -> None:
    """MemoryBudgetError where vectors and grids of the frequencies need more than is available."""
    needed = grid_bytes(grid, settings)
    available = available_bytes(torch.device("cpu")) if memory is None else parse_bytes(memory, "memory")
    if needed > available:
        raise MemoryBudgetError(
            f"`memory` allows {readable_bytes(available)}, but {grid.size:,} frequencies need "
            f"{readable_bytes(needed)}; "
            'pass approximation="full_scale", or a larger memory=',
            needed_bytes=needed, available_bytes=available,
        )  # fmt: skip


def taken_bytes(sums: FourierSums, survey: Survey) -> int:
    """Bytes that conditioning takes: rows that are held, a piece of them, transforms, vectors and a factor."""
    n, sizes, width = sums.count, sizes_of(sums.grid), survey.width + len(sums.squares)
    held = 8 * len(survey.source.x) * width if isinstance(survey.source, Held) else 0
    piece = min(n, PIECE) * (8 * survey.width + 40)
    vectors = 96 * len(sums.squares) * sizes.frequencies
    return held + max(piece, sizes.transform_bytes + vectors + sizes.factor_bytes)


def grid_bytes(grid: Series, settings: FourierSettings) -> int:
    """Bytes of the work with a grid: transforms, and as many vectors as are solved at once."""
    spread, vectors = grid.size * 2**grid.d, settings.solves.probes + 1
    dense = sizes_of(grid).factor_bytes * 9 // 8  # one is kept while that of a coarser grid is made
    return 16 * 8 * spread + vectors * (24 * spread + 128 * grid.size) + dense


def inputs_of(prior: Prior, survey: Survey, more: float, deadline: Deadline) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """x, residual and variance of the rows, in pieces. Args: more, variance beside the noise. Raises: TimeUp, but for
    held rows of one piece, which take less time than their solve; as `blocks_on_time`."""
    brief = isinstance(survey.source, Held) and survey.count <= PIECE
    for block in blocks_on_time(survey, PIECE, deadline, brief=brief):
        sites = prior_of_rows(prior, block).sites(block.y)
        residual = prior.residual(block.x, sites.targets)
        check_residual(residual)
        yield block.x, residual, sites.variance.detach().double() + more


def refuse_without_factor(prior: Prior, grid: Series, settings: FourierSettings) -> None:
    """DomainError where passes find sites, whose steps need the variance of every row."""
    if not coordinates_of(grid, settings.solves.dense):
        raise DomainError(
            f"`approximation` by Fourier series finds sites in passes, as those of {prior.likelihood.name}, where the "
            f"weights have a factor, of up to {settings.solves.dense:,} of them, got {grid.size:,} frequencies; hold "
            'all rows in one process, as x and y, or pass "sparse"'
        )


def grid_errors_of(
    weights: WeightPosterior, coarse: WeightPosterior, survey: Survey, settings: GridSettings
) -> tuple[float, float]:
    """Errors of the mean by what a grid leaves out and repeats, in units of y, between the corners of the rows, and as
    far outside as points may lie: SAFE times the largest difference from the mean of a grid that does more of both, at
    rows, within a wave of them, and anywhere, (M-465). Cost: two transforms of up to 2,048 points."""
    grid, low, high = weights.sums.grid, survey.x_moments.low.cpu(), survey.x_moments.high.cpu()
    x = survey.sample.x.double().cpu()
    x, generator = x[:: max(1, -(-len(x) // MEASURED))], torch.Generator().manual_seed(MEASURED_SEED)
    around, anywhere, outside = (torch.rand(len(x), len(low), generator=generator, dtype=F64) for _ in range(3))
    waves = torch.zeros_like(low, dtype=F64)
    for part in grid.parts:
        waves[list(part.columns)] = torch.tensor(part.lengths, dtype=F64) / torch.tensor(part.orders)
    near, beyond = (x + (2.0 * around - 1.0) * waves).clamp(low, high), settings.beyond[grid.d - 1]
    between = torch.cat([x, near, low + (high - low) * anywhere])
    outside = low + (high - low) * (2.0 * outside - 0.5).clamp(-beyond, 1.0 + beyond)

    def off(points: Tensor) -> float:
        one, other = (
            each.sums.grid.forward(points, each.system.root * each.solution.value) for each in (weights, coarse)
        )
        return SAFE * float((one - other).abs().max()) + ROUNDED * float(one.abs().max()) if len(points) else 0.0

    return (least := off(between)), max(least, off(outside))


@entered(lambda prior, survey, settings, *_, **__: settings.run.deterministic)
@torch.no_grad()
def condition_on(
    prior: Prior, survey: Survey, settings: ConditionSettings, plan: Plan | None = None,
    options: FourierSettings | None = None, start: SeriesValues | None = None,
) -> FourierState:  # fmt: skip
    """Condition after the first pass; on the sample alone where there is no time for another one.

    Args: start, q of the weights that sites are made from first, where passes find them.
    Raises: DomainError, ConvergenceError.
    """
    prior, found = prior.held(), options or FourierSettings.of(prior.likelihood)

    def part(survey: Survey) -> FourierState:
        untimed = with_run(settings, deadline=NO_DEADLINE)
        state = _state(prior, survey.of_sample, untimed, plan, found, start)
        kept = survey.group.size == 1 and prior.likelihood.has_sites
        return state if kept else replace(state, prior=prior, held=None, ranks=survey.group.size)

    return on_time(survey, settings, lambda: _state(prior, survey, settings, plan, found, start), part, lambda _: False)


def _state(
    prior: Prior, survey: Survey, settings: ConditionSettings, plan: Plan | None, options: FourierSettings,
    start: SeriesValues | None,
) -> FourierState:  # fmt: skip
    """The state of all rows. Raises: TimeUp, of several ranks on all."""
    began, group = time.perf_counter(), survey.group
    grid = grid_for(prior, survey, options)
    check_memory(grid, settings.run.memory, options)
    spectrum, tail = spectrum_of(prior, grid, survey.width)
    corners = survey.x_moments.low.cpu(), survey.x_moments.high.cpu()
    coarser = _of_first(group, lambda: coarser_grid(prior.kernel, *corners, grid, options.grid))
    coarse_spectrum, coarse_tail = spectrum_of(prior, coarser, survey.width)
    outputs = 1 if survey.outputs is None else survey.outputs
    deadline = settings.run.deadline
    events, system = list[Event](), None
    if prior.likelihood.has_sites:
        sums, coarse = FourierSums.none(grid, outputs), FourierSums.none(coarser, outputs)
        for x, residual, variance in inputs_of(prior, survey, 0.0, deadline):
            sums = sums.added(x, residual, variance + tail)
            coarse = coarse.added(x, residual, variance + coarse_tail)
        sums, coarse = sums.over(group), coarse.over(group)
    else:
        refuse_without_factor(prior, grid, options)
        steps = SiteSettings().of_posterior()
        enough, none = steps.posterior_of(survey.count), SeriesValues.of_prior(grid, spectrum, tail, options.solves)
        passes = settled(prior, survey, none, start, enough, steps, deadline)
        tolerance = steps.of_rows(enough, survey.count)
        events.append(steps_event(prior.likelihood, passes.steps, passes.moved, tolerance, deadline))
        sums, system = passes.sums.sums, passes.sums.system
        coarse = FourierSums.none(coarser, outputs)
        with contextlib.suppress(TimeUp):  # on all ranks
            coarse = sums_at(prior, survey, coarser, coarse_tail, passes.sums, deadline)
    system = system or sums.system(spectrum, options.solves, deadline)
    asked = goal_of(sums, settings.run)
    weights = WeightPosterior.of(sums, system, asked).of_first(group)
    held, drawn = survey.held, None
    if held is None and not system.dense:
        serve = windows_that_serve(system, prior.kernel, survey.width, options.windows)
        if not group.number_of_first(bool(serve)):
            again = ((x, variance) for x, _, variance in inputs_of(prior, survey, tail, deadline))
            drawn = drawn_weights(
                replace(weights, system=system.kept), again, options.draws, options, settings.run.seed + DRAWN_SEED,
                group,
            )  # fmt: skip
    events += [Event(
        EventKind.FOURIER, rows=sums.count, frequencies=grid.size,
        iterations=weights.solution.iterations or None,
    )]  # fmt: skip
    errors = None
    if coarse.count == sums.count and weights.error <= ROOM * asked:  # the same on all ranks
        most = MORE * max(LEAST_ITERATIONS, weights.solution.iterations)
        coarse_system = coarse.system(coarse_spectrum, replace(options.solves, most_iterations=most), deadline)
        coarse_weights = WeightPosterior.of(coarse, coarse_system, CLOSER * asked)
        if not group.number_of_first(coarse_weights.error > ROOM * asked):
            errors = grid_errors_of(weights, coarse_weights, survey, options.grid)
            errors = group.number_of_first(errors[0]), group.number_of_first(errors[1])
    report = Report(
        route=ROUTE, backend=library_of(survey.device), device=str(survey.device), dtype="float64",
        iterations=weights.solution.iterations,
        seconds=time.perf_counter() - began, events=events, plan=plan, peak_bytes=taken_bytes(sums, survey),
    )  # fmt: skip
    if plan is not None:
        report.predicted_bytes, report.predicted_seconds = plan.peak_bytes, plan.seconds
    if weights.error > ROOM * asked:
        report.events.append(Event(EventKind.FOURIER_UNFINISHED, error=weights.error, asked=asked))
        warn(str(report.events[-1]))
    report.events += [EVENT] if settings.run.deterministic else []
    kept = replace(settings.run.kept, group=ALONE)
    if held is not None:
        prior = numbers_to_likelihood(prior, held)
    state = FourierState(
        prior,
        replace(weights, system=system.kept),
        tail,
        survey.sample,
        survey.dtype,
        report,
        kept,
        held,
        options,
        drawn=drawn,
        corners=(survey.x_moments.low, survey.x_moments.high),
        ranks=group.size,
        grid_errors=errors,
    )
    report.events.append(state.lost.event)
    report.error_bound = state.error_bound()
    if errors is not None and errors[0] ** 2 > state.noise_of_rows + tail:
        warn(f'{report.events[-1]} That is more than the noise: pass approximation="full_scale" for a closer mean.')
    return state
