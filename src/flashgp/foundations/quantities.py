"""Counts, bytes and seconds as text: the one home of how a number with a unit is shown."""


def readable_bytes(count: float) -> str:
    """1536 -> '1.5 KiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def counted(count: int, thing: str) -> str:
    """A number of things in words: "1 start", "1,200 starts"."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


def readable_seconds(seconds: float) -> str:
    """0.0123 -> '12.3 ms'."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1.0:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 120.0:
        return f"{seconds:.1f} s"
    if seconds < 7200.0:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} hours" if seconds < 172_800.0 else f"{seconds / 86_400:.1f} days"
