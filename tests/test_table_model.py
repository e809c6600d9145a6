"""TableModel: the command line's model in Python, in units of the table, from frames, dicts and files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow
import pytest
import torch

import flashgp as fgp
from flashgp.table import table_of
from test_cli import read, run

EPS = np.finfo(float).eps


def houses(n: int = 40, seed: int = 0) -> dict[str, Any]:
    """A column of every kind, and a price around 300."""
    generator = np.random.default_rng(seed)
    size, city = generator.uniform(40.0, 160.0, n), generator.choice(["Bonn", "Köln", "Ulm"], n)
    built = np.datetime64("1990-01-01") + generator.integers(0, 9000, n)
    garden = generator.choice([True, False], n)
    price = 100.0 + 2.0 * size + 40.0 * (city == "Köln") + 15.0 * garden + generator.normal(0.0, 5.0, n)
    return {"size": size, "city": city.tolist(), "built": built, "garden": garden, "price": price}


def frames(columns: dict[str, Any]) -> dict[str, Any]:
    """The same table in every form."""
    categories = {**columns, "city": pd.Categorical(columns["city"])}
    return {
        "dict": columns, "pandas": pd.DataFrame(columns), "pandas categories": pd.DataFrame(categories),
        "polars": pl.DataFrame(columns), "pyarrow": pyarrow.table(columns),
        "polars categories": pl.DataFrame(columns).with_columns(pl.col("city").cast(pl.Categorical)),
    }  # fmt: skip


QUICK: dict[str, Any] = {"starts": 1, "target_transform": "none"}


@pytest.fixture(scope="module")
def model() -> fgp.TableModel:
    return fgp.TableModel(**QUICK).fit(houses(), target="price")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same tables as files, and the command line's model of the first."""
    path = tmp_path_factory.mktemp("houses")
    pd.DataFrame(houses()).to_csv(path / "houses.csv", index=False)
    pd.DataFrame(houses(25, seed=1)).to_csv(path / "new.csv", index=False)
    run("fit", path / "houses.csv", "-t", "price", "--starts", 1, "--target-transform", "none", "--out", path / "m")
    return path


# -- one model in both worlds -----------------------------------------------------------------------------------------
def test_a_model_of_the_command_line_answers_in_units_of_the_table(folder: Path) -> None:
    loaded = fgp.load(folder / "m")
    assert isinstance(loaded, fgp.TableModel)
    run("predict", folder / "m", folder / "new.csv", "--out", folder / "p.csv", "--std", "--interval", 0.9)
    written = read(folder / "p.csv")
    for table in (folder / "new.csv", houses(25, seed=1), pd.DataFrame(houses(25, seed=1))):
        prediction = loaded.predict(table)
        np.testing.assert_array_equal(prediction.mean, written["mean"])
        np.testing.assert_array_equal(prediction.std, written["std"])
        np.testing.assert_array_equal(prediction.interval(0.9), [written["lower"], written["upper"]])
    assert 250.0 < written["mean"].mean() < 350.0
    assert prediction.scores is not None
    assert prediction.scores.rmse < 15.0


def test_the_same_rows_give_the_same_numbers_in_python_and_on_the_command_line(
    folder: Path, model: fgp.TableModel
) -> None:
    loaded = fgp.load(folder / "m")
    for table in (model, *(fgp.TableModel(**QUICK).fit(frame, "price") for frame in frames(houses()).values())):
        found, wanted = table.predict(houses(25, seed=1)), loaded.predict(houses(25, seed=1))
        np.testing.assert_array_equal(found.mean, wanted.mean)
        np.testing.assert_array_equal(found.std, wanted.std)
        assert table.scaling == loaded.scaling
        assert table.encoding == loaded.encoding


