"""Numbers as people read them: seconds, bytes, ratios, errors. Used by the printed and the written tables."""

__all__ = ["format_bytes", "format_error", "format_ratio", "format_seconds", "text_table"]

from collections.abc import Sequence

_SECOND_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_BYTE_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def format_seconds(seconds: float | None) -> str:
    """Three digits and a unit: `1.23 ms`; a dash for None."""
    if seconds is None:
        return "-"
    for size, unit in _SECOND_UNITS:
        if abs(seconds) >= size:
            return f"{_three_digits(seconds / size)} {unit}"
    return "0 s" if seconds == 0 else f"{seconds:.1e} s"


def format_bytes(count: float | None) -> str:
    """Three digits and a binary unit: `1.50 GiB`; a dash for None."""
    if count is None:
        return "-"
    for size, unit in _BYTE_UNITS:
        if abs(count) >= size:
            return f"{_three_digits(count / size)} {unit}"
    return f"{count:.0f} B"


def format_ratio(ratio: float | None) -> str:
    """How many times faster: `4.1x`; a dash for None."""
    return "-" if ratio is None else f"{_three_digits(ratio)}x"


def format_error(error: float | None) -> str:
    """Two digits and an exponent: `3.1e-09`; a dash for None."""
    if error is None:
        return "-"
    return "0" if error == 0 else f"{error:.1e}"


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table for a terminal, columns aligned, no trailing blanks."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (header, *rows)]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)


def _three_digits(value: float) -> str:
    magnitude = abs(value)
    return f"{value:.2f}" if magnitude < 10 else f"{value:.1f}" if magnitude < 100 else f"{value:.0f}"
