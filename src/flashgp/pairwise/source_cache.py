"""Generated source as importable files: owner-only, under its content hash, safe with many processes.

A JIT compiler keeps what it compiled only beside a file. The file's name is the hash of its text and of everything it
was made with, so that no entry is ever wrong, only unused. A directory that is not ours, or that cannot be written,
is not used: then files live in a temporary directory of this process, with one warning.
"""

import functools
import hashlib
import importlib.util
import os
import stat
import sys
import tempfile
import warnings
from pathlib import Path
from types import ModuleType

from flashgp.foundations.errors import FlashGPWarning
from flashgp.pairwise.compiling import compiling

__all__ = ["cache_directory", "import_generated"]


def import_generated(text: str, identity: str) -> ModuleType:
    """The module of a generated text; `identity` names what else the compiled code depends on (versions).

    Cost: one small file the first time ever, an import the first time in a process.
    """
    name = "flashgp_generated_" + hashlib.sha256(f"{identity}\0{text}".encode()).hexdigest()[:32]
    with compiling():
        module = sys.modules.get(name)
        if module is not None:
            return module
        path = cache_directory() / f"{name}.py"
        _write(path, text)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[name] = module
        return module


@functools.lru_cache(maxsize=1)
def cache_directory() -> Path:
    """Where generated files live: FLASHGP_CACHE_DIR, or the user's cache directory, or a temporary one."""
    wanted = os.environ.get("FLASHGP_CACHE_DIR")
    path = (Path(wanted) if wanted else _user_cache()) / "generated"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        _refuse_foreign(path)
        with tempfile.NamedTemporaryFile(dir=path):
            return path
    except OSError as error:
        temporary = tempfile.mkdtemp(prefix="flashgp-")
        warnings.warn(
            f"generated code cannot be kept in {path} ({error}); it is compiled anew in every process. Set "
            "FLASHGP_CACHE_DIR to a directory of yours",
            FlashGPWarning,
            stacklevel=2,
        )
        return Path(temporary)


def _user_cache() -> Path:
    try:
        from platformdirs import user_cache_path
    except ImportError:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        return Path(base) / "flashgp"
    return user_cache_path("flashgp", appauthor=False)


def _refuse_foreign(path: Path) -> None:
    """Code is imported from here: nobody else may be able to put it there."""
    found = path.stat()
    if not hasattr(os, "getuid"):
        return
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
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
