"""Checks of a user's function of two points at random pairs and random parameters, before its form is used."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from flashgp.foundations.errors import DomainError
from flashgp.foundations.pair_function import PairFunction
from flashgp.foundations.parameters import Domain

PROBES = 8
SYMMETRY = 1e-9  # of the largest value: far above what rounding makes of the order of two points
Pair = tuple[Tensor, Tensor]
Values = Mapping[str, Tensor]


def random_pairs(columns: int) -> list[Pair]:
    """Pairs of points to compare functions on: normal, then between 0 and 1, always the same ones."""
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(PROBES, 2, columns, generator=generator, dtype=torch.float64)
    positive = torch.rand(PROBES // 2, 2, columns, generator=generator, dtype=torch.float64)
    return [(pair[0], pair[1]) for pair in torch.cat([normal, positive])]


def some_values(values: Values, domains: Sequence[Domain]) -> list[dict[str, Tensor]]:
    """Parameters as they are, then as a fit might make them: elsewhere in their domains, of the other sign, close by.

    What holds at one value only (a matrix that happens to be the identity, a number that happens to be positive) does
    not hold for the function.
    """
    generator = torch.Generator().manual_seed(1)
    tried = [dict(values)]
    for sign, size in ((1.0, 1.0), (-1.0, 1.0), (1.0, 0.1)):
        moved = {}
        for (name, value), domain in zip(values.items(), domains, strict=True):
            noise = size * torch.randn(value.shape, generator=generator, dtype=value.dtype)
            real = domain.kind == "real"
            moved[name] = domain.value(sign * value + (1 + value.abs()) * noise if real else domain.raw(value) + noise)
        tried.append(moved)
    return tried


def values_at(function: PairFunction, values: Values, pairs: Sequence[Pair]) -> list[float]:
    """The function at each pair."""
    with torch.no_grad():
        return [float(function(x, z, *values.values())) for x, z in pairs]


def check_symmetry(function: PairFunction, tried: Sequence[Values], columns: int) -> None:
    """Check symmetry at the first of the values tried, and at the others where the function is finite.

    Raises: DomainError naming a pair of points and both values where they differ, or when no value is finite.
    """
    pairs = random_pairs(columns)
    finite = False
    for number, values in enumerate(tried):
        some = pairs[:: 3 if number else 1]
        one, two = (values_at(function, values, p) for p in (some, [(z, x) for x, z in some]))
        finite = finite or any(map(math.isfinite, one))
        size = max((abs(k) for k in (*one, *two) if math.isfinite(k)), default=1.0)
        for pair, a, b in zip(some, one, two, strict=True):
            if number and not (math.isfinite(a) and math.isfinite(b)):
                continue
            if not (a == b or abs(a - b) <= SYMMETRY * size or (math.isnan(a) and math.isnan(b))):
                raise _not_symmetric(pair, values if number else {}, a, b)
    far = [(1.0 + 100.0 * x.abs(), 1.0 + 100.0 * z.abs()) for x, z in pairs]
    if not finite and not any(map(math.isfinite, values_at(function, tried[0], far))):
        raise DomainError(
            f"`function` must have finite values, got none at {2 * len(pairs)} pairs, {pairs[0][0].tolist()} and "
            f"{pairs[0][1].tolist()} for one; correct it, or its parameters"
        )


def _not_symmetric(pair: Pair, values: Values, one: float, two: float) -> DomainError:
    """The error for a pair, and for parameters where they are not those that were given."""
    where = "".join(f", {name} = {value.tolist()}" for name, value in values.items())
    return DomainError(
        f"`function` must be symmetric, got k(x, x') = {one!r} and k(x', x) = {two!r} at x = {pair[0].tolist()}, "
        f"x' = {pair[1].tolist()}{where}; a covariance function does not see the order of its points"
        f"{', whatever its parameters: for a matrix A write A + A.T, say' if values else ''}"
    )
