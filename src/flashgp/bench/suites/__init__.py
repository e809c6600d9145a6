"""Benchmark suites that everyone can run with `flashgp bench`: one file each.

Every comparison goes through `compare`: interleaved runs at inputs of their own, checked against a float64 reference
that uses nothing of the library, with every clock that the machine offers. Other libraries take part where they are
installed. The repository's own benchmarks are in `benchmark/`.
"""

import importlib

from flashgp.bench.suites.suite import Comparisons, Finding, Options, Suite

__all__ = ["SUITES", "Comparisons", "Finding", "Options", "Suite", "suite_named"]

SUITES = ("kernel-matrix", "online", "linalg")


def suite_named(name: str) -> Suite:
    """The suite of that name, one of SUITES."""
    suite: Suite = importlib.import_module(f"flashgp.bench.suites.{name.replace('-', '_')}").SUITE
    return suite
