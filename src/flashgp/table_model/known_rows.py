"""Which rows of a table a model has learned already: their predictions say nothing of new rows.

A row is known where every input and the target equal those of a learned row, in standard units and beyond what a
number loses on its way through a text file. Rows of equal inputs that differ in the target are new observations.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flashgp.sources.survey import hashes

_STEPS = 2.0**32  # to a standard deviation: numbers of text differ by some 1e-16, rows of a table by far more
_Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class KnownRows:
    """Fields: marks, (n,), sorted: a 64-bit hash of each learned row."""

    marks: npt.NDArray[np.uint64]

    @staticmethod
    def of(x: Any, y: Any) -> "KnownRows":
        """Args: x (n, d) and y (n,), tensors in standard units. Cost: 10 operations on each number and a sort."""
        return KnownRows(np.sort(_marks(x.double().numpy(force=True), y.double().numpy(force=True))))

    def hold(self, x: _Numbers, y: _Numbers) -> npt.NDArray[np.bool_]:
        """Which rows are known, (m,).

        Args: x (m, d) and y (m,) in standard units, NaN where there is no value.
        Cost: O(m (d + log n)).
        """
        if not len(self.marks):
            return np.zeros(len(x), bool)
        wanted = _marks(x, y)
        place = np.minimum(np.searchsorted(self.marks, wanted), len(self.marks) - 1)
        return np.isfinite(y) & (self.marks[place] == wanted)


def _marks(x: _Numbers, y: _Numbers) -> npt.NDArray[np.uint64]:
    return hashes(np.round(np.column_stack([x, y]) * _STEPS))
