"""What ranks do in tests of sites that passes over rows make, against one process with all rows."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

import flashgp as fgp
from flashgp.inference.data import Data
from flashgp.inference.exact.condition import condition
from flashgp.inference.over_ranks import gathered_for
from flashgp.inference.posterior_by_sites import condition_by_sites
from flashgp.inference.run import Run
from flashgp.inference.settings import ConditionSettings
from flashgp.inference.sites import SiteSettings
from flashgp.likelihoods import Poisson
from flashgp.processes.group import Group
from flashgp.processes.shares import Shares
from inference.iterated import model, table
from processes.streamed_jobs import FEW, apart


def answers(post: fgp.Posterior) -> list[Tensor]:
    p = post.predict(table(40)[2])
    return [p.mean, p.variance, post.log_marginal_likelihood().reshape(1)]


def shared(group: Any, counts: tuple[int, ...], kind: str) -> tuple[float, float, float]:
    """Differences from one process: of conditioning, of a fit and of its parameters."""
    x, y, _ = table(sum(counts))
    own, gp = Shares(counts).slice(dist.get_rank(group)), model(Poisson())
    how: dict[str, Any] = {"approximation": "sparse", "inducing": x[:9]}
    if kind.endswith("classes"):
        gp, y = fgp.GP(gp.kernel, likelihood=fgp.likelihoods.Categorical(3)), y.clamp(max=2.0)
    if kind == "exact":
        how = {}
    elif not kind.startswith("sparse"):
        how = {"approximation": "full_scale", "inducing": 9, "neighbours": 12}
    alone, ours = gp.condition(x, y, **how), gp.condition(x[own], y[own], group=group, **how)
    fit = how | {"settings": FEW, "starts": 1, "progress": False, "max_iterations": 2, "priors": "given"}
    one, other = fgp.fit(gp, x, y, **fit), fgp.fit(gp, x[own], y[own], group=group, **fit)
    values = [torch.stack([p.detach().sum() for p in found.gp.parameters()]) for found in (one, other)]
    return (
        apart(answers(alone), answers(ours)), apart(answers(one.posterior), answers(other.posterior)),
        apart(values[:1], values[1:]),
    )  # fmt: skip


def exact_posterior(group: Any, counts: tuple[int, ...], kind: str) -> tuple[float, float, list[str]]:
    """Differences from one process of a fit whose posterior is exact, and of its parameters; and its events."""
    x, y, _ = table(sum(counts))
    own, weight = Shares(counts).slice(dist.get_rank(group)), 1.0 + torch.arange(sum(counts)) % 3
    how: dict[str, Any] = {"approximation": kind, "inducing": 9, "exact_posterior": True}
    settings = replace(FEW, sites=SiteSettings(searched_seconds=0.0))
    how = {} if kind == "many" else how
    fit = how | {"settings": settings, "starts": 1, "progress": False, "max_iterations": 6, "priors": "given"}
    one = fgp.fit(model(Poisson(row_weight=weight)), x, y, **fit)
    other = fgp.fit(model(Poisson(row_weight=weight[own])), x[own], y[own], group=group, **fit)
    values = [torch.stack([p.detach().sum() for p in found.gp.parameters()]) for found in (one, other)]
    assert len(other.gp.likelihood.row_weight) == len(x[own])
    kinds = [event.kind.name for event in other.report.events]
    return apart(answers(one.posterior), answers(other.posterior)), apart(values[:1], values[1:]), kinds


def sampled(group: Any, counts: tuple[int, ...]) -> float:
    """The difference from one process where variances of rows are sampled, as there is no factor, (M-370)."""
    x, y, _ = table(sum(counts))
    own, gp = Shares(counts).slice(dist.get_rank(group)), model(Poisson())
    always = SiteSettings(solved_seconds=0.0)

    def posterior(data: Data, settings: ConditionSettings) -> fgp.Posterior:
        def conditioned(one: Data) -> Any:
            return condition(one.prior, one, settings)

        return fgp.Posterior(condition_by_sites(data, settings.run, settings.time, conditioned, always))

    alone = posterior(Data.of(gp, x, y), ConditionSettings(Run(), solver="cg"))
    ranks = Group.of(group)
    with ranks.together():
        asked = ConditionSettings(Run(group=ranks), solver="cg")
        _, data, _, asked = gathered_for(gp, Data.of(gp, x[own], y[own]), ranks, asked, {})
        ours = posterior(data, asked)
    assert alone.report.standard_error, "sampled"
    return apart(answers(alone), answers(ours))
