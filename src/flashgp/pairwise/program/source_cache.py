"""Generated source in files: owner-only, under its content hash, safe with many processes; for every compiler.

numba keeps what it compiled only beside a file, and Triton reads the source of what it compiles. The file's name is the
hash of its text and of everything it was made with, so that no entry is ever wrong, only unused. The text is compared
before it is used, and never run from a `.pyc`. A directory that is a link, is not ours, or cannot be written is not
used: then files live in a temporary directory of this process, with one warning; so they do, or nowhere, when a disk is
full.
"""

import atexit
import contextlib
import functools
import hashlib
import os
import platform
import shutil
import stat
import sys
import tempfile
from pathlib import Path
from types import ModuleType

from flashgp.foundations.atomic import write_whole
from flashgp.foundations.errors import warn
from flashgp.foundations.lazy_import import no_forks
from flashgp.foundations.machine import user_folder


def import_generated(text: str, identity: str = "") -> ModuleType:
    """The module of a generated text; `identity` names what else the compiled code depends on (versions).

    Cost: one small file the first time ever, an import the first time in a process.
    """
    name = "flashgp_generated_" + hashlib.sha256(f"{identity}\0{text}".encode()).hexdigest()[:32]
    with no_forks():
        module = sys.modules.get(name)
        if module is not None:
            return module
        path = _written(f"{name}.py", text)
        if path is None:
            text = text.replace("cache=True", "cache=False")  # numba keeps nothing beside no file
        module = ModuleType(name)
        module.__file__ = str(path or name)
        exec(compile(text, module.__file__, "exec"), module.__dict__)
        sys.modules[name] = module
        return module


@functools.lru_cache(maxsize=1)
def cache_directory() -> Path:
    """Folder of generated files: FLASHGP_CACHE_DIR, or the user's cache directory, or a temporary one."""
    place = "a directory"
    try:
        path = wanted_directory()
        place = str(path)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        refuse_foreign(path)
        with tempfile.NamedTemporaryFile(dir=path):
            return path
    except OSError as error:
        warn_not_kept(place, str(error))
        return _temporary()


def wanted_directory() -> Path:
    """Folder wanted for generated files; nothing is made. Raises: FileNotFoundError without a home directory."""
    wanted = os.environ.get("FLASHGP_CACHE_DIR")
    return (Path(wanted) if wanted else user_folder("cache")) / "generated"


@functools.lru_cache(maxsize=1)
def _temporary() -> Path:
    """A directory of this process, gone with it."""
    path = tempfile.mkdtemp(prefix="flashgp-")
    atexit.register(_remove, path, os.getpid())
    return Path(path)


def _remove(path: str, process: int) -> None:
    if os.getpid() == process:  # not a fork of it that ends first
        shutil.rmtree(path, ignore_errors=True)


@functools.lru_cache(maxsize=8)
def warn_not_kept(path: str, problem: str) -> None:
    """Say that generated or compiled code cannot be kept: once per place and problem."""
    warn(
        f"generated code cannot be kept in {path} ({problem}); it is compiled again in every process. Set "
        "FLASHGP_CACHE_DIR to a directory of yours"
    )


def _written(name: str, text: str) -> Path | None:
    """A file that holds the text: in the cache, in the temporary directory where the disk is full, or nowhere."""
    place = "any directory"
    try:
        path = cache_directory() / name
        place = str(path.parent)
        _write(path, text)
        return path
    except OSError as error:
        warn_not_kept(place, error.strerror or str(error))
    with contextlib.suppress(OSError):
        path = _temporary() / name
        _write(path, text)
        return path
    return None


def refuse_foreign(path: Path) -> None:
    """Code is imported from here: nobody else may be able to put it there. Raises: PermissionError."""
    if not hasattr(os, "getuid"):
        return  # Windows: the user's own cache directory is protected by its access list
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise PermissionError("it is a link, not a directory")
    if found.st_uid != os.getuid():
        raise PermissionError(f"it belongs to user {found.st_uid}")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError("others may write to it")


def _write(path: Path, text: str) -> None:
    """The file whole or not at all; whoever comes second finds the same text."""
    data = text.encode()
    try:
        if path.read_bytes() == data:
            return
    except OSError:
        pass
    write_whole(path, data, mode=0o600)


# -- what compiled code depends on besides its own text ----------------------------------------------------------------
@functools.lru_cache(maxsize=1)
def compiled_identity() -> str:
    """The library's own compiled functions, numba, LLVM, NumPy and Python, as one text."""
    import llvmlite
    import numba
    import numpy

    here = Path(__file__).parents[1] / "cpu"
    own = b"".join((here / name).read_bytes() for name in ("arithmetic.py", "sweeps.py", "pulls.py"))
    versions = (numba.__version__, llvmlite.__version__, numpy.__version__, platform.python_version())
    return " ".join((hashlib.sha256(own).hexdigest(), *versions))
