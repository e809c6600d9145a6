"""`fgp.doctor`: every check runs, and one that fails is a finding too.

A check looks without changing anything: no directory is made, no flag is set, no device is initialised, no package is
imported for its version.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from flashgp.diagnosis.findings import Diagnosis, Finding
from flashgp.diagnosis.installation import cache_findings, package_findings, profile_findings
from flashgp.diagnosis.machine import (
    accelerator_findings,
    core_findings,
    memory_findings,
    precision_findings,
    rank_findings,
    thread_findings,
)
from flashgp.processes.group import Group

Check = Callable[[], Iterable[Finding]]

CHECKS: dict[str, Check] = {
    "versions": package_findings,
    "cores": core_findings,
    "threads": thread_findings,
    "memory": memory_findings,
    "accelerator": accelerator_findings,
    "precision": precision_findings,
    "profile": profile_findings,
    "cache": cache_findings,
}


def doctor(*, group: Any = None) -> Diagnosis:
    """Look at this installation and this machine, and say what to do: `fgp.doctor`, `flashgp doctor`.

    Args:
        group: as `flashgp.fit`: its ranks look at what is between them, too, all of them together.

    Returns:
        A Diagnosis, whose findings have a severity and advice; `print` it. Never raises: a check that fails is a
        finding.

    Cost: a fraction of a second beyond `import flashgp`; some MiB.

    Example:
        >>> findings = fgp.doctor()
        >>> isinstance(findings.advice, (list, tuple, str))
        True
    """
    ranks = Group.of(group)
    checks = {**CHECKS, "ranks": lambda: rank_findings(ranks)}
    return Diagnosis(tuple(finding for topic, check in checks.items() for finding in examine(topic, check)))


def examine(topic: str, check: Check) -> Iterator[Finding]:
    """The findings of a check, the warnings that it gave, and the exception that ended it."""
    failure: Exception | None = None
    findings: list[Finding] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            for finding in check():
                findings.append(finding)  # noqa: PERF402 - a check that fails keeps its findings before that
        except Exception as error:  # whatever a driver or a file system may raise
            failure = error
    yield from findings
    yield from (Finding(topic, str(warning.message), "warning") for warning in caught)
    if failure is not None:
        name = type(failure).__name__
        yield Finding(topic, f"could not be looked at: {name}: {failure}", "warning", values={"error": name})
