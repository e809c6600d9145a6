"""Planning problems of a prior, in sizes."""

from dataclasses import dataclass, replace

import torch

from flashgp.foundations.checks import check_count
from flashgp.foundations.errors import DomainError
from flashgp.inference.prior import Prior
from flashgp.inference.sites import SiteSettings
from flashgp.pairwise.torch import opaque
from flashgp.planner.fit_stages import StageSettings
from flashgp.planner.problem import ConditioningProblem, Features, PlanSettings

NO_LIMITS = PlanSettings()


@dataclass(frozen=True)
class RowCounts:
    """Training rows: n of d columns, of which so many differ in x (None for all), for each of `batch` models; alike,
    where the source gives none a noise variance of its own; extent, ranges of their columns where these are known;
    complete, whether all targets are there."""

    n: int
    d: int
    distinct: int | None = None
    batch: int = 1
    alike: bool = True
    extent: tuple[float, ...] | None = None
    complete: bool = True


def conditioning_problem(prior: Prior, rows: RowCounts, settings: PlanSettings = NO_LIMITS) -> ConditioningProblem:
    """The problem of a plan, in sizes. Raises: DomainError for counts that are none."""
    n, d, batch = check_count(rows.n, "n", 0), check_count(rows.d, "d", 1), check_count(rows.batch, "batch", 0)
    distinct = n if rows.distinct is None else check_count(rows.distinct, "distinct", min(n, 1))
    if distinct > n:
        raise DomainError(f"`distinct` must be at most n = {n:,}, got {distinct:,}; count the rows that differ in x")
    form, probe = prior.kernel.form, prior.kernel.rows(torch.zeros(1, d, dtype=torch.float64))
    models = batch * prior.kernel.batch_shape.numel()
    features = Features(probe.width, sum(opaque.columns(form, probe)), opaque.temporary_bytes(form, probe, models))
    stages = settings.stages if prior.likelihood.has_sites else _stages_by_sites(settings.stages, SiteSettings())
    return ConditioningProblem(
        form, int(n), int(d), features, distinct, prior.outputs or 1, models, prior.trainable_count,
        prior.has_user_modules, stages, prior.factors, settings.ranks, prior.kernel.has_features,
        not prior.likelihood.has_sites,
    )  # fmt: skip


def _stages_by_sites(stages: StageSettings, sites: SiteSettings) -> StageSettings:
    """Stages of a fit that finds sites by iteration, as `FitOptions.by_sites`."""
    return replace(
        stages, starts=1 if stages.starts is None else stages.starts,
        start_rows=min(stages.start_rows, sites.start_rows),
        stage_ratio=max(stages.stage_ratio, sites.stage_ratio),
        draws_per_parameter=min(stages.draws_per_parameter, sites.draws_per_parameter),
    )  # fmt: skip
