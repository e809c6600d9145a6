"""Records: what was measured, on what, with what, as a JSON object; no host names, user names or paths."""

import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from flashgp.foundations.atomic import write_whole
from flashgp.foundations.errors import DomainError
from flashgp.foundations.events import Event
from flashgp.foundations.processors import cpuinfo, own_cores
from flashgp.foundations.profile_store import processor_name

SCHEMA = "flashgp.bench/1"
_TIMEOUT_SECONDS = 10  # of git and sysctl
_MEASURED = (":/src", ":/benchmark/*.py")  # what decides a measurement
# Recorded only if the process has imported them: an installed peer that took no part in the run says nothing about it.
_PEERS = (
    "gpytorch",
    "linear_operator",
    "botorch",
    "pykeops",
    "sklearn",
    "scipy",
    "numba",
    "triton",
    "pandas",
    "pyarrow",
)


def environment() -> dict[str, Any]:
    """Origin of a record: schema, hardware, versions, commit, threads, date (UTC).

    Hardware: processor, usable cores, memory in bytes, every GPU with its memory; None where unknown. Versions: of
    Python, torch, FlashGP and NumPy, and of the peers that this process has imported.

    Example:
        >>> sorted(fgp.bench.environment())
        ['commit', 'date', 'hardware', 'schema', 'threads', 'versions']
    """
    return {
        "schema": SCHEMA,
        "hardware": _hardware(),
        "versions": _versions(),
        "commit": commit(),
        "threads": torch.get_num_threads(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _hardware() -> dict[str, Any]:
    import psutil

    gpus: list[dict[str, Any]] = []
    if torch.cuda.is_available():
        cards = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
        gpus = [{"name": card.name, "memory_bytes": int(card.total_memory)} for card in cards]
    elif torch.accelerator.is_available():
        gpus = [{"name": str(torch.accelerator.current_accelerator()), "memory_bytes": None}]
    lines = cpuinfo()
    brand = None if lines else _output("sysctl", "-n", "machdep.cpu.brand_string")
    return {
        # With what tells processors of one name apart: rates differ by 5 between two that are both "AMD EPYC".
        "cpu": brand or processor_name(lines),
        "cores": len(own_cores() or ()) or os.cpu_count(),
        "memory_bytes": int(psutil.virtual_memory().total),
        "gpus": gpus,
        "system": f"{platform.system()} {platform.machine()}",
    }


def _versions() -> dict[str, str]:
    from flashgp import __version__

    versions = {"python": platform.python_version(), "torch": str(torch.__version__), "flashgp": __version__}
    if torch.version.cuda is not None:
        versions["cuda"] = torch.version.cuda
    for name in ("numpy", *(name for name in _PEERS if name in sys.modules)):
        try:
            versions[name] = metadata.version("scikit-learn" if name == "sklearn" else name)
        except metadata.PackageNotFoundError:
            versions[name] = str(getattr(sys.modules.get(name), "__version__", "unknown"))
    return versions


def commit(of: Path = Path(__file__).parent) -> str | None:
    """The git commit of the FlashGP checkout around a folder, `+dirty` when its code differs; None outside a checkout.

    Records and the tables that quote them are no code: a run of several measurements writes them.
    """
    # A copy installed in somebody else's repository must not be given that repository's commit.
    if _output("git", "-C", str(of), "ls-files", "--error-unmatch", ":/src/flashgp/__init__.py") is None:
        return None
    head = _output("git", "-C", str(of), "rev-parse", "HEAD")
    changes = _output("git", "-C", str(of), "status", "--porcelain", "--untracked-files=no", "--", *_MEASURED)
    return None if head is None else head + ("+dirty" if changes else "")


def write_record(path: str | os.PathLike[str], payload: Mapping[str, Any]) -> dict[str, Any]:
    """Write a record, whole or not at all; its folder is made when missing.

    Args:
        path: the file.
        payload: what was measured. Numbers may be Python, NumPy or torch scalars; what `environment` gives is added
            where the payload does not have it already.

    Returns:
        The record as it was written.

    Raises:
        DomainError: if a value is not finite or cannot be written as JSON; nothing is written then.

    Example:
        >>> record = fgp.bench.write_record("record.json", {"rows": [{"work": "sum", "seconds": 0.5}]})
        >>> record["rows"]
        [{'work': 'sum', 'seconds': 0.5}]
    """
    record = {**environment(), **payload}
    text = dumps(record) + "\n"
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, text.encode())
    written: dict[str, Any] = json.loads(text)
    return written


def read_record(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a record.

    Raises:
        DomainError: if the file is not a JSON object of a known schema.
        FileNotFoundError: if there is none.

    Example:
        >>> _ = fgp.bench.write_record("record.json", {"title": "Sums"})
        >>> fgp.bench.read_record("record.json")["title"]
        'Sums'
    """
    text = Path(path).read_text(encoding="utf-8")
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        raise DomainError(
            f"`path` must be a benchmark record (JSON), got {os.fspath(path)!r}, which breaks off or is something else "
            f"({error}); run the benchmark again"
        ) from error
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        schema = record.get("schema") if isinstance(record, dict) else type(record).__name__
        raise DomainError(
            f"`path` must be a benchmark record of schema {SCHEMA!r}, got {os.fspath(path)!r} with {schema!r}; "
            "write records with `flashgp.bench.write_record`"
        )
    return record


def dumps(payload: Mapping[str, Any]) -> str:
    """The payload as JSON text; DomainError names the entry that has no honest JSON form."""
    return json.dumps(_plain(payload, "payload"), indent=1, allow_nan=False, ensure_ascii=False)


def _plain(value: Any, where: str) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise DomainError(f"`{where}` must be finite, got {value}; store None and say why in a text entry")
    if value is None or isinstance(value, bool | str | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(entry, f"{where}[{key!r}]") for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry, f"{where}[{index}]") for index, entry in enumerate(value)]
    if isinstance(value, torch.dtype | torch.device | os.PathLike):
        return str(value).removeprefix("torch.")
    if isinstance(value, Event):
        return _plain(value.to_json(), where)
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return _plain(value.item(), where)
    raise DomainError(
        f"`{where}` must be a number, text, list or mapping, got {type(value).__name__}; store its size or its norm"
    )


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
