"""A smaller case with the same difference."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

from hunt import specs
from hunt.differences import Findings


def kind_of(findings: Findings) -> str | None:
    """What differs, without numbers that change as a case shrinks."""
    for name, text in findings.differences.items():
        head = text.split(":")[0] if "error" in name or "refused" in name else ""
        return "".join(c for c in name.split(" after ")[0].split(", operation")[0] if not c.isdigit()) + head
    return None


def shrunk(case: Any, tries: int = 120) -> Any:
    """The smallest case found by changing one field at a time towards its default."""
    wanted = kind_of(case.check())
    progress = True
    while progress and tries > 0:
        progress = False
        for other in smaller(case):
            tries -= 1
            if tries <= 0:
                break
            try:
                same = kind_of(other.check()) == wanted
            except Exception:
                same = False
            if same:
                case, progress = other, True
                break
    return case


def smaller(value: Any) -> Iterator[Any]:
    """Cases or specs with one thing less."""
    if isinstance(value, specs.Spec):
        yield from value.parts()
    for f in fields(value):
        now = getattr(value, f.name)
        if isinstance(now, specs.Spec) or (is_dataclass(now) and not isinstance(now, type)):
            if not isinstance(now, specs.Each):
                for less in smaller(now):
                    yield replace(value, **{f.name: less})
            if isinstance(now, specs.Each):
                yield replace(value, **{f.name: now.values[0]})
            continue
        if f.name in ("seed", "kernel", "dims", "columns", "count", "factor", "diagonal", "nu", "real", "levels"):
            continue
        if isinstance(now, int) and not isinstance(now, bool):
            for fewer in (1, now // 2, now - 1):
                if 0 < fewer < now:
                    yield replace(value, **{f.name: fewer})
        elif not isinstance(value, specs.Spec) and now != f.default:
            yield replace(value, **{f.name: f.default})
