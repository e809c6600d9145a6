"""Expression to program: straight-line tile code for the value and the first derivatives of a profile.

A program is generated once per structure and kept. Common subexpressions of value and derivatives are computed
once; a temporary that is used for the last time is overwritten in place. Parameters enter as Python floats (one
model on a CPU: cheapest calls) or as tensors of shape () or (*batch, 1, 1). The generated text is plain torch and
can be read: `print(program.source)`.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flashgp.foundations.expression import Expression, Symbol, number
from flashgp.foundations.form import Form
from flashgp.pairwise.program.tile_code import RUNTIME, Generator, Scalar, function_text, input_name


@dataclass(frozen=True)
class Partial:
    """One derivative: by which symbol; its value is scalar * tile, a tile of None meaning all ones."""

    symbol: Symbol
    scalar: Scalar
    tile: Tensor | None


class Program:
    """Compiled tile code of one form. Call `value` or `partials` with tiles of the statistics."""

    def __init__(self, form: Form) -> None:
        self.form = form
        kinds = [(kind, index) for index, kind in enumerate(form.statistics)]
        self.statistics = [Symbol(kind, index) for kind, index in kinds]
        self.scalars = [Symbol(side, i) for side in ("left", "right") for i in range(form.scalar_count)]
        self.parameters = [Symbol("parameter", i) for i in range(form.parameter_count)]
        self.differentiable = [s for s in self.statistics if s.kind != "match"] + self.scalars + self.parameters
        self.derivatives = {s: form.profile.derivative(s) for s in self.differentiable}
        self._inputs = [input_name(s) for s in (*self.statistics, *self.scalars, *self.parameters)]
        self._value, value_source, self.value_temporaries = self._compile_value()
        self._partials, partials_source, self.partial_temporaries = self._compile_partials()
        self.source = value_source + "\n" + partials_source

    @functools.cached_property
    def bounded_slope(self) -> dict[int, bool]:
        """Map of each distance to True if dg/dq stays bounded at zero distance, so that an error of q stays small."""
        return {s.index: not self.derivatives[s].singular_at_zero() for s in self.statistics if s.kind == "distance"}

    def bound(self, runtime: Mapping[str, Callable[..., Any]]) -> dict[str, Any]:
        """The generated functions `value` and `partials` over other operations than torch's (NumPy's)."""
        scope: dict[str, Any] = dict(runtime)
        exec(compile(self.source, f"<flashgp program of {self.form.profile.key[:80]}>", "exec"), scope)
        return scope

    def value(
        self, statistics: Sequence[Tensor], scalars: Sequence[Tensor], theta: Sequence[Scalar], own: bool
    ) -> Tensor:
        """g over a tile. `own`: the statistics may be overwritten and all have the tile's full shape."""
        (result,) = self._value(*statistics, *scalars, *theta, own)
        return result

    def partials(
        self, statistics: Sequence[Tensor], scalars: Sequence[Tensor], theta: Sequence[Scalar], own: bool
    ) -> tuple[tuple[Scalar, Tensor | None], list[Partial]]:
        """g as (scalar, tile or None for ones), and its derivatives by every statistic, row scalar and parameter."""
        scalar, tile, *flat = self._partials(*statistics, *scalars, *theta, own)
        parts = [Partial(symbol, flat[2 * k], flat[2 * k + 1]) for k, symbol in enumerate(self.present)]
        return (scalar, tile), parts

    def second_partials(
        self, statistics: Sequence[Tensor], scalars: Sequence[Tensor], theta: Sequence[Scalar], own: bool
    ) -> tuple[list[Partial], list[tuple[Symbol, Partial]]]:
        """The first derivatives of g, and the second ones by each pair of symbols, where they are not zero.

        A pair of two symbols stands there twice, in both orders. Tiles that differ by a number are one tensor.
        """
        function, pairs = self._second
        flat = function(*statistics, *scalars, *theta, own)
        count = len(self.present)
        first = [Partial(s, flat[2 * k], flat[2 * k + 1]) for k, s in enumerate(self.present)]
        second = []
        for k, (one, two) in enumerate(pairs, count):
            scalar, tile = flat[2 * k], flat[2 * k + 1]
            second.append((one, Partial(two, scalar, tile)))
            if one != two:
                second.append((two, Partial(one, scalar, tile)))
        return first, second

    @functools.cached_property
    def second_tiles(self) -> int:
        """Largest number of tiles of the first and second derivatives."""
        return len(self._second[1]) + len(self.present)

    @functools.cached_property
    def _second(self) -> tuple[Callable[..., Any], list[tuple[Symbol, Symbol]]]:
        """Code for the derivatives that are not zero, and of which pairs of symbols the second ones are."""
        generator = Generator()
        self._declare(generator)
        expressions, pairs = [self.derivatives[s] for s in self.present], []
        for k, one in enumerate(self.present):
            for two in self.present[k:]:
                slope = self.derivatives[one].derivative(two)
                if not slope.is_zero:
                    expressions.append(slope)
                    pairs.append((one, two))
        results, kept = self._listed(generator, expressions)
        return self._assemble("second_partials", generator, results, kept)[0], pairs

    def _compile_value(self) -> tuple[Callable[..., Any], str, int]:
        generator = Generator()
        self._declare(generator)
        profile = self.form.profile
        result = generator.tile(profile) if profile.pairwise else generator.scalar(profile)
        return self._assemble("value", generator, [result], {result})

    def _compile_partials(self) -> tuple[Callable[..., Any], str, int]:
        generator = Generator()
        self._declare(generator)
        self.present = [s for s in self.differentiable if not self.derivatives[s].is_zero]
        expressions = [self.form.profile, *(self.derivatives[s] for s in self.present)]
        results, kept = self._listed(generator, expressions)
        return self._assemble("partials", generator, results, kept)

    @staticmethod
    def _listed(generator: Generator, expressions: Sequence[Expression]) -> tuple[list[str], set[str]]:
        """The results that are (scalar, tile or None) of every expression, and the tiles to keep."""
        results: list[str] = []
        kept: set[str] = set()
        for expression in expressions:
            if expression.pairwise:
                scalar, name = generator.scaled(expression)
                results += [scalar, name]
                kept.add(name)
            else:
                results += [generator.scalar(expression), "None"]
        return results, kept

    def _declare(self, generator: Generator) -> None:
        for symbol in (*self.statistics, *self.scalars):
            generator.symbol(symbol)

    def _assemble(
        self, name: str, generator: Generator, results: list[str], kept: set[str]
    ) -> tuple[Callable[..., Any], str, int]:
        source = function_text(name, generator, self._inputs, results, kept)
        scope: dict[str, Any] = dict(RUNTIME)
        exec(compile(source, f"<flashgp {name} of {self.form.profile.key[:80]}>", "exec"), scope)
        return scope[name], source, len(generator.lines) + len(self.statistics)


