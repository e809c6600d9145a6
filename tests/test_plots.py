"""Plots: what they show, rendered to pixels; none or one or a hundred thousand points; no global state."""

import io
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import flashgp as fgp
from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.inference.training.history import SearchRun, Stage
from flashgp.targets import Classes, Number
from flashgp.units import Scaling

pytest.importorskip("matplotlib")
plots = pytest.importorskip("flashgp.plots")


def rendered(ax: Any) -> np.ndarray:
    """The figure as an RGBA image; drawing itself must not warn or fail."""
    import matplotlib.image

    stream = io.BytesIO()
    ax.figure.savefig(stream, format="png", dpi=60)
    stream.seek(0)
    return matplotlib.image.imread(stream)


def texts(ax: Any) -> str:
    """All text of the axes, legend and ticks included."""
    from matplotlib.text import Text

    ax.figure.canvas.draw()
    return "\n".join(t.get_text() for t in ax.findobj(Text) if t.get_visible())


def posterior(d: int = 1, n: int = 12) -> Any:
    x = torch.linspace(0, 1, n * d, dtype=torch.float64).reshape(n, d)
    gp = fgp.GP(1.0 * fgp.kernels.Matern(2.5, torch.full((d,), 0.4)), likelihood=fgp.likelihoods.Gaussian(0.01))
    return gp.condition(x, torch.sin(6 * x[:, 0]))


