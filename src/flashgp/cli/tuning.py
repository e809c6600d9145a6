"""`flashgp tune`: measure the machine profile, or show the one in use."""

import json
import time
from typing import Any

from flashgp.foundations.profile_store import current_profile, profile_path
from flashgp.foundations.report import readable_seconds
from flashgp.planner.tuning import tune

from .console import Console

__all__ = ["run_tune"]


def run_tune(show: bool, console: Console) -> dict[str, Any]:
    """Measure (or, with `show`, only look), and print the profile. Returns: it as JSON values, with its path."""
    began = time.perf_counter()
    if show:
        profile = current_profile()
    else:
        with console.stages() as progress:
            profile = tune(progress=progress)
    path = profile_path()
    console.pairs("profile", profile.lines())
    if not show:
        console.note(f"measured in {readable_seconds(time.perf_counter() - began)}; {_where(path.exists(), str(path))}")
    elif not profile.measured:
        console.note("these are the built-in rates; `flashgp tune` measures this machine's")
    return {"command": "tune", "path": str(path), "profile": json.loads(profile.to_json())}


def _where(kept: bool, path: str) -> str:
    return f"kept in {path}" if kept else "not kept"