def test_a_kernel_expression_means_the_same_in_both(folder: Path, tmp_path: Path) -> None:
    text = "Matern(nu=2.5, lengthscale=50, active_dims=size) * Categorical()"
    run("fit", folder / "houses.csv", "-t", "price", "--kernel", text, "--out", tmp_path / "m")
    here = fgp.TableModel(text).fit(folder / "houses.csv", target="price")
    there = fgp.load(tmp_path / "m")
    np.testing.assert_array_equal(here.predict(folder / "new.csv").mean, there.predict(folder / "new.csv").mean)
    assert there.settings.kernel == text


def test_files_save_and_load_both_ways(model: fgp.TableModel, folder: Path, tmp_path: Path) -> None:
    wanted = model.predict(houses(25, seed=1))
    fgp.save(model, tmp_path / "m.safetensors", metadata={"who": "me"})
    again = fgp.load(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(again.predict(houses(25, seed=1)).mean, wanted.mean)
    run("predict", tmp_path / "m.safetensors", folder / "new.csv", "--out", tmp_path / "p.csv", "--std")
    np.testing.assert_array_equal(read(tmp_path / "p.csv")["mean"], wanted.mean)
    np.testing.assert_array_equal(read(tmp_path / "p.csv")["std"], wanted.std)
    from flashgp.files import load_metadata

    assert load_metadata(tmp_path / "m.safetensors")["who"] == "me"
    fgp.save(model.posterior, tmp_path / "standardised")
    assert isinstance(fgp.load(tmp_path / "standardised"), fgp.Posterior)
    with pytest.raises(fgp.ModelFileError, match="does not know a table's columns"):
        fgp.TableModel.load(tmp_path / "standardised")
    with pytest.raises(fgp.DomainError, match="`path` must be the name of a file, got int"):
        fgp.TableModel.load(3)


def test_the_posterior_says_that_it_is_standardised(model: fgp.TableModel, tmp_path: Path) -> None:
    fgp.save(model, tmp_path / "m.safetensors")
    more = model.update(houses(3, seed=2))
    for one in (model, more, fgp.load(tmp_path / "m.safetensors")):
        assert "of standardised columns and target" in repr(one.posterior).splitlines()[0]
        assert "standardised" in one.posterior._repr_html_()
        assert "standardised" in repr(one)
        assert one._repr_html_().count("<p>") == 3
        assert "<table></table>" not in one._repr_html_()
    assert model.training is not None
    assert "standardised" in repr(model.training.posterior)
    assert "standardised" in (fgp.TableModel.posterior.__doc__ or "")
    plain = fgp.GP(fgp.kernels.RBF()).condition(torch.zeros(1, 1), torch.zeros(1))
    assert "standardised" not in repr(plain)


# -- predictions ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("transform", ["log"])
def test_predictions_are_distributions_of_the_target(transform: Any) -> None:
    model = fgp.TableModel(starts=1, target_transform=transform).fit(houses(), target="price")
    table = houses(25, seed=1)
    prediction = model.predict(table)
    found, _, _ = model.predict_encoded(model.encoding.apply(table_of(table), need_target=False).x)
    location, spread = found.mean.numpy(), found.variance.sqrt().numpy()  # of T(y), standardised
    forward = np.log if transform == "log" else np.asarray
    z = (model.scaling.y(table["price"]) - location) / spread
    slope = -np.log(table["price"]) if transform == "log" else 0.0
    density = -0.5 * z**2 - 0.5 * np.log(2 * np.pi) - np.log(spread * model.scaling.target.scale) + slope
    np.testing.assert_allclose(prediction.log_prob(), density, rtol=100 * EPS, atol=1e3 * EPS)
    np.testing.assert_allclose(prediction.log_prob(table["price"]), density, rtol=100 * EPS, atol=1e3 * EPS)
    lower, upper = prediction.interval(0.5)
    np.testing.assert_allclose(lower, prediction.quantile(0.25), rtol=1e3 * EPS)
    np.testing.assert_allclose(upper, prediction.quantile(0.75), rtol=1e3 * EPS)
    np.testing.assert_allclose(forward(lower) + forward(upper), 2 * forward(prediction.median), rtol=1e3 * EPS)
    if transform == "log":
        assert (prediction.mean > prediction.median).all()
    del table["price"]
    alone = model.predict(table)
    np.testing.assert_array_equal(alone.mean, prediction.mean)
    assert alone.observed is alone.scores is None
    with pytest.raises(fgp.ShapeError, match="one value for each of 25 rows, got none; pass the column 'price'"):
        alone.log_prob()
    with pytest.raises(fgp.DomainError, match="`q` must be one number between 0 and 1"):
        alone.quantile(1.5)


def test_missing_inputs_get_nan_in_their_row(model: fgp.TableModel) -> None:
    table = pd.DataFrame(houses(5, seed=1))
    table.loc[2, "size"] = np.nan
    with pytest.raises(fgp.DomainError, match=r"1 of 5 rows with one, the first at row 2, column 'size'"):
        model.predict(table)
    prediction = model.predict(table, missing="drop")
    assert len(prediction) == 5
    assert prediction.rows.tolist() == [0, 1, 3, 4]
    for values in prediction.columns(interval=0.95).values():
        assert np.isnan(values).tolist() == [False, False, True, False, False]
    assert any("have nan" in note for note in prediction.notes)
    assert prediction.scores is not None
    assert prediction.scores.rows == 4


def test_rows_are_learned_in_units_of_the_table(model: fgp.TableModel) -> None:
    more = houses(90, seed=2)
    updated = model.update(pl.DataFrame(more))
    assert (model.posterior.count, updated.posterior.count) == (40, 130)
    assert model.learned is None
    assert updated.learned is not None
    assert updated.learned.scores is not None
    assert updated.learned.scores.rows == 90
    np.testing.assert_allclose(
        updated.learned.mean[:64],
        model.predict(more).mean[:64],
        rtol=1e-9,
        err_msg="a block is predicted, then learned",
    )
    both = {name: np.concatenate([column, more[name]]) for name, column in houses().items()}
    x = torch.from_numpy(model.scaling.x(model.encoding.apply(table_of(both), need_target=True).x))
    y = torch.from_numpy(model.scaling.y(np.asarray(both["price"])))
    at = houses(9, seed=3)
    wanted = model.with_posterior(model.posterior.gp.condition(x, y)).predict(at)
    np.testing.assert_allclose(updated.predict(at).mean, wanted.mean, rtol=1e-8)
    assert model.update(more, window=50).posterior.count == 50


@pytest.mark.parametrize("approximation", [None, "full_scale", "sparse"])
def test_rows_that_were_fitted_are_scored_apart(model: fgp.TableModel, approximation: Any, tmp_path: Path) -> None:
    """Equal in inputs and target, however far they travelled; what is new is scored as new."""
    post = model.posterior
    post = post.gp.condition(post.x, post.y, approximation=approximation)
    model.with_posterior(post).save(tmp_path / "m")
    model = fgp.TableModel.load(tmp_path / "m")
    pd.concat([pd.DataFrame(houses()), pd.DataFrame(houses(9, seed=1))]).to_csv(tmp_path / "both.csv")
    for table in (tmp_path / "both.csv", pd.read_csv(tmp_path / "both.csv").iloc[::-1]):
        found = model.predict(table)
        assert found.known is not None
        assert sorted(found.known) == [False] * 9 + [True] * 40
        assert found.scores is not None
        assert found.known_scores is not None
        assert (found.scores.rows, found.known_scores.rows) == (9, 40)
        assert any("40 rows of 49" in note for note in found.notes)
    alone = model.predict(houses(9, seed=1))
    assert alone.scores is not None
    assert alone.scores.rmse == pytest.approx(found.scores.rmse)
    assert alone.known_scores is None
    assert not any("learned" in note for note in alone.notes)
    assert model.predict(houses()).scores is None
    other = {**houses(), "price": [value + 0.5 for value in houses()["price"]]}
    assert not model.predict(other).known.any(), "a new observation at known inputs"  # type: ignore[union-attr]
    del other["price"]
    assert model.predict(other).known is None


def test_an_update_says_which_rows_it_knew(model: fgp.TableModel) -> None:
    def repeated(one: fgp.TableModel) -> list[dict[str, Any]]:
        return [event.fields for event in one.report.events if event.kind is fgp.EventKind.ROWS_KNOWN]

    more = model.update(pd.concat([pd.DataFrame(houses())[:7], pd.DataFrame(houses(9, seed=2))]))
    assert [(event["rows"], event["of"]) for event in repeated(more)] == [(7, 16)]
    assert more.learned is not None
    assert more.learned.scores.rows == 9  # type: ignore[union-attr]
    assert more.learned.known_scores.rows == 7  # type: ignore[union-attr]
    assert not repeated(more.update(houses(5, seed=3)))
    assert repeated(more.update(houses(9, seed=2)))[0]["rows"] == 9, "what was learned since is known, too"
    assert not repeated(model)


def test_columns_are_matched_by_name_and_an_index_is_none(model: fgp.TableModel) -> None:
    table = pd.DataFrame(houses(8, seed=1))
    shuffled = table[["garden", "price", "city", "size", "built"]].assign(other=1.0)
    shuffled.index = pd.Index([f"h{i}" for i in range(8)], name="house")
    prediction = model.predict(shuffled)
    np.testing.assert_array_equal(prediction.mean, model.predict(table).mean)
    assert any("'other'" in note for note in prediction.notes)


# -- kernels of one's own ---------------------------------------------------------------------------------------------
def test_a_kernel_over_the_inputs() -> None:
    numbers, table = [0, 2, 3], houses()
    kernel = fgp.kernels.Matern(2.5, torch.ones(3), numbers) * fgp.kernels.Categorical(1.0, [1])
    model = fgp.TableModel(kernel, **QUICK).fit(table, target="price")
    assert model.predict(table).known_scores.rmse < 10.0  # type: ignore[union-attr]
    assert kernel.parts[0].lengthscale.value.tolist() == [1.0] * 3, "what was passed stays as it is"
    with pytest.raises(fgp.DomainError, match=r"got Matern for column 1 \('city'\), whose codes have no order"):
        fgp.TableModel(fgp.kernels.Matern(2.5)).fit(table, target="price")
    with pytest.raises(fgp.DomainError, match=r"do not vary and are left out: 'one'; pass drop=\['one'\]"):
        fgp.TableModel(kernel).fit({**table, "one": [1.0] * 40}, target="price")
    with pytest.raises(fgp.DomainError, match="`kernel` must be None"):
        fgp.TableModel(3.0)  # type: ignore[arg-type]


# -- what is refused --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.drop(columns="size"), r"'table' must have the columns .* missing 'size'; it has 'city'"),




        (lambda t: t.assign(built=[1.0, 2.0, 3.0, 4.0]), r"column 'built' .* of kind date .*got number"),




        (lambda t: {**t, "size": [1.0]}, r"one length each, got .*length"),


        (lambda t: "absent.csv", r"No such file"),
    ],
)  # fmt: skip
def test_bad_tables_are_refused_by_column_and_row(model: fgp.TableModel, change: Any, said: str) -> None:
    table = pd.DataFrame(houses(4, seed=1))
    with pytest.raises((fgp.DomainError, fgp.ShapeError), match=said):
        model.predict(change(table))


