"""The pair-statistics form of a covariance function, eq. (M-1), as plain data.

    k(x, x') = g(q_1, ..., q_m; a(x), a(x'); theta)

A `Form` is the structure (which statistics, which profile g); `Rows` holds what a set of points contributes to it
(row features, codes, row scalars). A backend sees these two and the values of theta, never a kernel or x itself.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy
import torch
from torch import Tensor

from flashgp.foundations.expression import Expression, Symbol
from flashgp.foundations.pair_function import PairFunction


@dataclass(frozen=True)
class Form:
    """The structure of a covariance function: equal forms share one compiled program.

    Fields: profile g, exact; statistics, the kind of each pair statistic ("distance", "product", "match" or "opaque");
    scalar_count, the row scalars per row; parameter_count, the scalar parameters theta of g; pair_functions, one per
    opaque statistic, in order: Python functions of two points, which only the portable backend evaluates.
    """

    profile: Expression
    statistics: tuple[str, ...]
    scalar_count: int
    parameter_count: int
    pair_functions: tuple[PairFunction, ...] = ()

    @property
    def fusable(self) -> bool:
        """True if generated code can evaluate it: no statistic is a Python function."""
        return not self.pair_functions

    @property
    def fusion(self) -> str:
        """ "fused" when generated code evaluates all of it, else "tiled: " and which functions it cannot, and why."""
        if self.fusable:
            return "fused"
        return "tiled: " + "; ".join(f.tiled or "a Python function" for f in self.pair_functions)

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.profile, self.statistics, self.scalar_count, self.parameter_count, self.pair_functions))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the cached hash: it is of this process.
        return Form, (
            self.profile, self.statistics, self.scalar_count, self.parameter_count, self.pair_functions
        )  # fmt: skip

    def opaque(self, statistic: int) -> PairFunction:
        """The function of an opaque statistic."""
        return self.pair_functions[self.statistics[:statistic].count("opaque")]

    def shifted(self, statistics: int, scalars: int, parameters: int) -> Expression:
        """The profile with every symbol moved behind that many statistics, scalars and parameters."""
        offset = {"parameter": parameters, "left": scalars, "right": scalars}
        rename = {s: Symbol(s.kind, s.index + offset.get(s.kind, statistics)) for s in self.profile.symbols}
        return self.profile.renamed(rename)

    @classmethod
    def combined(cls, parts: Sequence["Form"], combine: Callable[[Sequence[Expression]], Expression]) -> "Form":
        """Statistics, scalars and parameters concatenate; `combine` joins the shifted profiles (sum, product)."""
        kinds: tuple[str, ...] = ()
        scalars = parameters = 0
        profiles = []
        functions: tuple[PairFunction, ...] = ()
        for part in parts:
            profiles.append(part.shifted(len(kinds), scalars, parameters))
            functions += tuple(f.moved(parameters) for f in part.pair_functions)
            kinds += part.statistics
            scalars += part.scalar_count
            parameters += part.parameter_count
        return cls(combine(profiles), kinds, scalars, parameters, functions)


@dataclass(frozen=True)
class Rows:
    """Contribution of n points to a form.

    Fields: features, one tensor per statistic, (*batch, n, d_i) floating or, for a match, (*batch, n) int64 codes;
    scalars, one (*batch, n) tensor per row scalar; count, the number n of rows; batch and place, the batch shape and
    device of the points, which a form without tensors (a constant) could not tell otherwise.
    """

    features: tuple[Tensor, ...]
    scalars: tuple[Tensor, ...]
    count: int
    batch: torch.Size = field(default_factory=torch.Size)
    place: torch.device | None = None

    def _map(self, features: Callable[[Tensor], Tensor], scalars: Callable[[Tensor], Tensor], count: int) -> "Rows":
        moved = tuple(map(features, self.features)), tuple(map(scalars, self.scalars))
        return Rows(*moved, count, self.batch, self.place)

    def part(self, start: int, stop: int) -> "Rows":
        """Rows start to stop, as views."""
        stop = min(stop, self.count)
        if start == 0 and stop == self.count:
            return self
        return self._map(
            lambda f: f[..., start:stop, :] if f.is_floating_point() else f[..., start:stop],
            lambda a: a[..., start:stop],
            stop - start,
        )

    def take(self, index: Tensor | slice) -> "Rows":
        """The rows at a slice (a view) or at positions, in their order."""
        count = len(range(*index.indices(self.count))) if isinstance(index, slice) else int(index.numel())
        return self._map(
            lambda f: f[..., index, :] if f.is_floating_point() else f[..., index], lambda a: a[..., index], count
        )

    def sets(self, index: Tensor) -> "Rows":
        """Sets of q of these rows as a batch: positions (*batch, q), of rows without batches."""
        moved = self._map(lambda f: f[index], lambda a: a[index], index.shape[-1])
        return replace(moved, batch=index.shape[:-1])

    def followed_by(self, other: "Rows") -> "Rows":
        """The rows, then those of other points of the same covariance function, without batches."""
        features = tuple(torch.cat(pair) for pair in zip(self.features, other.features, strict=True))
        scalars = tuple(torch.cat(pair) for pair in zip(self.scalars, other.scalars, strict=True))
        return Rows(features, scalars, self.count + other.count, self.batch, self.place)

    def to(self, dtype: torch.dtype, device: torch.device | None = None) -> "Rows":
        """Floating tensors in another dtype, everything on another device."""
        moved = self._map(
            lambda f: f.to(device=device, dtype=dtype if f.is_floating_point() else f.dtype),
            lambda a: a.to(device=device, dtype=dtype),
            self.count,
        )
        return moved if device is None else replace(moved, place=torch.device(device))

    def detach(self) -> "Rows":
        return self._map(Tensor.detach, Tensor.detach, self.count)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Features, then scalars, flat."""
        return self.features + self.scalars

    def rebuilt(self, tensors: Sequence[Tensor]) -> "Rows":
        """The rows with other tensors, in the order of `tensors`."""
        split = len(self.features)
        return Rows(tuple(tensors[:split]), tuple(tensors[split:]), self.count, self.batch, self.place)

    @property
    def requires_grad(self) -> bool:
        return any(t.requires_grad for t in self.tensors)

    @property
    def device(self) -> torch.device:
        return self.tensors[0].device if self.tensors else self.place or torch.device("cpu")

    @property
    def batch_shape(self) -> torch.Size:
        """The broadcast batch shape of the points and of all tensors."""
        shapes = [f.shape[:-2] if f.is_floating_point() else f.shape[:-1] for f in self.features]
        return broadcast_batch(self.batch, *shapes, *(a.shape[:-1] for a in self.scalars))

    @property
    def width(self) -> int:
        """Numbers per row in all features and scalars."""
        return sum(f.shape[-1] if f.is_floating_point() else 1 for f in self.features) + len(self.scalars)

    @property
    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self.tensors)


def broadcast_batch(*shapes: torch.Size) -> torch.Size:
    """`torch.broadcast_shapes` without what its first call imports, SymPy: half a second of somebody's first plan.

    Raises: RuntimeError, as torch does, for shapes that do not broadcast.
    """
    distinct = set(shapes)
    distinct.discard(torch.Size())
    if len(distinct) < 2:
        return distinct.pop() if distinct else torch.Size()
    try:
        return torch.Size(numpy.broadcast_shapes(*distinct))
    except ValueError as error:
        raise RuntimeError(str(error)) from None
