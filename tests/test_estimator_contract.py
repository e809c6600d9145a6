"""GPRegressor inside scikit-learn: its own checks, pipelines, searches, frames, copies and pickles."""

import copy
import os
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from joblib import Parallel, delayed, dump, load
from sklearn.base import clone
from sklearn.ensemble import BaggingRegressor
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils.estimator_checks import parametrize_with_checks

import flashgp as fgp


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Hundreds of tiny fits: on a busy machine a second thread that waits for work costs more than the work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# A short fit; and parameters as given with rows dropped, which takes the other branch of everything.
ESTIMATORS = [
    fgp.GPRegressor(starts=1, max_iterations=8),
    fgp.GPRegressor(1.0 * fgp.kernels.Matern(2.5, 2.0), optimise=False, missing="drop", dtype="float32"),
    fgp.GPRegressor(uncertainty="auto", starts=1, max_iterations=2),
]


def failures(estimator: fgp.GPRegressor) -> dict[str, str]:
    """Checks that cannot be met."""
    hashed = "the check compares joblib hashes, and torch tensors have none: equal ones differ"
    return {} if estimator.kernel is None else {"check_estimators_overwrite_params": hashed}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning", "ignore::flashgp.FlashGPWarning")
@parametrize_with_checks(ESTIMATORS, expected_failed_checks=failures)
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def table(n: int = 30, d: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    x = generator.uniform(-2.0, 2.0, (n, d))
    return x, np.sin(x[:, 0]) + 0.5 * x[:, -1] + 0.1 * generator.standard_normal(n)


def quick(**options: Any) -> fgp.GPRegressor:
    return fgp.GPRegressor(**{"starts": 1, "max_iterations": 15, **options})


def test_nested_kernels_survive_parameters_and_clone() -> None:
    kernel = 2.0 * fgp.kernels.Matern(1.5, torch.tensor([1.0, 2.0])) + fgp.kernels.Linear(0.3)
    model = quick(kernel=kernel, mean=fgp.means.Zero(), likelihood=fgp.likelihoods.Gaussian(0.2))
    assert model.get_params()["kernel"] is kernel
    copied = clone(model)
    assert copied.kernel is not kernel
    assert str(copied.kernel) == str(kernel)
    x, y = table(d=2)
    before = copy.deepcopy(kernel.state_dict())
    np.testing.assert_array_equal(model.fit(x, y).predict(x), copied.fit(x, y).predict(x))
    assert all(torch.equal(value, before[name]) for name, value in kernel.state_dict().items())
    assert model.kernel is kernel
    assert model.kernel_ is not kernel
    assert model.kernel_ is model.gp_.kernel
    assert clone(model).set_params(optimise=False, kernel=kernel).fit(x, y).kernel_ is not kernel
    other = fgp.kernels.RBF(1.0)
    assert model.set_params(kernel=other, starts=2).get_params()["kernel"] is other
    assert "Matern" in repr(copied)


def test_grid_search_over_kernels_in_a_pipeline() -> None:
    x, y = table(24)
    pipeline = make_pipeline(PolynomialFeatures(2, include_bias=True), quick())
    kernels = [1.0 * fgp.kernels.RBF(1.0), 1.0 * fgp.kernels.Matern(0.5, 1.0) + fgp.kernels.Linear(1.0)]
    search = GridSearchCV(
        pipeline, {"gpregressor__kernel": kernels, "gpregressor__starts": [1]}, cv=2, error_score="raise"
    ).fit(x, y)
    assert search.best_score_ > 0.5
    assert type(search.best_estimator_[-1].kernel_) in (type(kernels[0]), type(kernels[1]))


def test_bagging_gives_its_counts_as_weights() -> None:
    x, y = table(40)
    bag = BaggingRegressor(quick(max_iterations=5), n_estimators=3, random_state=0).fit(x, y)
    assert bag.score(x, y) > 0.8


@pytest.mark.parametrize("library", [pd, pl])
def test_frames(library: Any) -> None:
    x, y = table(20, 2)
    frame = library.DataFrame({"width": x[:, 0], "height": x[:, 1]})
    model = quick().fit(frame, library.Series(y))
    assert list(model.feature_names_in_) == ["width", "height"]
    np.testing.assert_array_equal(model.predict(frame), quick().fit(x, y).predict(x))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[["height", "width"]])
    with pytest.raises(fgp.DomainError, match=r"must hold numbers as in `fit`, got column 'colour' "):
        model.predict(library.DataFrame({"width": x[:, 0], "colour": ["red"] * 20}))
    gap = library.DataFrame({"width": x[:, 0], "height": [None, *x[1:, 1]]})
    with pytest.raises(fgp.DomainError, match=r"`X` must be finite, got NaN at row 0 and column 1 \('height'\); fill"):
        quick().fit(gap, y)
    with pytest.warns(fgp.FlashGPWarning, match="1 of 20 rows"):
        assert quick(missing="drop").fit(gap, y).X_train_.shape == (19, 2)


def test_copies_and_pickles_answer_alike(tmp_path: Path) -> None:
    x, y = table()
    model = quick().fit(x, np.stack([y, y**2], axis=1))
    expected = model.predict(x, return_std=True)
    dump(model, tmp_path / "model.joblib")
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), load(tmp_path / "model.joblib", "r")):
        for got, wanted in zip(other.predict(x, return_std=True), expected, strict=True):
            np.testing.assert_array_equal(got, wanted)
        assert other.log_marginal_likelihood_value_ == model.log_marginal_likelihood_value_
        assert len(other.history_) == len(model.history_)
    for got in Parallel(n_jobs=2, prefer="threads")(delayed(model.predict)(part) for part in (x, x)):
        np.testing.assert_allclose(got, expected[0], rtol=1e-12)


