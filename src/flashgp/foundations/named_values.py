"""Values of a kernel, mean, likelihood or GP by name, as scikit-learn's searches set it: kernel__lengthscale.

Names are those of constructors, whose arguments are attributes of the same names, as scikit-learn has it; parts of sums
and products are kernels__0, kernels__1. Values are set where they are. The structure of a kernel is not: another
smoothness or another part is another kernel.
"""

import copy
import inspect
from typing import Any, Self

from torch import Tensor, nn

from flashgp.foundations.errors import DomainError
from flashgp.foundations.own_module import OwnModule
from flashgp.foundations.parameters import Parameter, number_tensor

_OF_TORCH = vars(nn.Module()).keys() - {"_parameters", "_buffers", "_modules"}  # hooks, and the mode


class NamedValues(OwnModule):
    """A value made of Parameters, parts and options, by name."""

    def arguments(self) -> dict[str, Any]:
        """Arguments of its constructor, and Parameters and parts that it made itself; those of a sum as a tuple."""
        found = {name: getattr(self, name) for name in _arguments(type(self)) if self._keeps(name)}
        found |= {name: part for name, part in self.named_children() if isinstance(part, Parameter | NamedValues)}
        return {name: tuple(value) if isinstance(value, nn.ModuleList) else value for name, value in found.items()}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Values by name: numbers, tensors for several; with `deep` those of parts too, as part__name."""
        found: dict[str, Any] = {}
        for name, value in self.arguments().items():
            for place, one in _places(name, value).items():
                found[place] = _plain(one)
                if deep and isinstance(one, NamedValues):
                    found |= {f"{place}__{inner}": plain for inner, plain in one.get_params().items()}
        return found

    def set_params(self, **values: Any) -> Self:
        """Give some values anew, in place; priors, constraints and what is shared stay as they are.

        Args: numbers, tensors or Parameters by the names of `get_params`.
        Returns: itself.
        Raises: DomainError for a name that it does not have, what would be another covariance function, or, of a class
            that does not keep what its constructor is given, a value that takes another object.
        """
        places = {place: one for name, value in self.arguments().items() for place, one in _places(name, value).items()}
        own: dict[str, Any] = {}
        inner: dict[str, dict[str, Any]] = {}
        for name, value in values.items():
            place = next((p for p in places if name.startswith(f"{p}__")), None)
            if name in places:
                own[name] = value
            elif place is not None:
                inner.setdefault(place, {})[name.removeprefix(f"{place}__")] = value
            else:
                raise DomainError(
                    f"`{name}` is no value of {type(self).__name__}, which has {', '.join(self.get_params()) or 'none'}"
                    f"; {self._to_write() if name in _arguments(type(self)) else 'choose one of these'}"
                )
        if own:
            self._set(own)
        for place, some in inner.items():
            name, _, index = place.partition("__")
            part = self.arguments()[name]  # which may have been set just now
            part = part[int(index)] if index else part
            if not isinstance(part, NamedValues):
                raise DomainError(f"`{place}` must have values by name, got {type(part).__name__}; set it as a whole")
            part.set_params(**some)
        return self

    def _set(self, values: dict[str, Any]) -> None:
        """Some of its own values, none of a part's."""
        arguments, anew = self.arguments(), dict[str, Any]()
        for name, value in values.items():
            if name not in arguments:  # one of the parts of a sum
                raise self._of_structure(name, value)
            old = arguments[name]
            anew[name] = value
            if isinstance(old, Parameter) and value is not None and not isinstance(value, Parameter):
                tensor = number_tensor(value, name)
                if tensor.dim() == 0 or tensor.shape == old.raw.shape:
                    old.value = tensor
                    del anew[name]
                else:
                    constraint = old.domain if old.constrained_by_user else None
                    anew[name] = Parameter(tensor, constraint, old.prior, old.trainable)
                    anew[name].given = old.given
        if anew:
            self._become(arguments | anew, anew)

    def _become(self, arguments: dict[str, Any], anew: dict[str, Any]) -> None:
        """Take the values of an object that the constructor makes of these arguments, some of which are new."""
        kind, changed = type(self).__name__, next(iter(anew))
        way = self._to_write()
        if way:
            raise DomainError(
                f"`{changed}` of {kind} takes another {kind}, made of what this one keeps, got one that does not keep "
                f"all of it; {way}"
            )
        names = arguments if _takes_any(type(self)) else _arguments(type(self))
        try:
            made = type(self)(**{name: value for name, value in arguments.items() if name in names})
        except (TypeError, AttributeError, RuntimeError) as error:
            raise DomainError(
                f"`{changed}` of {kind} takes another {kind}, made of the Parameters of this one, got {error}; let "
                f"{kind}.__init__ take a Parameter where it takes a number"
            ) from error
        if not self._may_become(made):
            raise self._of_structure(changed, anew[changed])
        of_torch = {name: value for name, value in vars(self).items() if name in _OF_TORCH}
        vars(self).clear()
        self.__setstate__(vars(made) | of_torch)

    def _may_become(self, made: Self) -> bool:
        """True if an object made of other values differs in these alone."""
        return True

    def _keeps(self, name: str) -> bool:
        return hasattr(self, name) and not inspect.ismethod(getattr(self, name))

    def _to_write(self) -> str:
        """Change of a constructor, in words, by which it could make another object like this; empty where it can."""
        names, constructor = _arguments(type(self)), f"{type(self).__name__}.__init__"
        lost = [name for name in names if not self._keeps(name)]
        held = (*self.named_children(), *self.named_parameters(recurse=False))
        made = [] if _takes_any(type(self)) else [name for name, _ in held if name not in names]
        if lost and made:
            return f"call {' and '.join(lost)}, which {constructor} takes, as what it keeps, {' and '.join(made)}"
        if made:
            return f"let {constructor} take {' and '.join(made)}"
        return f"write {' and '.join(f'self.{name} = {name}' for name in lost)} in {constructor}" if lost else ""

    def _of_structure(self, name: str, value: Any) -> DomainError:
        got = value if isinstance(value, int | float | str) else type(value).__name__
        return DomainError(
            f"`{name}` of {type(self).__name__} is part of what the covariance function is, got {got}; make whole "
            'kernels, and search among them: {"kernel": [k1, k2]}'
        )

    def __sklearn_clone__(self) -> Self:
        return copy.deepcopy(self)


