"""Ranges of the library's own work: recorded while somebody records, nothing otherwise."""

import threading
from collections.abc import Iterator

import pytest
import torch

from flashgp.foundations import profile_ranges as ranges
from flashgp.foundations.profile_ranges import KINDS, Kind, profile_range, profiled, recording
from flashgp.pairwise.backend import BACKENDS


@pytest.fixture(autouse=True)
def nobody_records() -> Iterator[None]:
    assert ranges._recorder is None
    yield
    assert ranges._recorder is None


@profiled("factorisation")
def work(value: int, *, more: int = 1) -> int:
    """Its text."""
    return value + more


def kinds_of(record: ranges.Record) -> list[Kind]:
    return [one.kind for one in record.ranges]


def test_nothing_happens_unless_somebody_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.profiler, "record_function", None)
    with profile_range("transfers") as nothing:
        assert nothing is None
    assert work(1, more=2) == 3
    assert (work.__name__, work.__doc__) == ("work", "Its text.")


def test_what_runs_meanwhile_is_recorded() -> None:
    with recording() as record:
        assert work(1) == 2
        with profile_range("transfers"):
            pass
    work(1)
    assert kinds_of(record) == ["factorisation", "transfers"]
    first, second = record.ranges
    assert first.thread == record.thread == threading.get_ident()
    assert first.start <= first.end <= second.start <= second.end
    assert record.cpu_nanoseconds > 0


def test_a_range_inside_one_of_its_kind_is_the_same_range() -> None:
    with recording() as record:
        with profile_range("factorisation"), profile_range("factorisation"), profile_range("pairwise products"):
            work(1)
        work(1)
        with profile_range("factorisation"):
            with profile_range("pairwise products"):
                pass
            work(1)
    inner = ["factorisation", "pairwise products", "factorisation"]
    assert kinds_of(record) == [*inner, "factorisation", "pairwise products", "factorisation"]


def test_errors_close_their_ranges() -> None:
    with recording() as record:
        with pytest.raises(ValueError, match="no"), profile_range("transfers"), profile_range("factorisation"):
            raise ValueError("no")
        work(1)
    assert kinds_of(record) == ["factorisation", "transfers", "factorisation"]
    with pytest.raises(ValueError, match="no"), recording():
        raise ValueError("no")


def test_a_recording_inside_another_leaves_it_alone() -> None:
    with recording() as outer:
        with recording() as inner:
            work(1)
        work(1)
    assert (len(outer.ranges), len(inner.ranges)) == (2, 0)


def test_every_thread_has_its_own_ranges() -> None:
    with recording() as record, profile_range("factorisation"):
        thread = threading.Thread(target=lambda: work(1))
        thread.start()
        thread.join()
    assert kinds_of(record) == ["factorisation", "factorisation"]
    assert len({one.thread for one in record.ranges}) == 2


def test_the_device_is_waited_for_inside_the_range() -> None:
    with recording(lambda: kinds.append(ranges._recorder._open.kinds[-1])):  # type: ignore[union-attr]
        kinds: list[Kind] = []
        work(1)
    assert kinds == ["factorisation"]


@pytest.mark.parametrize("name", sorted(BACKENDS))
def test_every_primitive_of_every_backend_says_what_it_does(name: str) -> None:
    for primitive in ("block", "diagonal", "product", "block_gradient", "bilinear_gradient", "diagonal_gradient"):
        assert hasattr(vars(BACKENDS[name])[primitive], "__wrapped__")
    assert KINDS == ("pairwise products", "factorisation", "triangular solves", "transfers")
