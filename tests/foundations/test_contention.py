"""Others that keep our cores busy are noticed where something is measured."""

import time
import warnings
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

import flashgp as fgp
from flashgp.foundations import contention
from flashgp.foundations.contention import OtherWork, busy_seconds
from flashgp.foundations.profile import BUILT_IN
from flashgp.planner import tuning


def counted(monkeypatch: pytest.MonkeyPatch, *readings: tuple[float, float] | None, elapsed: float = 10.0) -> None:
    """Made-up readings of (everybody, this process), so many seconds apart."""
    left: Iterator[tuple[float, float] | None] = iter(readings)
    clock = iter([100.0, 100.0 + elapsed])
    monkeypatch.setattr(contention, "busy_seconds", lambda: next(left))
    monkeypatch.setattr(contention, "perf_counter", lambda: next(clock))


@pytest.mark.parametrize(
    ("before", "after", "elapsed", "wanted"),
    [
        ((50.0, 7.0), (73.0, 22.0), 10.0, 0.8),
        ((50.0, 7.0), (62.0, 22.0), 10.0, 0.0),  # the counts of the system are coarse
        ((50.0, 7.0), (73.0, 22.0), 1.0, None),
        (None, (73.0, 22.0), 10.0, None),
        ((50.0, 7.0), None, 10.0, None),
    ],
)
def test_other_work_is_what_everybody_did_without_us(
    monkeypatch: pytest.MonkeyPatch,
    before: tuple[float, float] | None,
    after: tuple[float, float] | None,
    elapsed: float,
    wanted: float | None,
) -> None:
    counted(monkeypatch, before, after, elapsed=elapsed)
    with OtherWork() as others:
        pass
    assert others.cores == (None if wanted is None else pytest.approx(wanted, abs=1e-12))


def test_our_own_work_is_seen_by_both_counts() -> None:
    before = busy_seconds()
    began = time.process_time()
    while time.process_time() - began < 0.5:
        torch.ones(64, 64) @ torch.ones(64, 64)
    after = busy_seconds()
    if before is None or after is None:
        pytest.skip("the system does not count processor time")
    everybody, own = (now - then for now, then in zip(after, before, strict=True))
    assert own >= 0.4
    assert everybody >= own - 0.2, "up to hundredths of a second on each core"


@pytest.mark.parametrize(("busy", "said"), [(4.0, True), (1.0, False)])
def test_rates_of_a_busy_machine_are_called_so(monkeypatch: pytest.MonkeyPatch, busy: float, said: bool) -> None:
    monkeypatch.setattr(tuning, "_measure", lambda *_: BUILT_IN)
    counted(monkeypatch, (0.0, 0.0), (10.0 + busy, 10.0))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert fgp.tune(keep=False) == replace(BUILT_IN, others_cores=busy / 10.0)
    assert [str(one.message).startswith("other work kept 0.4 of this process's cores busy") for one in caught] == (
        [True] if said else []
    )


def test_a_part_measured_in_a_quiet_moment_does_not_mend_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "_measure", lambda *_: BUILT_IN)

    def found(busy: float, known: float | None, *parts: str) -> float | None:
        counted(monkeypatch, (0.0, 0.0), (10.0 + busy, 10.0))
        return tuning._measured(None, parts, replace(BUILT_IN, others_cores=known)).others_cores

    assert found(1.0, 0.7, "exp") == 0.7
    assert found(1.0, None, "exp") == 0.1
    assert found(1.0, 0.05, "exp") == 0.1
    assert found(1.0, 0.7, *tuning.PARTS) == 0.1, "nothing is left of what was before"
    monkeypatch.setattr(tuning.OtherWork, "__exit__", lambda *_: None)  # as after a short block
    assert found(1.0, 0.7, "exp") == 0.7
    assert found(1.0, None, "exp") is None
