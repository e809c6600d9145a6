"""What comes through the public door: promotions, refusals that name the place, shapes."""

import numpy as np
import pytest
import torch

from flashgp.foundations.checks import as_float_tensor, check_finite, check_points, check_targets
from flashgp.foundations.errors import DomainError, ShapeError


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (torch.ones(3, 2).half(), torch.float32),
        (torch.ones(3, 2, dtype=torch.int32), torch.float64),
        (np.ones((3, 2), dtype=">f8"), torch.float64),
        ([[1, 1]] * 3, torch.float64),
    ],
)
def test_promotions(value: object, dtype: torch.dtype) -> None:
    tensor = as_float_tensor(value, "x")
    assert tensor.dtype == dtype
    assert torch.equal(tensor, torch.ones(3, 2, dtype=dtype))


def test_arrays_of_any_layout() -> None:
    base = np.arange(12.0).reshape(4, 3)
    frozen = base.copy()
    frozen.flags.writeable = False
    for array in (base[::-1, ::-1], base.T, base[::2], frozen, np.asfortranarray(base)):
        assert torch.equal(as_float_tensor(array, "x"), torch.from_numpy(array.copy()))


@pytest.mark.parametrize("value", ["a", None,
{"a": 1}])  # fmt: skip
def test_things_that_are_no_numbers(value: object) -> None:
    with pytest.raises(DomainError, match="`x`"):
        as_float_tensor(value, "x")


def test_arrays_of_other_libraries_come_by_dlpack() -> None:
    held = np.arange(6.0).reshape(3, 2)

    class Elsewhere:  # such as CuPy's, which refuses to be made a NumPy array
        def __dlpack__(self, **options: object) -> object:
            return held.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return held.__dlpack_device__()

        def __array__(self, *_: object, **__: object) -> None:
            raise TypeError("not implicitly")

    class Refusing(Elsewhere):
        def __dlpack__(self, **_: object) -> object:
            raise BufferError("not of this")

        def __array__(self, *_: object, **__: object) -> np.ndarray:
            return held

    taken = as_float_tensor(Elsewhere(), "x")
    assert torch.equal(taken, torch.from_numpy(held))
    assert taken.data_ptr() == held.ctypes.data
    assert torch.equal(as_float_tensor(Refusing(), "x"), taken)


def test_complex_is_refused() -> None:
    for value in (torch.ones(2, dtype=torch.complex64), np.ones(2, dtype=complex)):
        with pytest.raises(DomainError, match=r"`x` must be real, got dtype torch\.complex"):
            as_float_tensor(value, "x")


def test_not_finite_names_the_place() -> None:
    x = torch.zeros(5, 3)
    x[3, 1] = float("nan")
    with pytest.raises(DomainError, match="`x` must be finite, got NaN at row 3 and column 1; "):
        check_finite(x, "x")
    x[4, 0] = float("-inf")
    with pytest.raises(DomainError, match=r"NaN at row 3 and column 1 \(2 such entries\)"):
        check_finite(x, "x")
    with pytest.raises(DomainError, match="`y` must be finite, got -inf at row 4"):
        check_finite(x[:, 0], "y")
    with pytest.raises(DomainError, match=r"inf at index \(0, 3, 1\)"):
        check_finite(torch.where(x.isnan(), torch.inf, 0.0)[None], "x")
    check_finite(torch.full((4, 4), 3e38), "x")  # the sum overflows, no entry does
    check_finite(torch.zeros(0, 3), "x")


def test_points() -> None:
    assert check_points(np.ones((3, 2)), "x").shape == (3, 2)
    assert check_points(torch.ones(0, 2), "x").shape == (0, 2)
    assert check_points(torch.ones(4, 3, 2), "x").shape == (4, 3, 2)
    with pytest.raises(ShapeError, match=r"`x` must have shape \(\*batch, n, d\), got \(3,\); use x\[:, None\]"):
        check_points(torch.ones(3), "x")
    with pytest.raises(ShapeError, match=r"`x` must have at least one column, got shape \(3, 0\)"):
        check_points(torch.ones(3, 0), "x")
    with pytest.raises(ShapeError, match=r"`x_test` must have 3 columns like `x`, got shape \(50, 2\).*active_dims"):
        check_points(torch.ones(50, 2), "x_test", like=torch.ones(4, 3))
    with pytest.raises(DomainError, match="`x_test` must be on meta like `x`, got cpu"):
        check_points(torch.ones(5, 3), "x_test", like=torch.ones(4, 3, device="meta"))


def test_targets() -> None:
    x = torch.ones(4, 3)
    assert check_targets(np.ones(4), "y", x, None).shape == (4,)
    assert check_targets(torch.ones(4, 2), "y", x, 2).shape == (4, 2)
    assert check_targets(torch.ones(5, 4), "y", x, None).shape == (5, 4)
    refused = [
        (torch.ones(3), None, "`y` must have shape .* with n = 4 like `x`, got .3,.; pass one target per row"),
        (torch.ones(4, 1), None, r"use y\[:, 0\] for one target, or GP\(..., outputs=1\)"),
        (torch.ones(4), 2, r"`y` must have shape \(\*batch, n, 2\)"),
        (torch.ones(()), None, "`y` must have shape"),
    ]
    for y, outputs, message in refused:
        with pytest.raises(ShapeError, match=message):
            check_targets(y, "y", x, outputs)
    with pytest.raises(ShapeError, match=r"`y` has batch shape \(3,\), which does not broadcast with x's \(2,\)"):
        check_targets(torch.ones(3, 4), "y", torch.ones(2, 4, 3), None)
    with pytest.raises(DomainError, match="`y` must be finite, got NaN at row 1"):
        check_targets(torch.tensor([1.0, float("nan"), 1.0, 1.0]), "y", x, None)
    with pytest.raises(DomainError, match="`y` must be on cpu like `x`, got meta"):
        check_targets(torch.ones(4, device="meta"), "y", x, None)
