"""The backend contract: four primitives over pairs of rows, and the pullbacks that gradients need.

    block(problem)                     K_ij = g(q_ij; theta)                                     (M-1)
    diagonal(problem)                  K_ii
    product(problem, V)                K V without K                                             (M-20)
    bilinear_gradient(problem, U, V)   gradient of sum(U * K V) by everything, in one pass       (M-21)

`block_gradient(problem, W)` is the pullback of `block` (W = U V^T when U and V are tall), `diagonal_gradient` that of
`diagonal`. The gradient of a symmetric problem holds both sides. A backend sees a PairProblem: a Form, the values of
theta and Rows; never a kernel, never x. Only products and bilinear gradients look at `problem.near`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from flashgp.foundations.profile_ranges import profiled
from flashgp.foundations.workspace import Workspace
from flashgp.pairwise.problem import PairProblem

# What a profile shows as work of a backend, however it is implemented.
_WORK = ("block", "diagonal", "product", "block_gradient", "bilinear_gradient", "diagonal_gradient", "taped_block")


@dataclass
class PairGradient:
    """Gradients of a scalar by what entered it: one tensor (or None for no dependence) per tensor.

    Fields: rows, in the order of Rows.tensors (features then scalars); cols, the same, empty for a symmetric problem;
    theta, one per parameter. Codes have no gradient.
    """

    rows: list[Tensor | None]
    cols: list[Tensor | None]
    theta: list[Tensor | None]


class Backend(ABC):
    """One way to evaluate covariances over pairs of rows.

    Fields: name, in the registry; title, as a report names it.
    """

    name: str
    title: str

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in _WORK:
            if name in vars(cls):
                setattr(cls, name, profiled("pairwise products")(vars(cls)[name]))

    @classmethod
    def for_every_size(cls) -> "Backend":
        """Backend that computes itself what it can, however few the pairs."""
        return cls()

    @classmethod
    def compiles_first(cls) -> bool:
        """True if it compiles, and has compiled nothing in this process yet."""
        return False

    @classmethod
    def compiler_bytes(cls) -> int:
        """Bytes of the host that compiling takes at the next call: an upper bound."""
        return 0

    @abstractmethod
    def block(
        self, problem: PairProblem, *, dtype: torch.dtype, workspace: Workspace | None = None, upper: bool = False
    ) -> Tensor:
        """The dense block, shape (*batch, n, m); with `upper`, what is below the diagonal may be left undefined."""

    @abstractmethod
    def diagonal(self, problem: PairProblem, *, dtype: torch.dtype) -> Tensor:
        """k(x_i, x_i), shape (*batch, n)."""

    @abstractmethod
    def product(self, problem: PairProblem, right: Tensor, *, workspace: Workspace | None = None) -> Tensor:
        """K @ right for right (*batch, m, t), in its dtype, with at most one tile of K alive."""

    @abstractmethod
    def block_gradient(
        self, problem: PairProblem, weights: Tensor, *, workspace: Workspace | None = None
    ) -> PairGradient:
        """Gradient of sum(weights * K), weights (*batch, n, m); symmetric weights for a symmetric problem."""

    @abstractmethod
    def bilinear_gradient(
        self, problem: PairProblem, left: Tensor, right: Tensor, *, workspace: Workspace | None = None
    ) -> PairGradient:
        """Gradient of sum(left * (K @ right)), left (*batch, n, t), right (*batch, m, t); K fixed factors excluded."""

    @abstractmethod
    def diagonal_gradient(self, problem: PairProblem, weights: Tensor) -> PairGradient:
        """Gradient of sum(weights * diagonal), weights (*batch, n)."""

    def taped_block(
        self, problem: PairProblem, *, dtype: torch.dtype, workspace: Workspace | None = None
    ) -> tuple[Tensor, Callable[[Tensor], PairGradient]]:
        """The upper triangle of the symmetric block, and a function from symmetric weights to its gradient.

        A backend may keep the derivatives of a small block instead of computing the pairs again.
        """
        block = self.block(problem, dtype=dtype, workspace=workspace, upper=True)
        return block, lambda weights: self.block_gradient(problem, weights, workspace=workspace)


BACKENDS: dict[str, type[Backend]] = {}


def register_backend(name: str) -> Callable[[type[Backend]], type[Backend]]:
    """Class decorator: one registry row per backend; the contract suite runs over all of them."""

    def add(backend: type[Backend]) -> type[Backend]:
        backend.name = name
        BACKENDS[name] = backend
        return backend

    return add
