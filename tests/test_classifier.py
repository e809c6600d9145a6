"""GPClassifier inside scikit-learn: its own checks, labels of any type, weights, refusals, and the model behind it."""

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.estimator_checks import parametrize_with_checks

import flashgp as fgp


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning", "ignore::flashgp.FlashGPWarning")
@parametrize_with_checks([fgp.GPClassifier(optimise=False)])
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def table(n: int = 40, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """x and codes of noisy labels."""
    generator = np.random.default_rng(seed)
    x = generator.uniform(-2.0, 2.0, (n, 2))
    return x, (np.sin(2.0 * x[:, 0]) + 0.7 * generator.standard_normal(n) > 0.0).astype(int)


def given(**options: Any) -> fgp.GPClassifier:
    return fgp.GPClassifier(3.0 * fgp.kernels.Matern(1.5, 1.0), optimise=False, **options)


@pytest.mark.parametrize("labels", [["no", "yes"], [False, True], [-1, 1], [1.0, 2.0]])
def test_labels_of_any_type_come_back(labels: list[Any]) -> None:
    x, codes = table()
    y = np.array(labels)[codes]
    model = given().fit(x, y)
    assert model.classes_.tolist() == labels
    assert model.classes_.dtype == model.predict(x).dtype == y.dtype
    p = model.predict_proba(x)
    np.testing.assert_allclose(p.sum(axis=1), 1.0, rtol=1e-14)
    np.testing.assert_array_equal(model.predict(x), model.classes_[p.argmax(axis=1)])
    np.testing.assert_array_equal(model.decision_function(x) > 0.0, p[:, 1] > 0.5)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(x)), p, rtol=1e-14)
    assert model.score(x, y) == np.mean(model.predict(x) == y) > 0.8


def test_it_is_the_model_of_a_bernoulli_likelihood() -> None:
    x, codes = table()
    model = given(likelihood=fgp.likelihoods.Bernoulli(link="logit")).fit(x, codes)
    z = torch.from_numpy((x - x.mean(0)) / x.std(0))
    gp = fgp.GP(3.0 * fgp.kernels.Matern(1.5, 1.0), likelihood=fgp.likelihoods.Bernoulli(link="logit"))
    wanted = gp.condition(z, torch.from_numpy(codes).double()).predict(z[:5]).probability.detach().numpy()
    np.testing.assert_allclose(model.predict_proba(x[:5])[:, 1], wanted, rtol=1e-9)
    fitted = fgp.GPClassifier(starts=1).fit(x, codes)
    assert fitted.log_marginal_likelihood_value_ > given().fit(x, codes).log_marginal_likelihood_value_
    assert cross_val_score(fgp.GPClassifier(starts=1, max_iterations=5), *table(120), cv=2).min() > 0.6


def test_names_of_classes_change_nothing() -> None:
    x, codes = table()
    first = given().fit(x, np.array(["a", "b"])[codes]).predict_proba(x)
    second = given().fit(x, np.array(["b", "a"])[codes]).predict_proba(x)
    np.testing.assert_allclose(first, second[:, ::-1], rtol=1e-6)


def test_a_weight_is_a_repetition_and_a_class_weight_one_of_its_rows() -> None:
    x, codes = table()
    weight = np.random.default_rng(1).integers(0, 4, len(x))
    repeated = given().fit(np.repeat(x, weight, axis=0), np.repeat(codes, weight))
    weighted = given().fit(x, codes, weight)
    np.testing.assert_allclose(weighted.predict_proba(x), repeated.predict_proba(x), rtol=1e-9)
    assert weighted.posterior_.count == (weight > 0).sum()
    three = np.where(x[:, 1] > 1.0, 2, codes)
    np.testing.assert_allclose(
        given().fit(x, three, weight).predict_proba(x),
        given().fit(np.repeat(x, weight, axis=0), np.repeat(three, weight)).predict_proba(x),
        rtol=1e-9,
    )
    np.testing.assert_allclose(
        given(class_weight={0: 1.0, 1: 3.0}).fit(x, codes).predict_proba(x),
        given().fit(x, codes, np.where(codes == 1, 3.0, 1.0)).predict_proba(x),
        rtol=1e-12,
    )
    np.testing.assert_allclose(
        given(class_weight="balanced").fit(x[:30], codes[:30]).predict_proba(x),
        given().fit(x[:30], codes[:30], compute_sample_weight("balanced", codes[:30])).predict_proba(x),
        rtol=1e-12,
    )
    plain = given().fit(x, codes).predict_proba(x)
    assert (given(class_weight={0: 1.0, 1: 3.0}).fit(x, codes).predict_proba(x)[:, 1] > plain[:, 1]).all()


