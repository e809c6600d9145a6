"""Learning online: rows join and leave a posterior in O(n^2), with the hyperparameters as they are.

Appending borders the factor, eq. (M-111); what leaves is taken out by orthogonal transformations, eq. (M-112). The
whitened residual z = L^-1 r is kept, so that appended rows only add to it. The weights L^-T z wait until they are asked
for: predictions at a few points take the mean from z. Some rows of the factor are looked at in passing, eq. (M-113)
(finish_update.py). One row more, the usual step, has a way of its own (one_point.py). Without a float64 factor
the weights are solved for again (warm_start.py).

The table's rows are in the order of their arrival. A new row is a row of its own, also where its x has been seen: its
noise makes it another observation. Rows that conditioning joined stay joined; when one of them leaves, the noise of the
others' mean grows, a diagonal update of the factor.
"""

import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy
import torch
from torch import Tensor

from flashgp.foundations.checks import as_float_tensor, check_points
from flashgp.foundations.contexts import entered
from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.foundations.events import EventKind
from flashgp.foundations.form import Rows
from flashgp.foundations.report import Report
from flashgp.foundations.workspace import Workspace
from flashgp.inference.base_state import UpdateState
from flashgp.inference.data import Data
from flashgp.inference.exact.condition import condition
from flashgp.inference.exact.evidence import log_evidence
from flashgp.inference.exact.mixture import MixtureState, in_own_memory
from flashgp.inference.missing_cells import observed, rows_of_output
from flashgp.inference.online.finish_update import Table, Update, finish_update
from flashgp.inference.online.one_point import appended_row
from flashgp.inference.online.warm_start import solved_again
from flashgp.inference.output_states import AnyState
from flashgp.inference.prior import Prior
from flashgp.inference.replicates import join
from flashgp.inference.settings import ConditionSettings
from flashgp.inference.state import State, continued
from flashgp.inference.threads import ONE_THREAD_ROWS, one_thread, quiet_openblas
from flashgp.pairwise.problem import PairProblem
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.solvers.growing.panels import PanelFactor

F64 = torch.float64
MANY_ROWS = ONE_THREAD_ROWS + 1
DRAWN = (EventKind.HYPERPARAMETERS_DRAWN, EventKind.HYPERPARAMETERS_SAMPLED)  # what a mixture keeps of its report


@dataclass(frozen=True, eq=False)
class _NewRows:
    """Checked new rows: x (k, d), y (k,) or (k, outputs), and what their likelihood says of each."""

    x: Tensor
    y: Tensor
    row_variance: Any
    row_weight: Any

    def __len__(self) -> int:
        return len(self.x)

    def of_output(self, index: int, rows: Tensor) -> "_NewRows":
        """Rows that one output was observed in."""
        known, weight = (
            None if value is None else torch.as_tensor(value)[..., rows]
            for value in (self.row_variance, self.row_weight)
        )
        return _NewRows(self.x[rows], self.y[rows, index], known, weight)


# -- what users call, behind the methods of Posterior -------------------------------------------------------------
def append(state: AnyState, x: Any, y: Any, row_variance: Any, row_weight: Any) -> AnyState:
    """See `Posterior.append`."""
    plain = row_variance is None and row_weight is None and isinstance(state, State)
    if plain and (one := appended_row(state.parts[0], x, y)) is not None:
        return one
    new = _checked(state, x, y, row_variance, row_weight)
    return _each_output(state, None, new) if len(new) else state


def drop(state: AnyState, indices: Any) -> AnyState:
    """See `Posterior.drop`."""
    gone = _indices(indices, state.count)
    return _each_output(state, gone, None) if len(gone) else state


