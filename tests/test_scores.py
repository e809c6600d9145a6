"""Scores of classes: against scikit-learn and plain sums, intervals, joined parts; answers for classes and counts."""

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

from flashgp.foundations.errors import DomainError
from flashgp.likelihoods import Bernoulli
from flashgp.likelihoods.gaussian import Normal
from flashgp.scores import CalibrationBins, ClassAnswers, ClassScores, CountScores
from flashgp.targets import Classes, Number, Placed, Unshifted


def scored(n: int, seed: int = 0, wrong: float = 0.0) -> tuple[np.ndarray, np.ndarray, ClassScores]:
    """Codes, probabilities of 1, and scores; log odds are off by `wrong`."""
    generator = np.random.default_rng(seed)
    odds = 1.5 * generator.standard_normal(n)
    codes = (generator.uniform(size=n) < 1.0 / (1.0 + np.exp(-odds))).astype(np.int64)
    p = 1.0 / (1.0 + np.exp(-odds - wrong))
    return codes, p, ClassScores(codes, np.log(np.stack([1.0 - p, p], axis=1)))


def test_figures_are_those_of_scikit_learn() -> None:
    codes, p, scores = scored(301)
    assert scores.log_loss.value == pytest.approx(log_loss(codes, p), rel=1e-12)  # (M-300)
    assert scores.accuracy.value == accuracy_score(codes, p > 0.5)
    assert scores.auc is not None
    assert scores.auc.value == pytest.approx(roc_auc_score(codes, p), rel=1e-12)  # (M-301)


def test_the_area_counts_pairs_with_ties_as_halves() -> None:
    """Also its variance, from the placements written out, (M-301)."""
    codes, p, _ = scored(60)
    p = p.round(1).clip(0.05, 0.95)
    auc = ClassScores(codes, np.log(np.stack([1.0 - p, p], axis=1))).auc
    pairs = 0.5 * (1.0 + np.sign(p[codes == 1][:, None] - p[codes == 0][None, :]).round(12))
    m, n = pairs.shape
    error = np.sqrt(pairs.mean(1).var(ddof=1) / m + pairs.mean(0).var(ddof=1) / n)
    assert auc is not None
    assert auc.value == pytest.approx(pairs.mean(), rel=1e-12)
    assert auc.value - auc.low == pytest.approx(1.959964 * error, rel=1e-6)


def test_one_class_has_no_area_and_all_right_no_certain_accuracy() -> None:
    scores = ClassScores(np.ones(20, np.int64), np.log(np.tile([0.1, 0.9], (20, 1))))
    assert scores.auc is None
    assert "AUC" not in dict(scores.lines("y"))
    assert scores.to_json()["auc"] is None
    assert scores.accuracy.value == scores.accuracy.high == 1.0
    assert 0.8 < scores.accuracy.low < 0.9  # (M-300)


def test_intervals_hold_the_truth_of_many_rows() -> None:
    """Four standard errors of the share of 200 samples that do, seed fixed, (M-300), (M-301), (M-303)."""
    _, _, truth = scored(400_000, seed=99, wrong=0.7)
    each = [scored(800, seed, wrong=0.7)[2] for seed in range(200)]
    for name in ("log_loss", "accuracy", "auc"):
        wanted = getattr(truth, name).value
        inside = [getattr(one, name).low <= wanted <= getattr(one, name).high for one in each]
        assert abs(np.mean(inside) - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 200), name
    errors = [one.bins.error for one in each]
    assert np.mean([one.low <= truth.bins.error.value <= one.high for one in errors]) > 0.85


def test_a_calibrated_model_shows_what_chance_shows_and_no_more() -> None:
    """(M-302)"""
    each = [scored(1000, seed)[2].bins for seed in range(100)]
    values = np.array([one.error.value for one in each])
    expected = np.array([one.by_chance for one in each])
    assert abs(np.mean(values / expected) - 1.0) < 4 * np.std(values / expected) / 10
    _, _, off = scored(1000, wrong=1.0)
    assert off.bins.error.low > off.bins.by_chance