def test_rows_that_are_left_out_have_no_label() -> None:
    x, codes = table()
    y = np.array(["a", "b"], dtype=object)[codes]
    y[3], x[5, 1] = None, np.nan
    with pytest.warns(fgp.FlashGPWarning, match="2 of 40 rows have a missing value and were dropped"):
        model = given(missing="drop").fit(x, y)
    assert len(model.X_train_) == len(model.y_train_) == 38
    with pytest.warns(fgp.FlashGPWarning, match="1 of 3 rows"):
        assert model.predict(x[4:7]).tolist()[1] is None
    with pytest.warns(fgp.FlashGPWarning, match="1 of 3 rows"):
        assert np.isnan(model.predict_proba(x[4:7])[1]).all()


@pytest.mark.parametrize("labels", [(False, True), (3, 7)])
def test_labels_of_objects_that_are_no_text(labels: tuple[Any, Any]) -> None:
    """As a column of a frame has them that had gaps."""
    x, codes = table()
    model = given().fit(x, np.array(labels, dtype=object)[codes])
    assert model.classes_.tolist() == list(labels)
    np.testing.assert_array_equal(model.predict_proba(x), given().fit(x, codes).predict_proba(x))


def test_a_frame_has_categories_and_labels() -> None:
    x, codes = table()
    frame = pd.DataFrame({"size": x[:, 0], "city": np.where(x[:, 1] > 0, "Ulm", "Bonn")})
    y = pd.Series(np.array(["bad", "good"])[codes], dtype="category")
    model = fgp.GPClassifier(optimise=False).fit(frame, y)
    assert model.classes_.tolist() == ["bad", "good"]
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(frame[:5]), model.predict_proba(frame[:5]))
    assert model.importance(permutations=1).names == ("size", "city")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": ["a"]}, "1 class, 'a', in 40 rows; add rows of another class"),
        ({"y": ["a", None]}, "`y` must have a label in every row, got None at row 1; fill it in, or pass missing="),
        ({"y": ["a", 1]}, "`y` must have labels of one kind, got text and others; write all of them as text"),
        ({"y": [1.0, np.nan]}, "must have a label in every row, got np.float64.nan. at row 1|got nan at row 1"),
        ({"weight": 0.0}, "`sample_weight` must be positive for at least one row, got 40 zeros"),
        ({"weight": -1.0}, "`sample_weight` must be 0 or more, got -1 at row 0"),
        ({"class_weight": {"a": 1.0, "b": -1.0}}, "must be positive and finite, got -1 for the class 'b'"),
        ({"class_weight": "uneven"}, '`class_weight` must be None, "balanced" or a dict'),
        (
            {"likelihood": fgp.likelihoods.Gaussian()},
            "`likelihood` must be None, .* or Categorical, got Gaussian",
        ),
    ],
)
def test_what_cannot_be_is_said(change: dict[str, Any], message: str) -> None:
    x, _ = table()
    y = np.resize(np.array(change.pop("y", ["a", "b"]), dtype=object if "y" not in change else None), len(x))
    change = dict(change)
    weight = change.pop("weight", None)
    with pytest.raises(fgp.DomainError, match=message):
        given(**change).fit(x, y, weight)


def test_the_way_out_of_more_classes_works() -> None:
    x, _ = table()
    y = np.digitize(x[:, 0], [-0.7, 0.7])
    model = OneVsRestClassifier(given()).fit(x, y)
    assert model.score(x, y) > 0.8


def test_it_answers_after_fit_alone_and_is_as_it_was_where_a_fit_fails() -> None:
    x, codes = table()
    with pytest.raises(NotFittedError, match="call `fit` first: this GPClassifier has no data"):
        given().predict(x)
    model = given().fit(x, codes)
    before = model.predict_proba(x)
    with pytest.raises(fgp.DomainError):
        model.fit(x, np.zeros(len(x)))
    np.testing.assert_array_equal(model.predict_proba(x), before)
    assert clone(model).get_params().keys() == model.get_params().keys()
