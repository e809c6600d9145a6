"""A likelihood of the user's own, written as log p(y | f) in plain torch, eqs. (M-276) and (M-279)."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from flashgp.foundations.errors import DomainError
from flashgp.foundations.parameters import Domain, Parameter, as_parameter, dimensions_of
from flashgp.likelihoods.non_gaussian import NonGaussian
from flashgp.likelihoods.quadrature import expectation

Function = Callable[..., Tensor]


class Custom(NonGaussian):
    """log p(y | f) by a function of the user's, entry by entry; its derivatives and expectations are found for it.

    Densities of predictions need nothing else. What else is asked of a prediction takes what the function does not say,
    each a function of f and the parameters by name: moments `mean` and `variance` given f, quantiles `cdf(y, f)`,
    samples `draw(f, generator)`.

    Args:
        function: function(y, f, **parameters), smooth in f, plain torch, tensors of one shape.
        mean: of an observation given f.
        variance: of an observation given f.
        cdf: P(observation <= y) given f.
        draw: an observation given each f, with torch's generator.
        log_concave: whether log p is concave in f for every y.
        discrete: whether observations are whole numbers from 0.
        row_weight: (n,) of the training rows, 0 or more: log p of a row counts that often. None for 1.
        parameters: numbers, tensors or Parameters by name, trained by `fit`; pass
            Parameter(1.0, torch.distributions.constraints.positive) for what must stay positive.

    Raises:
        DomainError: for a function that does not take y, f and these parameters, or does not answer entry by entry.
    Cost: two to ten times the quadrature of a likelihood that knows where it is smooth.

    Example:
        >>> def laplace_like(y, f, scale):
        ...     return -torch.sqrt(1.0 + ((y - f) / scale) ** 2) - torch.log(scale) - 0.1854
        >>> likelihood = fgp.likelihoods.Custom(laplace_like, scale=0.5, mean=lambda f, scale: f)
        >>> y = likelihood.predictive(torch.zeros(1), torch.ones(1))
        >>> y.log_prob(torch.zeros(1)).detach().round(decimals=2)
        tensor([-1.1500], dtype=torch.float64)
    """

    wanted, advice = "a number with a density", "correct that row, or leave it out"

    def __init__(
        self,
        function: Function,
        mean: Function | None = None,
        variance: Function | None = None,
        cdf: Function | None = None,
        draw: Function | None = None,
        log_concave: bool = True,
        discrete: bool = False,
        row_weight: Any = None,
        **parameters: float | Tensor | Parameter,
    ) -> None:
        super().__init__(row_weight)
        self.names = tuple(parameters)
        given = {"function": function, "mean": mean, "variance": variance, "cdf": cdf, "draw": draw}
        self.given = SimpleNamespace(**{name: value for name, value in given.items() if value is not None})
        self.log_concave, self.discrete = bool(log_concave), bool(discrete)
        for name, value in parameters.items():
            if hasattr(type(self), name) or name in vars(self) or name.startswith("_"):
                raise DomainError(f"`function` must not name a parameter {name!r}, a name likelihoods use; rename it")
            setattr(self, name, as_parameter(value, Domain(), name, event_dim=dimensions_of(value, name)))
        tried = torch.linspace(0.1, 0.9, 3, dtype=torch.float64)
        try:
            found = self.log_prob(tried, tried)
        except (TypeError, ValueError, RuntimeError) as error:
            raise DomainError(
                f"`function` must take {', '.join(('y', 'f', *self.names))} and answer entry by entry, got {error}; "
                "write it with torch functions"
            ) from error
        if not isinstance(found, Tensor) or found.shape != tried.shape:
            tensor = isinstance(found, Tensor)
            got, way = (
                (tuple(found.shape), "leave out the sum") if tensor else (type(found).__name__, "write it in torch")
            )
            raise DomainError(
                f"`function` must answer entry by entry, shape {tuple(tried.shape)} here, got {got}; {way}"
            )

    def _values(self) -> dict[str, Tensor]:
        return {name: getattr(self, name).value for name in self.names}

    def _call(self, name: str, *arguments: Any) -> Tensor:
        """One of the functions. Raises: DomainError where there is none."""
        if not hasattr(self.given, name):
            raise DomainError(f"`{name}` of Custom must be given for this, got None; pass {name}=, a function given f")
        found: Tensor = getattr(self.given, name)(*arguments, **self._values())
        return found

    def allowed(self, y: Tensor, **numbers: Tensor) -> Bool[Tensor, "..."]:
        with torch.no_grad():
            return self.log_prob(y, torch.zeros_like(y)).isfinite()

    def log_prob(self, y: Float[Tensor, "..."], f: Float[Tensor, "..."], **numbers: Tensor) -> Float[Tensor, "..."]:
        y, f = torch.broadcast_tensors(y, f)
        return self._call("function", y, f)

    def observation_mean(self, mean: Tensor, variance: Tensor, **numbers: Tensor) -> Tensor:
        return expectation(lambda f: self._call("mean", f), mean, variance, None)

    def observation_variance(self, mean: Tensor, variance: Tensor, **numbers: Tensor) -> Tensor:
        centre = self.observation_mean(mean, variance)

        def around(f: Tensor, centre: Tensor) -> Tensor:
            return self._call("variance", f) + (self._call("mean", f) - centre).square()

        return expectation(around, mean, variance, None, centre)

    def cdf(self, y: Tensor, f: Tensor, **numbers: Tensor) -> Tensor:
        return self._call("cdf", *torch.broadcast_tensors(y, f))

    def draw(self, f: Tensor, generator: torch.Generator, **numbers: Tensor) -> Tensor:
        return self._call("draw", f, generator)

    def structure(self) -> dict[str, Any]:
        return super().structure() | {"log_concave": self.log_concave, "discrete": self.discrete}
