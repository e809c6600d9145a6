"""One thread for SciPy's own linear algebra while an optimiser runs.

L-BFGS-B calls BLAS on matrices of a few entries. OpenBLAS wakes its pool for them, whose threads then spin and take
the cores from torch's threads: evaluations become several times slower (docs/decisions/0004). The limit is on OpenBLAS
alone, for the time of the optimisation, and is undone after it; torch's threads and settings are not touched.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["quiet_openblas"]


@functools.lru_cache(maxsize=1)
def _openblas() -> Any:
    import scipy.linalg  # noqa: F401 - loads SciPy's library, so that it is found
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(internal_api="openblas")


@contextmanager
def quiet_openblas() -> Iterator[None]:
    """OpenBLAS uses one thread inside the block, and what it used before after it."""
    with _openblas().limit(limits=1):
        yield