def test_new_categories_are_unlike_all_others(model: fgp.TableModel) -> None:
    table = pd.DataFrame(houses(4, seed=1))
    new = model.predict(table.assign(city="Paris"), unseen="new")
    assert (new.std > model.predict(table).std).all()
    assert any("'Paris' at row 0" in note for note in new.notes)


def test_a_model_without_rows_says_what_to_do() -> None:
    model = fgp.TableModel()
    assert repr(model) == "TableModel(kernel=None), not fitted"
    for ask in (lambda: model.predict({}), lambda: model.posterior, lambda: model.save("m"), lambda: model.update({})):
        with pytest.raises(fgp.DomainError, match=r"needs a fitted TableModel.*use what fit\(table"):
            ask()
    for settings in ({"missing": "ignore"}, {"target_transform": "square"}, {"kernel": "Mattern()"}):
        with pytest.raises(fgp.DomainError):
            fgp.TableModel(**settings)


def test_what_was_decided_of_the_columns_is_said(caplog: pytest.LogCaptureFixture) -> None:
    table = pd.DataFrame(houses()).assign(one=1.0, built=lambda t: t["built"].astype(str), void=np.nan)
    with caplog.at_level("INFO", logger="flashgp.table"):
        model = fgp.TableModel(**QUICK).fit(table, target="price")
    for said in ("'one' is constant (1): left out", "'void' has no values", "'built' holds dates", "'city' is text"):
        assert any(said in note for note in model.notes)
        assert said in caplog.text
    wanted = fgp.TableModel(**QUICK).fit(houses(), target="price").predict(houses(9, seed=1))
    np.testing.assert_array_equal(model.predict(houses(9, seed=1)).mean, wanted.mean)
    np.testing.assert_array_equal(model.predict(table).mean, model.predict(houses()).mean)


