"""A system given by a dense float64 matrix, for tests: float32 products really round the matrix first."""

import torch
from torch import Tensor

from flashgp.foundations.workspace import Workspace
from flashgp.solvers.contract import Index, System

F64 = torch.float64


class DenseSystem(System):
    """K (n, n), float64, and the noise of each row; counts its products by dtype."""

    def __init__(self, K: Tensor, noise: Tensor | float) -> None:
        self.K, self.count, self.device = K, len(K), K.device
        self.noise = torch.as_tensor(noise, dtype=F64).expand(len(K)).clone()
        self.workspace = Workspace()
        self.products = {torch.float32: 0, F64: 0}

    @property
    def A(self) -> Tensor:
        return self.K + torch.diag(self.noise)

    def diagonal(self) -> Tensor:
        return self.K.diagonal().clone()

    def multiply(self, v: Tensor) -> Tensor:
        self.products[v.dtype] += 1
        return self.K.to(v.dtype) @ v + self.noise.to(v.dtype).unsqueeze(-1) * v

    def columns(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        return self.K[:, index].to(dtype)

    def block(self, index: Index, dtype: torch.dtype) -> Tensor:
        return self.K[index][:, index].to(dtype, copy=True)

    def dense(self, dtype: torch.dtype) -> Tensor:
        return self.A.to(dtype, copy=True).triu()


def matern(x: Tensor, lengthscale: float) -> Tensor:
    """Matern-3/2 with variance 1."""
    r = 3.0**0.5 * torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist") / lengthscale
    return (1.0 + r) * (-r).exp()


def points(n: int, d: int, seed: int = 0) -> Tensor:
    """In the unit cube and in spatial order: neighbours in the table are neighbours in space."""
    return _halved(torch.rand(n, d, dtype=F64, generator=torch.Generator().manual_seed(seed)))


def _halved(x: Tensor) -> Tensor:
    if len(x) <= 16:
        return x
    longest = int((x.amax(0) - x.amin(0)).argmax())
    x = x[x[:, longest].argsort()]
    half = len(x) // 2
    return torch.cat([_halved(x[:half]), _halved(x[half:])])


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def energy_error(system: DenseSystem, rhs: Tensor, value: Tensor) -> Tensor:
    """|A^-1 b - x|_A per column by a float64 Cholesky, as sqrt(r^T A^-1 r)."""
    A = system.A
    residual = rhs - A @ value
    return torch.linalg.solve_triangular(torch.linalg.cholesky(A), residual, upper=False).norm(dim=0)