def test_read_only_memory_maps_and_odd_layouts(tmp_path: Path) -> None:
    x, y = table()
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    expected = quick().fit(x, y).predict(x)
    for other in (mapped, np.asfortranarray(x), x[::-1][::-1], x.astype(">f8")):
        np.testing.assert_array_equal(quick().fit(other, y).predict(other), expected)
    if os.name != "nt":
        assert not mapped.flags.writeable


def test_what_fit_keeps_is_its_own() -> None:
    x, y = table()
    model = quick().fit(x, y)
    expected = model.predict(x[:5].copy())
    points = x[:5].copy()
    x[:], y[:] = 0.0, 0.0
    np.testing.assert_array_equal(model.predict(points), expected)
    assert model.X_train_.any()
    assert model.y_train_.any()


def test_random_state() -> None:
    x, y = table(15)
    values = [quick(starts=3, random_state=state).fit(x, y).history_ for state in (None, None, 1, 1, 2)]
    firsts = [next(e.theta for e in history if e.start == "start 2") for history in values]
    assert firsts[0] == firsts[1]
    assert firsts[2] == firsts[3]
    assert len(set(firsts)) == 3
    state = np.random.get_state()[1].copy()  # noqa: NPY002 - the global generator must not move
    quick(random_state=np.random.RandomState(3)).fit(x, y)
    first, again = (quick(random_state=np.random.default_rng(3)).fit(x, y) for _ in range(2))
    assert [e.theta for e in first.history_] == [e.theta for e in again.history_]
    drawn = [first.sample_y(x[:3], random_state=np.random.default_rng(seed)) for seed in (1, 1, 2)]
    assert (drawn[0] == drawn[1]).all()
    assert (drawn[0] != drawn[2]).all()
    for wrong in ("a", -1, 0.5):
        with pytest.raises(fgp.DomainError, match="`random_state` must be"):
            quick(random_state=wrong).fit(x, y)
    assert (np.random.get_state()[1] == state).all()  # noqa: NPY002


def test_before_fit_the_prior_answers() -> None:
    model = fgp.GPRegressor(4.0 * fgp.kernels.RBF(1.0), likelihood=fgp.likelihoods.Gaussian(0.25))
    mean, std = model.predict([[0.0], [1.0], [9.0]], return_std=True)
    assert mean.tolist() == [0.0, 0.0, 0.0]
    np.testing.assert_allclose(std, np.sqrt(4.25))
    np.testing.assert_allclose(model.predict([[0.0]], return_std=True, latent=True)[1], 2.0)
    assert model.sample_y([[0.0], [1.0]], 5).shape == (2, 5)
    assert not hasattr(model, "n_features_in_")
    with pytest.raises(NotFittedError):
        model.log_marginal_likelihood()


# -- labels and identifiers ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "labels",
    [
        ["a", "b"], [True, False], np.array([True, 1.0], object), pd.Series(["a", "b"], dtype="category"),
        pl.Series(["a", "b"]), pd.DataFrame({"u": [1.0, 2.0], "v": ["a", "b"]}),
    ],
)  # fmt: skip
def test_labels_are_refused(labels: Any) -> None:
    """They became 0 and 1, or an error of scikit-learn."""
    with pytest.raises(
        fgp.DomainError, match=r"`y` must hold numbers, got .*look like classes; use flashgp.GPClassifier"
    ):
        quick().fit([[0.0], [1.0]], labels)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-2.5, 1e6)])
def test_a_target_of_two_values_is_named(low: float, high: float) -> None:
    x = np.linspace(0.0, 1.0, 12)[:, None]
    y = np.where(np.arange(12) % 3 == 0, low, high)
    with pytest.warns(fgp.FlashGPWarning, match=r"The target has 2 values, .* looks like classification"):
        model = quick().fit(x, y)
    (event,) = (e for e in model.report_.events if e.kind is fgp.EventKind.TWO_VALUES)
    assert (event.fields["low"], event.fields["high"]) == (low, high)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for other in (y + np.arange(12) // 11, np.full(12, low)):
            assert not [e for e in quick().fit(x, other).report_.events if e.kind is fgp.EventKind.TWO_VALUES]
        quick().fit(x[:4], y[:4])


@pytest.mark.parametrize("kind", ["array", "polars"])
def test_whole_numbers_that_float64_merges_are_refused(kind: str) -> None:
    ids = [10**17 + i for i in range(4)]
    x = {
        "array": lambda: np.stack([np.arange(4), np.array(ids)], axis=1),
        "polars": lambda: pl.DataFrame({"a": range(4), "b": ids}),
    }[kind]()
    place = "row 1 and column 'b'" if kind == "polars" else "row 1 and column 1"
    with pytest.raises(fgp.DomainError, match=f"`X` must hold .* got 100000000000000001 at {place}"):
        quick().fit(x, [1.0, 2.0, 3.0, 4.0])
    with pytest.raises(fgp.DomainError, match=r"`y` must hold .* got 100000000000000001 at row 1"):
        quick().fit(np.arange(4.0)[:, None], ids)
    model = quick().fit(np.arange(8.0).reshape(4, 2), [1.0, 2.0, 3.0, 4.0])
    with pytest.raises(fgp.DomainError, match="`X` must hold"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of scikit-learn, about names
        model.predict(x)
