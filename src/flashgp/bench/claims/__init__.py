"""The project's own claims, as anyone can measure them: one file for each suite, run by `flashgp bench`.

Every comparison goes through `compare`: interleaved runs at inputs of their own, checked against a float64 reference
that uses nothing of the library, with every clock that the machine offers. Broadcasting and nested `torch.vmap` always
take part, peers where they are installed.
"""

import importlib

from flashgp.bench.claims.suite import Finding, Options, Outcome, Suite

__all__ = ["SUITES", "Finding", "Options", "Outcome", "Suite", "suite_named"]

SUITES = ("kernel-matrix", "products", "training", "prediction", "online", "linalg")


def suite_named(name: str) -> Suite:
    """The suite of that name, one of SUITES."""
    found: Suite = importlib.import_module(f"flashgp.bench.claims.{name.replace('-', '_')}").SUITE
    return found
