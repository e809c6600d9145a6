"""What ranks do in tests of the full-scale approximation, against one process with all rows."""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

import flashgp as fgp
from flashgp.foundations.deadline import Deadline
from flashgp.foundations.events import EventKind, of_kind
from flashgp.inference.approximation import approximation_of
from flashgp.inference.data import Data
from flashgp.inference.fit import fit_as
from flashgp.inference.full_scale.factor import Basis, FullScaleFactor, gradients
from flashgp.inference.full_scale.layout import layout_of
from flashgp.inference.run import Run
from flashgp.inference.training.options import FitOptions, FitSettings
from flashgp.inference.training.settings import SearchSettings, StochasticSettings
from flashgp.planner.plan import Sizes
from flashgp.processes.group import ALONE, Group
from flashgp.processes.shares import Shares
from inference import plain_gp
from processes.condition_jobs import case, model, table
from processes.time_jobs import LIMIT, EndsAt

FEW = FitSettings(search=SearchSettings(start_rows=40), stochastic=StochasticSettings(first_rows=80))
SIZES = {"approximation": "full_scale", "inducing": 12, "neighbours": 20}


def quiet(job: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(job)
    def run(*arguments: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fgp.FlashGPWarning)
            return job(*arguments)

    return run


def here(process_group: Any, counts: tuple[int, ...]) -> slice:
    return slice(None) if process_group is None else Shares(counts).slice(dist.get_rank(process_group))


def numbers(tensors: dict[str, Tensor]) -> dict[str, Any]:
    return {name: tensor.numpy(force=True) for name, tensor in tensors.items()}


def passes(process_group: Any, n: int, sizes: tuple[int, int, int]) -> dict[str, Any]:
    """Value and gradient of the log likelihood, (M-204)."""
    with (ALONE if process_group is None else Group.of(process_group)).together() as group, torch.no_grad():
        x, y, variance, _ = table(n)
        prior, asked = model("plain"), Sizes(*sizes, 0)
        layout = layout_of(prior, x, variance, asked, 3, None, group)
        rows, theta = prior.kernel.rows(x).detach(), [t.detach() for t in prior.kernel.theta()]
        points = prior.kernel.rows(layout.inducing).detach()
        function = Basis.of(prior.kernel.form, theta, points, prior.kernel.operator(x).workspace)
        factor = FullScaleFactor.of(function, rows, layout.near, y.unsqueeze(-1), variance, group, 3)
        sums = factor.sums_of_each()[0]
        found = gradients(factor, [sums])
        named = {"residual": found.residual, "noise": found.noise, "weights": sums.weights, "points": layout.inducing}
        for kind, parts in (("rows", found.rows), ("by points", found.points), ("theta", found.theta)):
            named |= {f"{kind} {i}": part for i, part in enumerate(parts) if part is not None}
        return numbers(named) | {"value": sums.log_likelihood(n), "held": len(factor.basis), "reduced": sums.reduced}


@quiet
def points_chosen(process_group: Any, counts: tuple[int, ...], lengthscale: float) -> dict[str, Any]:
    """A fit and a posterior with the number of inducing points left open, eq. (M-207)."""
    x, y, *_ = table(sum(counts))
    part = here(process_group, counts)
    gp = fgp.GP(1.0 * fgp.kernels.Matern(1.5, lengthscale), likelihood=fgp.likelihoods.Gaussian(0.01))
    asked = {"approximation": "full_scale", "neighbours": 24, "group": process_group}
    fit = fgp.fit(gp, x[part], y[part], starts=1, settings=FEW, max_iterations=2, progress=False, **asked)
    post = gp.condition(x[part], y[part], **asked)
    return {
        "sizes": [len(one.state.layout.inducing) for one in (fit.posterior, post)],
        "events": [of_kind(one.report.events, EventKind.FEWER_POINTS_SUFFICE) for one in (fit, post)],
        "likelihood": [float(one.log_marginal_likelihood()) for one in (fit.posterior, post)],
    }


@quiet
def neighbours_chosen(process_group: Any, counts: tuple[int, ...]) -> dict[str, Any]:
    """A fit with the number of neighbours left open, eq. (M-209)."""
    x, y = plain_gp.rough(sum(counts))
    part = here(process_group, counts)
    settings = FitSettings(stochastic=StochasticSettings(first_rows=200))
    fit = fgp.fit(
        plain_gp.model(4), x[part], y[part], approximation="full_scale", inducing=8, group=process_group,
        settings=settings, max_iterations=4, progress=False,
    )  # fmt: skip
    return {
        "sizes": fit.posterior.state.sizes, "planned": fit.report.plan.neighbours,
        "events": len(of_kind(fit.report.events, EventKind.MORE_NEIGHBOURS_TAKEN)),
        "likelihood": float(fit.posterior.log_marginal_likelihood()),
    }  # fmt: skip


@quiet
def conditioned(process_group: Any, kind: str, counts: tuple[int, ...], options: dict[str, Any]) -> dict[str, Any]:
    x, y, variance, z = case(kind, sum(counts))
    part = here(process_group, counts)
    gp = model(kind, None if variance is None else variance[part])
    post = gp.condition(x[part], y[part], group=process_group, **SIZES | options)
    p = post.predict(z)
    found = {
        "mean": p.mean, "variance": p.variance, "covariance": p.covariance(), "sample": p.sample(3, seed=4),
        "paths": post.paths(4, seed=7, features=256)(z), "weights": post.representer_weights, "x": post.x,
        "left out": post.leave_one_out().log_prob, "points": post.state.layout.inducing,
    }  # fmt: skip
    shared = of_kind(post.report.events, EventKind.SHARED)
    return numbers(found) | {
        "likelihood": float(post.log_marginal_likelihood()), "lost": post.lost.nats,
        "counts": shared[0].fields["counts"] if shared else None,
    }  # fmt: skip


@quiet
def fitted(process_group: Any, counts: tuple[int, ...], path: str | None = None) -> dict[str, Any]:
    x, y, variance, z = table(sum(counts))
    part = here(process_group, counts)
    fit = fgp.fit(
        model("variances", variance[part]), x[part], y[part], group=process_group, progress=False, starts=1,
        checkpoint=path, settings=FEW, **SIZES,
    )  # fmt: skip
    theta = torch.cat([p.detach().reshape(-1) for p in fit.gp.parameters()])
    again = fit.gp.condition(x[part], y[part], group=process_group, **SIZES)
    resumed = of_kind(fit.report.events, EventKind.RESUMED)
    return {
        "theta": theta.numpy(), "mean": fit.posterior.predict(z).mean.numpy(), "evaluations": len(fit.history),
        "again": again.predict(z).mean.numpy(), "history": [(entry.start, entry.theta) for entry in fit.history],
        "replayed": resumed[0].fields["evaluations"] if resumed else 0,
    }  # fmt: skip


@quiet
def limited(process_group: Any, moment: int | None) -> dict[str, Any]:
    """A fit within a time limit that ends on the last rank, after so many readings of its clock."""
    group = Group.of(process_group)
    x, y, _, z = table(201)
    part = Shares.even(201, group.size).slice(group.rank)
    clock = EndsAt(moment if group.rank == group.size - 1 else None)
    options = FitOptions(run=Run(deadline=Deadline(LIMIT, LIMIT, clock), group=group), starts=1, settings=FEW)
    fit = fit_as(
        model("plain"), Data.of(model("plain"), x[part], y[part]), options, approximation_of("full_scale", 12, 20)
    )
    theta = torch.cat([p.detach().reshape(-1) for p in fit.gp.parameters()])
    return {
        "theta": theta.tolist(), "mean": fit.posterior.predict(z).mean.tolist(), "evaluations": len(fit.history),
        "interrupted": fit.interrupted, "read": clock.read,
    }  # fmt: skip