@functools.lru_cache(maxsize=512)
def program_of(form: Form) -> Program:
    """The program of a form, compiled once per structure."""
    return Program(form)


@functools.lru_cache(maxsize=4096)
def _single(expression: Expression, form: Form) -> Callable[..., Any]:
    return Program(Form(expression, form.statistics, form.scalar_count, form.parameter_count))._value


class _Evaluate(torch.autograd.Function):
    """An expression over tiles, differentiable to any order: its derivative is again an expression, eq. (M-4)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(expression: Expression, form: Form, *tensors: Tensor) -> Tensor:
        result = _single(expression, form)(*tensors, False)[0]
        if not isinstance(result, Tensor):
            result = torch.tensor(result, dtype=tensors[0].dtype, device=tensors[0].device)
        if any(result is t for t in tensors):
            result = result.clone()
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.expression, ctx.form, *tensors = inputs
        ctx.shape = output.shape
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        results: list[Tensor | None] = [None, None]
        for position, (symbol, tensor) in enumerate(zip(_symbols(ctx.form), tensors, strict=True)):
            slope = ctx.expression.derivative(symbol) if symbol.kind != "match" else number(0)
            if slope.is_zero or not ctx.needs_input_grad[2 + position]:
                results.append(None)
            else:
                results.append((gradient * _Evaluate.apply(slope, ctx.form, *tensors)).sum_to_size(tensor.shape))
        return tuple(results)

    @staticmethod
    def jvp(ctx: Any, _expression: None, _form: None, *tangents: Tensor | None) -> Tensor:
        tensors = ctx.saved_tensors
        total = None
        for symbol, tangent in zip(_symbols(ctx.form), tangents, strict=True):
            if tangent is None or symbol.kind == "match":
                continue
            slope = ctx.expression.derivative(symbol)
            if slope.is_zero:
                continue
            term = _Evaluate.apply(slope, ctx.form, *tensors) * tangent
            total = term if total is None else total + term
        if total is None:
            total = torch.zeros((), dtype=tensors[0].dtype, device=tensors[0].device)
        return total.expand(ctx.shape)  # a slope that is a number has no tile's shape


@functools.lru_cache(maxsize=512)
def _symbols(form: Form) -> tuple[Symbol, ...]:
    program = program_of(form)
    return (*program.statistics, *program.scalars, *program.parameters)


def evaluate(form: Form, statistics: Sequence[Tensor], scalars: Sequence[Tensor], theta: Sequence[Tensor]) -> Tensor:
    """The profile over a tile of statistics, differentiable to any order in all of them and in theta.

    Args:
        statistics: one (*batch, n, m) tensor each: q for a distance, s for a product, 0/1 for a match.
        scalars: left then right row scalars, (*batch, n, 1) and (*batch, 1, m).
        theta: one tensor each, () or (*batch, 1, 1).
    Returns: (*batch, n, m), or a shape that broadcasts to it when the profile is constant.
    """
    tensors = (*statistics, *scalars, *theta)
    return _Evaluate.apply(form.profile, form, *tensors)
