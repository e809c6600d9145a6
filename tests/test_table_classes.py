"""Tables with a target of classes or counts: found, said, predicted, scored, kept in files, learned online."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import flashgp as fgp
from flashgp.cli.application import application
from flashgp.foundations.events import of_kind
from flashgp.scores import ClassScores

LABELS = ("bad", "good")


def table(n: int = 60, seed: int = 0) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    x = generator.uniform(-2.0, 2.0, n)
    codes = (np.sin(2.0 * x) + 0.5 * generator.standard_normal(n) > 0.0).astype(int)
    city = generator.choice(["Ulm", "Bonn"], n)
    return {"x": x, "city": city, "quality": np.array(LABELS)[codes]}


def with_target(values: Any, **more: Any) -> dict[str, Any]:
    return {**table(), "quality": values, **more}


@pytest.fixture(scope="module")
def fitted() -> fgp.TableModel:
    return fgp.TableModel(starts=1).fit(table(), target="quality")


def test_classes_are_found_and_said(fitted: fgp.TableModel) -> None:
    (event,) = of_kind(fitted.report.events + fitted.training.report.events, fgp.EventKind.CLASSES_FOUND)[:1]
    assert "has the classes bad, good, whose probabilities are modelled" in str(event)
    assert "2 classes: bad, good" in repr(fitted)


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        (np.array(LABELS)[np.arange(60) % 2], LABELS),
        (np.arange(60) % 2 == 0, ("false", "true")),
        (np.where(np.arange(60) % 3 == 0, -1, 1), ("-1", "1")),
        (pd.Categorical(np.array(["a", "b"])[np.arange(60) % 2]), ("a", "b")),
    ],
)
def test_text_booleans_and_two_numbers_are_classes(values: Any, labels: tuple[str, ...]) -> None:
    model = fgp.TableModel(kernel="Matern()", starts=1).fit(pd.DataFrame(with_target(values)), target="quality",
                                                            drop="city")  # fmt: skip
    assert model.predict(table(3)).labels == labels
    assert fgp.TableModel(likelihood="bernoulli").settings.classes


def test_numbers_stay_numbers_where_that_is_asked_for() -> None:
    values = np.where(np.arange(60) % 3 == 0, -1.0, 1.0)
    with pytest.warns(fgp.FlashGPWarning, match="The target has 2 values"):
        model = fgp.TableModel(likelihood="gaussian", starts=1).fit(with_target(values), target="quality")
    assert model.predict(table(3)).mean.shape == (3,)
    with pytest.raises(fgp.DomainError, match=r"which are classes: leave out likelihood=, or pass likelihood='auto'"):
        fgp.TableModel(likelihood="gaussian").fit(table(), target="quality")


def test_predictions_are_of_labels(fitted: fgp.TableModel) -> None:
    rows = {**table(5, seed=1), "quality": ["bad", "good", "worse", None, "good"]}
    prediction = fitted.predict(rows)
    assert prediction.labels == LABELS
    np.testing.assert_allclose(prediction.probability.sum(axis=1), 1.0, rtol=1e-14)
    assert prediction.label.tolist() == np.array(LABELS)[prediction.probability.argmax(axis=1)].tolist()
    assert isinstance(prediction.scores, ClassScores)
    assert prediction.scores.rows == 3
    assert any("1 row with other labels than 'bad', 'good' are not scored." in note for note in prediction.notes)
    np.testing.assert_allclose(prediction.log_prob(["good"] * 5), np.log(prediction.probability[:, 1]), rtol=1e-12)
    assert [*prediction.columns()] == ["label", "probability of bad", "probability of good"]
    assert "probability of good" in repr(prediction)
    with pytest.raises(fgp.DomainError, match="'quality' has classes, and no mean or interval"):
        _ = prediction.mean
    assert fitted.predict(table()).known_scores is not None, "rows that were fitted are known"


def test_a_file_keeps_labels(fitted: fgp.TableModel, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    fgp.save(fitted, path)
    again = fgp.load(path)
    rows = table(7, seed=2)
    np.testing.assert_array_equal(again.predict(rows).probability, fitted.predict(rows).probability)
    assert again.predict(rows).scores.to_json() == fitted.predict(rows).scores.to_json()  # type: ignore[union-attr]


def test_new_rows_are_predicted_and_learned(fitted: fgp.TableModel) -> None:
    rows = table(6, seed=3)
    more = fitted.update(rows)
    assert more.posterior.count == 66
    assert more.learned is not None
    np.testing.assert_allclose(more.learned.probability, fitted.predict(rows).probability, rtol=1e-9)
    with pytest.raises(fgp.DomainError, match="must hold categories seen in training"):
        fitted.update({**rows, "quality": ["other"] * 6})


def test_more_than_two_classes_have_probabilities_too(tmp_path: Path) -> None:
    x = table()["x"]
    rows = {"x": x, "level": np.array(["low", "mid", "top"])[np.digitize(x, [-0.7, 0.7])]}
    model = fgp.TableModel(starts=1).fit(rows, target="level")
    prediction = model.predict(rows)
    assert prediction.probability.shape == (60, 3)
    assert prediction.known_scores.accuracy.value > 0.9  # type: ignore[union-attr]
    fgp.save(model, tmp_path / "m.safetensors")
    np.testing.assert_array_equal(
        fgp.load(tmp_path / "m.safetensors").predict(rows).probability, prediction.probability
    )
    classifier = fgp.GPClassifier(starts=1).fit(x[:, None], rows["level"])
    np.testing.assert_allclose(classifier.predict_proba(x[:, None]), prediction.probability, atol=1e-6)
    fgp.save(classifier, tmp_path / "c.safetensors")
    again = fgp.load(tmp_path / "c.safetensors")
    assert again.classes_.tolist() == ["low", "mid", "top"]
    np.testing.assert_array_equal(again.predict_proba(x[:, None]), classifier.predict_proba(x[:, None]))


def test_counts_are_suggested_and_modelled_where_they_are_asked_for() -> None:
    x = table()["x"]
    visits = np.random.default_rng(0).poisson(np.exp(1.0 + np.sin(2.0 * x)))
    plain = fgp.TableModel(starts=1).fit({"x": x, "visits": visits}, target="visits")
    assert of_kind(plain.training.report.events, fgp.EventKind.COUNTS_SUGGESTED)  # type: ignore[union-attr]
    model = fgp.TableModel(likelihood="poisson", starts=1).fit({"x": x, "visits": visits}, target="visits")
    prediction = model.predict({"x": x[:5], "visits": visits[:5] + 20})
    lower, upper = prediction.interval(0.9)
    assert (np.stack([lower, upper]) % 1.0 == 0.0).all(), "counts are whole numbers"
    assert prediction.scores.lines("visits")[0][0] == "mean absolute error"  # type: ignore[union-attr]
    assert not of_kind(model.training.report.events, fgp.EventKind.COUNTS_SUGGESTED)  # type: ignore[union-attr]
    auto = fgp.TableModel(likelihood="auto", starts=1).fit({"x": x, "visits": visits}, target="visits")
    (event,) = of_kind(auto.training.report.events, fgp.EventKind.COUNTS_FOUND)  # type: ignore[union-attr]
    assert "negative binomial" in str(event)
    chosen = fgp.TableModel(likelihood="negative-binomial", starts=1).fit({"x": x, "visits": visits}, target="visits")
    np.testing.assert_array_equal(auto.predict({"x": x[:5]}).mean, chosen.predict({"x": x[:5]}).mean)
    numbers = fgp.TableModel(likelihood="auto", starts=1).fit({"x": x, "wave": np.sin(x)}, target="wave")
    assert not of_kind(numbers.training.report.events, fgp.EventKind.COUNTS_FOUND)  # type: ignore[union-attr]
    wave = fgp.TableModel(starts=1).fit({"x": x, "wave": np.sin(x)}, target="wave")
    assert not of_kind(wave.training.report.events, fgp.EventKind.COUNTS_SUGGESTED)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("options", "values", "message"),
    [
        ({"likelihood": "nothing"}, None, "`likelihood` must be one of auto, gaussian, .*bernoulli"),
        ({}, ["good"] * 60, "must have two to 1,000 classes, got 1 in 'quality': 'good'; add rows of another class"),
        ({"target_transform": "log"}, None, '`target_transform` must be "auto" or "none" beside Bernoulli'),
        ({"likelihood": "bernoulli"}, np.arange(60) % 3, "`likelihood` must be of 3 classes, .* got bernoulli of 2"),
        ({"likelihood": "poisson"}, np.linspace(0.5, 3.0, 60), "must be a whole number from 0"),
    ],
)
def test_what_cannot_be_is_said(options: dict[str, Any], values: Any, message: str) -> None:
    with pytest.raises(fgp.DomainError, match=message):
        fgp.TableModel(**options).fit(table() if values is None else with_target(values), target="quality")


def run(*arguments: object) -> Any:
    result = CliRunner().invoke(application, [str(one) for one in arguments])
    assert result.exit_code == 0, f"{result.output}\n{result.exception!r}"
    return result


def test_the_command_line_fits_and_predicts_classes(tmp_path: Path) -> None:
    rows, model, out = tmp_path / "t.csv", tmp_path / "m.safetensors", tmp_path / "p.csv"
    pd.DataFrame(table()).to_csv(rows, index=False)
    told = json.loads(run("fit", rows, "-t", "quality", "--out", model, "--starts", "1", "--json").stdout)
    assert told["classes"] == [*LABELS]
    assert 0.5 < told["leave_one_out"]["auc"] <= 1.0
    assert "CLASSES_FOUND" in {event["kind"] for event in told["events"]}
    by = [entry["log_density"] for entry in told["importance"]]
    assert by == sorted(by, reverse=True)
    assert {entry["by"] for entry in told["importance"]} == {"log_density"}
    assert "inputs by importance: log loss grows by" in run("fit", rows, "-t", "quality", "--starts", "1").output
    said = run("predict", model, rows, "--out", out, "--keep", "x").output
    assert "log loss" in said
    found = pd.read_csv(out)
    assert [*found.columns] == ["x", "label", "probability of bad", "probability of good"]
    assert ((found["probability of good"] > 0.5) == (found["label"] == "good")).all()


def test_a_target_that_cannot_be_is_named_by_column_and_row() -> None:
    table = {"x": np.arange(9.0), "visits": np.array([3.0, 1.0, 0.0, 2.0, -3.0, 1.0, 4.0, 2.0, 1.0])}
    with pytest.raises(fgp.DomainError, match=r"`visits` must be a whole number from 0 for Poisson, got -3 in row 4; "):
        fgp.TableModel(likelihood="poisson").fit(table, target="visits")


def test_numbers_of_a_likelihood_are_of_the_rows_of_the_table() -> None:
    """Of those that are left once rows are dropped, and in what targets they may have."""
    x = np.linspace(0.0, 3.0, 40)
    trials, hits = 5.0 + np.arange(40) % 4, np.round(4.0 + np.sin(x) * 3.0).clip(0.0, 5.0)
    frame = pd.DataFrame({"x": x, "hits": hits})
    frame.loc[[3, 7], "x"] = np.nan
    options: dict[str, Any] = {"missing": "drop", "starts": 1}
    model = fgp.TableModel(likelihood=fgp.likelihoods.Binomial(trials), **options).fit(frame, "hits")
    assert model.posterior.gp.likelihood.trials.tolist() == np.delete(trials, [3, 7]).tolist()
    with pytest.raises(fgp.ShapeError, match="`trials` must have one entry for each of the table's 40 rows"):
        fgp.TableModel(likelihood=fgp.likelihoods.Binomial(trials[2:]), **options).fit(frame, "hits")
    with pytest.raises(fgp.DomainError, match="`hits` must be a whole number from 0 to trials"):
        fgp.TableModel(likelihood=fgp.likelihoods.Binomial(trials - 4.0), **options).fit(frame, "hits")
