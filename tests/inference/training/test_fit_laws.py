"""Laws of a fit by every engine: near the exact optimum, repeatable, resumable, on time, for any number of rows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import flashgp as fgp
from flashgp.foundations.events import EventKind, of_kind
from flashgp.inference.fit import Fit
from flashgp.inference.training.history import Stage
from flashgp.inference.training.options import FitSettings
from flashgp.inference.training.settings import SampleSettings, SearchSettings, StochasticSettings
from inference.plain_gp import data, model
from inference.training.tables import FEW_ROWS
from inference.training.test_resume import Killed, killed_after, replayed, trajectory

# Small tables have all stages, and checkpoints every evaluation.
FEW = FitSettings(stochastic=StochasticSettings(first_rows=60), seconds_between_writes=-1.0)
STAGES = FitSettings(search=SearchSettings(start_rows=60), seconds_between_writes=-1.0)
ESTIMATES = FitSettings(stochastic=FEW_ROWS, seconds_between_writes=-1.0)
SAMPLE = SampleSettings(min_evaluations=1e12, min_rows=64)
WEIGHTED = FitSettings(stochastic=StochasticSettings(first_rows=100), sample=SAMPLE, seconds_between_writes=-1.0)

KINDS: dict[str, dict[str, Any]] = {
    "exact gradients": {"settings": STAGES},
    "estimated gradients": {"settings": ESTIMATES},
    "full scale": {"settings": FEW, "approximation": "full_scale", "inducing": 20, "neighbours": 24},
    "held rows and points": {"settings": FEW, "approximation": "sparse", "inducing": 10},
    "read rows and points": {"settings": FEW, "inducing": 10},
    "a weighted sample": {"settings": WEIGHTED, "inducing": 10, "time_limit": 1e5},
}
SIZES = {"estimated gradients": 220, "a weighted sample": 1200}
READ = ("read rows and points", "a weighted sample")


def fitted(kind: str, n: int = 0, seed: int = 0, **options: Any) -> Fit:
    n = n or SIZES.get(kind, 200)
    x, y = data(n, seed=seed)
    asked = {"starts": 1, **KINDS[kind], **options}
    if kind == "estimated gradients":
        asked["plan"] = _estimating(n)
    if kind in READ:
        return fgp.fit(model(), list(zip(x.split(64), y.split(64), strict=True)), **asked)
    return fgp.fit(model(), x, y, **asked)


def _estimating(n: int) -> fgp.Plan:
    plan = fgp.plan(model(), n=n, d=2)
    return fgp.Plan.from_json(plan.to_json().replace('"training": "exact"', '"training": "stored"'))


@pytest.fixture(scope="module")
def whole() -> Callable[[str], Fit]:
    """A fit of each kind, made once."""
    found: dict[str, Fit] = {}

    def of(kind: str) -> Fit:
        if kind not in found:
            found[kind] = fitted(kind)
        return found[kind]

    return of


@pytest.fixture(scope="module")
def exact() -> Callable[[int], Fit]:
    found: dict[int, Fit] = {}

    def of(n: int) -> Fit:
        if n not in found:
            found[n] = fgp.fit(model(), *data(n))
        return found[n]

    return of


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_near_the_exact_optimum(kind: str, whole: Callable[[str], Fit], exact: Callable[[int], Fit]) -> None:
    """In nats a row of the exact log joint; of points, of what they leave."""
    found, n = whole(kind), SIZES.get(kind, 200)
    x, y = data(n)
    with torch.no_grad():
        gap = float(exact(n).gp.log_joint(x, y) - found.gp.log_joint(x, y)) / n
    assert gap < (0.01 if found.posterior.can("bound") is not None else 0.15)
    assert not found.interrupted
    last = found.history[-1].run.stage
    assert last is {"exact gradients": Stage.ALL_ROWS, "estimated gradients": Stage.ALL_ROWS}.get(
        kind, Stage.WEIGHTED if kind == "a weighted sample" else Stage.APPROXIMATE
    )
    if found.posterior.can("bound") is None:
        likelihood = float(found.gp.log_marginal_likelihood(x, y).detach())
        assert found.posterior.bound.lower <= likelihood <= found.posterior.bound.upper


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_trajectory(kind: str, whole: Callable[[str], Fit]) -> None:
    again = fitted(kind)
    assert trajectory(again) == trajectory(whole(kind))
    at = data(5, seed=3)[0]
    assert torch.equal(again.posterior.predict(at).mean, whole(kind).posterior.predict(at).mean)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "estimated gradients"])
def test_killed_it_goes_on_along_its_trajectory(kind: str, tmp_path: Path, whole: Callable[[str], Fit]) -> None:
    """To the same bits, from within its stages; and not on other rows. (Estimates: `test_stochastic.py`.)"""
    wanted = whole(kind)
    for count in (5, len(wanted.history) - 2):
        file = tmp_path / f"{count}"
        with pytest.raises(Killed):
            fitted(kind, checkpoint=file, progress=killed_after(count))
        again = fitted(kind, checkpoint=file)
        assert replayed(again) == count
        assert trajectory(again) == trajectory(wanted)
        at = data(5, seed=3)[0]
        assert torch.equal(again.posterior.predict(at).mean, wanted.posterior.predict(at).mean)
    with pytest.raises(fgp.DomainError, match="checkpoint"):
        fitted(kind, seed=1, checkpoint=file)
    if kind not in ("exact gradients", "a weighted sample"):
        with pytest.raises(fgp.DomainError, match="checkpoint"):
            fitted(kind, checkpoint=file, inducing=11)


@pytest.mark.parametrize("kind", KINDS)
def test_without_time_the_parameters_are_those_that_the_data_suggest(kind: str) -> None:
    found = fitted(kind, time_limit=1e-9)
    assert found.interrupted
    assert of_kind(found.report.events, EventKind.FIT_TIME_UP)
    assert bool(found.posterior.predict(data(5)[0]).mean.isfinite().all())


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "estimated gradients"])
def test_few_rows(kind: str) -> None:
    """One, two, and thirty of which few differ."""
    for n in (1, 2):
        options = {} if kind == "exact gradients" else {"inducing": "auto"}
        options |= {"neighbours": "auto"} if kind == "full scale" else {}
        found = fitted(kind, n, **options)
        assert bool(found.posterior.predict(data(3)[0]).mean.isfinite().all())
    if kind not in READ:
        options = {**KINDS[kind], "starts": 1}
        same = fgp.fit(model(), torch.ones(30, 2, dtype=torch.float64), data(30)[1], **options)
        assert bool(same.posterior.predict(data(3)[0]).mean.isfinite().all())
        with pytest.raises(fgp.ShapeError, match="at least one row"):
            fgp.fit(model(), *data(0), **options)
