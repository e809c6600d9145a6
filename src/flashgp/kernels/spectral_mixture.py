"""The spectral mixture covariance function, eq. (M-52): any stationary one, as Gaussians over frequencies."""

import functools
import math
import operator
from collections.abc import Sequence

import torch
from torch import Tensor

from flashgp.foundations.checks import check_points, check_seed, check_targets
from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.foundations.expression import Expression, exp, number, parameter, product, squared_distance
from flashgp.foundations.parameters import Domain, Parameter, number_tensor
from flashgp.kernels.base import Leaf, Numeric
from flashgp.kernels.random_features import Draw, Term
from flashgp.kernels.spectrum import mixture_of, spectrum_of

MAX_COMPONENTS = 128  # torch tiles hold the two statistics of every component at once


class SpectralMixture(Leaf):
    """sum_q w_q exp(-2 pi^2 sum_k (scale_qk (x_k - x'_k))^2) cos(2 pi mean_q . (x - x')), eq. (M-52).

    The spectral density is a mixture of Q Gaussians at `means` with standard deviations `scales`: component q repeats
    with frequency mean_q and forgets over 1 / (2 pi scale_q). The cosine is an inner product of (cos, sin)(2 pi mean_q
    . x), so that a component is one distance and one product.

    Args:
        weights: positive, (Q,) or (*batch, Q); variance of each component, units of y squared.
        means: frequencies, (Q, d) or (*batch, Q, d), (Q,) for one column; cycles per unit of x.
        scales: positive, of the shape of means; cycles per unit of x.
        active_dims: the columns of x it acts on; None for all.

    Raises:
        ShapeError: for means or scales of another shape.
        DomainError: for more than 128 components.
    Cost: 2 Q statistics per pair.
    Source: Wilson & Adams (2013), Gaussian process kernels for pattern discovery and extrapolation, eq. 12.

    Example:
        >>> k = fgp.kernels.SpectralMixture(weights=[1.0, 0.5], means=[0.1, 0.5], scales=[0.02, 0.02])
        >>> k(torch.linspace(0, 10, 5)[:, None]).to_dense().shape
        torch.Size([5, 5])
    """

    roles = {"weights": "mixture_variance", "means": "frequency", "scales": "frequency"}
    per_column = frozenset()

    def __init__(
        self,
        weights: Numeric | Sequence[float],
        means: Numeric | Sequence[float],
        scales: Numeric | Sequence[float],
        active_dims: Sequence[int] | int | None = None,
    ) -> None:
        super().__init__(active_dims)
        self.weights = self._parameter(weights, "weights", Domain(lower=0.0), event_dim=1)  # type: ignore[arg-type]
        self.means = self._parameter(_as_rows(means, "means"), "means", Domain(), event_dim=2)
        self.scales = self._parameter(_as_rows(scales, "scales"), "scales", Domain(lower=0.0), event_dim=2)
        shape = tuple(self.weights.raw.shape[-1:])
        for name in ("means", "scales"):
            own = tuple(getattr(self, name).raw.shape)
            if len(shape) != 1 or len(own) < 2 or own[-2] != shape[0] or own[-1] != self.means.raw.shape[-1]:
                raise ShapeError(
                    f"`{name}` must have shape (Q, d) with Q = {shape[0] if shape else 'the number of'} weights and as "
                    f"many columns as means, got {own}; give one row per component"
                )
        if shape[0] > MAX_COMPONENTS:
            raise DomainError(
                f"`weights` must be at most {MAX_COMPONENTS} components, got {shape[0]}; add two SpectralMixtures"
            )

    @classmethod
    def from_data(
        cls,
        x: Tensor,
        y: Tensor,
        components: int = 4,
        active_dims: Sequence[int] | int | None = None,
        seed: int = 0,
    ) -> "SpectralMixture":
        """Initial values from the spectrum of the data, eq. (M-53): a mixture of Gaussians fitted to it.

        Args:
            x: points, shape (n, d); at most 4096 rows are used, evenly spread.
            y: targets, shape (n,).
            components: Q.
            active_dims: the columns of x it acts on; None for all.
            seed: of the frequencies that are tried in more than one dimension.

        Returns:
            A kernel whose weights sum to the variance of y.

        Raises:
            ShapeError: for data whose shapes do not fit together.
            DomainError: for components not in 1 to 128.
        Cost: O(n F Q) with F = 2048 frequencies.
        """
        if not isinstance(components, int) or isinstance(components, bool) or not 1 <= components <= MAX_COMPONENTS:
            raise DomainError(f"`components` must be 1 to {MAX_COMPONENTS}, got {components!r}; for example 4")
        seed = check_seed(seed)
        x = check_points(x, "x")
        if x.dim() != 2 or x.shape[0] < 2:
            raise ShapeError(f"`x` must have shape (n, d) with at least 2 rows, got {tuple(x.shape)}; pass one table")
        y = check_targets(y, "y", x, None)
        if y.dim() != 1:
            raise ShapeError(f"`y` must have shape ({x.shape[0]},), got {tuple(y.shape)}; pass one target")
        probe = cls([1.0], torch.ones(1, 1), torch.ones(1, 1), active_dims)
        columns, targets = Leaf.select(probe, x).detach().double(), y.detach().double()
        frequencies, power, resolution = spectrum_of(columns.cpu(), targets.cpu(), seed)
        shares, means, scales = mixture_of(frequencies, power, components, resolution)
        variance = float(targets.var(correction=0)) or 1.0
        return cls(shares * variance, means, scales, active_dims)

    @property
    def components(self) -> int:
        return int(self.weights.raw.shape[-1])

    @property
    def profile(self) -> Expression:
        terms = [parameter(q) * exp(-squared_distance(2 * q) / 2) * product(2 * q + 1) for q in range(self.components)]
        return functools.reduce(operator.add, terms, number(0))

    @property
    def statistics(self) -> tuple[str, ...]:
        return ("distance", "product") * self.components

    def feature_terms(self, x: Tensor, draw: Draw) -> list[Term]:
        """Each frequency belongs to one component, of which each has as many as another, eq. (M-91)."""
        x = self.select(x).to(torch.float64)
        means, scales = self._means_and_scales(x)
        uniform = draw.uniform(x.shape[-1] + 1).to(x.device)
        component = (uniform[0] * self.components).long()
        owned = component.bincount(minlength=self.components)
        each = draw.pairs / owned if bool(owned.all()) else torch.full_like(uniform[0, :1], self.components)
        weight = self.weights.value.to(x.device) * each
        normal = torch.special.ndtri(uniform[1:])
        frequencies = means[..., component, :].mT + scales[..., component, :].mT * normal
        return [Term(None, weight[..., component].sqrt().unsqueeze(-2), 2.0 * math.pi * (x @ frequencies))]

    def _means_and_scales(self, x: Tensor) -> tuple[Tensor, Tensor]:
        means, scales = self.means.value.to(x.device), self.scales.value.to(x.device)
        if means.shape[-1] != x.shape[-1]:
            raise ShapeError(
                f"`means` of SpectralMixture must have {x.shape[-1]} columns, one per active column of x, got "
                f"{means.shape[-1]}; pass shape ({self.components}, {x.shape[-1]})"
            )
        return means, scales

    def _features(self, x: Tensor) -> tuple[Tensor, ...]:
        means, scales = self._means_and_scales(x)
        features: list[Tensor] = []
        for q in range(self.components):
            angle = 2.0 * math.pi * (x @ means[..., q, :].unsqueeze(-1))
            features.append(x * (2.0 * math.pi * scales[..., q, :].unsqueeze(-2)))
            features.append(torch.cat([angle.cos(), angle.sin()], dim=-1))
        return tuple(features)

    def _profile_parameters(self) -> tuple[Parameter, ...]:
        return (self.weights,)

    @property
    def parameter_count(self) -> int:
        return self.components

    def theta(self) -> tuple[Tensor, ...]:
        return self.weights.value.unbind(-1)


def _as_rows(value: Numeric | Sequence[float], name: str) -> Numeric:
    """(Q,) of one column as (Q, 1)."""
    if isinstance(value, Parameter):
        return value
    tensor = number_tensor(value, name)
    return tensor.unsqueeze(-1) if tensor.dim() == 1 else tensor
