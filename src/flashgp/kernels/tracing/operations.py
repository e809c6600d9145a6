"""Effect of each torch operation on the values of `values`: differences, squares, products, norms, eq. (M-50).

With u, v maps of one point and D u = u(x) - u(x'):

    linear maps pass through a difference      A (D u) = D (A u)
    squares of a difference add up             sum_k (D u)_k^2 = |u(x) - u(x')|^2
    two differences                            D u . D v = |D (u + v)|^2 / 4 - |D (u - v)|^2 / 4
    two maps, when the whole is symmetric      u(x) . v(x') = (u + v)(x) . (u + v)(x') / 4 - the same of u - v
    cos of one difference                      cos(D u) = (cos u, sin u)(x) . (cos u, sin u)(x')
    an even power of its sine                  sin(D u)^2 = |(cos 2u, sin 2u)(x) - (cos 2u, sin 2u)(x')|^2 / 4

An operation that is not written here has no form, and its name is the reason.
"""

import functools
import math
import operator
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy
import torch

from flashgp.foundations import expression as language
from flashgp.foundations.expression import Expression, Symbol, number
from flashgp.kernels.tracing.graph import Node, schema_name
from flashgp.kernels.tracing.profile_algebra import exact, is_nonnegative, logarithm, power, root
from flashgp.kernels.tracing.terms import MAX_ELEMENTS, STRUCTURAL, PairTerms
from flashgp.kernels.tracing.values import Difference, Elements, Fixed, NotFused, Quadratic, Row, Term, Value

aten = torch.ops.aten