def data(n: int, wrong: float = 1.0) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Observations and calibrated predictions, whose std is then multiplied by `wrong`."""
    generator = np.random.default_rng(0)
    mean, std = generator.normal(size=n), np.full(n, 0.3)
    return mean + std * generator.normal(size=n), (mean, wrong * std)


def steps(n: int, outputs: int | None = None, every: int = 0) -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    shape = (1,) if outputs is None else (1, outputs)
    return [
        SimpleNamespace(
            mean=torch.zeros(shape, dtype=torch.float64), variance=torch.full(shape, 0.25, dtype=torch.float64),
            y=torch.randn(shape, generator=generator, dtype=torch.float64), count=i, seconds=1e-3 * (1 + i % 3),
            refining_seconds=0.1 if every and i % every == every - 1 else 0.0,
        )
        for i in range(n)
    ]  # fmt: skip


def classes(n: int = 50) -> tuple[np.ndarray, np.ndarray]:
    """Codes of two classes and probabilities of the second."""
    p = np.random.default_rng(0).uniform(size=n)
    return (np.random.default_rng(1).uniform(size=n) < p).astype(float), p


def posterior_of_classes() -> tuple[Any, Scaling]:
    x = torch.rand(20, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    gp = fgp.GP(4.0 * fgp.kernels.Matern(2.5, 0.4), likelihood=fgp.likelihoods.Bernoulli())
    return gp.condition(x, (x[:, 0] > 0.5).double()), Scaling((0.0, 0.0), (1.0, 1.0), Classes(("no", "yes")))


def posterior_of_corners() -> tuple[Any, Scaling]:
    """Three classes, by which corner is near: of 7 levels, four have no row."""
    x = torch.rand(60, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    code = torch.where(x.sum(1) < 0.8, 0, torch.where(x[:, 0] > x[:, 1], 5, 3))
    y = torch.nn.functional.one_hot(code, 7).double()
    gp = fgp.GP(9.0 * fgp.kernels.RBF(0.4), likelihood=fgp.likelihoods.Categorical(7), outputs=7)
    return gp.condition(x, y), Scaling((2.0, 0.0), (1.0, 1.0), Classes(tuple("abcdefg")))


def posterior_of_places() -> tuple[Any, Scaling, list[str]]:
    """A number for each of three places, the second of which has the highest."""
    codes = torch.arange(30, dtype=torch.float64) % 3
    x = torch.stack([codes, torch.linspace(0, 1, 30, dtype=torch.float64)], dim=1)
    kernel = fgp.kernels.Categorical(active_dims=(0,)) + fgp.kernels.RBF(active_dims=(1,))
    gp = fgp.GP(kernel, likelihood=fgp.likelihoods.Gaussian(0.01))
    y = torch.tensor([0.0, 2.0, 1.0], dtype=torch.float64)[codes.long()]
    return gp.condition(x, y), Scaling((0.0, 0.0), (1.0, 1.0), Number(10.0, 3.0)), ["here", "there", "far"]


PLOTS: dict[str, Callable[..., Any]] = {
    "by_category": lambda **o: plots.by_category(*posterior_of_places(), **o),
    "components": lambda: plots.components(posterior())[0],
    "confusion": lambda **o: plots.confusion(*classes(), **o),
    "expected_1d": lambda **o: plots.expected_1d(*posterior_of_classes(), labels=("no", "yes"), **o),
    "precision_recall": lambda **o: plots.precision_recall(*classes(), **o),
    "probability_2d": lambda **o: plots.probability_2d(*posterior_of_classes(), points=8, **o),
    "reliability": lambda **o: plots.reliability(*classes(), **o),
    "roc": lambda **o: plots.roc(*classes(), **o),
    "rootogram": lambda **o: plots.rootogram([0, 1, 1, 2], np.array([1.2, 1.4, 0.9, 0.5]), **o),
    "posterior_1d": lambda **o: plots.posterior_1d(posterior(), **o),
    "predicted_observed": lambda **o: plots.predicted_observed(*data(50), **o),
    "calibration": lambda **o: plots.calibration(*data(50), **o),
    "importance": lambda **o: plots.importance(posterior(2).importance(), **o),
    "interaction": lambda **o: plots.interaction(posterior(2), Scaling((0.0, 0.0), (1.0, 1.0), Number()), **o),
    "latency": lambda **o: plots.latency(steps(30), **o),
    "machine_bandwidths": lambda **o: plots.machine_bandwidths({"one": machine(1.0)}, **o),
    "machine_rates": lambda **o: plots.machine_rates({"one": machine(1e-9)}, **o),
    "prequential_error": lambda **o: plots.prequential_error(steps(30), **o),
    "pit_histogram": lambda **o: plots.pit_histogram(*data(50), **o),
    "residuals": lambda **o: plots.residuals(*data(50), **o),
    "training_trace": lambda **o: plots.training_trace(history(1, 1), **o),
}


def test_every_public_plot_is_tested() -> None:
    assert sorted(PLOTS) == sorted(plots.__all__)


@pytest.mark.parametrize("name", PLOTS)
def test_it_draws_on_its_own_figure_and_leaves_no_global_state(name: str) -> None:
    import matplotlib
    import matplotlib.pyplot as plt

    before = dict(matplotlib.rcParams)
    image = rendered(PLOTS[name]())
    assert image[..., :3].min() < 0.5, "something is drawn"
    assert plt.get_fignums() == []
    assert dict(matplotlib.rcParams) == before


# -- posterior ----------------------------------------------------------------------------------------------------
def test_the_posterior_line_is_the_prediction_in_the_units_of_the_table() -> None:
    post = posterior()
    ax = plots.posterior_1d(
        post,
        points=50,
        samples=2,
        scaling=Scaling((100.0,), (20.0,), Number(5.0, 3.0)),
        x_label="t / s",
        y_label="U / V",
    )
    line = next(line for line in ax.get_lines() if line.get_label() == "mean")
    x = (np.asarray(line.get_xdata()) - 100.0) / 20.0
    expected = post.predict(torch.tensor(x)[:, None]).mean.numpy() * 3.0 + 5.0
    assert np.allclose(line.get_ydata(), expected)
    assert x.min() < 0.0 < 1.0 < x.max(), "a little beyond the data"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("t / s", "U / V")
    assert sum(line.get_label() == "samples" or line.get_label().startswith("_child") for line in ax.get_lines()) == 2
    assert "95%, new observation" in texts(ax)


def test_a_fit_is_drawn_as_far_as_its_forecast_is_wanted() -> None:
    x = torch.linspace(0.0, 1.0, 12, dtype=torch.float64)[:, None]
    fit = fgp.fit(fgp.GP(1.0 * fgp.kernels.RBF()), x, (4.0 * x[:, 0]).sin(), starts=1)
    ax = plots.posterior_1d(fit, x_range=(0.5, 2.0), points=20)
    line = next(line for line in ax.get_lines() if line.get_label() == "mean")
    at = torch.linspace(0.5, 2.0, 20, dtype=torch.float64)[:, None]
    assert np.allclose(line.get_ydata(), fit.posterior.predict(at).mean.numpy())
    assert ax.get_xlim() == (0.5, 2.0)


def test_a_slice_holds_the_other_columns_at_their_median_and_leaves_the_data_out() -> None:
    post = posterior(d=3)
    ax = plots.posterior_1d(post, column=1, points=20)
    line = next(line for line in ax.get_lines() if line.get_label() == "mean")
    grid = post.x.median(dim=0).values.repeat(20, 1)
    grid[:, 1] = torch.tensor(np.asarray(line.get_xdata()))
    assert np.allclose(line.get_ydata(), post.predict(grid).mean.numpy())
    assert line.get_xdata()[0] == post.x[:, 1].min()
    assert "other inputs at their median" in texts(ax)
    rendered(ax)


def test_the_posterior_plot_refuses_what_it_cannot_draw() -> None:
    gp = fgp.GP(fgp.kernels.RBF(), outputs=2)
    with pytest.raises(ShapeError, match="one model with one output"):
        plots.posterior_1d(gp.condition(torch.zeros(3, 1), torch.zeros(3, 2)))
    with pytest.raises(DomainError, match="`column` must be 0 to 0"):
        plots.posterior_1d(posterior(), column=1)
    for wrong in ((2.0, 1.0), (0.0, float("inf"))):
        with pytest.raises(DomainError, match="`x_range` must be two finite numbers"):
            plots.posterior_1d(posterior(), x_range=wrong)
    with pytest.raises(ShapeError, match="`at`"):
        plots.posterior_1d(posterior(), at=[1.0, 2.0])
    with pytest.raises(DomainError, match="`level`"):
        plots.posterior_1d(posterior(), level=95)


# -- predictions --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("n", [0, 1, 2, 6_000])
def test_any_number_of_rows(n: int) -> None:
    y, prediction = data(n)
    ax = plots.predicted_observed(y, prediction, label="strength / MPa")
    rendered(ax)
    drawn = sum(len(c.get_offsets()) for c in ax.collections if hasattr(c, "get_sizes") and len(c.get_sizes()))
    assert drawn == min(n, 5_000)
    assert ("5,000 of 6,000 rows drawn" in texts(ax)) == (n == 6_000)
    for plot in (plots.calibration, plots.pit_histogram):
        rendered(plot(y, prediction))


def test_rmse_and_the_rows_outside_are_counted() -> None:
    y, mean, std = np.array([0.0, 1.0, 2.0, 9.0]), np.array([0.0, 1.0, 2.0, 5.0]), np.ones(4)
    shown = texts(plots.predicted_observed(y, (mean, std)))
    assert "RMSE 2, 4 rows" in shown
    assert "in its 95% interval (75.0%)" in shown
    assert "outside its 95% interval (25.0%)" in shown
    assert "99.9% interval" in texts(plots.predicted_observed(y, (mean, std), level=0.999))


def coverage_line(ax: Any) -> np.ndarray:
    return np.asarray(next(line for line in ax.get_lines() if line.get_label() == "this model").get_ydata())


def test_calibration_is_the_coverage_of_central_intervals() -> None:
    y, (mean, std) = data(4_000)
    line = coverage_line(plots.calibration(y, (mean, std)))
    levels = np.linspace(0, 1, 101)
    for k in (10, 50, 95):
        from statistics import NormalDist

        half = NormalDist().inv_cdf(0.5 + levels[k] / 2) * std
        assert math.isclose(line[k], float(np.mean(np.abs(y - mean) <= half)), abs_tol=1e-12)
    assert np.abs(line - levels).max() < 0.03
    narrow, wide = (
        coverage_line(plots.calibration(*data(4_000, 0.5))),
        coverage_line(plots.calibration(*data(4_000, 2.0))),
    )
    assert narrow[50] < 0.35 < 0.75 < wide[50]
    assert "95% intervals hold" in texts(plots.calibration(y, (mean, std)))


def test_predictions_of_another_length_or_kind_are_refused() -> None:
    with pytest.raises(ShapeError, match="got 2 for 3 means"):
        plots.calibration(np.zeros(2), (np.zeros(3), np.ones(3)))
    with pytest.raises(ShapeError, match=r"must have shape \(n,\)"):
        plots.calibration(np.zeros((2, 1)), (np.zeros(2), np.ones(2)))
    with pytest.raises(DomainError, match="Prediction or a pair"):
        plots.calibration(np.zeros(2), np.zeros(2))
    with pytest.raises(DomainError, match="`bins`"):
        plots.pit_histogram(*data(3), bins=0)


def test_residuals_are_observed_less_predicted_and_show_what_is_left() -> None:
    generator = np.random.default_rng(0)
    when = np.arange(400.0)
    wave = np.sin(when / 30.0)
    mean, std = generator.normal(size=400), np.full(400, 0.5)
    y = mean + wave + 0.1 * generator.normal(size=400)
    ax = plots.residuals(y, (mean, std), against=when, x_label="hour")
    dots = np.concatenate([np.asarray(c.get_offsets()) for c in ax.collections if len(c.get_offsets()) > 1])
    assert np.allclose(dots[np.argsort(dots[:, 0])][:, 1], y - mean)
    line = next(c for c in ax.containers if c.get_label() == "mean of 40 rows").lines[0]
    at, means = (np.asarray(values, dtype=float) for values in line.get_data())
    assert np.abs(means - np.sin(at / 30.0)).max() < 0.25, "the wave that is left"
    assert ax.get_xlabel() == "hour"
    assert f"outside ({np.mean(np.abs(y - mean) > 1.959964 * std):.1%})" in texts(ax)
    assert "2022" in texts(plots.residuals(y, (mean, std), against=19_000.0 + when, dates=True))
    assert "no held-out rows" in texts(plots.residuals(np.zeros(0), (np.zeros(0), np.zeros(0))))
    with pytest.raises(ShapeError, match="`against` must have one number for each of 400 rows, got 3"):
        plots.residuals(y, (mean, std), against=[1.0, 2.0, 3.0])


def test_categories_are_drawn_where_they_are_predicted_the_highest_first() -> None:
    post, scaling, levels = posterior_of_places()
    ax = plots.by_category(post, scaling, levels, at=[0.0, 0.5])
    assert [label.get_text() for label in ax.get_yticklabels()][::-1] == ["there (10)", "far (10)", "here (10)"]
    dots = next(line for line in ax.get_lines() if line.get_label() == "expected").get_xdata()[::-1]
    grid = torch.tensor([[1.0, 0.5], [2.0, 0.5], [0.0, 0.5]], dtype=torch.float64)
    prediction = post.predict(grid)
    assert np.allclose(dots, 10.0 + 3.0 * prediction.mean.numpy())
    lines = {c.get_label(): np.asarray(c.get_segments())[::-1, :, 0] for c in ax.collections}
    spread = 3.0 * 1.959964 * prediction.observation_variance.sqrt().numpy()
    assert np.allclose(lines["95%, new observation"][:, 1], dots + spread, atol=1e-5)
    half = 3.0 * 1.959964 * prediction.variance.sqrt().numpy()
    assert np.allclose(lines["95%, function"][:, 0], dots - half, atol=1e-5)
    many = [f"place {k}" for k in range(30)]
    assert "the 12 most frequent of 30" in texts(plots.by_category(post, scaling, many))
    with pytest.raises(ShapeError, match=r"`at` must have shape \(2,\)"):
        plots.by_category(post, scaling, levels, at=[0.0])


def test_an_interaction_is_the_prediction_over_both_columns() -> None:
    post, scaling, levels = posterior_of_places()
    ax = plots.interaction(post, scaling, columns=(1, 0), levels=levels, names=("hour", "place"), points=5)
    lines = {line.get_label(): line for line in ax.get_lines()}
    assert list(lines) == levels
    grid = torch.stack([torch.full((5,), 1.0), torch.linspace(0, 1, 5)], dim=1).double()
    assert np.allclose(lines["there"].get_ydata(), 10.0 + 3.0 * post.predict(grid).mean.numpy())
    assert ax.get_xlabel() == "hour"
    shades = plots.interaction(posterior(2), Scaling((5.0, 0.0), (2.0, 1.0), Number()), points=5)
    assert shades.get_xlim() == pytest.approx((5.0, 5.0 + 2.0 * float(posterior(2).x[:, 0].max())), abs=0.1)
    rendered(shades)


# -- importance ---------------------------------------------------------------------------------------------------
def important(rmse: list[float], names: list[str]) -> fgp.Importance:
    values = torch.tensor(rmse, dtype=torch.float64)
    return fgp.Importance(tuple(names), values, 0.1 * values.abs(), values, values.abs(), 10, 20, 1)


def test_the_most_probable_class_has_its_colour_where_it_is() -> None:
    post, scaling = posterior_of_corners()
    ax = plots.probability_2d(post, scaling, labels="abcdefg", points=9)
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert {"a", "d", "f"} < {*texts}
    assert any("5 of 7 classes drawn" in text.get_text() for text in ax.texts)
    contours = [part for part in ax.collections if hasattr(part, "levels")]
    dots = dict(zip(texts, (part for part in ax.collections if part not in contours), strict=True))
    assert len(dots["a"].get_offsets()) == int((post.y[:, 0] == 1).sum())
    assert bool((dots["a"].get_offsets()[:, 0] >= 2.0).all())  # in its own units
    filled = [part for part in contours if part.filled]
    for letter, place in (("a", (2.05, 0.05)), ("f", (2.95, 0.1)), ("d", (2.1, 0.95))):
        (colour,) = {tuple(row[:3]) for row in dots[letter].get_facecolors()}
        (own,) = [part for part in filled if tuple(part.get_facecolors()[0][:3]) == colour]
        assert any(path.contains_point(place) for path in own.get_paths())
        assert not any(path.contains_point(place) for part in filled if part is not own for path in part.get_paths())


def test_of_several_classes_the_one_is_drawn_that_columns_change_together() -> None:
    codes = torch.arange(60, dtype=torch.float64) % 2
    x = torch.stack([torch.linspace(-1, 1, 60, dtype=torch.float64), codes], dim=1)
    turned = torch.where(codes > 0, -x[:, 0], x[:, 0])
    code = torch.where(x[:, 0].abs() < 0.3, 0, torch.where(turned > 0, 1, 2))
    gp = fgp.GP(
        9.0 * fgp.kernels.RBF(0.4, active_dims=0) * fgp.kernels.Categorical(active_dims=1),
        likelihood=fgp.likelihoods.Categorical(3), outputs=3,
    )  # fmt: skip
    post = gp.condition(x, torch.nn.functional.one_hot(code, 3).double())
    scaling = Scaling((0.0, 0.0), (1.0, 1.0), Classes(("mid", "up", "down")))
    ax = plots.interaction(post, scaling, levels=("here", "there"), labels=("mid", "up", "down"), points=7)
    assert ax.get_ylabel() in ("probability of up", "probability of down")  # one is the other turned round


def test_importance_names_columns_the_most_important_first() -> None:
    ax = plots.importance(important([0.5, -0.01, 2.0], ["$age^2$", "colour", "<b>"]), unit="MPa")
    labels = [t.get_text() for t in ax.get_yticklabels()][::-1]
    assert labels == ["<b>", "$age^2$", "colour"]
    assert [round(patch.get_width(), 6) for patch in ax.patches] == [-0.01, 0.5, 2.0]
    assert "RMSE grows by, MPa; 95% intervals" in texts(ax)
    segments = ax.collections[0].get_segments()
    assert segments[2][:, 0] == pytest.approx([2.0 - 1.959964 * 0.2, 2.0 + 1.959964 * 0.2])
    rendered(ax)  # "$age^2$" is a name, not mathematics


def test_importance_of_classes_is_by_log_loss() -> None:
    values = torch.tensor([0.5, 2.0], dtype=torch.float64)
    found = fgp.Importance(("a", "b"), values.flip(0), values, values, values, 10, 20, 1, by="log_density")
    ax = plots.importance(found, unit="MPa")
    assert [round(patch.get_width(), 6) for patch in ax.patches] == [0.5, 2.0]
    assert "log loss grows by; 95% intervals" in texts(ax)


# -- training -----------------------------------------------------------------------------------------------------
def history(starts: int, length: int) -> list[SimpleNamespace]:
    return [
        SimpleNamespace(
            run=SearchRun(Stage.ALL_ROWS, s), index=i, value=-10.0 - s - 100 * math.exp(-i), measure="log joint"
        )
        for s in range(starts)
        for i in range(length)
    ]


def test_the_trace_shows_nats_below_the_best_of_each_start() -> None:
    others = [
        SimpleNamespace(run=run, index=0, value=50.0, measure="log joint")
        for run in (SearchRun(Stage.SUBSET), SearchRun(Stage.FIRST_ROWS), SearchRun(Stage.PART, 900))
    ]
    entries = [*history(3, 5), *others]
    entries.append(SimpleNamespace(run=SearchRun(Stage.ALL_ROWS, 1), index=9, value=float("nan"), measure="log joint"))
    ax = plots.training_trace(entries)
    lines = {line.get_label(): line for line in ax.get_lines()}
    assert set(lines) == {"search 1, the best", "search 2", "search 3"}
    best = -10.0 - 100 * math.exp(-4)
    assert np.allclose(lines["search 2"].get_ydata()[:4], [best - e.value for e in entries[5:9]])
    assert lines["search 1, the best"].get_ydata()[-1] == 1e-3, "zero has no logarithm: shown at the floor"
    assert "1 evaluation had no finite value" in texts(ax)
    assert "best log joint -11.8" in texts(ax)
    rendered(ax)


def test_samples_have_the_posterior_covariance_where_it_has_no_cholesky_factor() -> None:
    from flashgp.plots.posterior import _samples

    line = np.linspace(0.0, 0.01, 300)
    covariance = 4.0 * np.exp(-0.5 * np.square(line[:, None] - line[None, :]))
    with pytest.raises(np.linalg.LinAlgError):
        np.linalg.cholesky(covariance)
    drawn = _samples(np.full(300, 7.0), covariance, 4_000, seed=0)
    error = np.cov(drawn[:, ::60].T) - covariance[::60, ::60]
    assert np.abs(error).max() < 4 * 4.0 * math.sqrt(2 / 4_000)  # four standard errors of a variance of 4
    assert abs(drawn.mean() - 7.0) < 4 * 2.0 / math.sqrt(4_000)


# -- streams ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("outputs", [None, 2])
def test_prequential_error_is_that_of_the_latest_rows(outputs: int | None) -> None:
    given = steps(50, outputs)
    ax = plots.prequential_error(given, rows=10, beside=given[:40])
    line = ax.get_lines()[1]
    errors = torch.stack([s.y.square().mean() for s in given])
    assert line.get_ydata()[-1] == pytest.approx(float(errors[-10:].mean().sqrt()))
    assert line.get_ydata()[4] == pytest.approx(float(errors[:5].mean().sqrt()))
    assert ax.get_lines()[2].get_ydata() == pytest.approx(np.full(50, 0.5))
    assert "as the predictions expected" in texts(ax)
    assert rendered(ax).std() > 0


def test_latency_counts_what_came_too_late() -> None:
    ax = plots.latency(steps(300, every=100), deadline=2.5e-3)
    assert "100 steps of 300 beyond 2.5 ms" in texts(ax)
    assert "a refinement" in texts(ax)
    assert rendered(ax).std() > 0


# -- machines -------------------------------------------------------------------------------------------------------
def machine(seconds: float) -> Any:
    from dataclasses import replace

    from flashgp.foundations.profile import BUILT_IN, OperationTime

    def times(factor: float) -> tuple[Any, ...]:
        return tuple(OperationTime("cholesky", "float64", n, factor * n**2) for n in (256, 16, 64))

    return replace(
        BUILT_IN, name="measured", cpu=replace(BUILT_IN.cpu, operations=times(seconds)),
        accelerator=replace(BUILT_IN.accelerator, operations=times(seconds / 10)),
    )  # fmt: skip


def test_components_have_a_picture_for_each_term() -> None:
    x = torch.linspace(17000, 17400, 60, dtype=torch.float64)[:, None]
    k = fgp.kernels
    gp = fgp.GP(k.RBF(300.0) + 2.0 * k.Periodic(period=100.0), likelihood=fgp.likelihoods.Gaussian(0.1))
    post = gp.condition(x, torch.sin(2 * math.pi * x[:, 0] / 100.0))
    assert plots.components(post, dates=True)[-1].get_xlabel() == "date", "not the number of its column"
    axes = plots.components(post, dates=True, x_label="day", x_range=(17000.0, 17800.0))
    assert len(axes) == 2
    assert rendered(axes[0]).std() > 0.05
    assert "variance * Periodic: " in texts(axes[1])
    assert "2018" in texts(axes[1])
    part = post.component(1)
    (mean,) = axes[1].get_lines()
    line = np.linspace(17000.0, 17800.0, 300)
    wanted = part.predict(torch.as_tensor(line)[:, None]).mean.numpy()
    assert np.allclose(mean.get_ydata(), wanted)
    assert f"{100 * float(part.share):.3g}% of the variance" in texts(axes[1])
    scaled = plots.components(post, scaling=Scaling((0.0,), (2.0,), Number(5.0, 3.0)))[1].get_lines()[0]
    assert np.allclose(scaled.get_ydata().max(), 3.0 * part.predict(x).mean.max(), rtol=0.02)
    with pytest.raises(DomainError, match="`scaling` must be of a target without a transform"):
        plots.components(post, scaling=Scaling((0.0,), (2.0,), Classes(("a", "b"))))
