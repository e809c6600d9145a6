"""GPRegressor with frames of text and categories, the same numbers in three worlds, and its files."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.base import clone

import flashgp as fgp
from test_cli import read, run
from test_table_model import QUICK, frames, houses


def inputs(n: int = 40, seed: int = 0) -> dict[str, Any]:
    columns = houses(n, seed)
    del columns["price"]
    return columns


@pytest.fixture(scope="module")
def model() -> fgp.GPRegressor:
    return fgp.GPRegressor(**QUICK).fit(pd.DataFrame(inputs()), houses()["price"])


# -- one model in both worlds -----------------------------------------------------------------------------------------
def test_the_same_rows_give_the_same_numbers_in_three_worlds(tmp_path: Path) -> None:
    """Columns of every kind, and rows that repeat; the kernel and the transform are chosen."""
    options: dict[str, Any] = {"kernel": "auto"}
    table, new = houses(60), pd.DataFrame(houses(25, seed=1))
    rows = pd.concat([pd.DataFrame(table), pd.DataFrame(table).iloc[:7].assign(price=300.0)], ignore_index=True)
    rows.to_csv(tmp_path / "t.csv", index=False)
    new.to_csv(tmp_path / "new.csv", index=False)
    said = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    run("fit", tmp_path / "t.csv", "-t", "price", "--starts", 1, "--out", tmp_path / "m", *said)
    run("predict", tmp_path / "m", tmp_path / "new.csv", "--out", tmp_path / "p.csv", "--std")
    written = read(tmp_path / "p.csv")
    there = fgp.TableModel(starts=1, **options).fit(rows, target="price").predict(new)
    estimator = fgp.GPRegressor(starts=1, **options).fit(rows.drop(columns="price"), rows["price"])
    for found in ((there.mean, there.std), estimator.predict(new, return_std=True)):
        np.testing.assert_array_equal(found[0], written["mean"])
        np.testing.assert_array_equal(found[1], written["std"])


def test_frames_of_every_library(model: fgp.GPRegressor) -> None:
    new = houses(25, seed=1)
    wanted = model.predict(pd.DataFrame(new))
    for name, frame in frames(inputs()).items():
        if name == "dict":
            continue
        other = fgp.GPRegressor(**QUICK).fit(frame, houses()["price"])
        assert list(other.feature_names_in_) == ["size", "city", "built", "garden"]
        assert other.n_features_in_ == 4
        for at in (frames(new)[name], pl.DataFrame(new).select("garden", "built", "price", "city", "size")):
            np.testing.assert_array_equal(other.predict(at), wanted)
    np.testing.assert_array_equal(clone(model).fit(pd.DataFrame(inputs()), houses()["price"]).predict(new), wanted)
    assert model.X_train_.shape == (40, 4)
    assert fgp.GPRegressor(**QUICK).fit(model.X_train_, model.y_train_).encoding_ is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.drop(columns="size"), r"'X' must have the columns .* missing 'size'"),
        (lambda t: t.assign(city=["Bonn", "Paris", "Ulm", "Rom"]), r"column 'city' of 'X' .*got 'Paris' at row 1"),
        (lambda t: t.assign(size=["big"] * 4), r"column 'size' of 'X' must hold values of kind number"),
        (lambda t: t.assign(city=["Bonn", None, "Ulm", "Ulm"]), r"got NaN at row 1 and column 1 \('city'\)"),
        (lambda t: np.zeros((4, 4)), r"`X` must be a frame"),
    ],
)
def test_bad_frames_are_refused_by_column_and_row(model: fgp.GPRegressor, change: Any, said: str) -> None:
    with pytest.raises(fgp.DomainError, match=said):
        model.predict(change(pd.DataFrame(inputs(4, seed=1))))


MIXED = pd.Series([None, "x", 1.5, "y"], dtype=object)


@pytest.mark.parametrize(
    ("X", "y", "said"),
    [
        (
            pd.DataFrame({"size": range(4), "city": MIXED}),
            range(4),
            "column 'city' of 'X' .* 'x' at row 1 and 1.5 at row 2",
        ),
        (
            pd.DataFrame([[1.0, 2.0]] * 4, columns=["size", "size"]),
            range(4),
            "'X' must differ, got 'size' for columns 1",
        ),
        (pd.DataFrame({"size": range(4)}), pd.Series(list("abcd")), "`y` must hold numbers, got text"),
        (pd.DataFrame({"size": range(4)}), pd.Series([None] * 4, dtype=object), "`y` must be finite, got NaN at row 0"),
        (
            pd.DataFrame({"size": [0.0, np.inf, 1.0, 2.0]}),
            range(4),
            r"got inf at row 1 and column 0 \('size'\); correct it",
        ),
    ],
    ids=["two kinds of values", "a name twice", "a target of text", "a target without values", "infinity"],
)
def test_frames_that_cannot_be_learned_name_the_column(X: pd.DataFrame, y: Any, said: str) -> None:
    with pytest.raises(fgp.FlashGPError, match=said):
        fgp.GPRegressor().fit(X, y)


def test_frames_that_cannot_be_learned_leave_the_model_as_it_was(model: fgp.GPRegressor) -> None:
    table, price = pd.DataFrame(inputs()), houses()["price"]
    before = model.predict(table)
    for change, said in (
        (table.assign(id=[f"u{i}" for i in range(40)]), r"'id' \(text with 40 distinct values .*leave out 'id'"),
        (table.assign(garden=[["a"]] * 40), "'garden' .stored as"),
        (table.assign(garden=[3, *["a"] * 39]), "garden"),
    ):
        with pytest.raises(ValueError, match=said):
            model.fit(change, price)
    np.testing.assert_array_equal(model.predict(table), before)


def test_missing_and_unseen_categories() -> None:
    table, price = pd.DataFrame(inputs()), houses()["price"]
    assert fgp.GPRegressor(**QUICK).fit(table.assign(city=[None, *table["city"][1:]]), price).X_train_.shape == (40, 4)
    gap = table.assign(size=[np.nan, *table["size"][1:]])
    with pytest.raises(fgp.DomainError, match=r"got NaN at row 0 and column 0 \('size'\); fill it in"):
        fgp.GPRegressor(**QUICK).fit(gap, price)
    with pytest.warns(fgp.FlashGPWarning, match="1 of 40 rows have a missing value and were dropped, the first is"):
        model = fgp.GPRegressor(missing="drop", unseen="new", **QUICK).fit(gap, price)
    assert model.X_train_.shape == (39, 4)
    with pytest.warns(fgp.FlashGPWarning, match="get NaN, the first is row 0"):
        assert np.isnan(model.predict(gap)).tolist() == [True] + [False] * 39
    known, new = (model.predict(t, return_std=True)[1] for t in (table[:5], table[:5].assign(city="Paris")))
    assert (new > known).all()
    with pytest.raises(fgp.DomainError, match="`unseen` must be one of"):
        fgp.GPRegressor(unseen="ignore").fit(table, price)


def test_a_kernel_of_ones_own_has_to_read_categories_as_such() -> None:
    table, price = pd.DataFrame(inputs()), houses()["price"]
    numbers = fgp.kernels.Matern(2.5, torch.ones(3), [0, 2, 3])
    kernel = numbers * fgp.kernels.Categorical(1.0, [1]) + fgp.kernels.Constant()
    assert fgp.GPRegressor(kernel, **QUICK).fit(table, price).score(table, price) > 0.9
    for wrong in (fgp.kernels.Matern(2.5), numbers + fgp.kernels.Linear(1.0, [-3])):
        with pytest.raises(fgp.DomainError, match=r"for column 1 \('city'\), whose codes have no order; write"):
            fgp.GPRegressor(wrong, **QUICK).fit(table, price)
    with pytest.raises(fgp.DomainError, match=r"`mean` must not be linear in codes of categories"):
        fgp.GPRegressor(mean=fgp.means.Linear(torch.zeros(4)), **QUICK).fit(table, price)


# -- files ------------------------------------------------------------------------------------------------------------
def numbers(n: int = 30) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(5)
    x = generator.uniform(10.0, 30.0, (n, 2))
    return x, 500.0 + 40.0 * np.sin(0.3 * x[:, 0]) + generator.standard_normal(n)


CASES = ("log", "outputs", "weights", "rows", "frame", "given", "iterations")


@pytest.mark.parametrize("case", CASES)
def test_a_saved_estimator_comes_back(case: str, tmp_path: Path) -> None:
    x, y = numbers()
    options: dict[str, Any] = {"starts": 1, "max_iterations": 10, "random_state": 3, "device": torch.device("cpu")}
    weight: Any = None
    X: Any = x
    if case == "log":
        options["target_transform"] = "log"
    elif case == "outputs":
        y = np.stack([y, 1e3 * x[:, 1]], axis=1)
    elif case == "weights":
        weight = np.arange(30) % 3 + 0.5
    elif case == "rows":
        options["likelihood"] = fgp.likelihoods.Gaussian(0.1, row_variance=np.linspace(1.0, 9.0, 30))
    elif case == "frame":
        X = pd.DataFrame(inputs(30))
    elif case == "given":
        options |= {"kernel": 2.0 * fgp.kernels.RBF(torch.ones(2)), "mean": fgp.means.Zero(), "dtype": torch.float64}
    elif case == "iterations":
        options["solver"] = "cg"
    model = fgp.GPRegressor(**options).fit(X, y, weight)
    fgp.save(model, tmp_path / "m.safetensors", metadata={"who": "me"})
    again = fgp.load(tmp_path / "m.safetensors")
    assert isinstance(again, fgp.GPRegressor)
    for got, wanted in zip(again.predict(X, return_std=True), model.predict(X, return_std=True), strict=True):
        np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(again.sample_y(X, 2), model.sample_y(X, 2))
    assert again.log_marginal_likelihood_value_ == model.log_marginal_likelihood_value_
    if case != "iterations":
        value, gradient = again.log_marginal_likelihood(eval_gradient=True)
        assert value == pytest.approx(model.log_marginal_likelihood(), rel=1e-9)
        assert gradient.shape == model.log_marginal_likelihood(eval_gradient=True)[1].shape
    assert again.scaling_ == model.scaling_
    assert again.n_features_in_ == model.n_features_in_
    assert again.encoding_ == model.encoding_
    assert again.starts == 1
    assert again.random_state == 3
    if case == "rows":
        np.testing.assert_allclose(again.likelihood.row_variance.numpy(), np.linspace(1.0, 9.0, 30), rtol=1e-12)
    before = model.predict(X)
    np.testing.assert_allclose(again.fit(X, y, weight).predict(X), before, rtol=1e-2, err_msg="it can be fitted again")


def test_what_is_no_file_of_an_estimator(model: fgp.GPRegressor, tmp_path: Path) -> None:
    from flashgp.files import load_metadata, save

    path = tmp_path / "m.safetensors"
    with pytest.raises(fgp.DomainError, match="must be a fitted GPRegressor"):
        fgp.save(fgp.GPRegressor(), path)
    with pytest.raises(fgp.DomainError, match="`model` must be"):
        fgp.save(3, path)
    fgp.save(model, path)
    data = load_metadata(path)["flashgp.estimator"]
    for change, named in (
        ({"version": 3}, "estimator.version"),
        ({"settings": {"frobnicate": 1}}, "estimator.settings"),
        ({"units": []}, "the units of"),
        ({"names": ["a"]}, "estimator.names"),
        ({"encoding": data["encoding"][:2]}, "estimator.encoding"),
        ({"evidence": "high"}, "estimator.evidence"),
        ({"more": 1}, "estimator"),
    ):
        save(model.posterior_, path, metadata={"flashgp.estimator": {**data, **change}})
        with pytest.raises(fgp.ModelFileError, match=named):
            fgp.load(path)
    save(model.posterior_, path, metadata={"flashgp.estimator": 3})
    with pytest.raises(fgp.ModelFileError, match="estimator"):
        fgp.load(path)
