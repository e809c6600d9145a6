"""Whole fits by estimated gradients, where the exact optimum is known; hard models, numbers that are none."""

import dataclasses
import math
from collections.abc import Callable, Iterator

import numpy
import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import ConvergenceError
from flashgp.foundations.events import Event, EventKind
from flashgp.inference.training.history import SearchRun, Solving, Stage
from flashgp.inference.training.options import FitSettings
from flashgp.inference.training.stochastic import with_factored_part
from flashgp.inference.training.stochastic_objective import EstimatedLogJoint
from inference.training.tables import SETTINGS, kinds, planned, prior, table
from inside_torch import InsideTorch, Operation, product_of


def with_gradients(change, calls=None) -> FitSettings:
    """Settings whose estimated evaluations go through `change(objective, evaluation)`."""

    class Changed(EstimatedLogJoint):
        def __call__(self, theta):
            if calls is not None:
                calls.append((self.rows, theta))
            return change(self, super().__call__(theta))

    return dataclasses.replace(SETTINGS, estimated=Changed)


def test_a_part_for_factors_comes_only_where_what_follows_is_larger():
    assert with_factored_part([], 3366, 13_464, 1.5) == [6732]
    assert with_factored_part([], 7286, 14_574, 1.5) == []  # two rows fewer than all
    assert with_factored_part([9000], 2250, 36_000, 1.5) == [4500, 9000]
    assert with_factored_part([9000], 4500, 36_000, 1.5) == [9000]


def test_a_search_that_diverges_is_given_up(tmp_path):
    """Rough gradients that lie are found out by the exact likelihood of the first rows; what was there before is kept.
    Where their solves ended at their goals the report says how much less likely it is."""
    x, y = table(220)
    gp, rough = prior(), True

    def lying(objective, evaluation):  # the noise had better vanish
        if rough:
            objective.solve_by(Solving.ROUGH_ITERATIONS)
        pull = [2500.0 * name.startswith("likelihood") for name in objective.parameters.names()]
        return dataclasses.replace(evaluation, gradient=evaluation.gradient + numpy.array(pull))

    options, path = {"starts": 1, "settings": with_gradients(lying)}, tmp_path / "log"
    for _ in ("whole", "resumed"):
        with pytest.warns(fgp.FlashGPWarning, match="each less likely"):
            found = fgp.fit(gp, x, y, plan=planned(gp, 220), checkpoint=path, **options)
        assert "STAGE_REJECTED" in kinds(found.report.events)
        assert 0.05 < float(found.gp.likelihood.noise_variance.value.detach()) < 0.2
    rough = False
    by_factors = fgp.fit(gp, x, y, plan=planned(gp, 220, training_factor_passes=1), **options)
    assert "STAGE_WORSE" in kinds(by_factors.report.events)
    assert "STAGE_WORSE" in kinds(fgp.fit(gp, x, y, plan=planned(gp, 220), **options).report.events)


def test_training_beyond_the_memory_is_refused_before_any_work():
    """Conditioning may fit where training does not; neither is begun."""
    x, y = table(60)
    gp = prior()
    plan = fgp.plan(gp, n=60, d=3)
    tight = dataclasses.replace(plan, training_bytes=plan.available_bytes + 1)
    seen = []
    with pytest.raises(fgp.MemoryBudgetError, match=r"fitting 60 rows needs .* pass a larger memory=") as caught:
        fgp.fit(gp, x, y, plan=tight, progress=seen.append)
    assert caught.value.needed_bytes == plan.available_bytes + 1
    assert not seen


def test_a_fit_by_estimated_gradients_is_as_good_as_the_exact_one():
    """Within 0.01 nats per row of the optimum, on a table so small that its likelihood has a flat ridge."""
    x, y = table(300)
    gp = prior()
    exact = fgp.fit(gp, x, y, starts=1)
    found = fgp.fit(gp, x, y, plan=planned(gp, 300, "recomputed"), settings=SETTINGS)
    lost = float((exact.gp.log_marginal_likelihood(x, y) - found.gp.log_marginal_likelihood(x, y)).detach())
    assert lost < 0.01 * 300
    assert "GRADIENTS_ESTIMATED" in kinds(found.report.events)
    assert "GRADIENTS_ESTIMATED" not in kinds(exact.report.events)


def test_a_fit_of_many_rows_resumes(tmp_path):
    x, y = table(220)
    gp = prior()
    options = {"plan": planned(gp, 220), "settings": SETTINGS, "starts": 1}
    whole = fgp.fit(gp, x, y, **options)

    def stop(progress):
        if progress.start.startswith("start") and progress.evaluation >= len(whole.history) - 1:
            raise KeyboardInterrupt

    path = tmp_path / "fit.checkpoint"
    cut = fgp.fit(gp, x, y, checkpoint=path, progress=stop, **options)
    assert cut.interrupted
    resumed = fgp.fit(gp, x, y, checkpoint=path, **options)
    assert Event(EventKind.RESUMED, evaluations=len(cut.history), estimated=True) in resumed.report.events
    assert numpy.allclose(resumed.history[-1].theta, whole.history[-1].theta, atol=0.05)


def test_parts_that_come_to_factors(tmp_path):
    """One of twice the rows comes before all, each comes to factors by itself, and a resumed fit knows all that."""
    x, y = table(640, noise=1e-3)
    gp = prior(noise=1e-3)
    options = {"plan": planned(gp, 640, training_factor_passes=1), "settings": SETTINGS, "starts": 1}
    path = tmp_path / "fit.checkpoint"

    def stop(progress):
        if progress.start.startswith("start"):
            raise KeyboardInterrupt

    cut = fgp.fit(gp, x, y, checkpoint=path, progress=stop, **options)
    assert cut.interrupted
    runs = list(dict.fromkeys(e.start for e in cut.history if e.start.startswith(("part", "start"))))
    wanted = [SearchRun(Stage.PART, 160), SearchRun(Stage.PART, 320), SearchRun(Stage.ALL_ROWS)]
    assert runs == [str(dataclasses.replace(run, solving=Solving.FLOAT32_FACTOR)) for run in wanted]
    resumed = fgp.fit(gp, x, y, checkpoint=path, **options)
    assert Event(EventKind.RESUMED, evaluations=len(cut.history), estimated=True) in resumed.report.events
    assert list(dict.fromkeys(e.start for e in resumed.history))[-3:] == runs
    whole = fgp.fit(gp, x, y, **options)
    values = [float(one.gp.log_joint(x, y).detach()) for one in (resumed, whole)]
    assert abs(values[0] - values[1]) < 0.01 * 640  # as a fit by estimates against the exact one


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
# -- threads ---------------------------------------------------------------------------------------------------------
@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
