"""What a `TableModel` is made with, checked."""

from dataclasses import dataclass
from functools import cached_property

import torch

from flashgp.foundations.errors import DomainError
from flashgp.inference.approximation import Approximation, approximation_of
from flashgp.kernel_expression import KernelExpression, parse_kernel
from flashgp.kernels import Kernel
from flashgp.table import Missing
from flashgp.target_transform import check_target_transform

_DTYPES = {"float64": torch.float64, "float32": torch.float32}


@dataclass(frozen=True)
class TableSettings:
    """What a `TableModel` is made with; its docstring explains each. Raises: DomainError for what cannot be."""

    kernel: Kernel | str | None = None
    target_transform: str = "auto"
    missing: Missing = "error"
    starts: int | None = None
    time_limit: float | None = None
    solver: str | None = None
    memory: str | int | None = None
    device: str | torch.device | None = "auto"
    dtype: str | torch.dtype | None = None
    tolerance: float = 1e-3
    seed: int = 0
    deterministic: bool = False
    approximation: str | None = None
    inducing: int | str = "auto"
    neighbours: int | str = "auto"
    kernel_argument: str = "kernel"  # what the expression is called in errors

    def __post_init__(self) -> None:
        check_target_transform(self.target_transform)
        if self.missing not in ("error", "drop"):
            raise DomainError(f"`missing` must be 'error' or 'drop', got {self.missing!r}; choose one of these")
        if self.dtype is not None and str(self.dtype).removeprefix("torch.") not in _DTYPES:
            raise DomainError(f"`dtype` must be None, 'float64' or 'float32', got {self.dtype!r}; choose one of these")
        if not (self.kernel is None or isinstance(self.kernel, str | Kernel)):
            raise DomainError(
                f'`kernel` must be None, "auto", an expression or a Kernel, got {type(self.kernel).__name__}; for '
                "example flashgp.kernels.Matern(nu=1.5)"
            )
        _ = self.expression
        if self.approximation != "auto":  # which means one thing where rows are read, and another where they are held
            _ = self.asked_approximation

    @property
    def asked_approximation(self) -> Approximation | None:
        """Of rows that are held; None for exact inference. Raises: DomainError."""
        return approximation_of(self.approximation, self.inducing, self.neighbours)

    @property
    def compute_dtype(self) -> torch.dtype | None:
        return None if self.dtype is None else _DTYPES[str(self.dtype).removeprefix("torch.")]

    @cached_property
    def expression(self) -> KernelExpression | None:
        return (
            parse_kernel(self.kernel, self.kernel_argument)
            if isinstance(self.kernel, str) and self.kernel != "auto"
            else None
        )

    @property
    def kernel_text(self) -> str:
        """The expression, "auto" or "", as a file keeps it."""
        return self.kernel if isinstance(self.kernel, str) else ""