def replace_rows(state: AnyState, indices: Any, x: Any, y: Any, row_variance: Any, row_weight: Any) -> AnyState:
    """See `Posterior.replace`."""
    gone, new = _indices(indices, state.count), _checked(state, x, y, row_variance, row_weight)
    if len(gone) != len(new):
        raise ShapeError(
            f"`indices` must name one row for each new one ({len(new)}), got {len(gone)}; drop and append separately"
        )
    return _each_output(state, gone, new) if len(new) else state


def slide(state: AnyState, x: Any, y: Any, row_variance: Any, row_weight: Any) -> AnyState:
    """See `Posterior.slide`."""
    new = _checked(state, x, y, row_variance, row_weight)
    if len(new) > state.count:
        raise DomainError(
            f"`x` must have at most as many rows as the posterior ({state.count:,}), since as many are dropped, got "
            f"{len(new):,}; use gp.condition, or append"
        )
    return _each_output(state, torch.arange(len(new)), new) if len(new) else state


def _each_output(state: Any, gone: Tensor | None, new: _NewRows | None) -> Any:
    """The update of a state, of the state of each output, or of a mixture; where one fails nothing has changed."""
    if isinstance(state, MixtureState):
        return _updated_mixture(state, gone, new)
    if not state.prior.separate:
        return _updated(state.parts[0], gone, new)
    kept = None if gone is None else _remaining(gone, state.count)
    if state.table is not None or (new is not None and observed(new.y, state.prior.outputs) is not None):
        return _each_observed(state, gone, kept, new)
    plain = new is None or (new.row_variance is None and new.row_weight is None)

    def updated(part: State, j: int) -> State:
        column = None if new is None else replace(new, y=new.y[..., j].contiguous())
        if gone is None and column is not None and plain:
            one = appended_row(part, column.x, column.y)
            if one is not None:
                return one
        return _updated(part, gone, column)

    return state.mapped(updated, _updated_prior(state.prior, state.count, kept, new))


def _updated_mixture(state: MixtureState, gone: Tensor | None, new: _NewRows | None) -> MixtureState:
    """The mixture without some rows and with new ones: draws conditioned anew, each weighed by how well it predicted
    what came, (M-424). Draws are not moved. Cost: n^3 for each."""
    each, n = state.each, state.count
    kept = None if gone is None else _remaining(gone, n).to(each.x.device)
    prior = _updated_prior(each.prior, n, kept, new)
    x = _joined(each.x, kept, None if new is None else new.x)
    y = _joined(each.y, kept, None if new is None else new.y)
    online = each.online.counted(0 if new is None else len(new), 0 if gone is None else len(gone))
    again = _conditioned_again(each, prior, x, y, online)
    again = in_own_memory(again)
    change = log_evidence(again) - log_evidence(each)  # log density of the rows given those that stay
    log_weights = torch.log_softmax(state.log_weights + change.to(state.log_weights), 0)
    told = [event for event in state.report.events if event.kind in DRAWN]
    return MixtureState(again, log_weights, replace(again.report, events=[*told, *again.report.events]))


def _each_observed(state: AnyState, gone: Tensor | None, kept: Tensor | None, new: _NewRows | None) -> AnyState:
    """Update where cells are missing: each output loses and gains the rows that it was observed in."""
    x, y = (
        _joined(old, kept, came)
        for old, came in zip((state.x, state.y), (None, None) if new is None else (new.x, new.y), strict=True)
    )
    before, after = ~state.y.isnan(), None if new is None else ~new.y.isnan()

    def updated(part: State, j: int) -> State:
        own_gone, own_new = None, None
        if gone is not None:
            numbers = before[:, j].cumsum(0) - 1  # of the rows of this output
            own_gone = numbers[gone][before[gone, j]]
        if new is not None and after is not None:
            rows = rows_of_output(after, j)
            own_new = new.of_output(j, rows) if len(rows) else None
        if own_new is None and (own_gone is None or not len(own_gone)):
            return part
        return _updated(part, own_gone, own_new)

    return state.mapped(updated, _updated_prior(state.prior, state.count, kept, new), (x, y))


