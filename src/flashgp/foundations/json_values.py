"""JSON of model files that nobody vouches for: parsed strictly, and read field by field.

Each `json_*` reader names the field that it refuses. `strict_json` writes only what reads back equal.
"""

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin

from flashgp.foundations.errors import DomainError, ModelFileError

_SHOWN_CHARACTERS = 60
_MAX_NUMBER = 1e300
T = TypeVar("T")


def refused(where: str, expected: str, got: object) -> ModelFileError:
    """The error for one field."""
    shown = f"{type(got).__name__} of {len(got)} items" if isinstance(got, (list, tuple, dict)) else repr(got)
    return ModelFileError(
        f"`{where}` of the model file must be {expected}, got {shown[:_SHOWN_CHARACTERS]}; "
        "the file is damaged or foreign, save the model again."
    )


# -- parsing --------------------------------------------------------------------------------------------------------
def parse_json(data: bytes, where: str) -> Any:
    """Parse JSON text whose length the caller has bounded; memory is at most about 25 bytes for each of its bytes.

    Raises: ModelFileError naming `where` for text that is not UTF-8, not JSON, nested too deeply, with a key twice,
        NaN, an infinity, an integer beyond 64 bits or a lone surrogate.
    """
    try:
        value = json.loads(
            data.decode(),
            object_pairs_hook=_distinct,
            parse_constant=_no_constant,
            parse_float=_finite_float,
            parse_int=_int64,
        )
        if b"\\u" in data:  # only an escape can bring a lone surrogate
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise refused(where, "JSON that is not nested deeply", "deeper nesting") from None
    except ValueError as error:  # of decoding, encoding, JSON syntax, too many digits, or one of ours below
        raise refused(where, f"JSON ({error})"[:200], "something else") from None
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        key = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {key[:60]!r} twice")
    return fields


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number of JSON")


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:60]} is too large for a float")
    return value


def _int64(text: str) -> int:
    # Longer ones are no size, count or code of ours, and torch would not take them.
    if len(text) > 20 or not -(2**63) <= int(text) < 2**63:
        raise ValueError(f"{text[:60]} is too large for an integer of 64 bits")
    return int(text)


def strict_json(value: object, where: str) -> str:
    """JSON text that `parse_json` reads back as an equal value.

    Raises: DomainError naming `where` for values that JSON does not hold (tuples, keys that are not text, NaN).
    """
    try:
        text = json.dumps(value, allow_nan=False)
        if parse_json(text.encode(), where) != value:
            raise ValueError("it reads back as something else: tuples, or keys that are not text")
    except (ValueError, TypeError, RecursionError) as error:
        raise DomainError(
            f"`{where}` must hold JSON values (text, finite numbers, booleans, None, lists, dicts with text keys), "
            f"got {type(value).__name__} ({error}); convert it first"
        ) from None
    return text


# -- fields ---------------------------------------------------------------------------------------------------------
def number_json(value: float) -> float | str:
    """A float as JSON; what JSON has no number for becomes "inf", "-inf" or "nan"."""
    return value if math.isfinite(value) else str(float(value))


def json_number(value: object, where: str) -> float:
    """The float that `number_json` wrote."""
    if value in ("inf", "-inf", "nan") or (isinstance(value, int | float) and not isinstance(value, bool)):
        return float(value)
    raise refused(where, "a number", value)


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


def json_flag(value: object, where: str) -> bool:
    """True or false; 1 is neither."""
    if not isinstance(value, bool):
        raise refused(where, "true or false", value)
    return value


# -- dataclasses ----------------------------------------------------------------------------------------------------
def json_dataclass(kind: type[T], value: object, where: str, *, positive: bool = False) -> T:
    """A dataclass of plain values, tuples, and other such dataclasses, from what `dataclasses.asdict` made of it.

    Args:
        positive: whether 0 is no number either; numbers are finite and never negative.

    Raises:
        ValueError: naming the field that has not its type.
    """
    kinds = {one.name: one.type for one in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if not isinstance(value, dict) or value.keys() != kinds.keys():
        raise ValueError(f"`{where}` must have the fields {', '.join(kinds)}")
    return kind(**{name: _of_kind(kinds[name], value[name], f"{where}.{name}", positive) for name in kinds})


def _of_kind(kind: Any, value: Any, where: str, positive: bool) -> Any:
    if isinstance(kind, UnionType):
        if value is None:
            return None
        kind = get_args(kind)[0]
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return kind(value)
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise ValueError(f"`{where}` must be a list")
        return tuple(_of_kind(get_args(kind)[0], one, where, positive) for one in value)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return json_dataclass(kind, value, where, positive=positive)
    number = type(value) in (int, float) and (value > 0 or (value == 0 and not positive)) and value < _MAX_NUMBER
    if not (number and type(value) in (kind, int) if kind in (int, float) else type(value) is kind):
        raise ValueError(f"`{where}` must be a{' positive' * positive} {kind.__name__}, got {str(value)[:40]!r}")
    return float(value) if kind is float else value
