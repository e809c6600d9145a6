"""The rational quadratic covariance function, eq. (M-9)."""

from collections.abc import Sequence

from torch import Tensor

from flashgp.foundations.errors import DomainError
from flashgp.foundations.expression import Expression, exp, log1p, parameter, squared_distance
from flashgp.foundations.parameters import Domain, Parameter
from flashgp.kernels.base import Numeric
from flashgp.kernels.random_features import Draw, Term, fourier, gamma_quantile
from flashgp.kernels.squared_exponential import Stationary


class RationalQuadratic(Stationary):
    """(1 + q / (2 a))^(-a), eq. (M-9): a mixture of squared exponentials over lengthscales; a = scale_mixture.

    Args:
        scale_mixture: positive number or (*batch,); large values approach the squared exponential.
        lengthscale: positive; a number, or a tensor (d,) for one per column (ARD), or (*batch, 1 or d); units of x.
        active_dims: the columns of x it acts on; None for all.

    Raises:
        DomainError: for a scale_mixture that is not positive, or a number below 5.6e-309, without a reciprocal.
    Source: Rasmussen & Williams (2006), eq. 4.19. Computed as exp(-a log1p(q / (2 a))), accurate for large a.

    Example:
        >>> x = torch.tensor([[0.0], [1.0]])
        >>> fgp.kernels.RationalQuadratic(scale_mixture=0.5)(x).to_dense().detach()
        tensor([[1.0000, 0.7071],
                [0.7071, 1.0000]])
    """

    roles = {"lengthscale": "input_scale", "scale_mixture": "shape"}

    def __init__(
        self,
        scale_mixture: Numeric = 1.0,
        lengthscale: Numeric = 1.0,
        active_dims: Sequence[int] | int | None = None,
    ) -> None:
        super().__init__(lengthscale, active_dims)
        self.scale_mixture = self._parameter(scale_mixture, "scale_mixture", Domain(lower=0.0))
        mixture = self.scale_mixture.value.detach()
        given = not isinstance(scale_mixture, Parameter)  # a file fills its Parameters later
        if given and not bool(mixture.reciprocal().isfinite().all()):
            raise DomainError(
                f"`scale_mixture` must have a reciprocal that float64 holds, got {float(mixture.min()):g}; give a "
                "larger one, at least 5.6e-309"
            )

    @property
    def profile(self) -> Expression:
        a = parameter(0)
        return exp(-a * log1p(squared_distance() / (2 * a)))

    def feature_terms(self, x: Tensor, draw: Draw) -> list[Term]:
        """Squared frequencies are mixed by a gamma distribution of mean 1, eq. (M-91)."""
        shape = self.scale_mixture.value.to(x.device).unsqueeze(-1)
        return [fourier(self.rows(x).features[0], draw, lambda u: (gamma_quantile(shape, u) / shape, None))]

    def _profile_parameters(self) -> tuple[Parameter, ...]:
        return (self.scale_mixture,)