def _arguments(kind: type) -> tuple[str, ...]:
    """Arguments of a constructor by name; of one with **keywords, which it hands on, those of the next one too."""
    names: dict[str, None] = {}
    for base in kind.__mro__[: kind.__mro__.index(nn.Module)]:
        if "__init__" in vars(base):
            skipped = ("VAR_KEYWORD", "VAR_POSITIONAL") if _takes_any(base) else ()
            names |= {p.name: None for p in _parameters(base) if p.kind.name not in skipped}
            if not skipped:
                break
    return tuple(names)


def _parameters(kind: type) -> list[inspect.Parameter]:
    return list(inspect.signature(kind).parameters.values())


def _takes_any(kind: type) -> bool:
    return any(p.kind is p.VAR_KEYWORD for p in _parameters(kind))


def _places(name: str, value: Any) -> dict[str, Any]:
    """An argument under its name, or the parts of a sum under theirs."""
    if isinstance(value, tuple) and value and all(isinstance(one, NamedValues) for one in value):
        return {f"{name}__{i}": one for i, one in enumerate(value)}
    return {name: value}


def _plain(value: Any) -> Any:
    """A Parameter as a number, or a tensor of its own."""
    if not isinstance(value, Parameter):
        return value
    tensor: Tensor = value.value.detach()
    return tensor.item() if tensor.dim() == 0 else tensor.clone()
