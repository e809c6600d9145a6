"""Pictures of classes and counts: what is drawn are the figures that the scores have; pages of a fit have them."""

import html
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import flashgp as fgp
from flashgp.cli.application import application
from flashgp.plots.classes import class_scores


def predicted(n: int = 200, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    p = generator.uniform(0.02, 0.98, n).round(2)
    return (generator.uniform(size=n) < p).astype(float), p


def line(ax: Any, k: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = ax.lines[k].get_data()
    return np.asarray(x), np.asarray(y)


def test_the_curve_of_true_by_false_positives_has_the_area_of_the_score() -> None:
    y, p = predicted()
    x, found = line(fgp.plots.roc(y, p, label="good"), 1)
    auc = class_scores(y, p).auc
    assert auc is not None
    assert np.trapezoid(found, x) == pytest.approx(auc.value, rel=1e-12)
    assert (x[0], found[0], x[-1], found[-1]) == (0.0, 0.0, 1.0, 1.0)


def test_precision_ends_at_the_share_of_the_class() -> None:
    y, p = predicted()
    ax = fgp.plots.precision_recall(y, p)
    recall, precision = line(ax, 1)
    assert recall[-1] == 1.0
    assert precision[-1] == pytest.approx(y.mean())
    best = p == p.max()
    assert precision[0] == pytest.approx(y[best].mean())


def test_reliability_draws_the_bins_of_the_calibration_error() -> None:
    y, p = predicted()
    x, share = line(fgp.plots.reliability(y, p), 1)
    bins = class_scores(y, p).bins
    np.testing.assert_array_equal(x, bins.probability)
    np.testing.assert_array_equal(share, bins.share)


def test_confusion_counts_rows() -> None:
    y, p = predicted()
    ax = fgp.plots.confusion(y, np.stack([1.0 - p, p], axis=1), labels=("bad", "good"))
    wanted = [int(((y == i) & ((p > 0.5) == j)).sum()) for i in (0, 1) for j in (0, 1)]
    assert [int(text.get_text().replace(",", "")) for text in ax.texts] == wanted
    many = np.eye(20)[np.arange(40) % 20] * 0.9 + 0.005
    assert any(
        "12 of 20 classes drawn" in text.get_text() for text in fgp.plots.confusion(np.arange(40) % 20, many).texts
    )


def test_bars_hang_from_what_was_expected() -> None:
    ax = fgp.plots.rootogram([0.0, 0.0, 1.0, 3.0], np.array([1.0, 2.0, 0.5, 0.25]), label="visits")
    tops = [bar.get_y() + bar.get_height() for bar in ax.patches if bar.get_width() == pytest.approx(0.85)]
    np.testing.assert_allclose(tops, np.sqrt([1.0, 2.0, 0.5, 0.25]))
    heights = [bar.get_height() for bar in ax.patches if bar.get_width() == pytest.approx(0.85)]
    np.testing.assert_allclose(heights, np.sqrt([2.0, 1.0, 0.0, 1.0]))


@pytest.mark.parametrize("name", ["reliability", "roc", "precision_recall", "confusion"])
def test_what_does_not_fit_is_refused_and_nothing_is_said_of_no_rows(name: str) -> None:
    draw = getattr(fgp.plots, name)
    with pytest.raises(fgp.ShapeError, match="`y` must have one code for each row"):
        draw([0.0, 1.0], np.array([0.5]))
    with pytest.raises(fgp.DomainError, match="`y` must hold codes 0 to 1"):
        draw([0.0, 2.0], np.array([0.5, 0.5]))
    assert draw([np.nan], np.array([0.5])).texts


def page(tmp_path: Path, rows: dict[str, Any], *options: str) -> str:
    pd.DataFrame(rows).to_csv(tmp_path / "t.csv", index=False)
    arguments = ["fit", str(tmp_path / "t.csv"), "--starts", "1", "--report", str(tmp_path / "r.html"), *options]
    result = CliRunner().invoke(application, arguments)
    assert result.exit_code == 0, f"{result.output}\n{result.exception!r}"
    return html.unescape((tmp_path / "r.html").read_text())


def test_a_page_of_classes(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    x, z = generator.uniform(-2.0, 2.0, (2, 60))
    good = np.sin(2.0 * x) + 0.5 * generator.standard_normal(60) > 0.0
    text = page(tmp_path, {"x": x, "z": z, "quality": np.where(good, "good", "<b>")}, "-t", "quality")
    for said in (
        "<h1>quality</h1>", "Do rows come true as often as predicted?", "good: share found against",
        "good: share of those taken for it", "by the class that was predicted",
        "Least expected were the observed classes",
        "its probability</th>", "Along x; other inputs", "target, 2 classes: <b>, good",
        "likelihood</th><td>Bernoulli",
    ):  # fmt: skip
        assert said in text
    assert "&lt;b&gt;" in (tmp_path / "r.html").read_text()


def test_a_page_of_three_classes(tmp_path: Path) -> None:
    """Which two inputs say together: over two numbers the most probable class, of a category the probability of one."""
    generator = np.random.default_rng(0)
    u, v = generator.uniform(-1.0, 1.0, (2, 60))
    kind = generator.choice(["a", "b"], 60)
    colour = np.where(u * v > 0.1, "red", np.where(u * v < -0.1, "blue", "green"))
    text = page(tmp_path, {"u": u, "v": v, "colour": colour}, "-t", "colour")
    assert "Over u and v, the most probable class: the deeper, the surer" in text
    assert "of the variance alone" in text
    turned = np.where(kind == "a", u, -u)
    level = np.where(turned > 0.2, "high", np.where(turned < -0.2, "low", "mid"))
    text = page(tmp_path, {"u": u, "kind": kind, "level": level}, "-t", "level")
    assert "Over u and kind; other inputs" in text
    assert "probability of high" in text or "probability of low" in text


def test_a_page_of_counts(tmp_path: Path) -> None:
    x = np.random.default_rng(0).uniform(-2.0, 2.0, 60)
    visits = np.random.default_rng(1).poisson(np.exp(1.0 + np.sin(2.0 * x)))
    text = page(tmp_path, {"x": x, "visits": visits}, "-t", "visits", "--likelihood", "poisson")
    assert "How often each count was observed" in text
    assert "mean absolute error" in text
    assert "likelihood</th><td>Poisson" in text
