"""What block conjugate gradients ask of P = L L^T, a matrix near A that is cheap to solve with.

Two half solves instead of one solve: with Ã = L^-1 A L^-T all orthogonality is the Euclidean one, so that Householder
QR serves, and |L^-1 r| is sqrt(r^T P^-1 r), which bounds the error wherever A >= P / slack, eq. (M-79).
"""

from abc import ABC, abstractmethod

from torch import Tensor

__all__ = ["Preconditioner"]


class Preconditioner(ABC):
    """P = L L^T.

    Fields: slack, a number with A >= P / slack in the positive definite order, inf where none is known: then
    |e|_A <= sqrt(slack) |L^-1 r|, eq. (M-79); exact, whether half solves are as accurate as float64.
    """

    slack: float
    exact: bool

    @property
    @abstractmethod
    def log_determinant(self) -> float:
        """log |P|."""

    @abstractmethod
    def half_solve(self, v: Tensor) -> Tensor:
        """L^-1 v for v (n, t), float64."""

    @abstractmethod
    def half_solve_transposed(self, v: Tensor) -> Tensor:
        """L^-T v for v (n, t), float64."""
