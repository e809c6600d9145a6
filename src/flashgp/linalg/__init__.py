"""Dense factorisations on the device where they are quicker, by measurement: `fgp.linalg`.

Each function takes and returns what its namesake in torch.linalg does; results come back to the device of the argument.
Without an accelerator they are torch's. `explain` says where a size would go, and why.
"""

from .dense import cholesky, eigh, qr, solve_triangular
from .routing import Decision, explain, own_device

__all__ = ["Decision", "cholesky", "eigh", "explain", "own_device", "qr", "solve_triangular"]
