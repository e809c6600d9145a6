"""A deadline: what is left of a time limit, for everybody it is handed to."""

import math
import pickle
from typing import Any

import numpy
import pytest

import flashgp as fgp
from flashgp.foundations.deadline import NO_DEADLINE, Deadline


def test_what_is_left_and_what_would_pass() -> None:
    now = [10.0]
    deadline = Deadline.after(4.0, lambda: now[0])
    assert (deadline.limit, deadline.end, deadline.left) == (4.0, 14.0, 4.0)
    assert not deadline.passed(3.9)
    assert deadline.passed(4.0)
    now[0] = 13.0
    assert deadline.left == 1.0
    assert deadline.before(0.25).left == 0.75
    assert deadline.share(0.5).left == 0.5
    assert deadline.before(2.0).passed()
    assert deadline.before(0.25).limit == deadline.share(0.5).limit == 4.0, "messages name what the user gave"
    now[0] = 15.0
    assert deadline.passed()
    assert deadline.left == deadline.share(0.5).left == -1.0


def test_without_a_limit_nothing_passes() -> None:
    assert Deadline.after(None) is NO_DEADLINE
    assert NO_DEADLINE.left == NO_DEADLINE.share(0.1).left == NO_DEADLINE.before(10.0).left == math.inf
    assert not NO_DEADLINE.passed(1e300)
    assert not NO_DEADLINE.passed(math.inf), "a plan may price work as endless; seen red"
    assert pickle.loads(pickle.dumps(NO_DEADLINE)) == NO_DEADLINE


@pytest.mark.parametrize("seconds", [numpy.float32(2.5), numpy.int64(2), 2, 2.5])
def test_numbers_of_numpy_are_seconds_too(seconds: Any) -> None:
    deadline = Deadline.after(seconds, lambda: 1.0)
    assert deadline == Deadline(float(seconds), 1.0 + float(seconds), deadline.clock)
    assert type(deadline.limit) is float


@pytest.mark.parametrize("wrong", [-1.0, math.nan, "1", True])
def test_what_is_no_number_of_seconds_is_refused(wrong: object) -> None:
    with pytest.raises(fgp.DomainError, match="`time_limit` must be 0 or more seconds"):
        Deadline.after(wrong)
