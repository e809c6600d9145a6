"""The values of a kernel by name, as scikit-learn's searches set them: kernel__kernel__lengthscale.

Names are those of constructors; parts of sums and products are kernels__0, kernels__1. Values are set where they are,
the structure is not: another smoothness or another part is another kernel.
"""

import copy
from abc import abstractmethod
from typing import Any, Self

from torch import Tensor, nn

from flashgp.foundations.errors import DomainError
from flashgp.foundations.parameters import Parameter, number_tensor

__all__ = ["NamedValues"]


class NamedValues(nn.Module):
    """What a kernel is made of by name: its Parameters, parts and options."""

    @abstractmethod
    def arguments(self) -> dict[str, Any]:
        """What its constructor was given, by name: Parameters, kernels (a tuple of those of a sum), options."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Values by name: numbers, tensors for several; with `deep` those of parts too, as part__name."""
        found: dict[str, Any] = {}
        for name, value in self.arguments().items():
            parts = dict(enumerate(value)) if isinstance(value, tuple) and name == "kernels" else {}
            for place, part in [(f"{name}__{i}", one) for i, one in parts.items()] or [(name, value)]:
                found[place] = _plain(part)
                if deep and isinstance(part, NamedValues):
                    found |= {f"{place}__{inner}": one for inner, one in part.get_params().items()}
        return found

    def set_params(self, **values: Any) -> Self:
        """Give some values anew, in place; priors, constraints and what is shared stay as they are.

        Args: numbers, tensors or Parameters by the names of `get_params`.
        Returns: itself.
        Raises: DomainError for a name that it does not have, or what would be another covariance function.
        """
        known = self.get_params()
        for name in values:
            if name not in known:
                raise DomainError(
                    f"`{name}` is no value of {type(self).__name__}, which has {', '.join(known)}; choose one of these"
                )
        for name, value in values.items():
            *path, last = name.split("__")
            part: Any = self
            for step in path:
                part = part[int(step)] if isinstance(part, tuple) else part.arguments()[step]
            if isinstance(part, tuple):
                raise _of_structure(name, self, value)
            part._set(last, value)
        return self

    def _set(self, name: str, value: Any) -> None:
        arguments: dict[str, Any] = self.arguments()
        old = arguments[name]
        if isinstance(old, Parameter) and not isinstance(value, Parameter):
            tensor = number_tensor(value, name)
            if tensor.dim() == 0 or tensor.shape == old.raw.shape:
                old.value = tensor
                return
            constraint = old.domain if old.constrained_by_user else None
            value = Parameter(tensor, constraint, old.prior, old.trainable)
        made: Any = None if name == "kernels" else type(self)(**arguments | {name: value})
        if made is None or made.form != self.form:
            raise _of_structure(name, self, value)
        for child, module in made.named_children():
            setattr(self, child, module)
        for attribute, one in vars(made).items():
            if not attribute.startswith("_") and attribute not in ("token", "form", "training"):
                setattr(self, attribute, one)

    def __sklearn_clone__(self) -> Self:
        return copy.deepcopy(self)


def _of_structure(name: str, kernel: NamedValues, value: Any) -> DomainError:
    got = value if isinstance(value, int | float | str) else type(value).__name__
    return DomainError(
        f"`{name}` of {type(kernel).__name__} is part of what the covariance function is, got {got}; make whole "
        'kernels, and search among them: {"kernel": [k1, k2]}'
    )


def _plain(value: Any) -> Any:
    """A Parameter as a number, or a tensor of its own."""
    if not isinstance(value, Parameter):
        return value
    tensor: Tensor = value.value.detach()
    return tensor.item() if tensor.dim() == 0 else tensor.clone()