def test_the_calibration_error_is_the_mean_distance_of_bins() -> None:
    """(M-302), and a bin of one value has a folded normal error, (M-303)."""
    chance, hit = np.repeat([0.2, 0.8], 50), np.concatenate([np.arange(50) < 20, np.arange(50) < 40])
    bins = CalibrationBins.of(chance, hit, most=2)
    assert bins.error.value == pytest.approx(0.5 * (0.4 - 0.2))
    assert bins.rows.tolist() == [50, 50]
    draws = np.abs(np.random.default_rng(0).normal(0.2, bins.spread[0], 400_000))
    flat = CalibrationBins(np.array([50]), bins.probability[:1], bins.share[:1], bins.spread[:1], 0.0)
    assert (flat.error.high - flat.error.value) / 1.959964 == pytest.approx(draws.std(), rel=1e-2)


def test_scores_of_parts_are_those_of_the_whole() -> None:
    codes, p, whole = scored(100)
    logs = np.log(np.stack([1.0 - p, p], axis=1))
    parts = ClassScores(codes[:37], logs[:37]).joined(ClassScores(codes[37:], logs[37:]))
    assert parts.rows == 100
    assert parts.to_json() == whole.to_json()


def test_more_than_two_classes_are_scored_by_their_most_probable_one() -> None:
    p = np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6], [0.2, 0.5, 0.3], [0.1, 0.8, 0.1]])
    scores = ClassScores(np.array([0, 2, 0, 1]), np.log(p))
    assert scores.log_loss.value == pytest.approx(-np.log([0.7, 0.6, 0.2, 0.8]).mean())
    assert scores.accuracy.value == 0.75
    assert scores.auc is None
    assert scores.bins.probability[0] == pytest.approx(0.65)


def test_answers_for_classes_stand_at_their_rows() -> None:
    found = Bernoulli().predictive(torch.tensor([-1.0, 2.0]).double(), torch.ones(2).double())
    answers = Classes(("no", "yes")).answers(found, Placed(np.array([0, 2]), 3))
    assert isinstance(answers, ClassAnswers)
    assert answers.label.tolist() == ["no", None, "yes"]
    np.testing.assert_allclose(answers.probability[[0, 2], 1], found.probability.numpy(), rtol=1e-12)
    assert answers.predicted.tolist() == [True, False, True]
    columns = answers.columns()
    assert [*columns] == ["label", "probability of no", "probability of yes"]
    with pytest.raises(DomainError, match="`interval` is of numbers, got it for classes 'no', 'yes'"):
        answers.columns(interval=0.9)


def test_numbers_of_any_distribution_have_answers_in_their_units() -> None:
    """Those of a normal one agree with those that are made for it."""
    found = Normal(torch.tensor([0.5, -1.0]).double(), torch.tensor([0.25, 4.0]).double())
    placed = Placed(np.array([0, 2]), 3)
    plain = Unshifted(scale=3.0).answers(found, placed)
    normal = Number(0.0, 3.0).answers(found, placed)
    y = np.array([1.0, 2.0, np.nan])
    for one, other in (
        (plain.mean, normal.mean), (plain.std, normal.std), (plain.median, normal.median),
        (plain.quantile(0.1), normal.quantile(0.1)), (plain.interval(0.9)[1], normal.interval(0.9)[1]),
        (plain.log_prob(y), normal.log_prob(y)),
    ):  # fmt: skip
        np.testing.assert_allclose(one, other, rtol=1e-12)
    kept = plain.rows(np.array([True, False, False]))
    assert (len(kept), kept.predicted.tolist()) == (1, [True])
    scores = Unshifted(counts=True).answers(found, Placed.all(2)).scores(np.array([1.0, 0.0]), 1.0)
    assert isinstance(scores, CountScores)
    assert scores.mae == pytest.approx(0.75)
    assert dict(scores.lines("visits"))["mean absolute error"] == "0.75 in units of visits"
