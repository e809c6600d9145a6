"""The compiled rank-one update (rotation_loops.py), made ready in a thread beside the work.

Updates use LAPACK meanwhile, which gives the same factor up to rounding at five to seven times the cost, and never wait
for the compiler. The thread starts once LAPACK has cost LOST_SECONDS more. Decision 18 says why there are such loops.
"""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flashgp.foundations.lazy_import import no_forks

LOST_SECONDS = 0.05  # after which the compiled loops are made ready
ENTRY_SECONDS = 1e-9  # that LAPACK takes longer, for every entry of the triangle's square
Update = Callable[[Any, Any, Any, Any, Any, Any, Any], None]
log = logging.getLogger("flashgp.online")


def _load() -> Update:
    """Raises: ImportError without numba."""
    from flashgp.pairwise.program.source_cache import compiled_identity, import_generated

    # Imported from the owner-only cache directory: numba keeps what it compiled beside the file, not in the package.
    source = Path(__file__).with_name("rotation_loops.py").read_text(encoding="utf-8")
    loops: Update = import_generated(source, compiled_identity()).compiled_update()
    return loops


class Rotations:
    """The compiled update, once it is ready. Args: load, makes it; raises ImportError where there is no compiler."""

    def __init__(self, load: Callable[[], Update] = _load) -> None:
        self._load, self._failed, self._lost = load, False, 0.0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._update: Update | None = None

    def update(self, n: int) -> Update | None:
        """The compiled loops for a triangle of n rows; None where they are not ready or there is no compiler."""
        if self._update is not None:
            return self._update
        with self._lock:
            self._lost += ENTRY_SECONDS * n * n
            idle = self._thread is None or not self._thread.is_alive()  # also after a fork, which leaves it behind
            if idle and not self._failed and self._lost > LOST_SECONDS:
                self._thread = threading.Thread(target=self._make, name="flashgp-rotations", daemon=True)
                self._thread.start()
        return self._update

    def wait(self) -> bool:
        """Make the loops ready now; whether there are any."""
        if self._update is None and not self._failed:
            self._make()
        return self._update is not None

    def _make(self) -> None:
        try:
            with no_forks():
                self._update = self._load()
        except ImportError:
            self._failed = True
        except Exception as error:  # the work goes on without
            self._failed = True
            log.warning("the rotations could not be compiled (%s); LAPACK goes on in their place", error)


rotations = Rotations()
