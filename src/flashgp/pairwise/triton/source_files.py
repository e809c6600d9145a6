"""Generated source on disk: written under its content hash into an owner-only directory, and imported from there.

Triton reads the source of the functions it compiles, so the text must be in a file. A file is written to a temporary
name and moved (eight processes may write the same one), is compared with the text before it is used, and is never
imported through a `.pyc`. A directory that belongs to somebody else, or that others may write to, is not used; without
a usable one the files go to a temporary directory of this process, with one warning.
"""

import functools
import hashlib
import os
import stat
import tempfile
import threading
import types
import warnings
from pathlib import Path

from flashgp.foundations.errors import FlashGPWarning

__all__ = ["cache_directory", "source_module"]

_LOCK = threading.RLock()
_MODULES: dict[str, types.ModuleType] = {}


def source_module(text: str) -> types.ModuleType:
    """The module that the text defines, imported once per process from a file named by the text's hash.

    Args:
        text: Python source.
    Returns: the module; its functions have source files that `inspect` finds.
    Cost: one file of the text's size on disk, kept for other processes.
    """
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    with _LOCK:
        if digest not in _MODULES:
            path = _written(text, digest)
            module = types.ModuleType(f"flashgp_triton_{digest}")
            module.__file__ = str(path)
            exec(compile(text, str(path), "exec"), module.__dict__)
            _MODULES[digest] = module
        return _MODULES[digest]


def cache_directory() -> Path:
    """Where generated Triton source goes: the user's cache directory, `$XDG_CACHE_HOME` or `~/.cache`."""
    try:
        import platformdirs
    except ImportError:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        return Path(base) / "flashgp" / "triton"
    return Path(platformdirs.user_cache_dir("flashgp", appauthor=False)) / "triton"


def _written(text: str, digest: str) -> Path:
    """A file that holds exactly the text."""
    wanted = cache_directory()
    try:
        problem = _unusable(wanted)
        if not problem:
            return _file(wanted, digest, text)
    except OSError as error:
        problem = error.strerror or str(error)
    return _file(_temporary(str(wanted), problem), digest, text)


def _file(directory: Path, digest: str, text: str) -> Path:
    path = directory / f"{digest}.py"
    data = text.encode()
    if not path.is_file() or path.read_bytes() != data:
        handle, partial = tempfile.mkstemp(dir=directory, prefix=f".{digest}.", suffix=".partial")
        try:
            with open(handle, "wb") as file:
                file.write(data)
            os.replace(partial, path)
        except BaseException:
            Path(partial).unlink(missing_ok=True)
            raise
    return path


def _unusable(directory: Path) -> str:
    """Why a directory must not be used; empty when it may. It is made when missing."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not hasattr(os, "getuid"):
        return ""  # Windows: the user's own cache directory is protected by its access list
    state = os.lstat(directory)
    if not stat.S_ISDIR(state.st_mode):
        return "it is a link, not a directory"
    if state.st_uid != os.getuid():
        return f"it belongs to user {state.st_uid}, not to this one"
    if state.st_mode & 0o077:
        os.chmod(directory, 0o700)
    return "" if os.access(directory, os.W_OK | os.X_OK) else "it cannot be written to"


@functools.lru_cache(maxsize=1)
def _fallback() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="flashgp-triton-")  # private to the user, gone at exit


def _temporary(wanted: str, problem: str) -> Path:
    first = _fallback.cache_info().currsize == 0
    directory = Path(_fallback().name)
    if first:
        warnings.warn(
            f"the cache directory for generated source must be writable and the user's own, got {wanted!r}: "
            f"{problem}; kernels are generated again in each process until that is repaired, or XDG_CACHE_HOME names "
            "another place",
            FlashGPWarning,
            stacklevel=2,
        )
    return directory
