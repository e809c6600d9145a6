"""Seconds between measured sizes: exact for power laws, flat below the least, arithmetic above the largest."""

import pytest

from flashgp.foundations.errors import DomainError
from flashgp.foundations.operations import OPERATIONS, OperationTime, OperationTimes, operation_flops, result_numbers


def times(operation: str, seconds: dict[tuple[int, int, int], float], dtype: str = "float64") -> OperationTimes:
    return OperationTimes(OperationTime(operation, dtype, *size, value) for size, value in seconds.items())


@pytest.mark.parametrize("operation", ["cholesky", "eigh", "gemm"])
def test_a_power_law_is_met_between_sizes(operation: str) -> None:
    known = times(operation, {(n, n, 1): 1e-9 * n**2.5 for n in (16, 256, 1024)})
    for n in (16, 20, 100, 256, 777, 1024):
        assert known.seconds(operation, "float64", n, n) == pytest.approx(1e-9 * n**2.5)


def test_below_the_least_size_seconds_stay_and_above_the_largest_the_rate() -> None:
    known = times("cholesky", {(16, 16, 1): 3e-6, (1024, 1024, 1): 2e-2})
    assert known.seconds("cholesky", "float64", 2, 2) == 3e-6
    assert known.seconds("cholesky", "float64", 4096, 4096) == pytest.approx(2e-2 * 4**3)
    tall = times("qr", {(64, 64, 1): 1e-3, (1024, 64, 1): 4e-3})
    assert tall.seconds("qr", "float64", 64 * 4, 64) == pytest.approx(2e-3), "half way in logarithms"
    ratio = operation_flops("qr", 64_000, 64) / operation_flops("qr", 1024, 64)
    assert tall.seconds("qr", "float64", 64_000, 64) == pytest.approx(4e-3 * ratio)
    assert tall.seconds("qr", "float64", 64, 1024) == tall.seconds("qr", "float64", 1024, 64)


def test_right_hand_sides_of_a_triangular_solve() -> None:
    known = times("triangular", {(256, 1, 1): 1e-5, (256, 16, 1): 4e-5, (1024, 1, 1): 1e-4, (1024, 16, 1): 4e-4})
    assert known.seconds("triangular", "float64", 256, 4) == pytest.approx(2e-5)
    assert known.seconds("triangular", "float64", 512, 1) == pytest.approx(10**-4.5)
    assert known.seconds("triangular", "float64", 1024, 160) == pytest.approx(4e-3)


def test_a_batch_takes_at_most_what_its_members_take() -> None:
    known = times("cholesky", {(16, 16, 1): 1e-5, (64, 64, 1): 1e-4, (256, 256, 1): 1e-3, (16, 16, 64): 1.6e-4})
    assert known.seconds("cholesky", "float64", 16, 16, 64) == pytest.approx(1.6e-4)
    assert known.seconds("cholesky", "float64", 16, 16, 8) == pytest.approx((1e-5 * 1.6e-4) ** 0.5)
    assert known.seconds("cholesky", "float64", 16, 16, 128) == pytest.approx(3.2e-4)
    # from order 16 alone 256 would take 16^3 times as long
    assert known.seconds("cholesky", "float64", 256, 256, 64) == pytest.approx(64e-3)


def test_what_is_not_known_is_none() -> None:
    known = times("qr", {(64, 64, 1): 1e-3})
    assert known.seconds("qr", "float32", 64, 64) is None
    assert known.seconds("eigh", "float64", 64, 64) is None
    assert known.seconds("qr", "float64", 0, 5) == 0.0
    with pytest.raises(DomainError, match="`operation` must be one of gemm"):
        OperationTime("svd", "float64", 1, 1, 1, 1.0)


def test_what_is_carried() -> None:
    assert result_numbers("qr", 100, 10, 1) == (1, 1000, 2, 1000 + 100)
    assert result_numbers("eigh", 10, 10, 3) == (1, 300, 2, 330)
    assert result_numbers("triangular", 10, 4, 2) == (2, 280, 1, 80)
    assert result_numbers("cholesky", 10, 10, 1) == (1, 100, 1, 100)
    assert {operation_flops(one, 8, 8) > 0 for one in OPERATIONS} == {True}
