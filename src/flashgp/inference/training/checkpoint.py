"""The checkpoint of `fit`: a log of every evaluation. L-BFGS-B is deterministic, so replaying the log resumes exactly.

One safetensors file: for each run the vectors, values and gradients in order, and a fingerprint of data and model.
Written whole or not at all, so that a kill at any moment leaves a whole file.
"""

import json
import os
import time
from pathlib import Path

import numpy
import torch

from flashgp.foundations.atomic import write_whole
from flashgp.foundations.errors import DomainError, warn
from flashgp.foundations.fingerprint import PYTHON
from flashgp.processes.group import Group

FORMAT_VERSION = 4  # until 3, models were told apart by another hash


class EvaluationLog:
    """Remembers evaluations in order; replays those of an earlier, interrupted process.

    A vector without an evaluation is logged with value +inf.

    Args:
        path: the checkpoint file, or None to keep no log.
        mark: the fingerprint of data, model and options.
        seconds_between_writes: of a log that grows.
    Raises: DomainError when the file belongs to other data, another model, or is not a checkpoint.
    """

    def __init__(self, path: Path | None, mark: str, seconds_between_writes: float = 1.0) -> None:
        self.path, self.mark, self.seconds_between_writes = path, mark, seconds_between_writes
        self.entries: list[tuple[str, numpy.ndarray, float, numpy.ndarray]] = []
        self.replayed = 0
        self._cursor: dict[str, int] = {}
        self._written = time.monotonic()
        self._warned = False  # that the file cannot be written
        self._old: dict[str, list[tuple[numpy.ndarray, float, numpy.ndarray]]] = {}
        if path is not None and (path.is_dir() or not os.access(path.parent, os.W_OK)):
            raise DomainError(
                f"`checkpoint` must be a file that can be written, got {str(path)!r}; name one in an existing folder "
                "where you may write"
            )
        if path is not None and path.exists():
            self.take(path.read_bytes(), path)

    def take(self, stored: bytes, path: Path) -> None:
        """Replay what a file has. Raises: DomainError, as the constructor."""
        self._old = self._read(stored, path)

    def recall(self, run: str, theta: numpy.ndarray) -> tuple[float, numpy.ndarray] | None:
        """The logged evaluation that comes next in a run, if it is of this very vector."""
        at = self._cursor.get(run, 0)
        old = self._old.get(run, ())
        if at >= len(old):
            return None
        logged, value, gradient = old[at]
        if not numpy.array_equal(logged, theta):
            self._old.clear()  # of no use: another version took other steps
            return None
        self._cursor[run] = at + 1
        self.replayed += 1
        return value, gradient

    def has(self, run: str) -> bool:
        """True if the file has evaluations of a run that were not recalled yet."""
        return self._cursor.get(run, 0) < len(self._old.get(run, ()))

    def add(self, run: str, theta: numpy.ndarray, value: float, gradient: numpy.ndarray) -> None:
        """Log one evaluation, in one step that nothing can split."""
        if self.path is None:
            return
        self.entries.append((run, theta.copy(), value, gradient.copy()))
        if time.monotonic() - self._written > self.seconds_between_writes:
            try:
                self.write()
            except OSError as error:  # a full disk must not cost the fit
                self._written = time.monotonic()
                if not self._warned:
                    self._warned = True
                    warn(
                        f"`checkpoint` could not be written ({error}); the fit goes on and tries again, but what it "
                        "finds until then would not be resumed: make room",
                        at_once=True,
                    )

    def write(self) -> None:
        """Put the log on disk; nothing without a path, or while the file there still knows more."""
        if self.path is None or any(self._cursor.get(run, 0) < len(old) for run, old in self._old.items()):
            return
        from safetensors.numpy import save

        runs: dict[str, list[tuple[numpy.ndarray, float, numpy.ndarray]]] = {}
        for run, theta, value, gradient in self.entries:
            runs.setdefault(run, []).append((theta, value, gradient))
        arrays = {}
        for run, entries in runs.items():
            arrays[f"{run}/theta"] = numpy.stack([e[0] for e in entries])
            arrays[f"{run}/value"] = numpy.array([e[1] for e in entries])
            arrays[f"{run}/gradient"] = numpy.stack([e[2] for e in entries])
        header = {"version": FORMAT_VERSION, "mark": self.mark, "python": PYTHON}
        write_whole(self.path, save(arrays, {"flashgp_checkpoint": json.dumps(header)}))
        self._written = time.monotonic()

    def _read(self, stored: bytes, path: Path) -> dict[str, list[tuple[numpy.ndarray, float, numpy.ndarray]]]:
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            size = int.from_bytes(stored[:8], "little")  # of the header, which `load` reads again and checks
            header = json.loads(json.loads(stored[8 : 8 + size])["__metadata__"]["flashgp_checkpoint"])
            arrays = load(stored)
            mark, version, python = header["mark"], header["version"], header.get("python", PYTHON)
            runs = sorted({name.split("/")[0] for name in arrays})
            logs = {
                run: [
                    (t, float(v), g)
                    for t, v, g in zip(
                        arrays[f"{run}/theta"], arrays[f"{run}/value"], arrays[f"{run}/gradient"], strict=True
                    )
                ]
                for run in runs
            }
        except (SafetensorError, KeyError, ValueError, TypeError, OSError) as error:
            raise DomainError(
                f"`checkpoint` must be a file that fit wrote, but {path} is not ({error}); delete it or name another"
            ) from None
        if version != FORMAT_VERSION:
            raise DomainError(
                f"`checkpoint` {path} is of version {version}, and this one reads {FORMAT_VERSION}; delete it to start "
                "afresh, or name another file"
            )
        if mark != self.mark:
            by = "" if python == PYTHON else f" (it was written by Python {python}, where functions are other bytecode)"
            raise DomainError(
                f"`checkpoint` {path} belongs to other data, another model or other settings{by}; delete it to start "
                "afresh, or name another file"
            )
        return logs


def log_over(group: Group, path: Path | None, mark: str, seconds_between_writes: float) -> EvaluationLog:
    """The checkpoint that rank 0 writes, and that all ranks go on from. Raises: as `EvaluationLog`; RankMismatchError
    where ranks have other data or models."""
    if group.size == 1 or path is None:
        return EvaluationLog(path, mark, seconds_between_writes)
    group.compare(checkpoint=mark)
    with group.together():
        log = EvaluationLog(path if group.rank == 0 else None, mark, seconds_between_writes)
    mine = [path.read_bytes()] if group.rank == 0 and path.exists() else []
    there = int(group.max(torch.tensor(len(mine))))
    stored = group.gather_bytes(b"".join(mine))[0]
    if there:
        log.take(stored, path)
    return log
