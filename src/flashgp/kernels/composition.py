"""Sums, products and scalings of covariance functions, eqs. (M-2) and (M-3): statistics join, profiles combine."""

import functools
import operator
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from flashgp.foundations.errors import DomainError
from flashgp.foundations.expression import Expression, parameter
from flashgp.foundations.form import Form, Rows
from flashgp.foundations.parameters import Domain, as_parameter
from flashgp.kernels.kernel import Kernel, Numeric
from flashgp.kernels.random_features import Draw, Term, multiplied

__all__ = ["Product", "Scaled", "Sum"]


class _Joined(Kernel):
    """Several kernels joined into one form; nested joins of the same kind are flattened."""

    def __init__(self, *kernels: Kernel) -> None:
        super().__init__()
        for kernel in kernels:
            if not isinstance(kernel, Kernel):
                raise DomainError(
                    f"`kernels` of {type(self).__name__} must be covariance functions, got {type(kernel).__name__}; "
                    "use flashgp.kernels"
                )
        if not kernels:
            raise DomainError(f"`kernels` of {type(self).__name__} must not be empty; pass at least one kernel")
        flat = [k for kernel in kernels for k in (kernel.parts if type(kernel) is type(self) else (kernel,))]
        self.kernels = nn.ModuleList(flat)

    @staticmethod
    def _combine(profiles: Sequence[Expression]) -> Expression:
        raise NotImplementedError

    @functools.cached_property
    def form(self) -> Form:
        return Form.combined([k.form for k in self.parts], self._combine)

    @property
    def parts(self) -> tuple[Kernel, ...]:
        return tuple(self.kernels)  # type: ignore[arg-type]

    def rows(self, x: Tensor) -> Rows:
        return _joined_rows([k.rows(x) for k in self.parts])

    def theta(self) -> tuple[Tensor, ...]:
        return tuple(value for k in self.parts for value in k.theta())

    def structure(self) -> dict[str, Any]:
        return {"kind": type(self).__name__}


def _joined_rows(parts: Sequence[Rows]) -> Rows:
    return Rows(
        tuple(f for rows in parts for f in rows.features),
        tuple(a for rows in parts for a in rows.scalars),
        parts[0].count,
        parts[0].batch,
        parts[0].place,
    )


class Sum(_Joined):
    """k1 + k2 + ..., eq. (M-2). Cost: the sum of its parts' in one pass."""

    @staticmethod
    def _combine(profiles: Sequence[Expression]) -> Expression:
        return functools.reduce(operator.add, profiles)

    def feature_terms(self, x: Tensor, draw: Draw) -> list[Term]:
        return [term for i, k in enumerate(self.parts) for term in k.feature_terms(x, draw.part(i))]


class Product(_Joined):
    """k1 * k2 * ..., eq. (M-2); exponentials join into one."""

    @staticmethod
    def _combine(profiles: Sequence[Expression]) -> Expression:
        return functools.reduce(operator.mul, profiles)

    def feature_terms(self, x: Tensor, draw: Draw) -> list[Term]:
        count = len(self.parts)
        terms = self.parts[0].feature_terms(x, draw.part(0))
        for i, k in enumerate(self.parts[1:], 1):
            terms = multiplied(terms, k.feature_terms(x, draw.part(i)), draw.part(count + i))
        return terms


class Scaled(Kernel):
    """variance * k, eq. (M-3); written `2.0 * k`.

    Args:
        kernel: the covariance function to scale.
        variance: positive number, tensor of shape (*batch,) or Parameter; units of y squared.
    """

    roles = {"variance": "output_variance"}

    def __init__(self, kernel: Kernel, variance: Numeric = 1.0) -> None:
        super().__init__()
        if not isinstance(kernel, Kernel):
            raise DomainError(f"`kernel` must be a covariance function, got {type(kernel).__name__}")
        self.variance = as_parameter(variance, Domain(lower=0.0), "variance")
        self.kernel = kernel

    @functools.cached_property
    def form(self) -> Form:
        inner = self.kernel.form
        return Form(
            parameter(0) * inner.shifted(0, 0, 1),
            inner.statistics,
            inner.scalar_count,
            inner.parameter_count + 1,
            tuple(f.moved(1) for f in inner.pair_functions),
        )

    @property
    def parts(self) -> tuple[Kernel, ...]:
        return (self.kernel,)

    def rows(self, x: Tensor) -> Rows:
        return self.kernel.rows(x)

    def theta(self) -> tuple[Tensor, ...]:
        return (self.variance.value, *self.kernel.theta())

    def feature_terms(self, x: Tensor, draw: Draw) -> list[Term]:
        root = self.variance.value.to(x.device).sqrt()[..., None, None]
        return [term.scaled(root) for term in self.kernel.feature_terms(x, draw)]

    def structure(self) -> dict[str, Any]:
        return {"kind": "Scaled"}
