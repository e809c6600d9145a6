"""Conditioning on rows that are read: a pass that counts and samples them, and one that adds up what they say."""

import time
from typing import Any

import torch
from torch import Tensor

from flashgp.foundations.contexts import autocast_disabled, outside_inference_mode
from flashgp.foundations.determinism import EVENT, deterministic_where
from flashgp.foundations.errors import DomainError, MemoryBudgetError
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.machine import available_bytes, parse_bytes
from flashgp.foundations.quantities import readable_bytes
from flashgp.foundations.report import Report
from flashgp.foundations.workspace import Workspace
from flashgp.inference.full_scale.condition import refuse_unfit
from flashgp.inference.full_scale.layout import PIVOT_SHARE, pivot_points
from flashgp.inference.full_scale.sizes import Approximation, refuse_exact
from flashgp.inference.plan import chosen_device
from flashgp.inference.prior import Prior
from flashgp.inference.settings import ConditionSettings
from flashgp.inference.streamed.bound import StreamedBound
from flashgp.inference.streamed.objective import block_rows, inputs_of, noise_of
from flashgp.inference.streamed.state import StreamedState
from flashgp.sources.source import RowSource
from flashgp.sources.survey import Survey, surveyed

__all__ = ["ROUTE", "check_bytes", "condition", "condition_on", "sample_rows", "survey_of"]

ROUTE = "streamed"
SAMPLE_ROWS = 2000  # at least, of those that are kept


def survey_of(prior: Prior, rows: RowSource, asked: Approximation, seed: int, least: int = SAMPLE_ROWS) -> Survey:
    """The first pass, with as many rows kept as inducing points are chosen among. Raises: DomainError, ShapeError."""
    if not prior.likelihood.rows_alike:
        raise DomainError(
            "`likelihood` must treat all rows alike where rows are read, got row_variance or row_weight; leave them out"
        )
    survey = surveyed(rows, prior.outputs, sample_rows(asked.most_inducing, least), seed)
    refuse_unfit(prior, survey.x, survey.y)
    return survey


def sample_rows(inducing: int, least: int = SAMPLE_ROWS) -> int:
    """Rows that are kept of all that are read, at most."""
    return max(least, PIVOT_SHARE * inducing)


@outside_inference_mode
@autocast_disabled
@deterministic_where(lambda prior, rows, asked, settings: settings.solve.deterministic)
def condition(prior: Prior, rows: RowSource, asked: Approximation, settings: ConditionSettings) -> StreamedState:
    """The state of a prior given rows. Raises: as `GP.condition`."""
    refuse_exact(
        solver=settings.solver, plan=settings.plan, jitter=settings.jitter, differentiable=settings.differentiable,
        progress=settings.progress, dtype=None if settings.dtype == torch.float64 else settings.dtype,
    )  # fmt: skip
    return condition_on(prior, survey_of(prior, rows, asked, settings.solve.seed), asked, settings)


@torch.no_grad()
def condition_on(
    prior: Prior, survey: Survey, asked: Approximation, settings: ConditionSettings, points: Tensor | None = None
) -> StreamedState:
    """The same after the first pass. Args: points: inducing points that a fit has chosen."""
    began = time.perf_counter()
    device, prior = chosen_device(settings.device, survey.x), prior.held()
    inducing = asked.sizes(survey.count).inducing
    predicted = check_bytes(survey, inducing, settings.memory, device)
    x, y = survey.x.to(device), survey.y.to(device)
    noise, points = noise_of(prior, y), asked.points_like(x) if points is None else points
    if points is None:
        points = pivot_points(prior, x, noise, inducing, settings.solve.seed)
    workspace = Workspace(deadline=settings.deadline)
    bound = StreamedBound(prior, prior.kernel.rows(points), float(noise), survey.count, workspace)
    sums = bound.sums(inputs_of(prior, *block, device) for block in survey.blocks(block_rows(len(points))))
    assert sums.inner is not None  # which may fail
    events = [EVENT] if settings.solve.deterministic else []
    events.append(Event(EventKind.STREAMED, rows=survey.count, inducing=len(points)))
    report = Report(
        route=ROUTE, backend=workspace.backend, device=str(device), dtype="float64", predicted_bytes=predicted,
        peak_bytes=workspace.peak_bytes, seconds=time.perf_counter() - began, events=events,
    )  # fmt: skip
    return StreamedState(prior, points.to(survey.dtype), bound.basis, sums, survey.x, report, settings.solve)


def check_bytes(survey: Survey, inducing: int, memory: Any, device: torch.device) -> int:
    """What passes over the rows take at their peak, beside what the source itself takes. Raises: MemoryBudgetError."""
    block, m = block_rows(inducing), inducing
    needed = 8 * (block * (4 * m + 8 * survey.width) + 8 * m * m + len(survey.x) * (survey.width + m)) + 2**26
    available = available_bytes(device) if memory is None else parse_bytes(memory, "memory")
    if needed > available:
        raise MemoryBudgetError(
            f"{m:,} inducing points need {readable_bytes(needed)} with {readable_bytes(available)} available; pass a "
            "smaller inducing=, or a larger memory=",
            needed_bytes=needed,
            available_bytes=available,
        )
    return needed
