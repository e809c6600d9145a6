"""Whole numbers that float64 cannot hold: beyond 2**53 it merges neighbours, and what is equal there differs here."""

from typing import Any

import numpy as np

LARGEST_EXACT = 2**53  # up to here every whole number is a float64 number


def first_inexact(values: Any) -> tuple[tuple[int, ...], int] | None:
    """The first whole number of an array that conversion to float64 would change, and its index; None where none is.

    Args: values: NumPy array of any shape; of a dtype other than integers and objects there is none.
    Cost: a look at the largest, and four operations on every number where it is beyond 2**53.
    """
    if values.dtype.kind == "O":
        for index, value in np.ndenumerate(values):
            if isinstance(value, int | np.integer) and not _is_exact(int(value)):
                return index, int(value)
        return None
    if values.dtype.kind not in "iu" or values.dtype.itemsize < 8 or not values.size:
        return None
    if int(values.max()) <= LARGEST_EXACT and int(values.min()) >= -LARGEST_EXACT:
        return None
    # A number is its lowest bit that is set times an odd one, which must have 53 bits at most.
    lowest = values & (~values + 1)
    wrong = np.abs(values // np.where(lowest == 0, 1, lowest)) > LARGEST_EXACT
    if not wrong.any():
        return None
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    return index, int(values[index])


def _is_exact(value: int) -> bool:
    try:
        return int(float(value)) == value
    except OverflowError:
        return False