def test_settings_and_choices_that_are_none(model: fgp.TableModel) -> None:
    table = houses()
    with pytest.raises(
        fgp.DomainError, match="`target`, `drop` and `categorical` must name columns, got 3; choose from"
    ):
        fgp.TableModel().fit(table, target=3)  # type: ignore[arg-type]
    with pytest.raises(fgp.DomainError, match="`unseen` must be one of"):
        model.predict(table, unseen="ignore")  # type: ignore[arg-type]
    with pytest.raises(fgp.DomainError, match="`missing` must be one of"):
        model.update(table, missing="ignore")  # type: ignore[arg-type]
    with pytest.raises(fgp.DomainError, match="`dtype` must be None, 'float64' or 'float32', got 'floof'"):
        fgp.TableModel(dtype="floof")
    single = fgp.TableModel(dtype="float32", **QUICK).fit(table, target="price")
    assert single.report.dtype == "float32"
    np.testing.assert_allclose(single.predict(table).mean, model.predict(table).mean, rtol=1e-3)


def test_json_of_an_older_model_still_loads(folder: Path) -> None:
    """The metadata has the fields it had, and no others."""
    from flashgp.files import load_metadata

    data = load_metadata(folder / "m")["flashgp.table"]
    assert sorted(data) == ["encoding", "kernel", "scaling"]
    assert json.loads(json.dumps(data["encoding"]))["version"] == 1


MIXED = [None, 1.5, "x", 2.5]


@pytest.mark.parametrize(
    "table",
    [
        {"size": [1.0, 2.0, 3.0, 4.0], "price": MIXED},
        {"size": [1.0, 2.0, 3.0, 4.0], "price": np.array(MIXED, dtype=object)},
        pd.DataFrame({"size": [1.0, 2.0, 3.0, 4.0], "price": pd.Series(MIXED, dtype=object)}),
    ],
    ids=["list", "array", "frame"],
)
def test_a_target_of_two_kinds_of_values_is_named_with_two_rows(table: Any) -> None:
    said = "column 'price' of 'table' must hold one kind of values, got 1.5 at row 1 and 'x' at row 2"
    with pytest.raises(fgp.DomainError, match=said):
        fgp.TableModel().fit(table, target="price")


def test_a_frame_with_a_name_twice_is_refused() -> None:
    frame = pd.DataFrame([[1.0, 2.0]] * 4, columns=["size", "size"])
    with pytest.raises(fgp.ShapeError, match="'table' must differ, got 'size' for columns 1 and 2; rename"):
        fgp.TableModel().fit(frame, target="size")
