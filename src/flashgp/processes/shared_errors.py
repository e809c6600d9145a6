"""An exception as bytes for other ranks, and back: the same type, text and fields on every rank.

Only errors of this package, of Python and torch's own out-of-memory error are made again; others arrive as a
ProcessGroupError that names them. No code is loaded: a type is looked up by name among these.
"""

import builtins
import inspect
import json
from typing import Any

import torch

from flashgp.foundations import errors
from flashgp.foundations.errors import ProcessGroupError

MAX_TEXT = 100_000  # characters of a message


def packed(error: BaseException, rank: int) -> bytes:
    """An error as other ranks need it to raise it too."""
    message = _message(error)
    if type(_rebuilt(message)) is not type(error) or str(_rebuilt(message)) != str(error):
        kind = f"{type(error).__module__}.{type(error).__qualname__}"
        text = f"rank {rank} raised {kind}: {str(error)[:MAX_TEXT]}"
        message = _message(ProcessGroupError(text, ranks=(rank,)))
    return json.dumps(message).encode(errors="surrogatepass")


def unpacked(data: bytes) -> BaseException:
    """The error of `packed`."""
    return _rebuilt(json.loads(data.decode(errors="surrogatepass")))


def _message(error: BaseException) -> dict[str, Any]:
    fields = {name: value for name, value in vars(error).items() if name != "__notes__"}
    return {
        "type": type(error).__name__,
        "arguments": _plain(error.args, [str(error)[:MAX_TEXT]]),
        "fields": {
            name: _plain(value, [] if isinstance(value, list | tuple) else None) for name, value in fields.items()
        },
    }


def _plain(value: Any, otherwise: Any) -> Any:
    """A value as JSON can hold it, lists for tuples."""
    try:
        return json.loads(json.dumps(value, allow_nan=True))
    except (TypeError, ValueError):
        return otherwise


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


def _rebuilt(message: dict[str, Any]) -> BaseException:
    kind = _type_of(message["type"])
    arguments, fields = message["arguments"], message["fields"]
    try:
        own = inspect.isfunction(kind.__init__)  # which wants its fields; others take what Exception takes
        wanted = inspect.signature(kind.__init__).parameters if own else {}
        named = {
            name: _as_tuples(fields[name])
            for name, one in wanted.items()
            if one.kind is one.KEYWORD_ONLY and (fields.get(name) is not None or one.default is one.empty)
        }
        error = kind(*arguments, **named)
        for name in fields.keys() - named.keys():
            setattr(error, name, _as_tuples(fields[name]))
    except (TypeError, ValueError, AttributeError):
        return ProcessGroupError(f"a rank raised {message['type']}: {arguments}")
    return error


def _type_of(name: str) -> type[BaseException]:
    for module in (errors, builtins, torch):
        kind = getattr(module, name, None)
        if isinstance(kind, type) and issubclass(kind, BaseException):
            return kind
    return ProcessGroupError
