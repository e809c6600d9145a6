"""Covariance functions of integer codes, eqs. (M-15) and (M-16): categories are never one-hot."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from flashgp.foundations.checks import check_count
from flashgp.foundations.errors import DomainError
from flashgp.foundations.expression import Expression, exp, match, number, parameter, product, row_scalar
from flashgp.foundations.form import broadcast_batch
from flashgp.foundations.parameters import Domain, Parameter
from flashgp.kernels.base import Leaf, Numeric
from flashgp.kernels.random_features import Draw, Term


def _hidden(x: Tensor) -> bool:
    """True if a vmap of torch.func holds the points, at any level: their values cannot be looked at."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(x):
        if functorch.is_batchedtensor(x):
            return True
        x = functorch.get_unwrapped(x)
    return False


def _codes(column: Tensor) -> Tensor:
    """Integer codes of a column of x; DomainError naming the row of a value that is not an integer."""
    codes = column.detach().round()
    if _hidden(codes):
        return codes.to(torch.int64)
    wrong = (codes != column.detach()).nonzero()
    if wrong.shape[0]:
        place = tuple(wrong[0].tolist())
        raise DomainError(
            f"`x` must hold integer codes in a categorical column, got {column[place].item()!r} at row {place[-1]}; "
            "encode the categories as 0, 1, 2, ..."
        )
    return codes.to(torch.int64)


class Categorical(Leaf):
    """exp(-sum_j [c_j != c'_j] / lengthscale_j), eq. (M-15), over columns of integer codes.

    A code that was not seen in training differs from all others; the lengthscale says by how much.

    Args:
        lengthscale: positive; a number (one column), or (columns,) or (*batch, columns) for one per column; no unit.
        active_dims: the columns of codes; as many as lengthscales. None for all columns.

    Example:
        >>> codes = torch.tensor([[0.0], [1.0], [0.0]])
        >>> fgp.kernels.Categorical(lengthscale=2.0)(codes).to_dense().detach()[0]
        tensor([1.0000, 0.6065, 1.0000])
    """

    roles = {"lengthscale": "shape"}

    def __init__(self, lengthscale: Numeric = 1.0, active_dims: Sequence[int] | int | None = None) -> None:
        super().__init__(active_dims)
        self.lengthscale = self._parameter(lengthscale, "lengthscale", Domain(lower=0.0), event_dim=None)
        shared = self.lengthscale.event_dim == 0
        dims = self.active_dims
        self.columns = (1 if dims is None else len(dims)) if shared else self.lengthscale.raw.shape[-1]
        if dims is not None and not shared and self.columns != len(dims):
            raise DomainError(
                f"`lengthscale` must have {len(dims)} entries, one per column of active_dims, got {self.columns}; "
                "pass a number or as many entries as columns"
            )

    @property
    def profile(self) -> Expression:
        shared = self.lengthscale.event_dim == 0
        exponent = number(0)
        for j in range(self.columns):
            exponent = exponent + (match(j) - 1) / parameter(0 if shared else j)
        return exp(exponent)

    @property
    def statistics(self) -> tuple[str, ...]:
        return ("match",) * self.columns

    def _features(self, x: Tensor) -> tuple[Tensor, ...]:
        if x.shape[-1] != self.columns:
            raise DomainError(
                f"`x` must have {self.columns} categorical column(s), got {x.shape[-1]}; "
                "name them with active_dims, or give one lengthscale per column"
            )
        return tuple(_codes(x[..., j]) for j in range(self.columns))

    def feature_terms(self, x: Tensor, draw: Draw) -> list[Term]:
        """[c = c'] of integers is a Fourier transform too, with every frequency in (0, 2 pi] alike, eq. (M-93)."""
        codes = torch.stack(self.rows(x).features, dim=-1).to(torch.float64)
        lengthscale = self.lengthscale.value.to(x.device)
        lengthscale = lengthscale.unsqueeze(-1) if self.lengthscale.event_dim else lengthscale[..., None, None]
        apart = -torch.expm1(-1.0 / lengthscale)
        uniform = draw.uniform(self.columns).to(x.device)
        frequencies = 2.0 * math.pi * torch.relu(1.0 - uniform / apart)
        return [Term(phases=codes @ frequencies)]

    def _profile_parameters(self) -> tuple[Parameter, ...]:
        return (self.lengthscale,)

    def theta(self) -> tuple[Tensor, ...]:
        value = self.lengthscale.value
        return (value,) if self.lengthscale.event_dim == 0 else value.unbind(-1)

    @property
    def parameter_count(self) -> int:
        return 1 if self.lengthscale.event_dim == 0 else self.columns


