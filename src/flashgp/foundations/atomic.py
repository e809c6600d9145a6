"""Files that are written whole or not at all: a reader, a crash or a full disk sees the old one or the new one.

Until it is complete the new content is in a hidden file beside the named one, which a killed process leaves behind.
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import BinaryIO


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
    try:
        with _named(temporary, mode) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
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
