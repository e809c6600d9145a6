"""Seconds between measured orders: exact for power laws, flat below the least, arithmetic above the largest."""

from dataclasses import replace

import pytest
import torch

from flashgp.foundations.errors import DomainError
from flashgp.foundations.profile import BUILT_IN, OPERATIONS, OperationTime, operation_flops, seconds_at


def test_a_power_law_is_met_between_orders() -> None:
    known = [(n, 1e-9 * n**2.5) for n in (16, 256, 1024)]
    for n in (16, 20, 100, 256, 777, 1024):
        assert seconds_at(known, n) == pytest.approx(1e-9 * n**2.5)


def test_below_the_least_order_seconds_stay_and_above_the_largest_the_rate() -> None:
    known = [(16, 3e-6), (1024, 2e-2)]
    assert seconds_at(known, 2) == 3e-6
    assert seconds_at(known, 4096) == pytest.approx(2e-2 * 4**3)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_rate_is_that_of_its_order(operation: str) -> None:
    """A small factor runs at its own rate, not at that of a large one."""
    times = [OperationTime(operation, "float64", n, 2e-6 + operation_flops(operation, n) / 3e10) for n in (16, 2048)]
    rates = replace(BUILT_IN.cpu, operations=tuple(times))
    rate = getattr(rates, operation)
    small = operation_flops(operation, 16)
    assert rate(torch.float64, 16) == pytest.approx(small / (2e-6 + small / 3e10))
    assert rate(torch.float64, 2048) == pytest.approx(3e10, rel=1e-3)
    assert rate(torch.float64) == getattr(BUILT_IN.cpu, operation)(torch.float64)
    assert rate(torch.float32, 16) == getattr(BUILT_IN.cpu, operation)(torch.float32), "not measured"
    assert rate(torch.float64, 0) == rate(torch.float64)


def test_what_is_no_operation() -> None:
    with pytest.raises(DomainError, match="`operation` must be one of gemm"):
        OperationTime("qr", "float64", 1, 1.0)
