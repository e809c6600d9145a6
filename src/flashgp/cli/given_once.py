"""Commands that refuse an option given twice, where the last would silently win; lists may be repeated."""

from collections import Counter
from typing import Any

from typer.core import TyperCommand, TyperGroup


class _GivenOnce:
    """Before a command's arguments are read; a usage error names the first option that was repeated."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        parser: Any = self.make_parser(ctx)  # type: ignore[attr-defined]
        *_, order = parser.parse_args(args=list(args))
        for option, count in Counter(order).items():
            if option.param_type_name == "option" and not option.multiple and count > 1:
                ctx.fail(f"{'/'.join(option.opts)} takes one value and was given {count} times; give it once")
        rest: list[str] = super().parse_args(ctx, args)  # type: ignore[misc]
        return rest


class Command(_GivenOnce, TyperCommand):
    """Of `flashgp`."""


class Group(_GivenOnce, TyperGroup):
    """`flashgp` itself, and `flashgp profile`."""
