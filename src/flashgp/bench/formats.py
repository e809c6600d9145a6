"""Cells of tables: three digits of seconds and ratios, two of errors, a dash for None; a table as text."""

from collections.abc import Sequence

__all__ = ["format_error", "format_ratio", "format_seconds", "text_table"]

_SECOND_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def format_seconds(seconds: float | None) -> str:
    """Three digits and a unit: `1.23 ms`; a dash for None."""
    if seconds is None:
        return "-"
    for size, unit in _SECOND_UNITS:
        if abs(seconds) >= size:
            return f"{_three_digits(seconds / size)} {unit}"
    return "0 s" if seconds == 0 else f"{seconds:.1e} s"


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
