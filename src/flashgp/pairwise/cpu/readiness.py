"""When a problem too small to wait for a compile takes the compiled loops all the same: once they cost nothing.

They do where this process has compiled them already, for a larger problem. And where an earlier process left them in
the cache, reading them pays as soon as the small problems have lost that much time without them: every one counts what
it would have saved, so that the price of reading is paid twice at most. No clock is read; both routes agree to
rounding.
"""

import os
import threading
from dataclasses import dataclass

from flashgp.foundations.form import Form

__all__ = ["NotReadyError", "Readiness", "made_ready"]

LOAD_SECONDS = 0.7  # of a form's loops from the cache, numba's import included
_compiled: set[tuple[Form, str]] = set()
_spent: dict[Form, float] = {}
_lock = threading.Lock()


class NotReadyError(Exception):
    """The loops are neither compiled nor in the cache, and this problem does not wait for them."""


@dataclass(frozen=True)
class Readiness:
    """What small problems gain from compiled loops: from least_pairs on, pair_seconds for every pair."""

    least_pairs: int
    pair_seconds: float

    def admits(self, form: Form, computation: str, pairs: int) -> bool:
        """Whether a problem of that many pairs may ask for the loops; every one that may not counts what it lost."""
        if pairs < self.least_pairs:
            return False
        with _lock:
            if (form, computation) in _compiled:
                return True
            spent = _spent.get(form, 0.0) + self.pair_seconds * pairs
            paid = spent > LOAD_SECONDS
            _spent[form] = 0.0 if paid else spent
        return paid


def made_ready(form: Form, computation: str) -> None:
    """This process has the loops now."""
    with _lock:
        _compiled.add((form, computation))


def _forget_lock() -> None:
    """In a forked child: whoever held the lock is gone."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_lock)
