"""Random features of covariance functions, eqs. (M-90) to (M-93): psi with E[psi(x) . psi(x')] = k(x, x').

The randomness is frozen in a seed; what a feature is beside that follows the kernel's parameters as they are when it
is evaluated, so that it is a smooth function of x and of the parameters. Frequencies come from scrambled Sobol points,
each of which is uniform on its own: unbiased like independent ones, with less error in few columns.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy
import torch
from jaxtyping import Float64, Shaped
from torch import Tensor
from torch.quasirandom import SobolEngine

from flashgp.foundations.checks import check_points
from flashgp.foundations.errors import DerivativeError
from flashgp.foundations.form import broadcast_batch

SOBOL_COLUMNS = 32  # beyond, Sobol points are no more even than random ones
SOBOL_STEP = 2.0**-30  # torch's points are multiples of this
OWN_PARTS = 2**20  # numbers of draws that no part of a kernel has
MAX_TENSOR = 16  # finite features that multiply every random one; more are projected


@dataclass(frozen=True)
class Draw:
    """Frozen randomness for `pairs` frequencies: the same numbers whenever they are asked for.

    Args: pairs, the frequencies; seed; path, which part of a kernel it belongs to: parts are independent.
    """

    pairs: int
    seed: int
    path: tuple[int, ...] = ()
    _kept: dict[tuple[str, int], Tensor] = field(default_factory=dict, compare=False, repr=False)
    _parts: dict[int, "Draw"] = field(default_factory=dict, compare=False, repr=False)

    def part(self, index: int) -> "Draw":
        """The randomness of the part with that number."""
        if index not in self._parts:
            self._parts[index] = Draw(self.pairs, self.seed, (*self.path, index))
        return self._parts[index]

    def uniform(self, columns: int) -> Float64[Tensor, "{columns} {self.pairs}"]:
        """Points inside the unit cube, each a column, uniform on its own and together even, in random order."""
        return self._drawn("uniform", columns)

    def signs(self, columns: int) -> Float64[Tensor, "{columns} {self.pairs}"]:
        """+1 or -1, independent."""
        return self._drawn("signs", columns)

    def _drawn(self, kind: str, columns: int) -> Tensor:
        if (kind, columns) not in self._kept:
            entropy = [self.seed, kind == "signs", *(1 + index for index in self.path)]  # final zeros would not count
            seed = int(numpy.random.SeedSequence(entropy).generate_state(1, numpy.uint64)[0] >> 1)
            self._kept[kind, columns] = _DRAWN[kind](columns, self.pairs, seed)
        return self._kept[kind, columns]


def _uniform(columns: int, pairs: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if columns > SOBOL_COLUMNS:
        points = torch.rand(columns, pairs, generator=generator, dtype=torch.float64)
        return points.clamp_min(SOBOL_STEP / 2)
    engine = SobolEngine(columns, scramble=True, seed=seed)
    first = (engine.quasi.to(torch.float32) * SOBOL_STEP).double()
    points = engine.draw(pairs, dtype=torch.float64)
    points[0] = first  # torch rounds it to the default dtype, float32 for most; float16 overflows
    points += SOBOL_STEP / 2
    # The order is random: two parts must not meet frequency by frequency in the order that both have in common.
    return points[torch.randperm(pairs, generator=generator)].mT.contiguous()


def _signs(columns: int, pairs: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2.0 * torch.randint(2, (columns, pairs), generator=generator).double() - 1.0


_DRAWN = {"uniform": _uniform, "signs": _signs}


@dataclass(frozen=True)
class Term:
    """A covariance as finite features times random ones, eq. (M-92); what is None is 1.

    Fields: exact, (*batch, n, r); weights, (*batch, n or 1, pairs or 1); phases, (*batch, n, pairs).
    """

    exact: Float64[Tensor, "*exact_batch n r"] | None = None
    weights: Float64[Tensor, "*weights_batch n_or_1 pairs_or_1"] | None = None
    phases: Float64[Tensor, "*phases_batch n pairs"] | None = None

    @property
    def random(self) -> bool:
        """True if it equals the covariance in expectation only."""
        return self.weights is not None or self.phases is not None

    def scaled(self, root: Float64[Tensor, "*batch 1 1"]) -> "Term":
        """All features times root."""
        if self.exact is not None:
            return replace(self, exact=root * self.exact)
        return replace(self, weights=root if self.weights is None else root * self.weights)

    def projected(self, draw: Draw, most: int) -> "Term":
        """Finite features beyond `most` as their products with random signs: unbiased, and no more than the pairs."""
        if self.exact is None or self.exact.shape[-1] <= most:
            return self
        mixed = self.exact @ draw.signs(self.exact.shape[-1]).to(self.exact.device)
        return Term(None, _times(self.weights, mixed), self.phases)

    def values(self) -> Float64[Tensor, "*batch n_or_1 columns"]:
        """The features; one row where it is that of every point."""
        random = self.weights
        if self.phases is not None:
            waves = torch.cat([self.phases.cos(), self.phases.sin()], dim=-1)
            if random is not None:
                random = random.expand(*random.shape[:-1], self.phases.shape[-1])
                random = torch.cat([random, random], dim=-1)
            random = _times(random, waves)
        if random is None:
            assert self.exact is not None
            return self.exact
        pairs = random.shape[-1] // (1 if self.phases is None else 2)
        random = random / math.sqrt(pairs)
        if self.exact is None:
            return random
        return (self.exact.unsqueeze(-1) * random.unsqueeze(-2)).flatten(-2)


def _times(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    return a * b


def multiplied(first: Sequence[Term], second: Sequence[Term], draw: Draw) -> list[Term]:
    """The product of two covariances term by term, eq. (M-92): phases add, finite features multiply."""
    terms = []
    for i, a in enumerate(first):
        for j, b in enumerate(second):
            exact = a.exact if b.exact is None else b.exact
            if a.exact is not None and b.exact is not None:
                exact = (a.exact.unsqueeze(-1) * b.exact.unsqueeze(-2)).flatten(-2)
            phases = a.phases if b.phases is None else b.phases
            if a.phases is not None and b.phases is not None:
                phases = a.phases + b.phases
            term = Term(exact, _times(a.weights, b.weights), phases)
            terms.append(term.projected(draw.part(i).part(j), MAX_TENSOR) if term.random else term)
    return terms


def fourier(features: Float64[Tensor, "*batch n d"], draw: Draw, mixing: Any = None) -> Term:
    """Phases omega . u of row features u, (*batch, n, d'), with omega = sqrt(s) z, z normal, eqs. (M-90), (M-91).

    Args: mixing: from a uniform draw (pairs,) to s, (*batch, pairs), and to weights of the features, (*batch, pairs) or
        None; None for s = 1, the squared exponential.
    """
    columns = features.shape[-1]
    uniform = draw.uniform(columns + (mixing is not None)).to(features.device)
    normal = torch.special.ndtri(uniform[-columns:] if columns else uniform[:0])
    if mixing is None:
        return Term(phases=features @ normal)
    s, weights = mixing(uniform[0])
    phases = (features @ normal) * s.sqrt().unsqueeze(-2)
    return Term(weights=None if weights is None else weights.unsqueeze(-2), phases=phases)


class _GammaQuantile(torch.autograd.Function):
    """g with P(shape, g) = u, P the regularised incomplete gamma function; implicit derivative by the shape."""

    @staticmethod
    def forward(ctx: Any, shape: Tensor, u: Tensor) -> Tensor:
        from scipy.special import gammaincinv

        value = torch.from_numpy(numpy.asarray(gammaincinv(shape.cpu().numpy(), u.cpu().numpy()))).to(u.device)
        ctx.save_for_backward(shape, value)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        from scipy.special import gammainc, gammaln

        shape, value = (t.detach().cpu().numpy() for t in ctx.saved_tensors)
        step = numpy.cbrt(numpy.finfo(numpy.float64).eps) * shape  # balances rounding and truncation
        slope = (gammainc(shape + step, value) - gammainc(shape - step, value)) / (2.0 * step)
        positive = numpy.maximum(value, numpy.finfo(numpy.float64).tiny)
        density = numpy.exp((shape - 1.0) * numpy.log(positive) - positive - gammaln(shape))
        moved = numpy.divide(-slope, density, out=numpy.zeros_like(value), where=density > 0.0)
        product = gradient * _GammaSlope.apply(ctx.saved_tensors[0], torch.from_numpy(moved).to(gradient.device))
        return product.sum_to_size(ctx.saved_tensors[0].shape), None


class _GammaSlope(torch.autograd.Function):
    """The slope of the quantile, which is known at one shape: it has no derivative, and none in silence."""

    @staticmethod
    def forward(ctx: Any, shape: Tensor, slope: Tensor) -> Tensor:
        return slope.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        raise DerivativeError(
            "random features of RationalQuadratic have first derivatives by `scale_mixture`, and no second ones; take "
            "differences of the first, or keep it fixed",
            order=2,
        )


def gamma_quantile(
    shape: Float64[Tensor, "*batch pairs_or_1"], u: Float64[Tensor, "pairs"]
) -> Float64[Tensor, "*batch pairs"]:
    """The quantile of a gamma variable of unit scale, of one shape or one for each of the pairs."""
    return _GammaQuantile.apply(shape, u)


class HasTerms(Protocol):
    """Requirements of random features on a covariance function."""

    def feature_terms(self, x: Tensor, draw: Draw) -> list[Term]:
        """The covariance at points as a sum of terms with that randomness, eq. (M-92)."""
        ...


@dataclass(frozen=True)
class RandomFeatures:
    """Features psi of a kernel with E[psi(x) . psi(x')] = k(x, x'), eq. (M-90); called on x, they are a matrix.

    Made by `kernel.features(count, generator)`. Sums have the features of every term, products those of the expanded
    product, a finite factor of rank r up to 16 multiplies their number by r.

    Fields: kernel, whose parameters are read at every call; count, the features of each term; draw, the randomness.
    """

    kernel: "HasTerms"
    count: int
    draw: Draw

    def __call__(self, x: Shaped[Tensor, "*points n d"]) -> Float64[Tensor, "*batch n columns"]:
        """psi at points x, differentiable in x and in the parameters, whose batch the result has too."""
        values = [term.values() for term in self._terms(x)]
        batch = broadcast_batch(*(v.shape[:-2] for v in values))
        return torch.cat([v.expand(*batch, *v.shape[-2:]) for v in values], dim=-1)

    def exact(self, x: Shaped[Tensor, "*points n d"]) -> bool:
        """True if psi(x) . psi(x') is k(x, x') itself for points of so many columns: every term has a finite rank."""
        return not any(term.random for term in self._terms(x[..., :0, :]))

    def _terms(self, x: Tensor) -> list[Term]:
        terms = self.kernel.feature_terms(check_points(x, "x"), self.draw)
        # Finite features are exact as long as they are no more than the random ones would be.
        ends = (self.draw.part(OWN_PARTS + i) for i in range(len(terms)))
        return [t if t.random else t.projected(end, self.count) for t, end in zip(terms, ends, strict=True)]
