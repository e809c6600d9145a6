"""Versions, and what a package that is missing costs: seconds of a stated product, by the planner's rates.

Versions are read from the installed packages' own records; nothing is imported for them.
"""

import importlib.util
import platform
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata

import torch

from flashgp.diagnosis.findings import Finding
from flashgp.foundations.profile_store import current_profile
from flashgp.foundations.quantities import readable_seconds
from flashgp.kernels.matern import Matern
from flashgp.planner.engines import ENGINES
from flashgp.planner.problem import Features, ProductProblem, Resources
from flashgp.planner.products import plan_product

__all__ = ["PROBLEM", "package_findings", "product_seconds", "product_text", "version_findings"]

PROBLEM = (20_000, 8, 1)  # rows, columns and right-hand sides of the product that seconds are given for
_BUDGET = 2**50  # what fits is not the question here, and asking a device for its memory would initialise it

# Packages FlashGP cannot do without, as they are imported and as they are installed.
_REQUIRED = {
    "torch": "torch", "numpy": "numpy", "scipy": "scipy", "sklearn": "scikit-learn", "safetensors": "safetensors",
    "jaxtyping": "jaxtyping", "threadpoolctl": "threadpoolctl", "typer": "typer", "rich": "rich", "psutil": "psutil",
    "filelock": "filelock", "platformdirs": "platformdirs",
}  # fmt: skip
# Without these something cannot be done, and nothing takes longer.
_EXTRAS = {
    "pyarrow": ("Parquet tables cannot be read or written", "flashgp[table]"),
    "matplotlib": ("nothing can be drawn, and reports have no figures", "flashgp[plot]"),
}
_PEERS = ("gpytorch", "botorch", "pykeops")


def version_findings() -> Iterator[Finding]:
    """Python, FlashGP, and every package that it uses."""
    from flashgp import __version__

    found = {"python": platform.python_version(), "flashgp": __version__}
    names = {**_REQUIRED, **{name: name for name in ("numba", "triton", *_EXTRAS, *_PEERS)}}
    found |= {name: version for name in names.values() if (version := _version(name)) is not None}
    found["torch"] = str(torch.__version__)  # with its build, which is not in its record everywhere
    system = f"{platform.system()} {platform.machine()}"
    text = ", ".join(f"{name} {version}" for name, version in found.items())
    yield Finding("versions", f"{text}; {system}", values={**found, "system": system})
    for module, name in _REQUIRED.items():
        if not _installed(module):
            yield Finding(
                "versions", f"{name} is not installed, and FlashGP needs it", "warning", f"pip install {name}"
            )


def package_findings() -> Iterator[Finding]:
    """What each package that FlashGP can do without is worth here."""
    yield from _numba()
    yield from _triton()
    for name, (lost, extra) in _EXTRAS.items():
        if _installed(name):
            yield Finding("packages", f"{name} {_version(name)}")
        else:
            text = f"{name} is not installed: {lost}; no computation takes longer"
            yield Finding("packages", text, "note", f"pip install '{extra}'")
    missing = [name for name in _PEERS if not _installed(name)]
    if missing:
        yield Finding("packages", f"{', '.join(missing)}: not installed, and only benchmarks compare with them")


def product_seconds(device: str) -> dict[str, float]:
    """Seconds of the product by each engine on a kind of device, eqs. (M-57) and (M-58), installed or not."""
    n, d, t = PROBLEM
    form, profile = Matern(nu=2.5).form, current_profile()
    problem = ProductProblem(form, n, None, Features(d), t=t, dtype=torch.float32)
    plan = plan_product(problem, Resources(_BUDGET, device, profile))
    found = {plan.backend: plan.seconds}
    return found | {one.backend: one.seconds for one in plan.alternatives if one.route == "recomputed"}


def product_text() -> str:
    """The product that seconds are given for, in words."""
    n, d, t = PROBLEM
    return f"K V of n={n:,}, d={d}, t={t} in float32"


def _numba() -> Iterator[Finding]:
    seconds = product_seconds("cpu")
    yield _worth("numba", "cpu", seconds["cpu"], seconds["torch"], "pip install numba")


def _triton() -> Iterator[Finding]:
    if not torch.backends.cuda.is_built() or not torch.cuda.device_count():
        text = f"triton {_version('triton')}" if _installed("triton") else "triton is not installed"
        yield Finding("packages", f"{text}: without an NVIDIA device nothing uses it")
        return
    seconds = product_seconds("cuda")
    if "triton" in seconds:
        engine = next(engine for engine in ENGINES if engine.backend == "triton")
        worth = _worth("triton", "cuda", seconds["triton"], seconds["torch"], "pip install triton")
        if engine.objection:  # what is taken on request alone is missed by nobody else
            worth = replace(worth, found=f"{worth.found}; {engine.objection}", severity="note")
        yield worth


def _worth(name: str, device: str, seconds: float, without: float, advice: str) -> Finding:
    rates = f"{current_profile().name} rates"
    numbers = {
        "problem": product_text(),
        "device": device,
        "seconds": seconds,
        "seconds_without": without,
        "rates": rates,
    }
    with_it, without_it = readable_seconds(seconds), readable_seconds(without)
    if _installed(name):
        text = f"{name} {_version(name)}: {product_text()} takes about {with_it}, {without_it} without it ({rates})"
        return Finding("packages", text, values=numbers)
    text = f"{name} is not installed: {product_text()} takes about {without_it} instead of {with_it} ({rates})"
    return Finding("packages", text, "warning" if without > seconds else "note", advice, numbers)


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
