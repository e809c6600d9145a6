"""More rows for inducing points: what the rows say adds up, eq. (M-175). The points and the parameters stay."""

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import numpy
import torch

from flashgp.foundations.contexts import entered
from flashgp.foundations.errors import DomainError
from flashgp.foundations.report import Report
from flashgp.foundations.workspace import Workspace
from flashgp.inference.base_state import UPDATE
from flashgp.inference.online.update import checked_rows
from flashgp.inference.streamed.bound import added, noise_floor
from flashgp.inference.streamed.objective import block_rows
from flashgp.inference.streamed.rows import inputs_of, move_row_variances_to_likelihood, noise_of, sample_rows
from flashgp.inference.streamed.state import StreamedState
from flashgp.sources.source import Encoded, Held, RowSource, source_of
from flashgp.sources.survey import Block, checked, row_variances


@entered(lambda state, *_: state.run.deterministic)
@torch.no_grad()
def append(state: StreamedState, x: Any, y: Any, row_variance: Any, row_weight: Any) -> StreamedState:
    """See `Posterior.append`."""
    began = time.perf_counter()
    known_there = state.knows_rows
    if known_there and y is None:
        raise DomainError(
            "`y` must be given beside x for a likelihood that knows rows one by one, got rows that are read; pass x, y"
        )
    likelihood = state.prior.likelihood
    given, other = (row_variance, row_weight) if likelihood.has_sites else (row_weight, row_variance)
    if not known_there and (other is not None or (given is not None and y is None)):
        name = "row_variance" if row_weight is None else "row_weight"
        raise DomainError(
            f"`{name}` is not known of rows that join inducing points this way, got one; leave it out, or give batches "
            f"(x, y, {likelihood.of_read})"
        )
    source: RowSource
    if y is None:
        source = Encoded(source_of(x), likelihood.encoded, likelihood.of_read)
    else:
        rows = [t.clone() for t in checked_rows(state.prior, x, y, state.like)]
        known = None
        if given is not None and not known_there:
            known = row_variances(given, likelihood.of_read, rows[0])
        source = Held(rows[0], rows[1], known)
    sample, prior = _Sample(state), state.prior_of_rows
    if known_there:
        assert isinstance(source, Held)
        more = prior.likelihood.extended(state.count, len(source.x), row_variance, row_weight)
        prior = prior.with_likelihood(more)
    function = dataclasses.replace(state.function, workspace=Workspace())

    def blocks() -> Iterator[Block]:
        size = block_rows(function.rank, prior.factors)
        for _, block in checked(source, prior.outputs, state.inducing.shape[-1]):
            check_alike(state, block)
            sample.add(block)
            for start in range(0, len(block.x), size):
                yield block.part(start, start + size)

    values = dataclasses.replace(state.values, new=True)
    before, inputs = state.sums, inputs_of(prior, blocks(), state.inducing.device, state.count, values)
    sums = added(function, state.floor, inputs, before)
    assert sums is not None
    if sums is before:
        return state
    if sample.rows.row_variance is None and not known_there and noise_of(prior, sample.rows).numel() == 1:
        noise = float(noise_of(prior, sample.rows))
        sums = sums.with_more_noise(max(noise, noise_floor(function, sums.count)) / max(noise, state.floor))
    assert sums.inner is not None  # which may fail
    held = _joined(state.held, source)
    online, report = state.online.counted(sums.count - before.count, 0), state.report
    if not prior.likelihood.has_sites:
        after = dataclasses.replace(values, sums=sums)
        online = dataclasses.replace(online, moved=online.moved + after.divergence(values))
    report = Report(
        route=report.route, backend=function.workspace.backend, device=report.device, dtype=report.dtype,
        peak_bytes=function.workspace.peak_bytes, seconds=time.perf_counter() - began,
        events=[*(event for event in report.events if event.stage != UPDATE), online.event],
    )  # fmt: skip
    if held is not None:
        prior = move_row_variances_to_likelihood(prior, held)
    return dataclasses.replace(
        state, prior=prior, sums=sums, sample=sample.rows, report=report, online=online, held=held
    )


def check_alike(state: StreamedState, block: Block) -> None:
    """Raises: DomainError for rows with variances or weights where those before have none, and the other way round."""
    if (block.row_variance is None) != (state.sample.row_variance is None):
        got, before = ("none", "known ones") if block.row_variance is None else ("some", "none")
        raise DomainError(
            f"`{state.prior.likelihood.of_read}` must be given for all rows or for none, got {got} where the rows "
            f"before have {before}; condition again, or give what they have"
        )


def _joined(held: Held | None, more: RowSource) -> Held | None:
    """The rows of both, where both are held."""
    if held is None or not isinstance(more, Held):
        return None
    known = None
    if held.row_variance is not None and more.row_variance is not None:
        known = torch.cat([held.row_variance, more.row_variance])
    return Held(torch.cat([held.x, more.x]), torch.cat([held.y, more.y.to(held.y.dtype)]), known)


class _Sample:
    """The random sample of a state's rows while more come: the t-th row takes a random place with probability size / t.

    Source: Vitter (1985), Random sampling with a reservoir, algorithm R.
    """

    def __init__(self, state: StreamedState) -> None:
        self.rows, self._seen = state.sample, state.count
        self._device = self.rows.x.device
        self._size = sample_rows(state.function.rank)
        self._draws = numpy.random.default_rng((abs(state.run.seed), state.count))

    def add(self, more: Block) -> None:
        """The next rows."""
        more = more.to(self._device)
        held = len(self.rows.x)
        room = max(0, self._size - held) if self._seen == held else 0
        size = min(self._size, held + room)
        if room:
            first = more.part(0, room)
            self.rows = Block(*map(torch.cat, zip(self.rows.tensors, first.tensors, strict=True)))
            self._seen += len(first.x)
            more = more.part(room, None)
        count = len(more.x)
        if not count:
            return
        places = (self._draws.random(count) * numpy.arange(self._seen + 1, self._seen + count + 1)).astype(int)
        self._seen += count
        if (taken := places < size).any():
            last = dict(zip(places[taken].tolist(), taken.nonzero()[0].tolist(), strict=True))
            self.rows = Block(*(t.clone() for t in self.rows.tensors))
            for column, new in zip(self.rows.tensors, more.tensors, strict=True):
                column[list(last)] = new[list(last.values())]
