"""One thread for SciPy's own linear algebra while an optimiser runs.

L-BFGS-B calls BLAS on matrices of a few entries. OpenBLAS wakes its pool for them, whose threads then spin and take
the cores from torch's threads, so that every evaluation waits for them (docs/decisions/0004). The limit is on OpenBLAS
alone, for the time of the optimisation, and is undone after it; torch's threads and settings are not touched.
"""

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["quiet_openblas"]


@functools.lru_cache(maxsize=1)
def _openblas() -> Any:
    import scipy.linalg  # noqa: F401 - loads SciPy's library, so that it is found
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(internal_api="openblas")


_lock = threading.Lock()
_inside: list[Any] = []  # one entry per optimisation that runs now; the first holds the limiter


@contextmanager
def quiet_openblas() -> Iterator[None]:
    """OpenBLAS uses one thread while any such block runs, and what it used before after the last of them."""
    with _lock:
        _inside.append(_openblas().limit(limits=1) if not _inside else None)
    try:
        yield
    finally:
        with _lock:
            limiter = _inside[0]
            _inside.pop()
            if not _inside:
                limiter.restore_original_limits()
