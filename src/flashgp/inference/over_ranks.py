"""Agreement of ranks before conditioning and fits over ranks begin: the same model, sizes and choices."""

from collections.abc import Callable, Mapping
from dataclasses import astuple, replace
from typing import Any, TypeVar

import numpy
import torch

from flashgp.foundations.events import Event
from flashgp.inference.approximation import Approximation
from flashgp.inference.choice import Choice, Decision
from flashgp.inference.data import Data
from flashgp.inference.gathered import agreed_memory, compare_models, gathered, rows_of_one_model, tensor_mark
from flashgp.inference.plan_settings import RowCounts
from flashgp.inference.prior import Prior
from flashgp.inference.replicates import joining_keys
from flashgp.inference.run import Run, with_run
from flashgp.planner.plan import Plan, Sizes
from flashgp.planner.problem import PlanSettings, chosen_device
from flashgp.processes.agreement import deadline_of, decided_by_first
from flashgp.processes.group import Group
from flashgp.processes.shares import Shares
from flashgp.sources.source import RowSource
from flashgp.sources.survey import hashes

T = TypeVar("T", bound=Any)  # options of a fit or of conditioning; a choice


def gathered_for(
    prior: Prior, data: Data, group: Group, asked: T, alike: Mapping[str, object]
) -> tuple[Prior, Data, Shares, T]:
    """The rows of all ranks on every rank, how many each brought, and the settings with a budget and a deadline in
    common. Args: alike, what must be the same on every rank, by name. Raises: as `gathered`."""
    table = gathered(prior, data, group, **alike)
    joined = Data(table.prior, table.x.detach(), table.y.detach())
    memory, deadline = asked.run.memory, deadline_of(group, asked.run.deadline)
    if asked.plan is None:
        memory = agreed_memory(memory, chosen_device(asked.run.device, joined.x), group)
    return table.prior, joined, table.shares, with_run(asked, memory=memory, deadline=deadline)


def check_alike(group: Group, prior: Prior, asked: Approximation | None, alike: Mapping[str, object]) -> None:
    """Raises: RankMismatchError, on every rank, where ranks were given other models, points or settings."""
    if group.size > 1:
        compare_models(prior, group, **asked_alike(asked), **alike)


def asked_alike(asked: Approximation | None) -> dict[str, object]:
    """Arguments of an approximation that must be alike on all ranks, by name."""
    if asked is None:
        return {"approximation": None}
    points = asked.inducing
    inducing = points if isinstance(points, str | int) else tensor_mark(torch.as_tensor(points))
    return {"approximation": asked.kind, "inducing": inducing, "neighbours": asked.neighbours}


def shard(rows: RowSource, group: Group) -> RowSource:
    """This rank's part of a source that all ranks name; a rank's own rows stay whole. Raises: DomainError."""
    return rows if group.size == 1 else rows.shard(group)


def planned_over(group: Group, plan: Callable[[Approximation], Plan], asked: Approximation) -> Plan:
    """The plan that every rank has room and time for: of the smallest sizes that a rank chose on the ladder.

    Raises: MemoryBudgetError, on every rank, before anything is allocated.
    """
    if group.size == 1:
        return plan(asked)
    with group.together():
        own = plan(asked)
    sizes = torch.tensor(astuple(own.sizes))
    least = Sizes(*(-group.max(-sizes)).tolist())
    return own if own.sizes == least else plan(asked.resolved(least))


def choose_inference(
    prior: Prior, data: Data, asked: Approximation, run: Run, settings: PlanSettings, *, training: bool
) -> Decision:
    """Choose the inference of approximation="auto" for rows held by one process, or shared by the ranks of a group.

    Args:
        settings: with the memory and device that were asked for.
    Raises: as `Choice.decided`; ShapeError, DomainError if the data are no table; the same on every rank.
    """
    with run.group.together() as group:
        rows = data.counts if group.size == 1 else counts_over(group, prior, data)
        device = data.x.device if settings.device is None else settings.devices[-1]
        settings = replace(
            settings, memory=agreed_memory(settings.memory, device, group), device=device, ranks=group.size,
            factored=rows.batch * prior.kernel.batch_shape.numel() > 1 or not prior.likelihood.has_sites,
        )  # fmt: skip
        choice = Choice(prior, rows, settings, run.deadline.limit, training)
        return of_first(group, asked, lambda: choice.decided(asked))


def of_first(group: Group, asked: Approximation, decide: Callable[[], T]) -> T:
    """Rank 0's choice on every rank. Args: decide, gives a tuple of approximations, as asked for, plans, events and
    None. Raises: as it, on every rank."""
    kinds = {one.kind: one for one in (*asked.candidates, Approximation("fourier"))}

    def to_json(found: T) -> list[Any]:
        return [
            [one.kind, one.chosen_sizes and astuple(one.chosen_sizes)] if isinstance(one, Approximation)
            else one and [type(one).__name__, one.to_json()]
            for one in found
        ]  # fmt: skip

    def from_json(data: list[Any]) -> Any:
        return tuple(one and read(*one) for one in data)

    def read(name: str, value: Any) -> Approximation | Plan | Event:
        if name in kinds:
            return kinds[name] if value is None else kinds[name].resolved(Sizes(*value))
        return Plan.from_json(value) if name == Plan.__name__ else Event.from_json(value)

    return decided_by_first(group, decide, to_json, from_json)


def counts_over(group: Group, prior: Prior, data: Data) -> RowCounts:
    """The sizes of the table of all ranks, its distinct rows counted without gathering it.

    Each rank sends a hash of each of its distinct rows to the rank that counts those of this remainder. A plan is all
    that they are for: of n rows two that differ have the same one in n^2 / 2^65 tables, and are planned as one.

    Args: data, of this rank.
    Raises: ShapeError, DomainError; on every rank, if called within `group.together()`; RankMismatchError.
    Cost: 8 bytes for each row, sent once.
    """
    x, y = rows_of_one_model(data)
    group.compare(columns=x.shape[-1])
    shares, found = group.shares(len(x)), numpy.zeros(0, numpy.uint64)
    keys = joining_keys(prior.likelihood, x, y) if len(x) else []
    if keys:
        columns = [key.detach().to("cpu", torch.float64) for key in keys]
        found = numpy.unique(hashes(torch.stack(columns, dim=1).numpy()))
    owner = torch.from_numpy((found % numpy.uint64(group.size)).astype(numpy.int64))
    sent = torch.bincount(owner, minlength=group.size)
    received = group.gather_rows(sent.unsqueeze(0), Shares((1,) * group.size))[:, group.rank]
    own = torch.from_numpy(found.view(numpy.int64))[owner.argsort(stable=True)]
    counted = len(group.exchange(own, sent.tolist(), received.tolist()).unique())
    alone = len(x) if keys is None else 0  # which join no others
    ends = torch.cat([x, -x], dim=1).detach().double()
    ends = group.max(ends.amax(0) if len(x) else ends.new_full((ends.shape[1],), -torch.inf))
    extent = tuple((ends[: x.shape[1]] + ends[x.shape[1] :]).tolist())
    return RowCounts(shares.total, x.shape[-1], int(group.sum(torch.tensor(counted + alone))), extent=extent)
