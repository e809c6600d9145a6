"""More rows for inducing points: what the rows say adds up, eq. (M-175). The points and the parameters stay."""

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import numpy
import torch
from torch import Tensor

from flashgp.foundations.contexts import autocast_disabled, outside_inference_mode
from flashgp.foundations.determinism import deterministic_where
from flashgp.foundations.errors import DomainError
from flashgp.foundations.report import Report
from flashgp.foundations.workspace import Workspace
from flashgp.inference.online.update import checked_rows
from flashgp.inference.state import UPDATE
from flashgp.inference.streamed.bound import added, noise_floor
from flashgp.inference.streamed.condition import sample_rows
from flashgp.inference.streamed.objective import block_rows, blocks_of
from flashgp.inference.streamed.state import StreamedState
from flashgp.sources.source import Held, RowSource, source_of
from flashgp.sources.survey import checked

__all__ = ["append"]


@outside_inference_mode
@autocast_disabled
@deterministic_where(lambda state, *_: state.settings.deterministic)
@torch.no_grad()
def append(state: StreamedState, x: Any, y: Any, row_variance: Any, row_weight: Any) -> StreamedState:
    """See `StreamedPosterior.append`."""
    began, alike = time.perf_counter(), state.prior.likelihood.rows_alike
    for name, value in (("row_variance", row_variance), ("row_weight", row_weight)):
        if value is not None and alike:
            raise DomainError(
                f"`{name}` is of rows that are known one by one, got one for inducing points whose rows share their "
                "noise; leave it out"
            )
    if y is None and not alike:
        raise DomainError(
            "`y` must be given beside x for a likelihood that knows rows one by one, got rows that are read; pass x, y"
        )
    source: RowSource = source_of(x) if y is None else Held(*checked_rows(state.prior, x, y, state.like))
    prior, n = state.prior, state.count
    if not alike:
        more = sum(len(rows) for _, rows, _ in source.batches())
        prior = prior.with_likelihood(prior.likelihood.extended(n, more, row_variance, row_weight))
    sample = _Sample(state)
    function = dataclasses.replace(state.function, workspace=Workspace())

    def tables() -> Iterator[tuple[Tensor, Tensor]]:
        size = block_rows(function.rank)
        for _, x, y in checked(source, prior.outputs, state.inducing.shape[-1]):
            sample.add(x)
            yield from zip(x.split(size), y.split(size), strict=True)

    before, floor = state.sums, noise_floor(function, n)
    sums = added(function, before.noise, blocks_of(prior, tables(), state.inducing.device, n), before, floor=floor)
    assert sums is not None
    if sums is before:
        return state
    if sums.log_noises == 0.0:  # one noise of all rows
        sums = sums.with_noise(noise_floor(function, sums.count))
    assert sums.inner is not None  # which may fail
    online, report = state.online.counted(sums.count - before.count, 0), state.report
    report = Report(
        route=report.route, backend=function.workspace.backend, device=report.device, dtype=report.dtype,
        peak_bytes=function.workspace.peak_bytes, seconds=time.perf_counter() - began,
        events=[*(event for event in report.events if event.stage != UPDATE), online.event],
    )  # fmt: skip
    return dataclasses.replace(state, prior=prior, sums=sums, sample=sample.rows, report=report, online=online)


class _Sample:
    """The random sample of a state's rows while more come: the t-th row takes a random place with probability size / t.

    Source: Vitter (1985), Random sampling with a reservoir, algorithm R.
    """

    def __init__(self, state: StreamedState) -> None:
        self.rows, self._seen = state.sample, state.count
        self._size = sample_rows(state.function.rank)
        self._draws = numpy.random.default_rng((abs(state.settings.seed), state.count))

    def add(self, x: Tensor) -> None:
        """The next rows, (n, d)."""
        x = x.to(self.rows.device)
        room = max(0, self._size - len(self.rows)) if self._seen == len(self.rows) else 0
        size = min(self._size, len(self.rows) + room)
        if room:
            self.rows = torch.cat([self.rows, x[:room]])
            self._seen += len(x[:room])
            x = x[room:]
        if not len(x):
            return
        places = (self._draws.random(len(x)) * numpy.arange(self._seen + 1, self._seen + len(x) + 1)).astype(int)
        self._seen += len(x)
        if (taken := places < size).any():
            last = dict(zip(places[taken].tolist(), taken.nonzero()[0].tolist(), strict=True))
            self.rows = self.rows.clone()
            self.rows[list(last)] = x[list(last.values())]
