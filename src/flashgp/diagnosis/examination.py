"""`fgp.doctor`: every probe runs, and one that fails is a finding too.

A probe looks without changing anything: no directory is made, no flag is set, no device is initialised, no package is
imported for its version.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator

from flashgp.diagnosis.accelerators import accelerator_findings, precision_findings
from flashgp.diagnosis.directories import cache_findings, profile_findings
from flashgp.diagnosis.findings import Diagnosis, Finding
from flashgp.diagnosis.packages import package_findings, version_findings
from flashgp.diagnosis.processor import core_findings, memory_findings, processor_findings
from flashgp.diagnosis.threads import thread_findings

__all__ = ["PROBES", "doctor", "examine"]

Probe = Callable[[], Iterable[Finding]]

PROBES: tuple[tuple[str, Probe], ...] = (
    ("versions", version_findings),
    ("processor", processor_findings),
    ("cores", core_findings),
    ("threads", thread_findings),
    ("memory", memory_findings),
    ("accelerator", accelerator_findings),
    ("precision", precision_findings),
    ("packages", package_findings),
    ("profile", profile_findings),
    ("cache", cache_findings),
)


def doctor() -> Diagnosis:
    """Look at this installation and this machine, and say what to do: `fgp.doctor`, `flashgp doctor`.

    Returns: a Diagnosis, whose findings have a severity and advice; `print` it. Never raises: a probe that fails is a
        finding.
    Cost: a fraction of a second beyond `import flashgp`; some MiB.

    Example:
        >>> findings = fgp.doctor()
        >>> isinstance(findings.advice, (list, tuple, str))
        True
    """
    return Diagnosis(tuple(finding for topic, probe in PROBES for finding in examine(topic, probe)))


def examine(topic: str, probe: Probe) -> Iterator[Finding]:
    """What a probe finds, what it warns of, and why it ended early."""
    failure: Exception | None = None
    found: list[Finding] = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            for finding in probe():
                found.append(finding)  # noqa: PERF402 - one that fails keeps what it found before
        except Exception as error:  # whatever a driver or a file system may raise
            failure = error
    yield from found
    yield from (Finding(topic, str(warning.message), "warning") for warning in said)
    if failure is not None:
        yield Finding(
            topic,
            f"could not be looked at: {type(failure).__name__}: {failure}",
            "warning",
            values={"error": type(failure).__name__},
        )
