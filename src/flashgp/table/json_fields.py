"""Strict reading of JSON values that came from an untrusted model file: each helper names the field it refuses."""

from collections.abc import Sequence
from typing import Any

from ..foundations.errors import ModelFileError

__all__ = ["json_count", "json_fields", "json_list", "json_text", "refused"]

_SHOWN_CHARACTERS = 60


def refused(where: str, expected: str, got: object) -> ModelFileError:
    """The error for one field."""
    shown = f"{type(got).__name__} of {len(got)} items" if isinstance(got, (list, tuple, dict)) else repr(got)
    return ModelFileError(
        f"`{where}` of the model file must be {expected}, got {shown[:_SHOWN_CHARACTERS]}; "
        "the file is damaged or foreign, save the model again."
    )


def json_fields(value: object, where: str, keys: Sequence[str]) -> dict[str, Any]:
    """An object with exactly these keys."""
    if not isinstance(value, dict):
        raise refused(where, "an object", value)
    for key in keys:
        if key not in value:
            raise refused(f"{where}.{key}", "present", None)
    for key in value:
        if key not in keys:
            raise refused(where, f"an object with the keys {', '.join(keys)}", key)
    return value


def json_list(value: object, where: str) -> list[Any]:
    """An array."""
    if not isinstance(value, list):
        raise refused(where, "an array", value)
    return value


def json_text(value: object, where: str) -> str:
    """Text that UTF-8 can hold."""
    if not isinstance(value, str):
        raise refused(where, "text", value)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise refused(where, "valid Unicode", value) from None
    return value


def json_count(value: object, where: str, largest: int) -> int:
    """An integer from 0 to the largest; true and 1.0 are no integers."""
    if type(value) is not int or not 0 <= value <= largest:
        raise refused(where, f"an integer from 0 to {largest}", value if type(value) is not int else "another one")
    return value
