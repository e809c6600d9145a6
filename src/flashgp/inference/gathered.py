"""The table of a group: every rank's rows joined on every rank, and what must be equal on all of them.

Ranks bring rows of their own, any number of them. Inputs, targets and what the likelihood knows row by row are gathered
in the order of the ranks: n (d + outputs) numbers, which the features of products need on every rank in any case. What
takes more, pairs, preconditioners and solves, is shared anew, evenly, whatever rows a rank brought.
"""

import hashlib
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from flashgp.foundations.errors import DomainError, FitInterrupted, ShapeError
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.machine import available_bytes
from flashgp.foundations.report import Report
from flashgp.inference.data import Data
from flashgp.inference.prior import Prior
from flashgp.planner.plan import Plan, Shared
from flashgp.processes.gradient_shares import unwrapped
from flashgp.processes.group import Group
from flashgp.processes.shares import Shares


@dataclass(frozen=True, eq=False)
class GatheredTable:
    """Fields: prior, whose likelihood knows all rows; x (n, d) and y (n,) or (n, outputs), all rows; shares, how many
    rows each rank brought."""

    prior: Prior
    x: Tensor
    y: Tensor
    shares: Shares


class _GatheredRows(torch.autograd.Function):
    """All rows; every rank computes the same with them, so that a rank's own rows keep their part of the gradient."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, group: Group, shares: Shares) -> Tensor:
        ctx.rows = shares.slice(group.rank)
        return group.gather_rows(own, shares)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0][ctx.rows], None, None


def gathered(prior: Prior, data: Data, group: Group, **equal: object) -> GatheredTable:
    """The rows of all ranks, joined, on every rank.

    Gradients by x and y reach this rank's own rows.

    Args: equal: what else must be the same on every rank, by name.
    Raises: ShapeError, DomainError for what is no table of one model; RankMismatchError for columns, dtypes, a model or
        options that differ; BackendUnavailableError where the group cannot send tensors of x's device. The same error
        on every rank, if called within `group.together()`.
    Cost: n (d + outputs) numbers on every rank, sent once.
    """
    x, y = rows_of_one_model(data)
    group.check_device(x.device)
    compare_models(
        prior, group, columns=x.shape[-1], dtypes=f"{x.dtype} and {y.dtype}", targets=tuple(y.shape[1:]),
        device=x.device.type, **equal,
    )  # fmt: skip
    shares = group.shares(len(x))

    def all_rows(own: Tensor) -> Tensor:
        if len(own) != len(x):
            raise ShapeError(
                f"`likelihood` must have one number for each of this rank's {len(x):,} rows, got shape "
                f"{tuple(own.shape)}; pass row_variance= and row_weight= of these rows"
            )
        return group.gather_rows(own.to(x.device), shares).to(own.device)

    likelihood = prior.likelihood.by_rows(all_rows)
    prior = prior if likelihood is prior.likelihood else prior.with_likelihood(likelihood)
    return GatheredTable(prior, _GatheredRows.apply(x, group, shares), _GatheredRows.apply(y, group, shares), shares)


def rows_of_one_model(data: Data) -> tuple[Tensor, Tensor]:
    """This rank's rows. Raises: DomainError unless they are a complete table of one model."""
    data.complete()
    if data.is_batch:
        raise DomainError(
            "`group` shares the rows of one model, got a batch of models or tables; give each rank models of its own, "
            "without a group"
        )
    return data.x, data.y


def compare_models(prior: Prior, group: Group, **equal: object) -> None:
    """Raises: RankMismatchError where ranks have other kernels, parameters or options."""
    parameters = {name: f"{tensor.requires_grad} {tensor_mark(tensor)}" for name, tensor in unwrapped(prior).items()}
    group.compare(
        model=prior.title, covariance=_digest(repr(prior.kernel.form.profile.key)),
        outputs=prior.outputs, **{f"parameter {name}": mark for name, mark in parameters.items()}, **equal,
    )  # fmt: skip


def tensor_mark(tensor: Tensor) -> str:
    """Text that tells tensors apart: the number itself, or shape and digest of many."""
    plain = tensor.detach().cpu()
    if plain.numel() == 1:
        return repr(plain.item())
    shape = "x".join(map(str, plain.shape))
    return f"{plain.dtype} {shape} {_digest(plain.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())}"


def _digest(data: "bytes | str") -> str:
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()[:12]


def agreed_memory(memory: str | int | None, device: torch.device, group: Group) -> str | int | None:
    """The budget of every rank: what was asked for, else the least of what is free, divided among ranks of one host.
    Of a group of one what was asked for."""
    if group.size == 1:
        return memory
    hosts = [host.decode() for host in group.gather_bytes(socket.gethostname().encode())]
    here = Counter(hosts)[hosts[group.rank]] if device.type == "cpu" else 1
    free = torch.tensor([-(available_bytes(device) // here)], dtype=torch.int64, device=device)
    least = -int(group.max(free))
    return least if memory is None else memory


def agreed_plan(plan: Plan, group: Group) -> Plan:
    """Rank 0's plan; each rank has made one, so that what does not fit is an error on all of them."""
    return plan if group.size == 1 else Plan.from_json(group.text_of_first(plan.to_json()))


def agreed_report(report: Report, group: Group) -> None:
    """Raises: RankMismatchError where a state did not come about in the same way on every rank."""
    kinds = sorted({event.kind.name for event in report.events if event.kind is not EventKind.CORES_TAKEN})
    group.compare(route=report.route, jitter=report.jitter is not None, events=kinds)


def of_this_rank(prior: Prior, shares: Shares | None, group: Group) -> Prior:
    """A fitted prior whose likelihood knows this rank's rows alone, to condition again on the same ones.

    Args: shares, of rows that were gathered, else None: the prior knows no others then.
    """
    if shares is None:
        return prior
    here = shares.slice(group.rank)
    return prior.with_likelihood(prior.likelihood.rows(torch.arange(here.start, here.stop)))


@contextmanager
def local_rows_on_interrupt(shares: Shares | None, group: Group) -> Iterator[None]:
    """Reduce the GP of a FitInterrupted to this rank's rows, as at the end of a fit."""
    try:
        yield
    except FitInterrupted as stop:
        stop.gp = of_this_rank(cast(Prior, stop.gp), shares, group)
        raise


def shared_event(
    group: Group, before: int, shares: Shares | None = None, planned: Shared | None = None, *, fitting: bool = False
) -> Event:
    """Event of a report: how many ranks there were, and what this one has sent since it had sent so many bytes.

    Args: shares, of rows that were joined; planned, what by a plan rank 0 would send to condition, or, fitting, in a
        whole fit.
    """
    rows = {} if shares is None else {"rows": shares.total, "counts": list(shares.counts)}
    beside = {} if planned is None else {"planned": planned.fit_sent_bytes if fitting else planned.sent_bytes}
    return Event(EventKind.SHARED, ranks=group.size, sent=group.bytes_sent - before, **rows, **beside)
