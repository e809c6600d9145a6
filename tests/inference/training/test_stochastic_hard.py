"""Bad input and bad luck while training by estimated gradients, and of every route of conditioning: an answer as good
as that of the exact route, or an error that says where."""

import math
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy
import pytest
import torch
from safetensors.numpy import load_file
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import ConvergenceError
from flashgp.foundations.events import EventKind
from forked import Forked
from inference.training.tables import SETTINGS, kinds, planned, prior, table
from inside_torch import InsideTorch, Operation, product_of

F64 = torch.float64
ROUTES = ("direct", "refined", "stored", "recomputed")


def with_fixed(lengthscale: float | None, likelihood: fgp.likelihoods.Gaussian) -> fgp.GP:
    """A lengthscale that may not move, or a common one that may."""
    value = torch.full((3,), 1.2 if lengthscale is None else lengthscale, dtype=F64)
    kernel = fgp.kernels.Matern(nu=1.5, lengthscale=fgp.Parameter(value, trainable=lengthscale is None))
    return fgp.GP(1.5 * kernel, likelihood=likelihood)


def noise_of(variance: float) -> fgp.likelihoods.Gaussian:
    return fgp.likelihoods.Gaussian(fgp.Parameter(variance, trainable=False))


HARD: dict[str, Callable[[], fgp.GP]] = {
    "noise 0": lambda: with_fixed(None, fgp.likelihoods.Gaussian(None, row_variance=torch.zeros(220, dtype=F64))),
    "noise 1e-12": lambda: with_fixed(None, noise_of(1e-12)),
    "lengthscale 1e-8": lambda: with_fixed(1e-8, fgp.likelihoods.Gaussian(0.1)),
    "lengthscale 1e8": lambda: with_fixed(1e8, fgp.likelihoods.Gaussian(0.1)),
}


@pytest.mark.parametrize("case", HARD)
def test_hard_models_are_fitted_as_well_as_by_exact_gradients(case: str) -> None:
    """Within 0.02 nats per row of the exact optimum."""
    x, y = table(220)
    gp = HARD[case]()
    exact = fgp.fit(gp, x, y, starts=2)
    found = fgp.fit(gp, x, y, plan=planned(gp, 220), settings=SETTINGS, starts=2)
    lost = float((exact.gp.log_marginal_likelihood(x, y) - found.gp.log_marginal_likelihood(x, y)).detach())
    assert lost < 0.02 * 220
    assert "GRADIENTS_ESTIMATED" in kinds(found.report.events)


def test_rows_that_are_all_equal() -> None:
    x, y = table(300)
    x = torch.ones_like(x)
    plan = fgp.plan(prior(), n=300, d=3, distinct=1)
    found = fgp.fit(prior(), x, y, plan=fgp.Plan.from_json(plan.to_json().replace('"exact"', '"stored"')))
    assert float(found.gp.likelihood.noise_variance.value.detach()) == pytest.approx(float(y.var()), rel=0.05)
    assert "ROWS_JOINED" in kinds(found.report.events)


def test_two_clusters_far_apart() -> None:
    """The window of a start on some rows is around that start: around the first it lost what the given one found."""
    x, y = table(220)
    apart = x + 1e6 * (torch.arange(220) % 2).double().unsqueeze(-1)
    found = fgp.fit(prior(), apart, y, plan=planned(prior(), 220), settings=SETTINGS, starts=2)
    assert 0.05 < float(found.gp.likelihood.noise_variance.value.detach()) < 0.2


def test_a_memory_limit_too_small_for_anything() -> None:
    x, y = table(300)
    with pytest.raises(fgp.MemoryBudgetError, match="take fewer rows"):
        fgp.fit(prior(), x, y, memory="100kB")
    for route in ROUTES:
        with pytest.raises(fgp.MemoryBudgetError):
            fgp.plan(prior(), n=300, d=3, route=route, memory="100kB")


# -- numbers that are not finite -------------------------------------------------------------------------------------
def broken_products(n: int, row: int, *, stored: bool = False, after: int = 0) -> InsideTorch:
    """Inside, products of an n x n matrix give a NaN at one row, once so many have been made.

    With `stored` those of stored tiles alone, which are multiplied from the left.
    """

    def picked(operation: Operation) -> bool:
        return product_of(n)(operation) and (not stored or operation.args[1].shape[-1] == n)

    def happens(number: int, out: Tensor) -> None:
        if number > after:
            (out if out.shape[-2] == n else out.mT)[..., row, 0] = math.nan

    return InsideTorch(picked, happens)


