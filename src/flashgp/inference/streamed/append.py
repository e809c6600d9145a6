"""More rows for inducing points: what the rows say adds up, eq. (M-175). The points and the parameters stay."""

import dataclasses
import time
from collections.abc import Iterator, Mapping, Set
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
from flashgp.inference.streamed.rows import inputs_of, named, noise_of, numbers_to_likelihood, sample_rows
from flashgp.inference.streamed.state import StateOfPasses, StreamedState
from flashgp.sources.source import Held, RowSource, source_of
from flashgp.sources.survey import Block, checked, joined


def new_rows(state: StateOfPasses, x: Any, y: Any, numbers: Mapping[str, Any]) -> RowSource:
    """Rows that join, or that are left out, with numbers of each by name. Raises: DomainError, ShapeError."""
    prior, likelihood = state.prior, state.prior.likelihood.underlying
    if y is None:
        if numbers:
            name = next(iter(numbers))
            raise DomainError(
                f"`{name}` must come in the batches of rows that are read, got it beside them; leave it out"
            )
        return named(source_of(x), prior.with_likelihood(likelihood))
    if state.held is None:
        numbers = likelihood.read(numbers, "")
        prior = prior.with_likelihood(likelihood.with_rows(**numbers))
    x, y = checked_rows(prior, x, y, state.like)
    if state.held is not None:
        others = {name: each for name, each in numbers.items() if name not in ("row_variance", "row_weight")}
        known = numbers.get("row_variance"), numbers.get("row_weight")
        numbers = likelihood.of_new_rows(state.count, len(x), *known, others).row_tensors
    return Held(x.clone(), y.clone(), numbers)


@entered(lambda state, *_: state.run.deterministic)
@torch.no_grad()
def append(state: StreamedState, source: RowSource) -> StreamedState:
    """See `Posterior.append`. Args: source, of `new_rows`."""
    began = time.perf_counter()
    sample, prior = _Sample(state), state.prior_of_rows
    function = dataclasses.replace(state.function, workspace=Workspace())

    def blocks() -> Iterator[Block]:
        size = block_rows(function.rank, prior.factors)
        for _, block in checked(source, prior.outputs, state.inducing.shape[-1]):
            check_alike(state.sample.numbers.keys(), block)
            sample.add(block)
            for start in range(0, len(block.x), size):
                yield block.part(start, start + size)

    values = dataclasses.replace(state.values, new=True)
    before, inputs = state.sums, inputs_of(prior, blocks(), state.inducing.device, state.count, values)
    sums = added(function, state.floor, inputs, before)
    assert sums is not None
    if sums is before:
        return state
    if not sample.rows.numbers and noise_of(prior, sample.rows).numel() == 1:
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
        prior = numbers_to_likelihood(prior, held)
    return dataclasses.replace(
        state, prior=prior, sums=sums, sample=sample.rows, report=report, online=online, held=held
    )


def check_alike(names: Set[str], block: Block) -> None:
    """Raises: DomainError for rows with other numbers than those before, of which there are the names."""
    for name in sorted(block.numbers.keys() ^ names):
        got, before = ("some", "none") if name in block.numbers else ("none", "known ones")
        raise DomainError(
            f"`{name}` must be given for all rows or for none, got {got} where the rows before have {before}; "
            "condition again, or give what they have"
        )


def _joined(held: Held | None, more: RowSource) -> Held | None:
    """The rows of both, where both are held."""
    if held is None or not isinstance(more, Held):
        return None
    numbers = {name: torch.cat([each, more.numbers[name].to(each)]) for name, each in held.numbers.items()}
    return Held(torch.cat([held.x, more.x.to(held.x)]), torch.cat([held.y, more.y.to(held.y)]), numbers)


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
            self.rows = joined([self.rows, first])
            self._seen += len(first.x)
            more = more.part(room, None)
        count = len(more.x)
        if not count:
            return
        places = (self._draws.random(count) * numpy.arange(self._seen + 1, self._seen + count + 1)).astype(int)
        self._seen += count
        if (taken := places < size).any():
            last = dict(zip(places[taken].tolist(), taken.nonzero()[0].tolist(), strict=True))
            self.rows = self.rows.of(t.clone() for t in self.rows.tensors)
            for column, new in zip(self.rows.tensors, more.tensors, strict=True):
                column[list(last)] = new[list(last.values())]
