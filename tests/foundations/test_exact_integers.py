"""Whole numbers beyond 2**53 that float64 would merge are found, and those that it holds are not."""

import numpy as np
import pytest
import torch

import flashgp as fgp
from flashgp.foundations.checks import as_float_tensor, first_inexact

LARGE = [0, 1,2**53 + 1, 2**53 + 2,3 * 2**60,
2**62 + 1]  # fmt: skip


@pytest.mark.parametrize("value", LARGE)
def test_what_float64_holds_is_what_comes_back(value: int) -> None:
    kinds = [np.int64] + [np.uint64] * (value >= 0) + [object]
    for kind in kinds:
        found = first_inexact(np.array([[7, 8], [9, value]], dtype=kind))
        assert found == (None if int(float(value)) == value else ((1, 1), value)), kind


def test_numbers_of_other_kinds_are_left_alone() -> None:
    for values in (np.array([2.0**60 + 64]), np.array([True]), np.array([2**31 - 1], np.int32), np.array([], np.int64)):
        assert first_inexact(values) is None
    assert first_inexact(np.array([2**64 - 1], np.uint64)) == ((0,), 2**64 - 1)
    assert first_inexact(np.array([10**400, None, "a", 0.5], object)) == ((0,), 10**400)
    assert first_inexact(np.array(10**17 + 1)) == ((), 10**17 + 1)


def test_tensors_of_the_library_refuse_them() -> None:
    x = torch.tensor([[1, 2], [3, 10**17 + 1]])
    with pytest.raises(fgp.DomainError, match=r"`x` .* got 100000000000000001 at row 1 and column 1, which it merges"):
        as_float_tensor(x, "x")
    with pytest.raises(fgp.DomainError, match="got 100000000000000001 at row 3"):
        as_float_tensor(np.array([1, 2, 3, 10**17 + 1]), "x")
    assert as_float_tensor(x[1:, 1:] - 10**17, "x").tolist() == [[1.0]]
    assert as_float_tensor(x.double(), "x")[1, 1] == 1e17


def test_identifiers_stay_apart_in_a_posterior_or_are_refused() -> None:
    """300 rows were joined into 76."""
    ids = 2**60 + 64 * torch.arange(300)
    y = torch.arange(300.0)
    for fit in (fgp.GP(fgp.kernels.RBF()).condition, lambda x, y: fgp.fit(fgp.GP(fgp.kernels.RBF()), x, y)):
        with pytest.raises(fgp.DomainError, match=r"`x` .* which it merges with its neighbours; subtract one number"):
            fit(ids[:, None], y)
    post = fgp.GP(fgp.kernels.RBF()).condition((ids - ids.min())[:, None], y)
    assert post.distinct == 300
