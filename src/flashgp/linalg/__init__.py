"""Dense factorisations on the device where they are quicker, by measurement: `fgp.linalg`.

Each function takes and returns what its namesake in torch.linalg does; results come back to the device of the argument.
Without an accelerator they are torch's. The order from which the accelerator is taken is measured by `flashgp tune`,
which shows it; `crossover=` sets it for a call.
"""

from .dense import cholesky, eigh, qr, solve_triangular
from .routing import own_device

__all__ = ["cholesky", "eigh", "own_device", "qr", "solve_triangular"]
