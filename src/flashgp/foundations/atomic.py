"""Files that are written whole or not at all: a reader, a crash or a full disk sees the old one or the new one.

Where the system has files without a name (Linux, O_TMPFILE) the new content has none until it is complete, so that a
process that is killed leaves nothing behind; elsewhere it is a hidden file beside the named one until then.
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from typing import BinaryIO

__all__ = ["replacing", "write_whole"]

_NAMELESS = getattr(os, "O_TMPFILE", None)
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL)


def write_whole(path: str | os.PathLike[str], data: bytes, *, mode: int = 0o666) -> None:
    """Write a file; as `replacing`."""
    with replacing(path, mode=mode) as file:
        file.write(data)


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str], *, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A new file that takes the place of the named one when the block succeeds, and vanishes otherwise.

    Args: path: a link is followed, so that it goes on pointing at the new content; mode: of the file, less the umask.
    Raises: IsADirectoryError; OSError where it cannot be written.
    Cost: the file is on the disk, and so is its name, when the block ends.
    """
    final = os.path.realpath(os.fspath(path))
    folder, base = os.path.split(final)
    if os.path.isdir(final):
        raise IsADirectoryError(errno.EISDIR, "it is a folder", os.fspath(path))
    start = os.fsencode(base)[:100].decode(errors="ignore")  # names are limited in bytes, of which a letter has several
    temporary = os.path.join(folder, f".{start}.{os.urandom(8).hex()}.tmp")
    nameless = _nameless(folder, mode)
    try:
        with _named(temporary, mode) if nameless is None else nameless as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if nameless is not None:
                _give_name(file, temporary, mode)
        os.replace(temporary, final)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    with contextlib.suppress(OSError):  # make the renaming itself durable where the system can
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _named(path: str, mode: int) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode), "w+b")


def _nameless(folder: str, mode: int) -> BinaryIO | None:
    """A file without a name; None where the system or the file system has none."""
    if _NAMELESS is None or not os.path.isdir("/proc/self/fd"):
        return None
    try:
        return os.fdopen(os.open(folder, _NAMELESS | os.O_RDWR, mode), "w+b")
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return None
        raise


def _give_name(file: BinaryIO, path: str, mode: int) -> None:
    """The name of a file that has none, or a copy of it under that name where the system refuses to link it.

    The link in /proc is followed only if a folder is given by its descriptor. Security modules may know no path for a
    file without a name, and refuse.
    """
    folder, base = os.path.split(path)
    place = os.open(folder, os.O_PATH)  # a folder that may be written to need not be readable
    try:
        os.link(f"/proc/self/fd/{file.fileno()}", base, dst_dir_fd=place, follow_symlinks=True)
    except OSError:
        file.seek(0)
        with _named(path, mode) as named:
            shutil.copyfileobj(file, named)
            named.flush()
            os.fsync(named.fileno())
    finally:
        os.close(place)
