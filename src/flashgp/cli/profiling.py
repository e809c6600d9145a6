"""`flashgp profile`: a command, and where its time went."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from .console import Console
from .paths import require_writable

__all__ = ["Profiling", "asked_for"]

Work = Callable[[Console], dict[str, Any]]


@dataclass(frozen=True)
class Profiling:
    """How a command is profiled. Fields: trace, file to write; coarse, without PyTorch's operations; json."""

    trace: str | None = None
    coarse: bool = False
    json: bool = False

    def around(self, work: Work) -> Work:
        """The same work, followed by its bottleneck table; its result has the profile beside it."""

        def profiled(console: Console) -> dict[str, Any]:
            from flashgp.profiling import take_profile

            if self.trace is not None:
                require_writable(self.trace, "--trace")
            result, profile = take_profile(lambda: work(console), trace=self.trace, operations=not self.coarse)
            console.say()
            console.say("where the time went")
            console.table(*profile.table(), numeric=(1, 2, 3))
            if profile.operations:
                console.say("PyTorch's operations, without what they call")
                console.table(*profile.operations_table(), numeric=(1, 2, 3))
            for remark in profile.remarks():
                console.note(remark)
            if self.trace is not None:
                console.say(f"wrote {self.trace}")
            return {**result, "profile": profile.to_json()}

        return profiled


# Set by `flashgp profile` for the command behind it.
asked_for: ContextVar[Profiling | None] = ContextVar("asked_for", default=None)
