"""Kinds of intermediate values of a covariance function of two points, while its form is looked for.

Fixed       a function of the parameters alone
Row         a function u of one of the two points
Difference  u(x) - u(x')
Quadratic   sum_t s_t (u_t(x) - u_t(x'))^2 or s_t u_t(x) u_t(x'), entry by entry of a tensor
Elements    anything else, as one scalar expression per entry
"""

from dataclasses import dataclass
from typing import Any

import numpy

from flashgp.foundations.expression import Expression
from flashgp.kernels.tracing.graph import Node


class NotFused(Exception):  # noqa: N818 - not an error: the function is tiled instead
    """Reason that a function does not take the form of eq. (M-1)."""


@dataclass(frozen=True)
class Fixed:
    node: Node

    @property
    def shape(self) -> tuple[int, ...]:
        return self.node.shape


@dataclass(frozen=True)
class Row:
    side: str  # left or right
    node: Node

    @property
    def shape(self) -> tuple[int, ...]:
        return self.node.shape


@dataclass(frozen=True)
class Difference:
    node: Node

    @property
    def shape(self) -> tuple[int, ...]:
        return self.node.shape


@dataclass(frozen=True)
class Term:
    """scale times a squared difference ("distance") or a product of u = node between the points."""

    kind: str
    node: Node
    scale: Expression


@dataclass(frozen=True)
class Quadratic:
    terms: tuple[Term, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.terms[0].node.shape


@dataclass(frozen=True)
class Elements:
    array: Any  # a NumPy array of Expressions

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @classmethod
    def of(cls, value: Any) -> "Elements":
        """Elements of an array, or of one Expression."""
        if isinstance(value, numpy.ndarray):
            return cls(value)
        array = numpy.empty((), dtype=object)
        array[()] = value
        return cls(array)


Value = Fixed | Row | Difference | Quadratic | Elements
