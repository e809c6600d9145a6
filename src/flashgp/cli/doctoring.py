"""`flashgp doctor`: what the doctor found, for people or as JSON."""

import json
from typing import Any

from flashgp.diagnosis import doctor

from .console import Console
from .options import DoctorOptions


def run_doctor(_options: DoctorOptions, console: Console) -> dict[str, Any]:
    """Look, and say it. Returns: the findings as JSON values; warnings among them are no failure of the command."""
    diagnosis = doctor(group=console.group)
    for line in str(diagnosis).splitlines():
        console.say(line)
    if console.quiet:
        for finding in diagnosis.of("warning"):
            console.warn(f"{finding.topic}: {finding.found}")
    return {"command": "doctor", **json.loads(diagnosis.to_json())}
