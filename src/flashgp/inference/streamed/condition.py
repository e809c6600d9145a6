"""Conditioning on rows that are read: a pass that counts and samples them, and one that adds up what they say."""

import time

import torch
from torch import Tensor

from flashgp.foundations.contexts import autocast_disabled, outside_inference_mode
from flashgp.foundations.determinism import EVENT, deterministic_where
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.report import Report
from flashgp.foundations.workspace import Workspace
from flashgp.inference.approximate_plan import approximate_plan, refuse_unfit
from flashgp.inference.approximation import Approximation, refuse_exact
from flashgp.inference.full_scale.layout import PIVOT_SHARE, pivot_points
from flashgp.inference.plan_settings import PlanSettings, RowCounts, chosen_device
from flashgp.inference.prior import Prior
from flashgp.inference.settings import ConditionSettings
from flashgp.inference.streamed.bound import StreamedBound
from flashgp.inference.streamed.objective import block_rows, blocks_of, reference_noise
from flashgp.inference.streamed.state import StreamedState
from flashgp.kernels.warped import collapsed_features
from flashgp.sources.source import Held, RowSource
from flashgp.sources.survey import Survey, surveyed

__all__ = ["ROUTE", "condition", "condition_on", "sample_rows", "survey_of"]

ROUTE = "streamed"
SAMPLE_ROWS = 2000  # at least, of those that are kept


def survey_of(
    prior: Prior, rows: RowSource, asked: Approximation, seed: int, least: int = SAMPLE_ROWS, *, fitting: bool = False
) -> Survey:
    """The first pass, with as many rows kept as inducing points are chosen among. Raises: DomainError, ShapeError."""
    known = not prior.likelihood.rows_alike and isinstance(rows, Held) and not fitting  # rows one by one, in order
    kind = "full_scale" if known else "sparse"
    refuse_unfit(prior, kind, batch=False)
    survey = surveyed(rows, prior.outputs, sample_rows(asked.most_inducing, least), seed)
    refuse_unfit(prior, kind, batch=prior.is_batch(survey.x, survey.y))
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
    wanted = PlanSettings(settings.memory, device, deterministic=settings.solve.deterministic)
    limit, read = settings.deadline.limit, not isinstance(survey.source, Held)
    rows = RowCounts(survey.count, survey.width)
    plan = approximate_plan(prior, rows, asked, wanted, limit, training=False, read=read)
    inducing = plan.inducing
    x, y = survey.x.to(device), survey.y.to(device)
    noise, points = reference_noise(prior, y), asked.points_like(x) if points is None else points
    if points is None:
        points = pivot_points(prior, x, noise, inducing, settings.solve.seed)
    workspace = Workspace(deadline=settings.deadline)
    bound = StreamedBound(prior, prior.kernel.rows(points), float(noise), survey.count, workspace)
    sums = bound.sums(blocks_of(prior, survey.blocks(block_rows(len(points))), device))
    assert sums.inner is not None  # which may fail
    events = [EVENT] if settings.solve.deterministic else []
    events.append(Event(EventKind.STREAMED, rows=survey.count, inducing=len(points)))
    if asked.chosen and len(points) < inducing:
        events.append(Event(EventKind.FEWER_POINTS, found=len(points), asked=inducing))
    events += collapsed_features(prior.kernel, x)
    report = Report(
        route=ROUTE, backend=workspace.backend, device=str(device), dtype="float64", predicted_bytes=plan.peak_bytes,
        peak_bytes=workspace.peak_bytes, predicted_seconds=plan.seconds, seconds=time.perf_counter() - began,
        events=events, plan=plan,
    )  # fmt: skip
    return StreamedState(prior, points.to(survey.dtype), bound.basis, sums, survey.x, report, settings.solve)