class Coregionalization(Leaf):
    """B[c, c'] with B = W W^T + diag(diagonal), eq. (M-16): covariance between tasks given by a column of codes.

    Args:
        count: the number of tasks; codes are 0 ... count - 1.
        rank: the columns of W.
        factor: W, (*batch, count, rank), or None for a start with positively correlated tasks.
        diagonal: positive, a number or (*batch, count): variance of each task of its own.
        active_dims: the one column of codes.
    Source: Alvarez, Rosasco & Lawrence (2012), Kernels for vector-valued functions, section 4.2.

    Example:
        >>> x = torch.tensor([[0.2, 0.0], [0.2, 1.0]])  # the last column is the task
        >>> k = fgp.kernels.Matern(active_dims=[0]) * fgp.kernels.Coregionalization(count=2, active_dims=[1])
        >>> k(x).to_dense().shape
        torch.Size([2, 2])
    """

    roles = {"factor": "shape", "diagonal": "shape"}
    scalar_count = 1

    def __init__(
        self,
        count: int,
        rank: int = 1,
        factor: Numeric | None = None,
        diagonal: Numeric = 0.5,
        active_dims: Sequence[int] | int | None = None,
    ) -> None:
        super().__init__(active_dims)
        self.count, self.rank = count, rank = check_count(count, "count", 1), check_count(rank, "rank", 1)
        if factor is None:
            # The columns differ, or all would stay equal under any gradient step; zero would be a saddle point.
            tasks, ranks = torch.arange(count)[:, None], torch.arange(rank)[None, :]
            factor = torch.cos(tasks * ranks * torch.pi / count).double() / rank**0.5
        if isinstance(diagonal, int | float) or (isinstance(diagonal, Tensor) and diagonal.dim() == 0):
            diagonal = torch.full((count,), float(diagonal), dtype=torch.float64)
        self.factor = self._parameter(factor, "factor", Domain(), event_dim=2)
        self.diagonal = self._parameter(diagonal, "diagonal", Domain(lower=0.0), event_dim=1)
        if self.factor.raw.shape[-2:] != (count, rank) or self.diagonal.raw.shape[-1:] != (count,):
            raise DomainError(
                f"`factor` must have shape (*batch, {count}, {rank}) and `diagonal` (*batch, {count}), got "
                f"{tuple(self.factor.raw.shape)} and {tuple(self.diagonal.raw.shape)}; transpose or reshape them"
            )

    @property
    def profile(self) -> Expression:
        return product(0) + match(1) * row_scalar("left") * row_scalar("right")

    statistics = ("product", "match")

    def _task(self, x: Tensor) -> Tensor:
        if x.shape[-1] != 1:
            raise DomainError(
                f"`x` must have one column of task codes, got {x.shape[-1]}; name it with active_dims=[column]"
            )
        codes = _codes(x[..., 0])
        if codes.numel() and not _hidden(codes) and (int(codes.min()) < 0 or int(codes.max()) >= self.count):
            raise DomainError(
                f"`x` must hold task codes 0 to {self.count - 1}, got {int(codes.min())} to {int(codes.max())}; "
                f"raise `count` or map the codes"
            )
        return codes

    def _features(self, x: Tensor) -> tuple[Tensor, ...]:
        codes = self._task(x)
        return (_take(self.factor.value.to(x.device), codes), codes)

    def _scalars(self, x: Tensor) -> tuple[Tensor, ...]:
        root = self.diagonal.value.to(x.device).sqrt()
        return (_take(root.unsqueeze(-1), self._task(x)).squeeze(-1),)

    def feature_terms(self, x: Tensor, draw: Draw) -> list[Term]:
        rows = self.rows(x)
        factor, codes = rows.features
        own = torch.nn.functional.one_hot(codes, self.count) * rows.scalars[0].unsqueeze(-1)
        batch = broadcast_batch(factor.shape[:-2], own.shape[:-2])
        return [Term(exact=torch.cat([f.expand(*batch, *f.shape[-2:]) for f in (factor, own)], dim=-1))]

    def options(self) -> dict[str, Any]:
        return {"count": self.count, "rank": self.rank}


def _take(table: Tensor, codes: Tensor) -> Tensor:
    """Rows of a table (*batch, count, r) at codes (*batch, n): (*batch, n, r)."""
    if codes.dim() == 1:
        return table[..., codes, :]
    batch = broadcast_batch(table.shape[:-2], codes.shape[:-1])
    table = table.expand(*batch, *table.shape[-2:])
    index = codes.expand(*batch, codes.shape[-1]).unsqueeze(-1).expand(*batch, codes.shape[-1], table.shape[-1])
    return table.gather(-2, index)
