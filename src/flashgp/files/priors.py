"""Prior distributions in a file: a name of this list and the tensors of its arguments."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributions
from torch.distributions import Distribution

from flashgp.files.validation import broadcasts
from flashgp.foundations.errors import DomainError
from flashgp.foundations.json_values import refused

PRIORS: dict[str, tuple[type[Distribution], tuple[str, ...]]] = {
    "Beta": (distributions.Beta, ("concentration1", "concentration0")),
    "Cauchy": (distributions.Cauchy, ("loc", "scale")),
    "Exponential": (distributions.Exponential, ("rate",)),
    "Gamma": (distributions.Gamma, ("concentration", "rate")),
    "HalfCauchy": (distributions.HalfCauchy, ("scale",)),
    "HalfNormal": (distributions.HalfNormal, ("scale",)),
    "InverseGamma": (distributions.InverseGamma, ("concentration", "rate")),
    "Laplace": (distributions.Laplace, ("loc", "scale")),
    "LogNormal": (distributions.LogNormal, ("loc", "scale")),
    "Normal": (distributions.Normal, ("loc", "scale")),
    "StudentT": (distributions.StudentT, ("df", "loc", "scale")),
    "Uniform": (distributions.Uniform, ("low", "high")),
}


def prior_tensors(prior: Distribution, shape: torch.Size, where: str) -> tuple[str, dict[str, Tensor]]:
    """The name and the arguments of a prior of a value of that shape.

    Raises: DomainError for one that is not in PRIORS, or of a shape that does not broadcast to the value's.
    """
    name = type(prior).__name__
    if PRIORS.get(name, (None,))[0] is not type(prior):
        raise DomainError(
            f"the prior of `{where}` must be one of {', '.join(PRIORS)} of torch.distributions to be saved, got "
            f"{name}; choose one of these"
        )
    if not broadcasts(prior.batch_shape, shape):
        raise DomainError(
            f"the prior of `{where}` must have a shape that broadcasts to {tuple(shape)} to be saved, got "
            f"{tuple(prior.batch_shape)}; give it the shape of the value"
        )
    return name, {argument: getattr(prior, argument).detach() for argument in PRIORS[name][1]}


def prior_from_tensors(name: Any, read: Callable[[str], Tensor], shape: torch.Size, where: str) -> Distribution:
    """The prior of a value of that shape. Raises: ModelFileError for another name or arguments outside their domain."""
    if not isinstance(name, str) or name not in PRIORS:
        raise refused(f"{where}.prior", f"null or one of {', '.join(PRIORS)}", name)
    kind: Any
    kind, arguments = PRIORS[name]
    values = [read(argument) for argument in arguments]
    if not all(v.dtype in (torch.float32, torch.float64) and v.shape == values[0].shape for v in values):
        raise refused(f"{where}.prior", "float32 or float64 arguments of one shape", name)
    if not broadcasts(values[0].shape, shape):
        raise refused(f"{where}.prior", f"arguments that broadcast to {tuple(shape)}", str(tuple(values[0].shape)))
    try:
        prior: Distribution = kind(*values, validate_args=True)
    except (ValueError, RuntimeError) as error:
        raise refused(f"{where}.prior", f"a {name} distribution ({str(error)[:120]})", "arguments outside it") from None
    return prior
