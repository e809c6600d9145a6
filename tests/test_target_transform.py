"""Transforms of the target: values, densities and moments against numerical integration; choice by the evidence."""

import json
import math
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, stats

import flashgp as fgp
from clocks import Clock
from flashgp.choices import ChoiceSettings, choose_transform
from flashgp.foundations.deadline import Deadline
from flashgp.foundations.errors import DomainError, MemoryBudgetError, ModelFileError
from flashgp.foundations.events import EventKind, Untried
from flashgp.inference.run import Run
from flashgp.inference.training.options import FitOptions
from flashgp.target_transform import TargetTransform, WarpedMixture, WarpedNormal
from inside_torch import InsideTorch, factorises, raising

NO_TIME = "The target is modelled as it is: no transform was tried, since the time limit left no time."
POWERS = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0)
TRANSFORMS = [TargetTransform("log", scale=2.0), *(TargetTransform("yeo-johnson", p, 3.0, 2.0) for p in POWERS)]
CASES = [(transform, m, s) for transform in TRANSFORMS for m in (-2.0, -0.3, 0.0, 1.5) for s in (1e-3, 0.2, 1.5)]


def grid(
    transform: TargetTransform, m: float, s: float, count: int = 100_001
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A fine grid of a standard normal that has the kink of T on it, y there, and the density."""
    reach = 10.0 + 2.0 * s
    t = np.unique([*np.linspace(-reach, reach, count), float(np.clip(-m / s, -reach, reach))])
    return t, transform.inverse(m + s * t), stats.norm.pdf(t)


# -- the transform, M-140 ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("transform", [TargetTransform(), *TRANSFORMS], ids=str)
def test_a_transform_is_increasing_and_comes_back(transform: TargetTransform) -> None:
    y = np.linspace(0.01, 40.0, 301) if transform.kind == "log" else np.linspace(-40.0, 40.0, 301)
    w = transform.forward(y)
    assert (np.diff(w) > 0).all()
    np.testing.assert_allclose(transform.inverse(w), y, rtol=1e-12, atol=1e-12)
    step = 1e-6 * (1.0 + np.abs(y)) * 0.01
    slope = (transform.forward(y + step) - transform.forward(y - step)) / (2.0 * step)
    np.testing.assert_allclose(transform.log_slope(y), np.log(slope), atol=1e-5)
    assert TargetTransform.from_json(json.loads(json.dumps(transform.to_json()))) == transform


def test_yeo_johnson_is_scipy_s() -> None:
    s = np.linspace(-3.0, 5.0, 41)
    for power in POWERS:
        found = TargetTransform("yeo-johnson", power).forward(s)
        np.testing.assert_allclose(found, stats.yeojohnson(s, power), rtol=1e-13, atol=1e-15)


# -- predictions in units of y, M-141 and M-142 -------------------------------------------------------------------
@pytest.mark.parametrize(("transform", "m", "s"), CASES, ids=str)
def test_moments_are_those_of_numerical_integration(transform: TargetTransform, m: float, s: float) -> None:
    t, y, density = grid(transform, m, s)
    middle = float(transform.inverse(m))  # around which small deviations keep their digits
    mean = integrate.simpson((y - middle) * density, x=t)
    variance = integrate.simpson((y - middle - mean) ** 2 * density, x=t)
    found = WarpedNormal(np.array([m]), np.array([s]), transform)
    assert abs(found.mean[0] - middle - mean) <= 1e-9 * math.sqrt(variance)
    assert math.isclose(found.std[0], math.sqrt(variance), rel_tol=1e-9)
    assert math.isclose(found.median[0], middle)


@pytest.mark.parametrize("transform", TRANSFORMS, ids=str)
def test_densities_integrate_to_one_and_quantiles_are_theirs(transform: TargetTransform) -> None:
    found = WarpedNormal(np.array([0.4]), np.array([0.6]), transform)
    edges = transform.inverse(0.4 + 0.6 * np.array([-9.0, -0.4 / 0.6, 0.0, 9.0]))
    median, (lower, upper) = float(found.median[0]), (float(v[0]) for v in found.interval(0.9))

    def mass(low: float, high: float) -> float:
        inside = [low, *(e for e in edges if low < e < high), high]
        density = lambda v: math.exp(found.log_prob(np.array([v]))[0])  # noqa: E731
        return sum(integrate.quad(density, a, b)[0] for a, b in pairwise(inside))

    assert math.isclose(mass(edges[0], edges[-1]), 1.0, abs_tol=1e-6)
    assert math.isclose(mass(edges[0], median), 0.5, abs_tol=1e-6)
    assert math.isclose(mass(lower, upper), 0.9, abs_tol=1e-6)
    assert math.isclose(found.quantile(0.95)[0], upper, rel_tol=1e-12)


@pytest.mark.parametrize("transform", TRANSFORMS, ids=str)
@pytest.mark.parametrize("correlation", [-0.8, 0.3, 0.99, 1.0])
def test_covariances_are_those_of_numerical_integration(transform: TargetTransform, correlation: float) -> None:
    m, s = np.array([0.3, -0.5]), np.array([0.8, 0.5])
    shared = correlation * s[0] * s[1]
    found = WarpedNormal(m, s, transform)
    t, y, density = grid(transform, m[0], s[0], 4_001)
    # E y_2 given the first, by its own quadrature, times y_1.
    given = np.full_like(t, s[1] * math.sqrt(1.0 - correlation**2))
    other = WarpedNormal(m[1] + correlation * s[1] * t, given, transform).mean
    wanted = integrate.simpson((y - found.mean[0]) * (other - found.mean[1]) * density, x=t)
    joint = found.covariance(np.array([[s[0] ** 2, shared], [shared, s[1] ** 2]]))
    assert abs(joint[0, 1] - wanted) <= 1e-6 * found.std[0] * found.std[1]
    np.testing.assert_allclose(np.diag(joint), found.std**2, rtol=1e-9)
    assert joint[0, 1] == joint[1, 0]


def test_what_cannot_be_has_no_density_and_certain_predictions_are_points() -> None:
    found = WarpedNormal(np.zeros(2), np.array([1.0, 0.0]), TargetTransform("log"))
    assert found.log_prob(np.array([-1.0, 2.0])).tolist() == [-math.inf, -math.inf]
    assert found.std[1] == 0.0
    exact = WarpedNormal(np.array([0.7]), np.zeros(1), TargetTransform("yeo-johnson", 0.5))
    assert math.isclose(exact.mean[0], exact.median[0])
    assert exact.std[0] < 1e-15
    for call in (lambda: exact.quantile(1.0), lambda: exact.interval(0.0)):
        with pytest.raises(DomainError, match="between 0 and 1"):
            call()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"kind": "box-cox"}, "kind"),
        ({"power": 2.5}, "power"),
        ({"kind": "log"}, "transform"),
        ({"kind": "none", "power": 1.0, "shift": 0.0}, "scale"),
        ({"more": 1}, "transform"),
    ],
)
def test_hostile_json_is_refused_by_field(change: dict[str, Any], named: str) -> None:
    data = TargetTransform("yeo-johnson", 0.5, 1.0, 2.0).to_json() | change
    with pytest.raises(ModelFileError, match=f"`scaling.transform[^`]*{named}`|`scaling.{named}`"):
        TargetTransform.from_json(data)


# -- the choice, M-143 --------------------------------------------------------------------------------------------
def table(n: int = 80, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    x = generator.uniform(-2.0, 2.0, (n, 2))
    return x, np.sin(2.0 * x[:, 0]) + 0.5 * x[:, 1] + 0.1 * generator.standard_normal(n)


def fixed(noise: float = 0.05) -> fgp.GP:
    return fgp.GP(1.3 * fgp.kernels.Matern(2.5, torch.tensor([0.9, 1.4])), likelihood=fgp.likelihoods.Gaussian(noise))


def test_the_evidence_is_that_of_the_target_with_its_jacobian() -> None:
    x, latent = table(30)
    y = np.exp(latent)
    choice = choose_transform("yeo-johnson", fixed(), torch.from_numpy(x), y, None)
    assert choice.transform.power < 1.0

    def evidence(transform: TargetTransform) -> float:
        """By a dense float64 determinant and inverse, with the Jacobian by differences."""
        kernel = 1.3 * fgp.kernels.Matern(2.5, torch.tensor([0.9, 1.4]))
        k = kernel(torch.from_numpy(x)).to_dense().detach().numpy() + 0.05 * np.eye(30)
        w = transform.forward(y)

        def standardised(values: np.ndarray) -> np.ndarray:
            return np.asarray((transform.forward(values) - w.mean()) / w.std())

        step = 1e-6
        slope = (standardised(y + step) - standardised(y - step)) / (2.0 * step)
        return float(stats.multivariate_normal.logpdf(standardised(y), cov=k) + np.log(slope).sum())

    assert choice.event is not None
    gain = evidence(choice.transform) - evidence(TargetTransform())
    assert math.isclose(choice.event.fields["gain"], gain, rel_tol=1e-6)


def test_auto_finds_the_scale_that_made_the_target_and_otherwise_keeps_it() -> None:
    x, latent = table(120)
    rows, options = torch.from_numpy(x), FitOptions()
    prior = fgp.GP(1.0 * fgp.kernels.Matern(2.5, torch.ones(2)), fgp.means.Constant())
    kept = choose_transform("auto", prior, rows, latent, options)
    assert kept.transform.identity
    assert kept.event is not None
    assert kept.event.kind is EventKind.TARGET_KEPT
    exponential = choose_transform("auto", prior, rows, np.exp(2.0 * latent), options)
    assert exponential.transform.kind == "log"
    assert exponential.event is not None
    assert exponential.event.kind is EventKind.TARGET_TRANSFORMED
    assert exponential.event.fields["gain"] > 10.0
    assert exponential.event.fields["left_out"] > 3.0 * exponential.event.fields["error"]
    made = TargetTransform("yeo-johnson", 0.5).inverse(1.5 * latent)
    power = choose_transform("auto", prior, rows, made, options)
    assert power.transform.kind == "yeo-johnson"
    assert power.transform.power in (0.25, 0.5, 0.75)
    assert power.event is not None
    assert choose_transform("auto", prior, rows, made, options) == power  # the same every time
    mirrored = choose_transform("auto", prior, rows, -made, options)
    assert mirrored.transform.power == 2.0 - power.transform.power
    scaled = choose_transform("auto", prior, rows, 1e6 * made + 1e7, options)
    assert scaled.transform.power == power.transform.power
    strict = choose_transform("auto", prior, rows, made, options, settings=ChoiceSettings(nats=1e4))
    assert strict.transform.identity
    sure = choose_transform("auto", prior, rows, made, options, settings=ChoiceSettings(standard_errors=1e3))
    assert sure.transform.identity


def test_auto_does_not_try_where_it_should_not() -> None:
    x, latent = table(40)
    rows, y = torch.from_numpy(x), np.exp(2.0 * latent)
    known = fgp.GP(fgp.kernels.Matern(2.5, torch.ones(2)), likelihood=fgp.likelihoods.Gaussian(0.1, np.ones(40)))
    for prior, goal, count, standardise, untried in (
        (known, y, 40, True, Untried.UNITS), (fixed(), np.full(40, 3.0), 40, True, Untried.CONSTANT),
        (fixed(), y, 10, True, Untried.FEW_ROWS), (fixed(), y, 40, False, Untried.UNITS),
    ):  # fmt: skip
        choice = choose_transform("auto", prior, rows[:count], goal[:count], FitOptions(), standardise=standardise)
        assert choice.transform.identity
        assert choice.event is not None
        assert choice.event.fields == {"untried": untried}
        assert "no transform was tried, since " in str(choice.event)
    assert choose_transform("none", fixed(), rows, y, None).event is None


@pytest.mark.parametrize("step", [3e-4, 1e-3, 3e-3])
def test_a_trial_is_compared_with_a_first_fit_that_had_its_time(step: float) -> None:
    """What a first fit that was cut short missed, a trial that goes on from there would gain, whatever its transform.

    Seen red: a transform gained 40 nats beside a base of few evaluations.
    """
    x, latent = table(120)
    y, rows = np.exp(latent), torch.from_numpy(x)
    prior = fgp.GP(1.0 * fgp.kernels.Matern(2.5, torch.ones(2)), fgp.means.Constant())
    settings = ChoiceSettings(powers=(0.5,))
    whole = choose_transform("yeo-johnson", prior, rows, y, FitOptions(), settings=settings).event
    limited = FitOptions(run=Run(deadline=Deadline(1.0, 1.0, Clock(step))))
    found = choose_transform("yeo-johnson", prior, rows, y, limited, settings=settings)
    assert whole is not None
    assert found.event is not None
    if step == 3e-4:
        assert found.event == whole
    else:
        assert found.transform.power == 1.0
        assert found.event.fields == {"transform": str(found.transform), "untried": Untried.TIME}
        assert "no other was tried, since the time limit left no time" in str(found.event)


@pytest.mark.parametrize(
    ("wanted", "y", "message"),
    [
        ("box-cox", [1.0, 2.0, 3.0], "must be one of auto, none, log, yeo-johnson, got 'box-cox'"),
        (None, [1.0, 2.0, 3.0], "must be one of"),
        ("log", [1.0, 0.0, 3.0], "got 0 at row 1"),
        ("log", [2.0, 2.0, 2.0], "constant target"),
        ("yeo-johnson", [2.0, 2.0, 2.0], "constant target"),
    ],
)
def test_what_cannot_be_transformed_is_refused(wanted: Any, y: list[float], message: str) -> None:
    x = np.arange(3.0)[:, None]
    with pytest.raises(DomainError, match=message):
        fgp.GPRegressor(target_transform=wanted).fit(x, y)
    if wanted == "log" and 0.0 in y:
        assert fgp.GPRegressor(target_transform="auto").fit(x, y).scaling_.target.transform.identity


# -- the estimator ------------------------------------------------------------------------------------------------
def given(**options: Any) -> fgp.GPRegressor:
    kernel = 1.7 * fgp.kernels.Matern(2.5, torch.tensor([0.8, 1.6]))
    likelihood = fgp.likelihoods.Gaussian(0.05)
    return fgp.GPRegressor(kernel, mean=fgp.means.Zero(), likelihood=likelihood, optimise=False, **options)


@pytest.mark.parametrize("wanted", ["log", "yeo-johnson"])
def test_an_estimator_answers_in_units_of_the_target(wanted: str) -> None:
    x, latent = table(40)
    y, points = 3.0 * np.exp(latent), np.random.default_rng(2).uniform(-2.0, 2.0, (7, 2))
    model = given(target_transform=wanted).fit(x, y)
    assert not model.scaling_.target.transform.identity
    scaling = model.scaling_
    standard = model.posterior_.predict(torch.from_numpy(scaling.x(points)))
    for latent_only in (False, True):
        variance = standard.variance if latent_only else standard.observation_variance
        mean, std = model.predict(points, return_std=True, latent=latent_only)
        found = model.predict_distribution(points, latent=latent_only)
        for i in range(7):
            m = scaling.target.mean(float(standard.mean[i]))
            s = scaling.target.std(math.sqrt(float(variance[i])))
            t, values, density = grid(scaling.target.transform, m, s)
            wanted_mean = integrate.simpson(values * density, x=t)
            wanted_std = math.sqrt(integrate.simpson((values - wanted_mean) ** 2 * density, x=t))
            assert math.isclose(mean[i], wanted_mean, rel_tol=1e-6)
            assert math.isclose(std[i], wanted_std, rel_tol=1e-6)
        np.testing.assert_array_equal(found.mean, mean)
        _, covariance = model.predict(points, return_cov=True, latent=latent_only)
        np.testing.assert_allclose(np.sqrt(np.diag(covariance)), std, rtol=1e-6)
    drawn = model.sample_y(points, 4000, random_state=0)
    mean, std = model.predict(points, return_std=True)
    assert (np.abs(drawn.mean(1) - mean) <= 4.0 * std / math.sqrt(4000)).all()
    np.testing.assert_allclose(np.median(drawn, axis=1), model.predict_distribution(points).median, rtol=0.1)
    assert (drawn > 0).all() or wanted != "log"
    assert model.predict(points.astype(np.float32)).dtype == np.float32


def test_each_output_has_its_own_transform_and_rows_without_values_are_nan() -> None:
    x, latent = table(60)
    both = np.stack([latent, np.exp(2.0 * latent)], axis=1)
    model = fgp.GPRegressor(target_transform="auto", missing="drop").fit(x, both)
    first, second = model.scaling_
    assert first.target.transform.identity
    assert second.target.transform.kind == "log"
    kinds = {event.kind for event in model.report_.events}
    assert {EventKind.TARGET_KEPT, EventKind.TARGET_TRANSFORMED} <= kinds
    points = np.array([[0.1, 0.2], [np.nan, 0.0], [1.0, -1.0]])
    with pytest.warns(fgp.FlashGPWarning, match="missing value"):
        mean, std = model.predict(points, return_std=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fgp.FlashGPWarning)
        _, covariance = model.predict(points, return_cov=True)
        each, drawn = model.predict_distribution(points), model.sample_y(points, 3)
    assert mean.shape == std.shape == (3, 2)
    assert covariance.shape == (3, 3, 2)
    assert drawn.shape == (3, 2, 3)
    assert np.isnan(mean[1]).all()
    assert np.isnan(covariance[1]).all()
    assert np.isfinite(np.delete(mean, 1, 0)).all()
    np.testing.assert_allclose(covariance[[0, 2], [0, 2]], std[[0, 2]] ** 2, rtol=1e-9)
    np.testing.assert_array_equal(each[1].mean, mean[:, 1])
    np.testing.assert_allclose(np.exp(2.0 * latent).mean(), model.predict(x)[:, 1].mean(), rtol=0.1)


# -- tables and the command line ----------------------------------------------------------------------------------
def test_a_table_s_model_keeps_its_transform(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from typer.testing import CliRunner

    from flashgp.cli.application import application
    from flashgp.table_model import TableModel

    def run(*arguments: object, code: int = 0) -> Any:
        result = CliRunner().invoke(application, [str(a) for a in arguments])
        assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
        return result

    def written(name: str, y: np.ndarray) -> Path:
        path = tmp_path / name
        lines = [f"{a!r},{b!r},{c!r}" for (a, b), c in zip(x.tolist(), y.tolist(), strict=True)]
        path.write_text("\n".join(["u,v,count", *lines]) + "\n")
        return path

    x, latent = table(90)
    y = np.exp(2.0 * latent)
    path, model_path = written("table.csv", y), tmp_path / "m.safetensors"
    command = ("fit", path, "-t", "count", "--json", "--out", model_path, "--target-transform", "auto")
    said = json.loads(run(*command).stdout)
    assert said["target_transform"]["kind"] == "log"
    assert "TARGET_TRANSFORMED" in {event["kind"] for event in said["events"]}

    model = TableModel.load(model_path)
    assert model.scaling.target.transform.kind == "log"
    out = tmp_path / "p.csv"
    scores = json.loads(run("predict", model_path, path, "--out", out, "--std", "--interval", "0.9", "--json").stdout)
    found = np.genfromtxt(out, delimiter=",", names=True)
    target = model.predict(path)
    for name, wanted in (("mean", target.mean), ("std", target.std), ("lower", target.interval(0.9)[0])):
        np.testing.assert_allclose(found[name], wanted, rtol=1e-9)
    assert math.isclose(scores["fitted_scores"]["nll"], -target.log_prob(y).mean(), rel_tol=1e-9)

    more = json.loads(run("update", model_path, path, "--out", tmp_path / "n.safetensors", "--json").stdout)
    assert more["rows_now"] == 180
    assert TableModel.load(tmp_path / "n.safetensors").scaling == model.scaling
    bad = written("bad.csv", np.where(np.arange(90) == 4, 0.0, y))
    assert "at row 5" in run("update", model_path, bad, code=2).stderr.replace("\n", " ")
    assert "at row 5" in run("fit", bad, "-t", "count", "--target-transform", "log", code=2).stderr.replace("\n", " ")


def test_an_interrupt_while_the_choice_is_made_ends_the_fit() -> None:
    interrupted = InsideTorch(factorises, raising(KeyboardInterrupt, 1))
    told = "while the transform of the target was chosen"
    with interrupted, pytest.raises(KeyboardInterrupt, match=told) as stop:
        fgp.GPRegressor().fit(*table(30))
    assert stop.type is KeyboardInterrupt


def test_a_density_where_nothing_is_predicted_is_unknown() -> None:
    """NaN, as every other number of such a row; -inf is an answer."""
    nan = float("nan")
    predicted = WarpedNormal(np.array([nan, 0.0, 0.0]), np.array([nan, 1.0, 1.0]), TargetTransform("log"))
    density = predicted.log_prob(np.array([1.0, nan, -1.0]))
    assert np.isnan(density[:2]).all()
    assert density[2] == -math.inf


@pytest.mark.parametrize(("outputs", "tried"), [(1, [True]), (4, [False, False, False, True])])
def test_the_choice_of_all_outputs_is_part_of_the_time_limit(outputs: int, tried: list[bool]) -> None:
    """By a clock that goes on by a second when it is looked at: a tenth of 1,700 seconds is enough for a choice.

    A tenth of a fourth of them, or of a third or half of what is left, is not; all that the others left is.
    """
    deadline = Deadline(1700.0, 1700.0, Clock(1.0))
    x, latent = table(30)
    y = np.exp(np.stack([latent] * outputs, axis=1))
    report = fgp.GPRegressor(starts=1)._refit(x, y, None, deadline).report_
    choices = [e for e in report.events if e.kind in (EventKind.TARGET_KEPT, EventKind.TARGET_TRANSFORMED)]
    assert [str(choice) != NO_TIME for choice in choices] == tried


@pytest.mark.parametrize("memory", [None, "1KiB"])
def test_a_fit_that_fails_leaves_the_model_as_it_was(memory: str | None) -> None:
    """With the transform and the units of other data a posterior would answer in wrong units."""
    x = np.linspace(0.0, 1.0, 30)[:, None]
    y = np.exp(3.0 * x[:, 0])
    model = fgp.GPRegressor(target_transform="log", optimise=False).fit(x, y)
    before = model.predict(x)
    model.set_params(memory=memory)
    with pytest.raises((DomainError, MemoryBudgetError)):
        model.fit(x, -y if memory is None else 5.0 * y)
    assert (model.predict(x) == before).all()
    assert model.get_params()["memory"] == memory


def test_a_mixture_of_warped_normals_is_their_average() -> None:
    rng = np.random.default_rng(0)
    for kind in ("none", "log", "yeo-johnson"):
        transform = TargetTransform(kind, *((0.5, 1.0, 2.0) if kind == "yeo-johnson" else ()))
        parts = WarpedNormal(rng.normal(size=(3, 5)), rng.uniform(0.2, 0.6, (3, 5)), transform)
        weights = rng.dirichlet(np.ones(3), 5).T
        y = WarpedMixture(parts, weights)
        which = np.array([rng.choice(3, 200_000, p=weights[:, j]) for j in range(5)])
        w = np.take_along_axis(parts.location.T, which, 1) + np.take_along_axis(parts.spread.T, which, 1) * rng.normal(
            size=which.shape
        )
        drawn = transform.inverse(w)
        np.testing.assert_allclose(y.mean, drawn.mean(1), atol=5.0 * (drawn.std(1) / 200_000**0.5).max())
        np.testing.assert_allclose(y.std, drawn.std(1), rtol=0.02)
        for q in (0.025, 0.5, 0.9):
            np.testing.assert_allclose(y.cdf(y.quantile(q)), q, atol=1e-12)
        at = y.quantile(0.7)
        step = 1e-6 * y.std
        slope = (y.cdf(at + step) - y.cdf(at - step)) / (2.0 * step)
        np.testing.assert_allclose(np.exp(y.log_prob(at)), slope, rtol=1e-6)
        lower, upper = y.interval(0.8)
        np.testing.assert_array_equal(y.inside(at, 0.8), (lower <= at) & (at <= upper))
        np.testing.assert_allclose(y.rows([1, 3]).mean, y.mean[[1, 3]])
        one = WarpedMixture(parts.rows((slice(0, 1), slice(None))), np.ones((1, 5)))
        np.testing.assert_allclose(one.standardised(at), parts.rows(0).standardised(at), rtol=1e-9)


def test_a_table_averages_over_draws_of_the_parameters(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    x = rng.uniform(0.0, 4.0, (40, 2))
    table = {"a": x[:, 0], "b": x[:, 1], "y": np.exp(np.sin(2.0 * x[:, 0]) + 0.1 * rng.normal(size=40))}
    plain = fgp.TableModel(target_transform="log", starts=1).fit(table, target="y")
    drawn = fgp.TableModel(target_transform="log", starts=1, uncertainty="laplace").fit(table, target="y")
    at = {"a": [1.0, 2.0, 9.0], "b": [1.0, 3.0, 9.0]}
    assert np.all(drawn.predict(at).interval(0.9)[0] < drawn.predict(at).mean)
    np.testing.assert_allclose(drawn.predict(at).mean[:2], plain.predict(at).mean[:2], rtol=0.2)
    drawn.save(tmp_path / "drawn.safetensors")
    again = fgp.load(tmp_path / "drawn.safetensors")
    np.testing.assert_array_equal(again.predict(at).quantile(0.9), drawn.predict(at).quantile(0.9))
    assert drawn.verdict.explained is not None
    assert drawn.verdict.explained.value > 0.8
    new = {"a": [1.0], "b": [1.0], "y": [2.0]}
    longer = drawn.update(new)
    assert longer.posterior.count == 41
    np.testing.assert_array_equal(longer.learned.mean, drawn.predict({"a": [1.0], "b": [1.0]}).mean)
    assert abs(longer.predict(new).mean[0] - 2.0) < abs(drawn.predict(new).mean[0] - 2.0)
    with pytest.raises(DomainError, match="`refine` needs one set of hyperparameters, got a mixture"):
        drawn.update(new, refine=1)
