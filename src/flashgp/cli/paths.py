"""Files a command will write are checked before it starts to work."""

import os
from collections.abc import Mapping

from flashgp.foundations.errors import DomainError


def require_writable(path: str, argument: str) -> None:
    """Raises: DomainError unless a file of this name can be written: its folder exists and permits it."""
    folder = os.path.dirname(os.path.realpath(path))
    reason = None
    if path == "-":
        raise DomainError(f"`{argument}` must be a file, got '-', and is not written to standard output; name a file")
    if os.path.isdir(path):
        reason = "it is a folder"
    elif not os.path.isdir(folder):
        reason = f"the folder {folder!r} does not exist"
    elif not os.access(folder, os.W_OK | os.X_OK):
        reason = f"the folder {folder!r} may not be written to"
    if reason is not None:
        raise DomainError(
            f"`{argument}` must be a file that can be written, got {path!r} ({reason}); "
            "choose another, or make the folder"
        )


def require_distinct(paths: Mapping[str, str | None]) -> None:
    """Raises: DomainError if two arguments name the same file: a result must not replace the data."""
    seen: dict[str, str] = {}
    for argument, path in paths.items():
        if path in (None, "-"):  # standard input and output differ
            continue
        real = os.path.realpath(path)
        if real in seen:
            raise DomainError(
                f"`{argument}` must differ from `{seen[real]}`, got {path!r} for both; choose another name"
            )
        seen[real] = argument