class PairOperations(PairTerms):
    """Applies operations to values; what they ask for is remembered by PairTerms."""

    def apply(self, target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The value of one operation. Raises: NotFused naming it."""
        operands: list[Value] = []
        _mapped((args, tuple(kwargs.values())), lambda a: operands.append(a) if _is_value(a) else None)
        sides = {v.side for v in operands if isinstance(v, Row)}
        if len(sides) <= 1 and all(isinstance(v, Fixed | Row) for v in operands):
            node = self.graph.call(target, *_mapped(args, _node), **{k: _mapped(v, _node) for k, v in kwargs.items()})
            return Row(sides.pop(), node) if node.of_point else Fixed(node)
        name = schema_name(target).removesuffix("_") if target is not operator.getitem else "getitem"
        if name in STRUCTURAL:
            return self.structural(target, args, kwargs)
        rule = getattr(self, f"_do_{name}", None)
        if name in ("mv", "mm", "bmm"):
            rule = functools.partial(self._linear, target)
        elif name in (functions := self._functions()):
            rule = functools.partial(self._each, function=functions[name])
        if rule is None:
            raise NotFused(f"aten.{name} of two points")
        try:
            return rule(*args, **kwargs)
        except TypeError as error:
            raise NotFused(f"aten.{name} of two points with these arguments") from error

    # -- shapes -------------------------------------------------------------------------------------------------
    def structural(self, target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
        value, *rest = args
        match value:
            case Difference(node):
                return Difference(self.graph.call(target, node, *rest, **kwargs))
            case Quadratic(terms):
                return Quadratic(
                    tuple(Term(t.kind, self.graph.call(target, t.node, *rest, **kwargs), t.scale) for t in terms)
                )
            case Elements(array):
                order = target(torch.arange(array.size).reshape(array.shape), *rest, **kwargs)
                return Elements(array.reshape(-1)[order.reshape(-1).numpy()].reshape(tuple(order.shape)))
        raise NotFused(f"aten.{schema_name(target)} of two points")

    def _joined(self, target: Any, values: Sequence[Any], dim: int) -> Value:
        if all(isinstance(v, Difference) for v in values):
            return Difference(self.graph.call(target, [v.node for v in values], dim))
        arrays = [self.elements(v).array for v in values]
        starts = numpy.cumsum([0, *(a.size for a in arrays)])
        places = [torch.arange(a.size).reshape(a.shape) + int(s) for a, s in zip(arrays, starts, strict=False)]
        order = target(places, dim)
        flat = numpy.concatenate([a.reshape(-1) for a in arrays])
        return Elements(flat[order.reshape(-1).numpy()].reshape(tuple(order.shape)))

    def _do_cat(self, values: Sequence[Any], dim: int = 0) -> Value:
        return self._joined(aten.cat.default, values, dim)

    def _do_stack(self, values: Sequence[Any], dim: int = 0) -> Value:
        return self._joined(aten.stack.default, values, dim)

    # -- sums and products --------------------------------------------------------------------------------------
    def _do_add(self, a: Any, b: Any, alpha: float = 1) -> Value:
        if alpha != 1:
            b = self._do_mul(b, alpha)
        match a, b:
            case Row(), Row() if b.node.target is aten.neg.default and b.node.args[0] is a.node:
                return self._difference(a)
            case Row(), Row() if a.node.target is aten.neg.default and a.node.args[0] is b.node:
                return self._difference(b)
            case Difference(), Difference():
                return Difference(self.graph.call(aten.add.Tensor, a.node, b.node))
            case Quadratic(), Quadratic() if a.shape == b.shape:
                return Quadratic((*a.terms, *b.terms))
        return self._both(a, b, operator.add)

    def _do_sub(self, a: Any, b: Any, alpha: float = 1) -> Value:
        if alpha != 1:
            b = self._do_mul(b, alpha)
        match a, b:
            case Row(), Row() if a.node is b.node:
                return self._difference(a)
            case Difference(), Difference():
                return Difference(self.graph.call(aten.sub.Tensor, a.node, b.node))
            case Quadratic(), Quadratic() if a.shape == b.shape:
                return self._do_add(a, self._do_neg(b))
        return self._both(a, b, operator.sub)

    def _do_rsub(self, a: Any, b: Any, alpha: float = 1) -> Value:
        return self._do_sub(b, a if alpha == 1 else self._do_mul(a, alpha))

    def _difference(self, first: Row) -> Difference:
        """D u when the first operand is the left point, D (-u) otherwise."""
        return Difference(first.node if first.side == "left" else self.graph.call(aten.neg.default, first.node))

    def _do_neg(self, a: Any) -> Value:
        if isinstance(a, Difference):
            return Difference(self.graph.call(aten.neg.default, a.node))
        return self._do_mul(a, -1)

    def _do_mul(self, a: Any, b: Any) -> Value:
        if isinstance(b, Difference | Quadratic) and not isinstance(a, Difference | Quadratic):
            a, b = b, a
        match a, b:
            case Difference(), int() | float() | Fixed():
                return Difference(self.graph.call(aten.mul.Tensor, a.node, _node(b)))
            case Difference(), Difference() if a.shape == b.shape:
                return self._polarised("distance", a.node, b.node)
            case Row(), Row() if a.side != b.side and len(a.shape) + len(b.shape) > 0:
                return self._polarised("product", a.node, b.node)
            case Quadratic(), int() | float():
                return self._weighted(a, b)
            case Quadratic(), Fixed() if torch.broadcast_shapes(a.shape, b.shape) == a.shape:
                return self._weighted(a, b)
        return self._both(a, b, operator.mul)

    def _do_div(self, a: Any, b: Any) -> Value:
        match a, b:
            case Difference(), int() | float() | Fixed():
                return Difference(self.graph.call(aten.div.Tensor, a.node, _node(b)))
            case Quadratic(), int() | float():
                return self._weighted(a, number(1) / exact(b))
            case Quadratic(), Fixed(node) if torch.broadcast_shapes(a.shape, node.shape) == a.shape:
                return self._weighted(a, Fixed(self.graph.call(aten.reciprocal.default, self._double(node))))
        return self._both(a, b, operator.truediv)

    def _polarised(self, kind: str, u: Node, v: Node) -> Quadratic:
        """D u * D v, or u(x) v(x') made symmetric, as a difference of two squares, eq. (M-50)."""
        (u, a), (v, b) = _stripped(u, shapes=False), _stripped(v, shapes=False)
        scale = exact(a * b)
        if u is v:
            return Quadratic((Term(kind, u, scale),))
        for one, other in ((u, v), (v, u)):
            weight = _factor(one, other)
            if weight is not None and torch.broadcast_shapes(weight.shape, other.shape) == other.shape:
                return self._weighted(Quadratic((Term(kind, other, scale),)), Fixed(weight))
        terms = []
        for call, sign in ((aten.add.Tensor, 1), (aten.sub.Tensor, -1)):
            terms.append(Term(kind, self.graph.call(call, u, v), scale * Fraction(sign, 4)))
        return Quadratic(tuple(terms))

    def _weighted(self, a: Quadratic, weight: Any) -> Quadratic:
        """Scalars go to the profile, positive weights of entries as their square root to the features."""
        if not isinstance(weight, Fixed):
            scale = weight if isinstance(weight, Expression) else exact(weight)
            return Quadratic(tuple(Term(t.kind, t.node, t.scale * scale) for t in a.terms))
        node = self._double(weight.node)
        if torch.broadcast_shapes(node.shape, a.shape) != a.shape:
            raise NotFused("a product of two points with a larger tensor")
        if math.prod(node.shape) == 1:
            return self._weighted(a, self._element(Fixed(node), 0))
        size = self.graph.call(aten.sqrt.default, node)
        if self.is_positive(node):
            parts = [(size, number(1))]
        else:  # the positive and the negative weights apart
            size = self.graph.call(aten.sqrt.default, self.graph.call(aten.abs.default, node))
            masks = [self.graph.call(which, node, 0) for which in (aten.gt.Scalar, aten.lt.Scalar)]
            parts = [
                (self.graph.call(aten.mul.Tensor, size, m), number(s)) for m, s in zip(masks, (1, -1), strict=True)
            ]
        return Quadratic(
            tuple(
                Term(t.kind, self.graph.call(aten.mul.Tensor, t.node, root_of), t.scale * sign)
                for t in a.terms
                for root_of, sign in parts
            )
        )

    def _double(self, node: Node) -> Node:
        """A weight in float64: the root of an integer would be float32."""
        if node.example.dtype == torch.float64:
            return node
        return self.graph.call(aten._to_copy.default, node, dtype=torch.float64)

    def _do_sum(self, a: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
        if isinstance(a, Difference):
            if dim is None:
                return Difference(self.graph.call(aten.sum.default, a.node))
            return Difference(self.graph.call(aten.sum.dim_IntList, a.node, dim, keepdim))
        shape = a.shape
        dims = range(len(shape)) if dim is None or len(dim) == 0 else [d % len(shape) for d in dim]
        places = numpy.arange(math.prod(shape)).reshape(shape)
        kept = [d for d in range(len(shape)) if d not in dims]
        groups = places.transpose([*kept, *sorted(dims)]).reshape(math.prod(shape[d] for d in kept), -1)
        if len(groups) > MAX_ELEMENTS:
            raise NotFused(f"sums of two points over {len(groups)} groups")
        out = numpy.empty(len(groups), dtype=object)
        flat: Any = None if isinstance(a, Quadratic) else self.elements(a).array.reshape(-1)
        for k, group in enumerate(groups):
            indices = tuple(group.tolist())
            if isinstance(a, Quadratic):
                out[k] = self._contracted(a, indices)
            else:
                out[k] = functools.reduce(operator.add, (flat[i] for i in indices), number(0))
        final = [1 if d in dims else shape[d] for d in range(len(shape))] if keepdim else [shape[d] for d in kept]
        return Elements(out.reshape(final))

    def _do_mean(self, a: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
        total = self._do_sum(a, dim, keepdim)
        return self._do_div(total, math.prod(a.shape) // max(1, math.prod(total.shape)))

    def _do_dot(self, a: Any, b: Any) -> Value:
        match a, b:
            case Difference(), Fixed():
                return Difference(self.graph.call(aten.dot.default, a.node, b.node))
            case Fixed(), Difference():
                return Difference(self.graph.call(aten.dot.default, a.node, b.node))
        if isinstance(a, Row | Difference) and isinstance(b, Row | Difference) and type(a) is type(b):
            for one, other in ((a.node, b.node), (b.node, a.node)):
                squared = self._gram(one, other, "distance" if isinstance(a, Difference) else "product")
                if squared is not None:
                    return self._do_sum(squared)
        return self._do_sum(self._do_mul(a, b))

    def _gram(self, one: Node, other: Node, kind: str) -> Quadratic | None:
        """v . w as a b c |B^T u|^2 where v = a B B^T (b u) and w = c u: a quadratic form that is seen to be one."""
        (v, a), (u, c) = _stripped(one), _stripped(other)
        if v.target not in (aten.mm.default, aten.mv.default):
            return None
        matrix, vector = v.args if v.args[1].of_point else v.args[::-1]
        point, b = _stripped(vector)
        if point is not u or matrix.of_point or len(u.shape) != 1 or schema_name(matrix.target) != "mm":
            return None
        left, right = matrix.args
        if not (_is_transpose(right, left) or _is_transpose(left, right)):
            return None
        transpose = right if _is_transpose(right, left) else self.graph.call(aten.t.default, left)
        return Quadratic((Term(kind, self.graph.call(aten.mv.default, transpose, u), exact(a * b * c)),))

    _do_vdot = _do_dot

    def _linear(self, target: Any, a: Any, b: Any) -> Value:
        """A matrix product: linear in a difference, or the inner product of two vectors."""
        match a, b:
            case (Difference(), Fixed()) | (Fixed(), Difference()):
                return Difference(self.graph.call(target, a.node, b.node))
        if math.prod(a.shape) == math.prod(b.shape) == a.shape[-1]:
            flat = [self.apply(aten.reshape.default, (v, [-1]), {}) for v in (a, b)]
            shape = (*a.shape[:-1], *(b.shape[-1:] if len(b.shape) > 1 else ()))
            return Elements(self.elements(self._do_dot(*flat)).array.reshape(shape))
        raise NotFused(f"{target} of two points".replace(".default", ""))

    # -- norms --------------------------------------------------------------------------------------------------
    def _do_linalg_vector_norm(
        self, a: Any, ord: float = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None
    ) -> Value:
        if ord == 1:
            return self._do_sum(self._do_abs(a), dim, keepdim)
        if ord != 2:
            raise NotFused(f"a norm of order {ord} of two points")
        return self._each(self._do_sum(self._do_mul(a, a), dim, keepdim), self._root)

    def _do_dist(self, a: Any, b: Any, p: float = 2) -> Value:
        return self._do_linalg_vector_norm(self._do_sub(a, b), p)

    def _do__cdist_forward(self, a: Any, b: Any, p: float, mode: Any = None) -> Value:
        if a.shape[:-1] != (1,) or b.shape[:-1] != (1,):
            raise NotFused("cdist of more than two points")
        return Elements(self.elements(self._do_dist(a, b, p)).array.reshape(1, 1))

    def _do_abs(self, a: Any) -> Value:
        if isinstance(a, Difference):
            return self._each(self._polarised("distance", a.node, a.node), self._root)

        def size(one: Expression) -> Expression:
            if not is_nonnegative(one):
                raise NotFused("aten.abs of two points")
            return one

        return self._each(a, size)

    def _do_clamp_min(self, a: Any, least: Any) -> Value:
        if least != 0 or not all(is_nonnegative(one) for one in self.elements(a).array.reshape(-1)):
            raise NotFused("aten.clamp of two points")
        return self.elements(a)

    def _do_clamp(self, a: Any, least: Any = None, most: Any = None) -> Value:
        if most is not None:
            raise NotFused("aten.clamp of two points")
        return self._do_clamp_min(a, least)

    # -- functions of one number --------------------------------------------------------------------------------
    def _do_square(self, a: Any) -> Value:
        return self._do_mul(a, a)

    def _do_pow(self, a: Any, exponent: Any) -> Value:
        if isinstance(exponent, int | float) and isinstance(a, Difference) and exponent % 2 == 0 and exponent > 0:
            squares = self._do_mul(a, a)
            return squares if exponent == 2 else self._each(squares, lambda e: e ** int(exponent // 2))
        if isinstance(a, int | float):
            return self._each(exponent, lambda e: language.exp(e * exact(math.log(a))))
        if isinstance(exponent, int | float):
            return self._each(a, lambda e: power(e, exponent, self._part, self._sure))
        if not isinstance(exponent, Fixed):
            raise NotFused("aten.pow of two points")
        return self._both(a, exponent, lambda e, p: power(e, p, self._part, self._sure))

    def _functions(self) -> dict[str, Callable[[Expression], Expression]]:
        return {
            "sqrt": self._root, "rsqrt": lambda e: self._root(e) ** -1, "reciprocal": lambda e: e**-1,
            "exp": language.exp, "expm1": lambda e: language.exp(e) - 1, "log1p": language.log1p,
            "log": lambda e: logarithm(e, self._part, self._sure), "cos": self._cosine, "sin": self._sine,
        }  # fmt: skip

    def _root(self, one: Expression) -> Expression:
        return root(one, self._part, self._sure)

    def _cosine(self, one: Expression) -> Expression:
        angle = self._angle(one)
        return language.cos(one) if angle is None else self.statistic("product", self._circle(angle, 1.0), None)

    def _sine(self, one: Expression) -> Expression:
        angle = self._angle(one)
        if angle is None:
            return language.sin(one)
        size = None if any(s.kind == "signed" for s in one.symbols) else one
        return Expression({((Symbol("sine", self._index(self._sines, angle, size)), 1),): Fraction(1)})

    def _angle(self, one: Expression) -> Node | None:
        """u where the expression is a constant times D u or |D u| of one number, else None."""
        if len(one.terms) != 1:
            return None
        factors, coefficient = one.terms[0]
        differences = [a for a, e in factors if isinstance(a, Symbol) and a.kind in ("signed", "distance") and e == 1]
        others = tuple(f for f in factors if f[0] not in differences)
        if len(differences) != 1 or any(not isinstance(a, Symbol) or a.kind != "parameter" for a, _ in others):
            return None
        symbol = differences[0]
        assert isinstance(symbol, Symbol)
        if symbol.kind == "signed":
            angle = self._entry(*self.signed[symbol.index])
        else:
            node, indices = self.statistics[symbol.index]
            if (node.example.numel() if indices is None else len(indices)) != 1:
                return None
            angle = self._entry(node, 0 if indices is None else indices[0])
        if others:
            angle = self.graph.call(aten.mul.Tensor, angle, self._one_side(Expression({others: Fraction(1)}))[1])
        return self.graph.call(aten.mul.Tensor, angle, float(coefficient))


def _factor(product: Node, of: Node) -> Node | None:
    """w where a node is w * of, with w of parameters or written down."""
    if product.target is not aten.mul.Tensor:
        return None
    others = [a for a in product.args if a is not of]
    known = len(others) == 1 and isinstance(others[0], Node) and not others[0].of_point
    return others[0] if known else None


def _stripped(node: Node, *, shapes: bool = True) -> tuple[Node, float]:
    """A vector below factors that are numbers (and changes of single dimensions), and the product of the factors."""
    factor = 1.0
    while True:
        name = schema_name(node.target)
        if name == "mul" and isinstance(node.args[1], int | float):
            factor *= node.args[1]
        elif name == "neg":
            factor = -factor
        elif not shapes or name not in ("squeeze", "unsqueeze", "view", "reshape", "alias", "clone"):
            return node, factor
        node = node.args[0]


def _is_transpose(node: Node, of: Node) -> bool:
    name = schema_name(node.target)
    turns = name == "t" or (name == "permute" and tuple(node.args[1]) == (1, 0)) or name == "transpose"
    return turns and node.args[0] is of


def _is_value(a: Any) -> bool:
    return isinstance(a, Fixed | Row | Difference | Quadratic | Elements)


def _node(a: Any) -> Any:
    return a.node if isinstance(a, Fixed | Row | Difference) else a


def _mapped(value: Any, leaf: Callable[[Any], Any]) -> Any:
    return tuple(_mapped(v, leaf) for v in value) if isinstance(value, list | tuple) else leaf(value)