@pytest.mark.parametrize("route", ROUTES)
def test_a_nan_inside_a_solve_stops_it_and_says_where(route: str) -> None:
    x, y = table(120)
    plan = fgp.plan(prior(), n=120, d=3, route=route)
    wrong = r"met a number that is not finite in iteration .* at row 7, column 0"
    with broken_products(120, row=7) as products, pytest.raises(ConvergenceError, match=wrong):
        prior().condition(x, y, plan=plan)
    once = route in ("direct", "refined")
    assert products.count == (1 if once else 2), "once more in float64, where float32 may have overflowed"


def test_a_nan_in_a_batch_names_its_member() -> None:
    x, y = table(50)
    wrong = r"of batch member \(0,\) at row 7, column 0"
    with broken_products(50, row=7), pytest.raises(ConvergenceError, match=wrong):
        prior().condition(x, torch.stack([y, y]))


@pytest.mark.filterwarnings("ignore::flashgp.FlashGPWarning")
@pytest.mark.parametrize("after", [0, 12])
def test_a_nan_of_float32_tiles_while_training_brings_float64_products(after: int) -> None:
    """At the start of all rows, and later."""
    x, y = table(220)
    with broken_products(220, row=7, stored=True, after=after):
        found = fgp.fit(prior(), x, y, plan=planned(prior(), 220), settings=SETTINGS, starts=1)
    assert "GRADIENTS_IN_FLOAT64" in kinds(found.report.events)
    assert 0.05 < float(found.gp.likelihood.noise_variance.value.detach()) < 0.2


# -- kills -----------------------------------------------------------------------------------------------------------
CHILD = """
import os, signal, sys
import dataclasses, torch
torch.set_num_threads(int(sys.argv[2]))  # which last bits depend on
import flashgp as fgp
from inference.training.tables import SETTINGS, planned, prior, table
seen = []
def steps(p):
    seen.extend([1] * (p.start == "start 0"))
    if len(seen) == 3: os.kill(os.getpid(), signal.SIGKILL)
x, y = table(220)
settings = dataclasses.replace(SETTINGS, seconds_between_writes=-1.0)
fgp.fit(prior(), x, y, plan=planned(prior(), 220), starts=1, checkpoint=sys.argv[1], progress=steps, settings=settings)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")
def test_kill_9_in_the_search_over_all_rows(tmp_path: Path) -> None:
    """What was evaluated is not evaluated again; what comes after agrees to the tolerance of solves, and says so."""
    path = tmp_path / "log"
    child = Forked(CHILD, path, torch.get_num_threads())
    x, y = table(220)
    options = {"plan": planned(prior(), 220), "starts": 1, "settings": SETTINGS}
    whole = fgp.fit(prior(), x, y, **options)
    assert child.wait() == -signal.SIGKILL
    logged = load_file(path)  # by another process, whose last bits are its own
    assert len(logged["start 0/value"]) == 3
    resumed = fgp.fit(prior(), x, y, checkpoint=path, **options)
    (event,) = [event for event in resumed.report.events if event.kind is EventKind.RESUMED]
    count = event.fields["evaluations"]
    assert event.fields["estimated"]
    assert count == sum(len(values) for name, values in logged.items() if name.endswith("/value"))
    for one in resumed.history[:count]:
        assert one.value == -logged[f"{one.start}/value"][one.index]
        assert one.theta == tuple(logged[f"{one.start}/theta"][one.index])
    lost = float((whole.gp.log_joint(x, y) - resumed.gp.log_joint(x, y)).detach())
    assert abs(lost) < 0.01 * 220  # nats, as a fit by estimates against the exact one


# -- threads ---------------------------------------------------------------------------------------------------------
@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("route", ROUTES)
def test_any_number_of_threads_gives_the_same_answer(route: str, threads: Callable[[int], None]) -> None:
    """Within the tolerance: a thousandth of a standard deviation of an observation, each."""
    x, y = table(700)
    x_test = table(30)[0]
    plan = fgp.plan(prior(), n=700, d=3, route=route)
    means = []
    for count in (1, 2):
        threads(count)
        means.append(prior().condition(x, y, plan=plan, seed=3).predict(x_test).mean)
    assert float((means[0] - means[1]).abs().max()) <= 2e-3 * math.sqrt(0.1)


def test_a_fit_by_estimates_agrees_at_any_number_of_threads(threads: Callable[[int], None]) -> None:
    x, y = table(220)
    options = {"plan": planned(prior(), 220), "settings": SETTINGS, "starts": 1, "seed": 3, "max_iterations": 4}
    found = []
    for count in (1, 2):
        threads(count)
        found.append(fgp.fit(prior(), x, y, **options))
    assert numpy.allclose(found[0].history[-1].theta, found[1].history[-1].theta, atol=0.05)
