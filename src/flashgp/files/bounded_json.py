"""JSON from a file nobody vouches for: nesting and size are bounded before it is parsed, keys are distinct, numbers
are finite and integers have 64 bits, text is Unicode. And its counterpart, which writes only what reads back equal.
"""

import json
import math
from typing import Any

import numpy

from flashgp.foundations.errors import DomainError
from flashgp.table.json_fields import refused

__all__ = ["MOST_DEPTH", "bounded_json", "json_number", "number_json", "strict_json"]

MOST_DEPTH = 160  # two levels for each of the 64 kernels that may nest, and what is around them
MOST_VALUES = 1_000_000  # about 100 MB once parsed


def bounded_json(data: bytes, where: str) -> Any:
    """Parse JSON text.

    Raises: ModelFileError naming `where` for text that is not UTF-8, not JSON, nested deeper than MOST_DEPTH, of more
        than MOST_VALUES values, with a key twice, NaN, an infinity, an integer beyond 64 bits or a lone surrogate.
    Cost: O(bytes); the limits are checked before anything is built.
    """
    _check_limits(data, where)
    try:
        text = data.decode("utf-8")
        value = json.loads(
            text,
            object_pairs_hook=_distinct,
            parse_constant=_no_constant,
            parse_float=_finite_float,
            parse_int=_int64,
        )
        if "\\u" in text:  # only an escape can bring a lone surrogate
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except ValueError as error:  # of decoding, encoding, JSON syntax, too many digits, or one of ours below
        raise refused(where, f"JSON ({error})"[:200], "something else") from None
    return value


def _check_limits(data: bytes, where: str) -> None:
    # Without escapes a string runs from quote to quote; cumulative parity (it may wrap) tells what is outside.
    codes = numpy.frombuffer(data.replace(b"\\\\", b"").replace(b'\\"', b""), numpy.uint8)
    codes = codes[numpy.cumsum(codes == ord('"'), dtype=numpy.uint8) % 2 == 0]
    opening = (codes == ord("[")) | (codes == ord("{"))
    closing = (codes == ord("]")) | (codes == ord("}"))
    values = int(opening.sum()) + int((codes == ord(",")).sum())
    if values > MOST_VALUES:
        raise refused(where, f"JSON of at most {MOST_VALUES:,} values", values)
    brackets = opening[opening | closing]
    depth = numpy.cumsum(numpy.where(brackets, 1, -1), dtype=numpy.int32).max(initial=0)
    if depth > MOST_DEPTH:
        raise refused(where, f"JSON nested at most {MOST_DEPTH} deep", int(depth))


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, value in pairs:
        if key in fields:
            raise ValueError(f"the key {key[:60]!r} twice")
        fields[key] = value
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
    """JSON text that `bounded_json` reads back as an equal value.

    Raises: DomainError naming `where` for values that JSON does not hold (tuples, keys that are not text, NaN).
    """
    try:
        text = json.dumps(value, allow_nan=False)
        if bounded_json(text.encode(), where) != value:
            raise ValueError("it reads back as something else: tuples, or keys that are not text")
    except (ValueError, TypeError, RecursionError) as error:
        raise DomainError(
            f"`{where}` must hold JSON values (text, finite numbers, booleans, None, lists, dicts with text keys), "
            f"got {type(value).__name__} ({error}); convert it first"
        ) from None
    return text


def number_json(value: float) -> float | str:
    """A float as JSON; what JSON has no number for becomes "inf", "-inf" or "nan"."""
    return value if math.isfinite(value) else str(float(value))


def json_number(value: object, where: str) -> float:
    """What `number_json` wrote, as a float."""
    if value in ("inf", "-inf", "nan") or (isinstance(value, int | float) and not isinstance(value, bool)):
        return float(value)
    raise refused(where, "a number", value)
