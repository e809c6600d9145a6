"""Products of a tall matrix with a few columns, n k t with t << k << n, as rows: (v^T Q)^T and (u^T Q^T)^T.

BLAS has kernels for large blocks and for one vector. Between these its speed follows layout and width more than the
arithmetic: as rows the same product takes half to three quarters of the time (docs/performance.md). What comes back is
a view of rows, in the layout that the next product wants.
"""

from torch import Tensor

WIDTH = 4  # of more columns than that: zeros fill them up to a multiple, since the kernels of BLAS are for blocks


def tall_times(Q: Tensor, u: Tensor) -> Tensor:
    """Q u, (n, t), for Q (n, k) and u (k, t). Cost: 2 n k t flops."""
    return (_rows(u) @ Q.mT).mT[:, : u.shape[1]]


def tall_transposed_times(Q: Tensor, v: Tensor) -> Tensor:
    """Q^T v, (k, t), for Q (n, k) and v (n, t). Cost: 2 n k t flops."""
    return (_rows(v) @ Q).mT[:, : v.shape[1]]


def _rows(v: Tensor) -> Tensor:
    """v^T, contiguous, with zeros up to a full width."""
    t = v.shape[1]
    width = t if t < WIDTH else -(-t // WIDTH) * WIDTH
    if width == t:
        return v.mT.contiguous()
    rows = v.new_zeros(width, v.shape[0])
    rows[:t] = v.mT
    return rows
