"""What others leave of the cores, from readings that are made up."""

import itertools

import pytest

from flashgp.foundations.contention import LEAST_SECONDS, CoreTimes, OtherLoad
from flashgp.foundations.processors import usable_cores


@pytest.mark.parametrize(("others", "taken"), [(0.0, 0), (0.05, 0), (0.5, 1), (1.0, 1), (1.95, 2), (-0.3, 0)])
def test_free_cores_are_those_that_others_leave(others: float, taken: int) -> None:
    """This process ran one core and a half; what else was busy is others'. Clocks of the two may be off by a tick."""
    readings = (CoreTimes(-100.0 + i, 100.0 + (1.5 + others) * i, 7.0 + 1.5 * i) for i in itertools.count())
    load = OtherLoad(lambda: next(readings))
    assert load.free_cores() == max(1, usable_cores() - taken)


def test_a_reading_serves_for_a_while() -> None:
    count = itertools.count()

    def read() -> CoreTimes:
        next(count)
        return CoreTimes.now()

    load = OtherLoad(read)
    for _ in range(50):
        load.free_cores()
    assert next(count) == 1, f"readings closer than {LEAST_SECONDS} s say nothing"


def test_times_grow_and_hold_what_this_process_ran() -> None:
    before = CoreTimes.now()
    sum(i * i for i in range(3_000_000))
    after = CoreTimes.now()
    assert after.own > before.own
    assert after.busy - before.busy > 0.5 * (after.own - before.own)
