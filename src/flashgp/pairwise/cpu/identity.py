"""What compiled code depends on besides its own text."""

import functools
import hashlib
import platform
from pathlib import Path


@functools.lru_cache(maxsize=1)
def of_this_library() -> str:
    """The library's own compiled functions, numba, LLVM, NumPy and Python, as one text."""
    import llvmlite
    import numba
    import numpy

    here = Path(__file__).parent
    own = b"".join((here / name).read_bytes() for name in ("arithmetic.py", "sweeps.py", "pulls.py"))
    versions = (numba.__version__, llvmlite.__version__, numpy.__version__, platform.python_version())
    return " ".join((hashlib.sha256(own).hexdigest(), *versions))
