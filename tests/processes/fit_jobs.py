"""What ranks do in tests of fits: whole fits, resumed ones, planted errors."""

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.events import EventKind, of_kind
from flashgp.inference.training.options import FitSettings
from flashgp.inference.training.settings import StochasticSettings
from flashgp.processes.shares import Shares
from processes.condition_jobs import model, table


def case(process_group: Any, counts: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """This rank's x and y, and points."""
    x, y, _, z = table(sum(counts))
    part = slice(None)
    if process_group is not None:
        part = Shares(counts).slice(torch.distributed.get_rank(process_group))
    return x[part], y[part], z


def options(n: int, kind: str, ranks: int) -> dict[str, Any]:
    """Of an exact fit, or of one by estimated gradients from 100 rows on."""
    if kind == "exact":
        return {"starts": 1}
    gp = model("plain")
    plan = fgp.plan(gp, n=n, d=3, solver="cg", memory="1GiB", ranks=ranks)
    plan = dataclasses.replace(plan, training=plan.route, training_rank=40, training_factor_passes=0)
    stochastic = dataclasses.replace(StochasticSettings(), first_rows=100, min_draws=16)
    return {"plan": plan, "starts": 1, "settings": FitSettings(stochastic=stochastic), "tolerance": 1e-8}


def fitted(process_group: Any, kind: str, counts: tuple[int, ...], path: str | None = None) -> dict[str, Any]:
    x, y, z = case(process_group, counts)
    ranks = 1 if process_group is None else len(counts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fgp.FlashGPWarning)
        fit = fgp.fit(
            model("plain"), x, y, group=process_group, progress=False, checkpoint=path,
            **options(sum(counts), kind, ranks),
        )  # fmt: skip
    alone = process_group is None or torch.distributed.get_rank(process_group) == 0
    printed = repr(fit).splitlines()[0] if alone else ""  # by one rank, while the others go on
    theta = torch.cat([p.detach().reshape(-1) for p in fit.gp.parameters()])
    shared = of_kind(fit.report.events, EventKind.SHARED)
    resumed = of_kind(fit.report.events, EventKind.RESUMED)
    return {
        "theta": theta.numpy(), "mean": fit.posterior.predict(z).mean.numpy(), "evaluations": len(fit.history),
        "estimated": bool(of_kind(fit.report.events, EventKind.GRADIENTS_ESTIMATED)), "route": fit.report.route,
        "history": [(entry.start, entry.theta) for entry in fit.history],
        "shared": shared[0].fields if shared else None, "files": Path(path).exists() if path else None,
        "replayed": resumed[0].fields["evaluations"] if resumed else 0, "printed": printed,
        "verdict": str(fit.verdict),
    }  # fmt: skip
