"""Names of objects within one process, for operations inside torch.compile, which take texts and no objects."""

import itertools
import weakref
from typing import Any

from flashgp.foundations.errors import DomainError

_OBJECTS: "weakref.WeakValueDictionary[str, Any]" = weakref.WeakValueDictionary()
_COUNT = itertools.count()


def token_of(thing: Any) -> str:
    """A new name of an object, valid as long as the object lives."""
    token = f"{type(thing).__name__} {next(_COUNT)}"
    _OBJECTS[token] = thing
    return token


def object_of(token: str) -> Any:
    """The object of a name. Raises: DomainError when it is gone."""
    thing = _OBJECTS.get(token)
    if thing is None:
        raise DomainError(f"`token` names {token}, which no longer exists; keep the kernel as long as what uses it")
    return thing
