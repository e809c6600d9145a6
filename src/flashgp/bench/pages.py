"""The section of a page that says on what something was measured."""

from collections.abc import Mapping, Sequence
from typing import Any

from flashgp.page import Facts, Section

__all__ = ["environment_section"]


def environment_section(environment: Mapping[str, Any], more: Sequence[tuple[str, str]] = ()) -> Section:
    """Hardware, versions, commit and date, and further pairs of name and text."""
    hardware, versions = environment.get("hardware") or {}, environment.get("versions") or {}
    pairs = [
        ("processor", f"{hardware.get('cpu')}, {hardware.get('cores')} cores"),
        ("accelerators", ", ".join(str(gpu.get("name")) for gpu in hardware.get("gpus") or ()) or "none"),
        ("threads", str(environment.get("threads"))),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ("commit", str(environment.get("commit") or "-")),
        ("date", str(environment.get("date"))),
    ]
    return Section("Measured on", [Facts([*pairs, *more])])