# -- checks -----------------------------------------------------------------------------------------------------------
def _checked(state: AnyState, x: Any, y: Any, row_variance: Any, row_weight: Any) -> _NewRows:
    """New rows as `condition` takes them; whole numbers become numbers of the posterior's dtype.

    Raises: ShapeError, DomainError.
    """
    return _NewRows(*checked_rows(state.prior, x, y, state.like), row_variance, row_weight)


def checked_rows(prior: Prior, x: Any, y: Any, like: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """New rows x (k, d) and y (k,) or (k, outputs) of the width, device and dtypes of the rows before, or some of them.

    Raises: ShapeError, DomainError.
    """
    x, y = in_dtype_of(x, "x", like[0]), in_dtype_of(y, "y", like[1])
    width = like[0].shape[-1]
    if x.dim() == 1 and len(x) == width:
        raise ShapeError(
            f"`x` must be a table of rows, (k, {width}), got one row of shape {tuple(x.shape)}; keep the dimension of "
            "rows of both, as in x[:1] and y[:1], or x[None] and y[None]"
        )
    x = check_points(x, "x", like=like[0])
    if x.dim() != 2:
        raise ShapeError(
            f"`x` must have shape (k, {like[0].shape[-1]}), got {tuple(x.shape)}; append one table of rows"
        )
    y = prior.checked_targets(y, x, new=True)
    if y.dim() != like[1].dim():
        raise ShapeError(f"`y` must have {like[1].dim()} dimensions like that of the posterior, got {tuple(y.shape)}")
    return x.detach(), y.detach()


def in_dtype_of(value: Any, name: str, like: Tensor) -> Tensor:
    """A floating tensor; whole numbers and booleans take the dtype of the rows before, as torch.cat does it."""
    tensor = as_float_tensor(value, name)
    whole = not value.is_floating_point() if isinstance(value, Tensor) else numpy.asarray(value).dtype.kind in "iub"
    return tensor.to(like.dtype) if whole else tensor


def _indices(indices: Any, n: int) -> Tensor:
    """The rows that go, increasing. Raises: DomainError for what is no set of row numbers."""
    try:
        rows = torch.as_tensor(list(indices) if isinstance(indices, range) else indices)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DomainError(
            f"`indices` must be whole numbers of rows, got {type(indices).__name__} ({error}); pass a list of integers"
        ) from None
    if rows.numel() == 0:
        return torch.zeros(0, dtype=torch.int64)
    if rows.dtype == torch.bool or rows.is_floating_point() or rows.is_complex():
        raise DomainError(
            f"`indices` must be whole numbers of rows, got dtype {rows.dtype}; a mask becomes numbers by "
            ".nonzero().squeeze(-1)"
        )
    rows = rows.reshape(-1).to("cpu", torch.int64).sort().values
    if int(rows[0]) < 0 or int(rows[-1]) >= n:
        wrong = int(rows[0]) if int(rows[0]) < 0 else int(rows[-1])
        raise DomainError(
            f"`indices` must be from 0 to {n - 1:,}, the rows of the posterior, got {wrong}; count from 0"
        )
    repeated = (rows[1:] == rows[:-1]).nonzero()
    if len(repeated):
        raise DomainError(f"`indices` must name each row once, got row {int(rows[repeated[0]])} twice; remove one")
    return rows


# -- the update ---------------------------------------------------------------------------------------------------
@entered(lambda state, gone, new: state.run.deterministic)
@torch.no_grad()
def _updated(state: State, gone: Tensor | None, new: _NewRows | None) -> State:
    """The posterior without some rows of the table, and with others at its end; the first one stays as it is."""
    most = max(0 if part is None else len(part) for part in (gone, new))
    few = state.x.device.type == "cpu" and most <= state.run.online.few_rows
    few = few and state.float64_factor is not None  # solves keep all cores busy
    # Reflections are many small products, however many rows go.
    quiet = quiet_openblas() if few or gone is not None else nullcontext()
    with one_thread(0 if few else MANY_ROWS), quiet:
        return _updated_rows(state, gone, new)


def _updated_rows(state: State, gone: Tensor | None, new: _NewRows | None) -> State:
    started = time.perf_counter()
    n, device = state.count, state.x.device
    kept = None if gone is None or not len(gone) else _remaining(gone, n).to(device)
    prior = _updated_prior(state.prior, n, kept, new)
    taken = _row_index(n, kept)
    x = _joined(state.x, taken, None if new is None else new.x)
    y = _joined(state.y, taken, None if new is None else new.y)
    came, went = 0 if new is None else len(new), 0 if gone is None else len(gone)
    if not state.count or (kept is not None and not len(kept)):
        return _conditioned_again(state, prior, x, y, state.online.counted(came, went))
    table = _table(state, prior, x, y, kept, new)
    rows_new = None if new is None else state.prior.kernel.rows(new.x)
    rows = _joined_rows(state.rows, table.kept, rows_new)
    if state.float64_factor is None:
        online, before = state.online.counted(came, went), state.report
        report = Report(before.route, "", before.device, before.dtype, jitter=before.jitter, plan=before.plan)
        after = State(
            prior, x, y, rows, state.theta, table.residual, None, report,
            replicates=table.replicates, run=state.run, online=online,
        )  # fmt: skip
        solved = solved_again(state, after, table)
        return solved or _conditioned_again(state, prior, x, y, replace(online, refactorised=online.refactorised + 1))
    workspace, form, plain = Workspace(), prior.kernel.form, state.numpy_prior

    def covariance(some: Rows, others: Rows) -> Tensor:
        if plain is not None and some.count * others.count <= state.run.online.numpy_pairs:
            return plain.block(some, others, workspace)
        block = TorchTiles().block(PairProblem(form, state.theta, some, others), dtype=F64, workspace=workspace)
        return block.expand(some.count, others.count)

    block = None if rows_new is None else covariance(rows_new, rows)
    factor, whitened = _updated_factor(state, table, block, workspace)
    update = Update(prior, x, y, rows, table, factor, whitened, came, went)
    return finish_update(state, update, covariance, workspace, started)


def _updated_factor(
    state: State, table: Table, block: Tensor | None, workspace: Workspace
) -> tuple[PanelFactor, Tensor]:
    """The factor after the update and the whitened residual, eqs. (M-111) and (M-112); block: K_no and K_nn."""
    assert state.factor is not None
    factor, whitened = PanelFactor.of(state.factor), state.whitened_residual
    if table.kept is not None:
        factor, whitened = factor.part(
            table.kept,
            table.added,
            whitened=whitened if table.added is None else None,  # the residual of joined rows may change
            spare=0 if block is None else len(block),
            compiled=not state.run.deterministic,
            workspace=workspace,
        )
    staying = factor.count
    if whitened is None:
        whitened = factor.half_solve(table.residual[:staying])
    if block is None:
        return factor, whitened
    corner = block[:, staying:].clone()
    corner.diagonal().add_(table.noise[staying:])
    factor, half, lower = factor.bordered(block[:, :staying], corner, workspace)
    more = table.residual[staying:] - half @ whitened
    more = more / lower if len(lower) == 1 else torch.linalg.solve_triangular(lower, more, upper=False)
    return factor, torch.cat([whitened, more])


def _updated_prior(prior: Prior, n: int, kept: Tensor | None, new: _NewRows | None) -> Prior:
    """The prior with a likelihood for the rows that there will be; the prior itself if rows are all alike."""
    likelihood = prior.likelihood
    given = new is not None and (new.row_variance is not None or new.row_weight is not None)
    if likelihood.rows_alike and not given:
        return prior
    if kept is not None:
        likelihood = likelihood.rows(kept)
    if new is not None:
        likelihood = likelihood.extended(n if kept is None else len(kept), len(new), new.row_variance, new.row_weight)
    return prior.with_likelihood(likelihood)


def _remaining(gone: Tensor, n: int) -> Tensor:
    """Rows of n left without increasing ones."""
    if int(gone[-1]) == len(gone) - 1:  # the oldest
        return torch.arange(len(gone), n)
    mask = torch.ones(n, dtype=torch.bool)
    mask[gone] = False
    return mask.nonzero().squeeze(-1)


def _row_index(count: int, kept: Tensor | None) -> Tensor | slice | None:
    """Index that takes some of so many rows: the latest ones as a view."""
    if kept is None or not len(kept) or kept.device.type != "cpu":  # a device would be waited for
        return kept
    gone = count - len(kept)
    return slice(gone, None) if int(kept[0]) == gone else kept


def _joined(values: Tensor, taken: Tensor | slice | None, more: Tensor | None) -> Tensor:
    """Some rows, then new ones; some that are alone have memory of their own."""
    if taken is not None:
        values = values[taken].clone() if more is None and isinstance(taken, slice) else values[taken]
    return values if more is None else torch.cat([values, more])


def _joined_rows(rows: Rows, kept: Tensor | None, more: Rows | None) -> Rows:
    """Features of some rows, then of new ones, as `_joined`."""
    rows = rows if kept is None else rows.take(kept)
    return rows if more is None else rows.followed_by(more)


def _conditioned_again(state: AnyState, prior: Prior, x: Tensor, y: Tensor, online: UpdateState) -> Any:
    """Nothing is left, the prior or the new rows alone; or what is kept does not go on to these rows."""
    solver: str | None = None
    dtype: torch.dtype | None = F64
    part = state.parts[0]
    if part.count and part.float64_factor is None:  # as it was asked for: a float64 factor may not fit
        solver = None if part.plan is None else part.plan.solver
        dtype = None if part.factor is None else torch.float32
    settings = ConditionSettings(replace(state.run, dtype=dtype), solver=solver)
    return condition(prior, Data(prior, x, y), settings).mapped(lambda one, _: continued(one, online))


def _table(state: State, prior: Prior, x: Tensor, y: Tensor, kept: Tensor | None, new: _NewRows | None) -> Table:
    # Solves are of the matrix without the jitter of a factor that helps them.
    device, jitter = x.device, 0.0 if state.float64_factor is None else float(state.float64_factor.jitter)
    joined = state.replicates
    if joined is None:
        sites = prior.sites(y)
        more = None if new is None else prior.residual(new.x, sites.targets[len(y) - len(new) :])
        residual = _joined(state.residual, _row_index(state.distinct, kept), more)
        noise = sites.variance.expand(len(x)) + jitter
        return Table(None, residual, noise, kept)
    u, group = state.distinct, joined.group
    stay, added = None, None
    if kept is not None:
        group = group[kept]
        members = torch.bincount(group, minlength=u)
        stay = members.nonzero().squeeze(-1)
        place = torch.full((u,), -1, dtype=torch.int64, device=device).index_put_(
            (stay,), torch.arange(len(stay), device=device)
        )
        fewer = members[stay] < torch.bincount(joined.group, minlength=u)[stay]
        group = place[group]
    distinct = u if stay is None else len(stay)
    if new is not None:
        group = torch.cat([group, torch.arange(distinct, distinct + len(new), device=device)])
    replicates = join(prior, x, y, group)
    sites = replicates.likelihood.sites(replicates.y, prior.outputs)
    noise = sites.variance.expand(len(replicates.x)) + jitter
    if stay is not None:
        growth = (noise[:distinct] - state.noise.expand(u)[stay]).clamp_min(0.0)
        added = torch.where(fewer, growth, 0.0)
    return Table(replicates, prior.residual(replicates.x, sites.targets), noise, stay, added)
