"""Jobs of test_tables.py."""

import dataclasses
from typing import Any

import numpy as np
from torch import distributed as dist

import flashgp as fgp
from flashgp.fitted_table import TableSettings
from flashgp.foundations.errors import FlashGPError
from flashgp.inference.plan_settings import RowCounts
from flashgp.inference.training.options import FitOptions
from flashgp.processes.group import Group
from flashgp.table_fit import TrainingRows, standard_rows
from flashgp.table_model.preparation import check_same_rows, planned

NEW = {"a": [0.2, 0.7], "city": ["Ulm", "Bonn"]}


def fitted(group: Any, path: str, settings: dict[str, Any]) -> list[Any]:
    """Differences of a fit by ranks from that of one process: means, deviations, log likelihood, leave-one-out."""
    models = [fgp.TableModel(starts=1, **settings).fit(path, "y", progress=False, group=of) for of in (None, group)]
    apart = []
    for answer in (
        lambda model: model.predict(NEW).mean,
        lambda model: model.predict(NEW).std,
        lambda model: model.posterior.log_marginal_likelihood().numpy(),
        lambda model: model.posterior.leave_one_out().mean.numpy(),
    ):
        one, ours = map(answer, models)
        apart.append(float(np.abs(ours - one).max() / np.abs(one).max()))
    kinds = [{event.kind.name for event in model.training.report.events} for model in models]
    return [apart, models[0].scaling == models[1].scaling, kinds[1] - kinds[0]]


def chosen(group: Any) -> list[Any]:
    """The transform that a rank ends with, its units, and why, where ranks would choose for themselves differently."""
    x = np.linspace(0.0, 1.0, 40)[:, None]
    wanted = "none" if dist.get_rank(group) else "log"
    rows = TrainingRows(x, np.exp(x) + 1.0, ["x", "y"], np.arange(40))
    found = standard_rows(fgp.GP(fgp.kernels.Matern()), rows, wanted, FitOptions(starts=1), group=Group.of(group))
    return [str(found.scalings[0].target.transform), found.y.tolist(), [event.to_json() for event in found.events]]


def split(group: Any) -> str:
    """What is said where ranks hold out other rows of the same table."""
    x, rank = np.linspace(0.0, 1.0, 9)[:, None], dist.get_rank(group)
    try:
        check_same_rows(Group.of(group), ["a"], x=x, y=x[:, 0], rows_fitted=np.arange(8 - rank))
    except FlashGPError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def decided(group: Any, time_limits: tuple[float | None, float | None]) -> list[Any]:
    """What "auto" takes where the ranks' own limits would decide differently: approximation, sizes, plan, reason."""
    rank, gp = dist.get_rank(group), fgp.GP(1.0 * fgp.kernels.Matern())
    settings = TableSettings(approximation="auto", neighbours=0, time_limit=time_limits[rank], device="cpu")
    try:
        taken, plan, events = planned(Group.of(group), gp, RowCounts(20_000, 3), settings, FitOptions(starts=1))
    except FlashGPError as error:
        return [type(error).__name__, str(error)]
    sizes = None if taken is None else dataclasses.astuple(taken.sizes(20_000))
    kind = None if taken is None else taken.kind
    return [kind, sizes, plan.to_json(), [event.to_json() for event in events]]


def refused(group: Any, folder: str) -> list[str]:
    """What every rank is told of other tables and frames."""
    rank, out = dist.get_rank(group), []
    for table, settings in (
        (f"{folder}/table-{rank}.csv", {}),
        ({"a": [0.0, 1.0], "y": [0.0, 1.0]}, {}),
    ):
        try:
            fgp.TableModel(starts=1, **settings).fit(table, "y", progress=False, group=group)
            out.append("nothing")
        except FlashGPError as error:
            out.append(f"{type(error).__name__}: {error}")
    return out
