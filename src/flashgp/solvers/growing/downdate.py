"""Rows that left are moved behind the others in the order of elimination, some columns of the factor at a time.

    [L_b V_g] Q = [L_b' V_g'],  Q orthogonal, V_g' = 0 in the rows of block b                                (M-120)

Blocks from left to right: what is left of V_g reaches one block less each time, and F F^T stays what it is. What was
multiplied by F^-1 follows by Q^T in the entries of b and g alone. Reflections of one block are those of LAPACK's
dtpqrt, in their compact form.
"""

from dataclasses import dataclass

import numpy

from flashgp.solvers.direct.strided import Array, reflect_block

__all__ = ["BLOCK", "Going", "fold", "group_of", "quota"]

BLOCK = 48  # columns at most that are reflected together: about as many as V_g has, so that no product is thin
HEAD = 0.25  # of n rows: what a column of a block costs beside the rows below it, where V_g and the triangle are small


def group_of(n: int) -> int:
    """How many rows gather before they are moved, and in how many rows' time: about sqrt(n).

    More make E wider, fewer make each block of L wider: both cost about as much then (docs/decisions/0014).
    """
    return max(8, round(n**0.5))


def quota(n: int, finished: int, rows: int, columns: int) -> int:
    """The column up to which a sweep goes on for so many rows that leave or come, so that all its steps cost the same.

    Column j costs (n - j + HEAD n), all of them (1/2 + HEAD) n^2; `rows` are rows / group_of(n) of that.
    Args: n: rows; finished: columns; columns: at least so many more.
    """
    share = (0.5 + HEAD) * n * n * rows / group_of(n)
    left = (1.0 + HEAD) * n - finished  # of one column; s columns cost s left - s^2 / 2
    room = left * left - 2.0 * share
    more = n if room <= 0.0 else left - room**0.5
    return min(n, finished + max(columns, 1, round(more)))


@dataclass(frozen=True, eq=False)
class Going:
    """The columns and rows of F of g rows that left, while they move behind the others.

    Fields: columns, V_g in the rows that are not finished, (u, g); rows, D, (g, capacity), of which the columns of
    finished rows count; corner, D_g, (g, g), the rest of these rows.
    """

    columns: Array
    rows: Array
    corner: Array

    def __len__(self) -> int:
        return self.corner.shape[0]


def fold(source: Array, target: Array, going: Going, image: Array, start: int, stop: int) -> Going:
    """Columns start to stop of L', eq. (M-120), and what is left of V_g.

    Args:
        source: L, (n, n), of which columns from `start` on are read, at and below the diagonal; target: (n, n), gets
            these columns of L'; above its diagonal it stays undefined. D in `going` gets its columns likewise.
        image: of F^-1, (g + n, t), first the g rows that go: becomes Q^T of it.
    Cost: 4 (n - stop) g s + 2 (n - stop) s^2 flops for s columns.
    Source: Golub & Van Loan (2013), sections 5.1.7 and 6.5.4; LAPACK's dtpqrt.
    """
    g, s = len(going), stop - start
    lower, reflectors, T, flips = reflect_block(source[start:stop, start:stop], going.columns[:s])
    turned = T @ reflectors  # T Y^T
    target[start:stop, start:stop] = lower
    head, own = image[:g], image[g + start : g + stop]
    mixed = T.T @ (reflectors @ head - own)  # T^T (Y^T x_g - x_b)
    own += mixed
    numpy.negative(own, out=own)
    head -= reflectors.T @ mixed
    mixed = going.corner @ reflectors.T  # D_g Y; D_b is zero before
    row = mixed @ T
    going.rows[:, start:stop] = numpy.negative(row, out=row)
    corner = going.corner - mixed @ turned
    columns = going.columns[s:]
    if stop < source.shape[0]:
        old = source[stop:, start:stop]
        mixed = columns @ reflectors.T
        numpy.subtract(old, mixed, out=mixed)  # L_b - V_g Y
        new = target[stop:, start:stop]
        numpy.subtract(mixed @ T, old, out=new)
        turned = mixed @ turned
        turned += columns
        columns = turned
    if flips is not None:
        own *= flips[:, None]
        going.rows[:, start:stop] *= flips
        target[stop:, start:stop] *= flips
    return Going(columns, going.rows, corner)
