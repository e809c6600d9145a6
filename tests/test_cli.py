"""The command line from end to end: fit, predict, plan; formats, splits, missing values, failures and their codes."""

import csv
import dataclasses
import gc
import gzip
import json
import math
import re
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("typer")
pytest.importorskip("matplotlib")
from typer.testing import CliRunner

from flashgp import plots
from flashgp.cli.application import application
from flashgp.cli.console import Console
from flashgp.cli.fit_page import fit_page
from flashgp.cli.fitting import run_fit
from flashgp.cli.options import FitArguments
from flashgp.cli.outcome import Asked, outcome_json, outcome_of, say_outcome
from flashgp.cli.prepared import prepare_table
from flashgp.foundations.deadline import Deadline
from flashgp.inference.findings import Unfinished
from flashgp.kernels import Matern
from flashgp.table_model import TableModel
from flashgp.table_model.model import fit_prepared
from inside_torch import InsideTorch, factorises, raising

NASTY = "<script>alert(1)</script>"


def run(*arguments: object, code: int = 0) -> Any:
    result = CliRunner().invoke(application, [str(a) for a in arguments])
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result


def kinds(said: dict[str, Any]) -> set[str]:
    """Of the events in a command's JSON."""
    return {event["kind"] for event in said["events"]}


def write(path: Path, head: list[str], columns: list[Any]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([head, *zip(*columns, strict=True)])
    return path


def read(path: Path) -> dict[str, np.ndarray]:
    with path.open() as file:
        rows = list(csv.DictReader(file))
    return {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}


def columns(n: int, seed: int = 0) -> list[Any]:
    generator = np.random.default_rng(seed)
    x, z = generator.uniform(0, 100, n), generator.normal(0, 1e-3, n)
    site = generator.choice(["a", "b"], n)
    y = 500 + 40 * np.sin(x / 15) + 20 * (site == "b") + generator.normal(0, 2, n)
    return [x, z, site, y]


HEAD = ["x", NASTY, "site", "y"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with a category, a model of it, its report and the JSON that fit said."""
    path = tmp_path_factory.mktemp("cli")
    write(path / "table.csv", HEAD, columns(60))
    result = run(
        "fit", path / "table.csv", "--target", "y", "--test-fraction", "0.2", "--seed", 3, "--starts", 1, "--json",
        "--out", path / "model.safetensors", "--report", path / "report.html",
    )  # fmt: skip
    (path / "fit.json").write_text(result.stdout)
    (path / "fit.err").write_text(result.stderr)
    return path


@pytest.fixture(scope="module")
def iterative(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model by conjugate gradients, its report, and what fit said."""
    path = tmp_path_factory.mktemp("iterative")
    table = write(path / "table.csv", HEAD, columns(40))
    said = run(
        "fit", table, "-t", "y", "--drop", "site", "--solver", "cg", "--verbose", "--starts", 1, "--time-limit", 0.5,
        "--threads", 1, "--kernel", "2 * Matern(lengthscale=1)", "-o", path / "m.safetensors",
        "--report", path / "page.html",
    )  # fmt: skip
    (path / "fit.out").write_text(said.stdout)
    (path / "fit.err").write_text(said.stderr)
    return path


# -- fit ----------------------------------------------------------------------------------------------------------
def test_fit_says_what_it_did_in_one_json_object(folder: Path) -> None:
    said = json.loads((folder / "fit.json").read_text())
    assert (said["rows"], said["rows_fitted"], said["rows_held_out"]) == (60, 48, 12)
    assert (said["target"], said["inputs"]) == ("y", ["x", NASTY, "site"])
    assert said["leave_one_out"] is None
    assert said["interrupted"] is False
    assert any("site" in note and "categor" in note for note in said["notes"])
    assert "site" in (folder / "fit.err").read_text(), "what was decided is also said to people"
    assert said["plan"]["n"] == 48
    assert said["held_out"]["rmse"] < 8, "the sine is learned: its own spread is 30"


def test_figures_are_those_of_the_rows_held_out(folder: Path) -> None:
    said = json.loads((folder / "fit.json").read_text())["held_out"]
    model = TableModel.load(folder / "model.safetensors")
    from flashgp.table import read_table, split_rows

    data = model.encoding.apply(read_table(folder / "table.csv"), need_target=True)
    train, test = split_rows(60, 0.2, 3)
    assert data.y is not None
    # Statistics of the training rows alone; codes are left as they are.
    assert math.isclose(model.scaling.target.shift, data.y[train].mean())
    assert math.isclose(model.scaling.x_scale[0], data.x[train, 0].std())
    assert (model.scaling.x_shift[2], model.scaling.x_scale[2]) == (0.0, 1.0)
    predictions = model.predict(folder / "table.csv")
    mean, std = predictions.mean[test], predictions.std[test]
    error = data.y[test] - mean
    density = -0.5 * (error / std) ** 2 - np.log(std * np.sqrt(2 * np.pi))
    assert math.isclose(said["rmse"], np.sqrt(np.mean(error**2)))
    assert math.isclose(said["nll"], -density.mean())
    assert said["coverage_95"] == np.mean(np.abs(error) < 1.959963984540054 * std)
    scale = data.y[train].std()
    assert math.isclose(said["standardised_rmse"], said["rmse"] / scale)
    assert math.isclose(said["standardised_nll"], said["nll"] - np.log(scale))


def test_inputs_are_ranked_by_importance(folder: Path) -> None:
    """Not by one over a lengthscale, which categories have in other units and noise may have too."""
    said = json.loads((folder / "fit.json").read_text())["importance"]
    assert [entry["input"] for entry in said] == ["x", "site", NASTY]
    assert said[0]["rmse"] > 20.0, "in units of the target: the sine's spread is 30"
    for entry in said:
        low, high = entry["rmse_95"]
        assert low <= entry["rmse"] <= high
    page = (folder / "report.html").read_text()
    assert "Importance: how much worse rows are predicted" in page
    assert "1 / lengthscale" not in page
    assert page.index("Along x") < page.index("By site, with numbers of rows")
    assert page.index("By site, with numbers of rows") < page.index("Along &lt;script")


def test_importance_is_headed_by_what_ended_the_fit(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its intervals are of rows and permutations: they do not say that the parameters are not there yet."""
    finished = json.loads((folder / "fit.json").read_text())
    assert finished["unfinished"] is None
    assert "did not finish" not in (folder / "report.html").read_text()
    options = FitArguments(table=str(folder / "table.csv"), target="y", kernel="RBF()")
    console = Console(quiet=True)
    prepared = prepare_table(options, console)
    model = fit_prepared(prepared, Deadline.after(1e-9))
    outcome = outcome_of(prepared, model, Asked(options, 0.0), console)
    assert outcome.importance is not None
    assert outcome.importance.unfinished is Unfinished.TIME
    assert repr(outcome.importance).splitlines()[1] == Unfinished.TIME.heading
    assert Unfinished.TIME.heading in plots.importance(outcome.importance).get_title(loc="left").replace("\n", " ")
    assert outcome_json(outcome)["unfinished"] == "TIME"
    text = fit_page(outcome).html()
    assert f"What follows is {Unfinished.TIME.heading}" in text
    console.quiet = False
    say_outcome(outcome, console)
    assert f"inputs by importance, {Unfinished.TIME.heading}" in capsys.readouterr().out
    less = dataclasses.replace(outcome.importance, rmse=-outcome.importance.rmse.abs())
    say_outcome(dataclasses.replace(outcome, importance=less), console)
    assert "grows by -" not in (said := capsys.readouterr().out), "what a permutation gains is chance"
    assert "site 0, " in said


def test_parameters_name_columns_in_their_units(folder: Path) -> None:
    said = json.loads((folder / "fit.json").read_text())["parameters"]
    model = TableModel.load(folder / "model.safetensors")
    by = {(row["name"], row["of"]): row for row in said}
    lengthscale = by["Matern lengthscale", "x"]
    assert math.isclose(lengthscale["value"], lengthscale["standardised"] * model.scaling.x_scale[0])
    found = [leaf.lengthscale for leaf in model.posterior.gp.kernel.leaves() if isinstance(leaf, Matern)]
    assert math.isclose(lengthscale["standardised"], float(found[0].value[0]))
    assert math.isclose(model.scaling.x_scale[0], 100 / math.sqrt(12), rel_tol=0.15)  # x is uniform, 0 to 100
    assert by["Categorical lengthscale", "site"]["value"] is None
    noise = by["noise standard deviation", "y"]
    assert math.isclose(noise["value"], noise["standardised"] * model.scaling.target.scale)
    assert 1 < noise["value"] < 4
    assert 400 < by["prior mean value", "y"]["value"] < 600


def test_the_report_shows_it_all_and_escapes_names(folder: Path) -> None:
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    said = json.loads((folder / "fit.json").read_text())
    for shown in (
        f"{said['held_out']['rmse']:.4g}",
        "48 rows fitted",
        "2 categories: a, b",
        "expected",
        "Cholesky factor in float64, on cpu",
        "torch",
        "seed 3",
    ):
        assert shown in text
    assert text.count("<svg ") == 8
    assert "data:image/png" not in text, "few dots are drawn one by one"
    assert "http" not in text.replace("http-equiv", "")
    assert not re.search(r"\btiles?\b|\broutes?\b", text), "the inside of the library"


def test_text_for_people(folder: Path) -> None:
    model = folder / "a model"
    short = run("fit", folder / "table.csv", "--target", "y", "--starts", 1, "--out", model).stdout
    assert len(short.splitlines()) <= 14
    for shown in (
        "leave-one-out, 60 rows",
        "RMSE",
        "R²",
        "95 % intervals hold",
        "inputs by importance",
        "fitted in",
        "wrote",
    ):
        assert shown in short
    for hidden in ("peak memory", "Matern lengthscale", "relative residual", "compile", "log prior"):
        assert hidden not in short
    assert short.splitlines()[-1] == f"predict new rows: flashgp predict '{model}' NEW.csv --out predictions.csv"
    assert run("fit", folder / "table.csv", "--target", "y", "--time-limit", 0.01, "--quiet").stdout == ""
    long = run("fit", folder / "table.csv", "--target", "y", "--time-limit", 0.01, "--verbose").stdout
    for shown in ("peak memory", "in units of y", "Matern lengthscale", "relative residual", "whole command"):
        assert shown in long
    assert "at most 10.0 ms, the time limit" in long, "not the minutes that a fit without one would take"
    assert not re.search(r"\btiles?\b|\broutes?\b", long), "the inside of the library"


def test_a_kernel_expression_is_fitted_from_its_own_starting_values(folder: Path) -> None:
    for text, start in (
        ("Matern(lengthscale=15, active_dims=x) * Categorical()", 15.0),
        ("RBF(active_dims=[x])", None),
    ):
        result = run("fit", folder / "table.csv", "-t", "y", "--time-limit", 1e-9, "--json", "--kernel", text)
        said = json.loads(result.stdout)
        assert said["kernel"] == text
        assert any(NASTY in note and "does not use" in note for note in said["notes"])
        found = next(row["value"] for row in said["parameters"] if row["of"] == "x")
        assert (found == pytest.approx(start)) == (start is not None)


def test_a_published_split_and_dropped_rows(tmp_path: Path) -> None:
    x, z, site, y = columns(30)
    z = [("" if i in (4, 9) else v) for i, v in enumerate(z)]
    table = write(tmp_path / "table.csv", HEAD, [x, z, site, y])
    mask = np.zeros((30, 2), int)
    mask[[0, 9, 20], 1] = 1
    mask[:5, 0] = 1
    (tmp_path / "test_mask.csv").write_text("\n".join(",".join(map(str, row)) for row in mask) + "\n")
    common = ("fit", table, "--target", "y", "--starts", 1, "--time-limit", 5, "--split", 1, "--json")
    assert "missing" in run(*common, code=2).stderr
    said = json.loads(run(*common, "--missing", "drop", "--out", tmp_path / "m.safetensors").stdout)
    # Rows 5 and 10 of the file are dropped; of the test rows 1, 10 and 21 two remain, wherever they now stand.
    assert (said["rows"], said["rows_used"], said["rows_held_out"]) == (30, 28, 2)
    fitted = TableModel.load(tmp_path / "m.safetensors")
    kept = sorted(fitted.scaling.target.mean(fitted.posterior.y.numpy()))
    assert np.allclose(kept, sorted(np.delete(y, [0, 4, 9, 20])))


def test_a_deterministic_fit_repeats(folder: Path) -> None:
    words = ("fit", folder / "table.csv", "-t", "y", "--starts", 1, "--deterministic", "--json", "--kernel", "RBF()")
    one, two = (json.loads(run(*words).stdout) for _ in range(2))
    assert "DETERMINISTIC" in kinds(one)
    assert one["parameters"] == two["parameters"]


def test_ctrl_c_keeps_the_best_so_far(folder: Path, tmp_path: Path) -> None:
    class Interrupting(Console):
        @contextmanager
        def progress(self) -> Iterator[Any]:
            seen: list[Any] = []

            def callback(progress: Any) -> None:
                seen.append(progress)
                if len(seen) == 5:
                    raise KeyboardInterrupt

            yield callback

    model, console = tmp_path / "m.safetensors", Interrupting(json=True)
    options = FitArguments(table=str(folder / "table.csv"), target="y", starts=1, out=str(model))
    said = run_fit(options, console)
    assert said["interrupted"] is True
    assert said["evaluations"] == 5
    assert any("best so far; the model is written as it is" in text for text in console.warnings)
    assert TableModel.load(model).posterior.count == 60


def test_ctrl_c_ends_what_follows_the_fit_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of more than a few rows nobody waits for scores and importance of a model that did not finish."""

    class Interrupting(Console):
        @contextmanager
        def progress(self) -> Any:
            def callback(progress: Any) -> None:
                raise KeyboardInterrupt

            yield callback

    table = write(tmp_path / "table.csv", HEAD, columns(450))
    console = Interrupting()
    options = FitArguments(table=str(table), target="y", starts=1, kernel="RBF()", target_transform="none")
    said = run_fit(options, console)
    assert said["interrupted"]
    assert said["importance"] is None
    assert capsys.readouterr().out.count("Ctrl-C ended the fit") <= 1, "once"
    assert "Ctrl-C left no time for the importance of inputs." in console.notes


def test_ctrl_c_in_the_last_solve_says_what_was_found(folder: Path, tmp_path: Path) -> None:
    checkpoint, model = tmp_path / "fit.checkpoint", tmp_path / "m.safetensors"
    common = ("fit", folder / "table.csv", "--target", "y", "--starts", 1, "--out", model, "--target-transform", "none")
    with InsideTorch(factorises, raising(KeyboardInterrupt, 1, 2)):
        said = run(*common, code=130)
        assert "with --checkpoint the same command would go on" in said.stderr
        assert "parameters found" in said.stdout
        assert "noise" in said.stdout.split("parameters found")[1]
        assert f"goes on from {checkpoint}" in run(*common, "--checkpoint", checkpoint, code=130).stderr
    assert not model.exists()
    resumed = json.loads(run(*common, "--checkpoint", checkpoint, "--json").stdout)
    assert "RESUMED" in kinds(resumed)
    assert TableModel.load(model).posterior.count == 60


def test_ctrl_c_while_scoring_says_that_the_model_is_there(folder: Path, tmp_path: Path) -> None:
    model = tmp_path / "m.safetensors"
    with InsideTorch(lambda _: model.exists(), raising(KeyboardInterrupt, 1)):
        said = run("fit", folder / "table.csv", "-t", "y", "--starts", 1, "--kernel", "RBF()", "-o", model, code=130)
    assert f"the model is in {model}" in said.stderr
    assert TableModel.load(model).posterior.count == 60


def test_ctrl_c_while_reading_writes_nothing(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    (tmp_path / "table.csv.gz").write_bytes(gzip.compress((folder / "table.csv").read_bytes()))
    monkeypatch.setattr("gzip.decompress", interrupted)
    assert "nothing was written" in run("fit", tmp_path / "table.csv.gz", "--target", "y", code=130).stderr


# -- demo ---------------------------------------------------------------------------------------------------------
def test_a_demo_goes_into_a_folder(tmp_path: Path) -> None:
    """What it does from a wheel is in tests/project/test_wheel.py."""
    (tmp_path / "file").write_text("")
    assert "`FOLDER` must be a folder" in run("demo", tmp_path / "file", code=2).stderr


# -- predict ------------------------------------------------------------------------------------------------------
def test_deviations_from_samples_say_how_certain_they_are(iterative: Path, tmp_path: Path) -> None:
    import torch

    from flashgp.table import read_table

    table, model, out = iterative / "table.csv", iterative / "m.safetensors", tmp_path / "p.csv"
    common = ("predict", model, table, "--out", out, "--std", "--threads", 1)
    exact = json.loads(run(*common, "--variance", "exact", "--json").stdout)
    assert (exact["variance"], exact["largest_std_error"], exact["columns"]) == ("exact", None, ["mean", "std"])
    wanted = read(out)
    sampled = json.loads(run(*common, "--variance", "sampled", "--json").stdout)
    assert (sampled["variance"], sampled["columns"]) == ("sampled", ["mean", "std", "std_error"])
    assert "VARIANCE_BY_SAMPLES" in kinds(sampled)
    found = read(out)
    assert np.array_equal(found["mean"], wanted["mean"])
    loaded = TableModel.load(model)
    rows = loaded.encoding.apply(read_table(table), need_target=False).x
    prediction = loaded.posterior.predict(torch.from_numpy(loaded.scaling.x(rows)), variance="sampled")
    spread, error = prediction.observation_variance, prediction.variance_standard_error
    moved = 0.5 * error / spread.sqrt()
    assert np.allclose(found["std_error"], loaded.scaling.target.std(moved.numpy()), rtol=1e-6, atol=0.0)
    assert sampled["largest_std_error"] == pytest.approx(np.max(found["std_error"] / found["std"]))
    assert "deviations are estimates" in run(*common, "--variance", "sampled").stdout
    assert "--variance" in run(*common, "--variance", "some", code=2).stderr
    assert "time_limit" in run(*common, "--variance", "exact", "--time-limit", 0, code=2).stderr


def test_predictions_in_the_order_of_the_table(folder: Path, tmp_path: Path) -> None:
    table = write(tmp_path / "new.csv", HEAD, columns(25, seed=1))
    out = tmp_path / "p.csv"
    common = ("predict", folder / "model.safetensors", table, "--out", out)
    said = json.loads(run(*common, "--std", "--interval", 0.9, "--json").stdout)
    assert said["columns"] == ["mean", "std", "lower", "upper"]
    written = read(out)
    model = TableModel.load(folder / "model.safetensors")
    from flashgp.table import read_table

    data = model.encoding.apply(read_table(table), need_target=True)
    predictions = model.predict(table)
    mean, std = predictions.mean, predictions.std
    assert np.array_equal(written["mean"], mean)
    assert np.array_equal(written["std"], std)
    assert np.allclose(written["upper"] - written["mean"], 1.6448536269514722 * std)
    assert np.allclose(written["mean"] - written["lower"], 1.6448536269514722 * std)
    assert said["scores"]["rows"] == 25
    assert math.isclose(said["scores"]["rmse"], np.sqrt(np.mean(np.square(mean - data.y))))
    run(*common)
    assert list(read(out)) == ["mean"]
    assert "RMSE" in run(*common).stdout
    run(*common, "--memory", "1GiB")
    assert np.allclose(read(out)["mean"], mean, rtol=1e-12)


def test_a_table_without_the_target_is_not_scored(folder: Path, tmp_path: Path) -> None:
    table = write(tmp_path / "new.csv", HEAD[:3], columns(5)[:3])
    said = json.loads(run("predict", folder / "model.safetensors", table, "--out", tmp_path / "p.csv", "--json").stdout)
    assert said["scores"] is None
    blank = write(tmp_path / "blank.csv", HEAD, [*columns(5)[:3], ["", 1.0, "", 2.0, 3.0]])
    said = json.loads(run("predict", folder / "model.safetensors", blank, "--out", tmp_path / "p.csv", "--json").stdout)
    assert said["scores"]["rows"] == 3


def test_missing_inputs_keep_their_place(folder: Path, tmp_path: Path) -> None:
    x, z, site, y = columns(4)
    table = write(tmp_path / "new.csv", HEAD, [["", *x[1:]], z, site, y])
    common = ("predict", folder / "model.safetensors", table, "--out", tmp_path / "p.csv")
    assert "row 1" in run(*common, code=2).stderr
    run(*common, "--missing", "drop", "--std")
    written = read(tmp_path / "p.csv")
    assert np.isnan(written["mean"]).tolist() == [True, False, False, False]
    assert np.isnan(written["std"]).tolist() == [True, False, False, False]


def test_an_unseen_category(folder: Path, tmp_path: Path) -> None:
    x, z, site, y = columns(4)
    table = write(tmp_path / "new.csv", HEAD, [x, z, ["zzz", *site[1:]], y])
    common = ("predict", folder / "model.safetensors", table, "--std", "--out", tmp_path / "p.csv")
    assert "--unseen new" in run(*common, code=2).stderr
    run(*common, "--unseen", "new")
    std = read(tmp_path / "p.csv")["std"]
    assert std[0] > std[1:].max(), "less is known of it"


def test_parquet_in_and_out(folder: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    parquet.write_table(pyarrow.table(dict(zip(HEAD, columns(6), strict=True))), tmp_path / "new.parquet")
    run("predict", folder / "model.safetensors", tmp_path / "new.parquet", "--out", tmp_path / "p.parquet", "--std")
    assert parquet.read_table(tmp_path / "p.parquet").column_names == ["mean", "std"]


def test_a_table_without_header(tmp_path: Path) -> None:
    x, z, _, y = columns(20)
    np.savetxt(tmp_path / "t.csv", np.stack([x, y, z], 1), delimiter=",")
    np.savetxt(tmp_path / "new.csv", np.stack([x, z], 1), delimiter=",")
    model = tmp_path / "m.safetensors"
    said = json.loads(run("fit", tmp_path / "t.csv", "--target", 2, "--starts", 1, "--out", model, "--json").stdout)
    assert (said["target"], said["inputs"]) == ("column_2", ["column_1", "column_3"])
    run("predict", model, tmp_path / "new.csv", "--out", tmp_path / "p.csv")
    scored = json.loads(run("predict", model, tmp_path / "t.csv", "--out", tmp_path / "q.csv", "--json").stdout)
    assert scored["fitted_scores"]["rows"] == 20
    assert np.array_equal(read(tmp_path / "p.csv")["mean"], read(tmp_path / "q.csv")["mean"])


# -- plan ---------------------------------------------------------------------------------------------------------
def test_plan_of_numbers_and_of_a_table(folder: Path) -> None:
    assert "peak memory" in run("plan", "--rows", 1000, "--columns", 8).stdout
    said = json.loads(run("plan", "--rows", 1000, "--columns", 8, "--dtype", "float32", "--json").stdout)
    assert (said["n"], said["d"], said["dtype"]) == (1000, 8, "float32")
    said = json.loads(run("plan", folder / "table.csv", "--target", "y", "--json").stdout)
    assert (said["n"], said["d"]) == (60, 3)


def test_a_plan_says_what_a_fit_takes_and_how_many_rows_fit_into_a_limit(folder: Path) -> None:
    common = ("plan", "--rows", 1000, "--columns", 8, "--memory", "4GiB")
    text = run(*common, "--time-limit", 60).stdout
    assert "whole fit" in text
    assert "rows like these in 60.0 s and 4.0 GiB" in text
    said = json.loads(run(*common, "--time-limit", 60, "--json").stdout)
    assert said["fit_seconds_low"] < said["fit_seconds"] < said["fit_seconds_high"]
    assert said["largest_fit"]["seconds"] <= said["largest_fit"]["time_limit"] == 60.0
    assert json.loads(run(*common, "--json").stdout)["largest_fit"]["time_limit"] is None
    of_table = ("plan", folder / "table.csv", "--target", "y", "--time-limit", 60, "--json")
    assert json.loads(run(*of_table).stdout)["largest_fit"]["rows"] > 60
    fitted = run("fit", folder / "table.csv", "--target", "y", "--starts", 1, "--time-limit", 60, "-v").stdout
    assert "rows like these in 60.0 s" in fitted
    assert re.search(r"time +\S+ m?s predicted, \S+ m?s measured", fitted)


def test_rows_that_repeat_are_planned_and_fitted_once(tmp_path: Path) -> None:
    rows = [f"{i % 10},{i % 10 + 0.1 * (i // 10)}" for i in range(30)]
    (tmp_path / "t.csv").write_text("\n".join(["a,y", *rows]))
    assert "n = 30 rows, 10 distinct" in run("plan", tmp_path / "t.csv", "--target", "y").stdout
    said = json.loads(run("plan", tmp_path / "t.csv", "--target", "y", "--test-rows", 50, "--json").stdout)
    assert (said["n"], said["distinct"], said["prediction"]["m"]) == (30, 10, 10)
    fitted = run("fit", tmp_path / "t.csv", "--target", "y", "--starts", 1)
    assert "ROWS_JOINED" in kinds(json.loads(run("fit", tmp_path / "t.csv", "-t", "y", "--starts", 1, "--json").stdout))
    assert "leave-one-out, 30 rows" in fitted.stdout


def test_an_approximation_is_planned(folder: Path) -> None:
    common = ("plan", "--rows", 50_000, "--columns", 8, "--memory", "4GiB", "--json")
    said = json.loads(run(*common, "--approximation", "full_scale", "--inducing", 100).stdout)
    assert (said["approximation"], said["inducing"], said["neighbours"]) == ("full_scale", 100, 96)
    assert sum(one["bytes"] for one in said["allocations"]) > said["training_bytes"] > 8 * 50_000 * 100
    quick = json.loads(run(*common, "--approximation", "auto", "--time-limit", 60).stdout)
    assert quick["approximation"] in ("full_scale", "sparse")
    of_table = run("plan", folder / "table.csv", "--target", "y", "--approximation", "sparse").stdout
    assert "posterior.bound" in of_table
    few = ("plan", folder / "table.csv", "--target", "y", "--json", "--approximation")
    assert json.loads(run(*few, "sparse", "--inducing", 7).stdout)["inducing"] == 7
    assert json.loads(run(*few, "auto").stdout)["route"] == "direct"
    assert "`inducing` is of an approximation" in run(*common, "--inducing", 5, code=2).stderr
    run(*common, "--approximation", "sparse", "--test-rows", 5, code=2)
    for name, value in (("--solver", "cg"), ("--dtype", "float32")):
        assert "is of exact inference" in run(*common, "--approximation", "sparse", name, value, code=2).stderr


def test_a_fit_takes_sizes_of_an_approximation(folder: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    fit = ("fit", folder / "table.csv", "--target", "y", "--starts", 1, "--json")
    asked = ("--approximation", "full_scale", "--inducing", 9, "--neighbours", 5, "--time-limit", 50)
    plan = json.loads(run(*fit, *asked).stdout)["plan"]
    assert (plan["inducing"], plan["neighbours"]) == (9, 5)
    (folder / "pattern").mkdir()
    x = np.linspace(0.0, 1.0, 50)
    parquet.write_table(pyarrow.table({"x": x, "y": np.sin(9 * x)}), folder / "pattern" / "part-0.parquet")
    pattern = ("fit", folder / "pattern" / "part-*.parquet", "--target", "y", "--starts", 1, "--json")
    assert json.loads(run(*pattern, "--inducing", 7, "--neighbours", "auto").stdout)["plan"]["inducing"] == 7
    assert "got 5 beside inducing points alone; leave it out" in run(*pattern, "--neighbours", 5, code=2).stderr
    for wrong in ("many", "-1", "1.5", ""):
        said = run(*fit, "--approximation", "sparse", "--inducing", wrong, code=2).stderr
        assert "must be a number, 0 or more, or auto" in " ".join(said.split())
    for name in ("--inducing", "--neighbours"):
        said = run(*fit, name, 5, code=2).stderr
        assert f"`{name}` is of an approximation, got 5 beside exact inference; pass --approximation auto" in said


def test_series_are_fitted_of_a_file_and_of_a_pattern(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    x = np.linspace(0.0, 1.0, 60)
    y = np.sin(9 * x) + 0.3 * np.random.default_rng(0).standard_normal(60)
    parquet.write_table(pyarrow.table({"x": x, "y": y}), tmp_path / "part-0.parquet")
    for table in ("part-0.parquet", "part-*.parquet"):
        asked = ("--target", "y", "--starts", 1, "--approximation", "fourier", "--json")
        said = json.loads(run("fit", tmp_path / table, *asked).stdout)
        assert said["approximation"] == said["plan"]["approximation"] == "fourier"
        assert "FOURIER" in kinds(said)


def test_an_approximate_plan_asks_no_exact_one(tmp_path: Path) -> None:
    """An exact plan of these rows is refused; seen red: it came first."""
    x = np.linspace(0.0, 1.0, 20_000)
    np.savetxt(tmp_path / "t.csv", np.stack([x, np.sin(40 * x)], 1), delimiter=",", header="x,y", comments="")
    options = ("plan", tmp_path / "t.csv", "--target", "y", "--memory", "200MiB")
    run(*options, "--solver", "cholesky", code=1)
    run(*options, "--dtype", "float64", code=1)
    said = json.loads(run(*options, "--approximation", "sparse", "--inducing", 8, "--json").stdout)
    assert said["training_bytes"] < 200 * 2**20


def test_a_plan_that_does_not_fit_is_an_error_with_numbers() -> None:
    result = run("plan", "--rows", 100_000, "--columns", 3, "--memory", "1GiB", "--dtype", "float64", "--json", code=1)
    error = json.loads(result.stdout)["error"]
    assert error["type"] == "MemoryBudgetError"
    assert error["needed_bytes"] > error["available_bytes"] == 2**30
    assert result.stderr.startswith("error: `memory`")


def test_what_no_factor_fits_is_planned_by_iteration() -> None:
    said = json.loads(run("plan", "--rows", 100_000, "--columns", 3, "--memory", "2GiB", "--json").stdout)
    assert (said["route"], said["solver"], said["training"]) == ("recomputed", "cg", "recomputed")
    text = run("plan", "--rows", 1000, "--columns", 3, "--solver", "cg").stdout
    assert "conjugate gradients" in text
    assert "training" in text


def test_a_fit_by_a_solver_that_was_asked_for(folder: Path, tmp_path: Path) -> None:
    table, model = folder / "table.csv", tmp_path / "m"
    run("fit", table, "-t", "y", "-o", model, "--solver", "cholesky", "--tolerance", "1e-4", "--starts", 1)
    assert TableModel.load(str(model)).posterior.plan.solver == "cholesky"


def test_a_fit_of_all_rows_without_a_factor(iterative: Path) -> None:
    """There is no leave-one-out then, which must not cost the model, and the likelihood has a standard error."""
    text = (iterative / "fit.out").read_text()
    assert "leave-one-out scores need a Cholesky factor" in (iterative / "fit.err").read_text()
    assert TableModel.load(iterative / "m.safetensors").posterior.count == 40
    assert "leave-one-out needs a Cholesky factor" in (iterative / "page.html").read_text()
    assert "with a standard error of" in text
    assert "standardised)" not in text  # the scores' line of RMSE; that of importance is held out


# -- failures -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fit", "{t}"], "--target"),
        (["plan", "{t}"], "--target"),
        (["plan", "--rows", "5", "--columns", "2", "--kernel", "RBF()"], "columns of a table"),
        (["fit", "{t}", "-t", "y", "--kernel", "Mattern()"], "did you mean Matern?"),
        (["fit", "{t}", "-t", "y", "--starts", "0"], "--starts"),
        (["fit", "{t}", "-t", "y", "--time-limit", "0"], "positive"),
        (["plan", "--rows", "5", "--columns", "2", "--time-limit", "-1"], "positive"),
        (["predict", "m", "{t}"], "--out"),
        (["predict", "m", "{t}", "--out", "p.csv", "--interval", "95"], "between 0 and 1"),
        (["frobnicate"], "frobnicate"),
    ],
)
def test_bad_usage_is_code_2(folder: Path, arguments: list[str], said: str) -> None:
    result = run(*[a.format(t=folder / "table.csv") for a in arguments], code=2)
    assert said in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fit", "{t}", "-t", "y", "--kernel", "RBF(active_dims=[nope])"], "must name inputs"),
        (["fit", "{t}", "-t", "y", "--device", "abacus"], "--device"),
        (["fit", "{t}", "-t", "y", "--memory", "1KiB"], "needs"),
        (["predict", "{f}/model.safetensors", "{t}", "--out", "{f}/p.csv", "--memory", "1KiB"], "needs"),
        (["predict", "{f}/model.safetensors", "{f}/absent.csv", "--out", "{f}/p.csv"], "No such file"),
    ],
)
def test_failures_are_one_message(folder: Path, arguments: list[str], said: str) -> None:
    """Code 2 where what was given is to blame, 1 where this machine is."""
    code = 1 if said == "needs" else 2
    result = run(*[a.format(t=folder / "table.csv", f=folder) for a in arguments], "--json", code=code)
    message = next(line for line in result.stderr.splitlines() if line.startswith("error: "))
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert json.loads(result.stdout)["error"]["message"].startswith(message.removeprefix("error: "))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fit", "{t}", "-t", "y", "--out", "{f}/absent/m.safetensors"], "`--out`"),
        (["fit", "{t}", "-t", "y", "--out", "-"], "`--out` must be a file, got '-'"),
        (["fit", "{t}", "-t", "y", "--out", "{t}"], "`--out` must differ from `TABLE`"),
        (["predict", "{f}/m", "{t}", "--out", "{f}/p.txt"], ".csv.gz"),
        (["predict", "{f}/m.csv", "{t}", "--out", "{f}/m.csv"], "must differ"),
    ],
)
def test_outputs_are_checked_before_anything_is_read(folder: Path, arguments: list[str], said: str) -> None:
    """The table and the model do not exist, and that is not what is said."""
    assert said in run(*[a.format(t=folder / "none.csv", f=folder) for a in arguments], code=2).stderr


def test_a_report_without_matplotlib_is_refused_before_work(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run("fit", folder / "none.csv", "-t", "y", "--report", folder / "r.html", code=1)
    assert "flashgp[plot]" in result.stderr


def test_debug_shows_where_it_came_from(folder: Path) -> None:
    result = CliRunner().invoke(application, ["fit", str(folder / "absent.csv"), "-t", "y", "--debug"])
    assert type(result.exception).__name__ == "DomainError"


@pytest.mark.parametrize("change", [None, {}, {"encoding": 1, "scaling": 2, "kernel": ""}, {"kernel": 3}])
def test_a_model_without_a_table_is_refused(folder: Path, tmp_path: Path, change: Any) -> None:
    from flashgp.files import load_metadata, save

    model = TableModel.load(folder / "model.safetensors")
    data = load_metadata(folder / "model.safetensors")["flashgp.table"]
    metadata = {} if change is None else {"flashgp.table": {**data, **change} if change else {}}
    save(model.posterior, tmp_path / "m.safetensors", metadata=metadata)
    result = run("predict", tmp_path / "m.safetensors", folder / "table.csv", "--out", tmp_path / "p.csv", code=2)
    assert "model" in result.stderr
    assert not (tmp_path / "p.csv").exists()


# -- small parts --------------------------------------------------------------------------------------------------


def test_control_characters_of_a_table_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console()
    console.pairs("a\x1b[2Jb", [("n\r", "v\x07")])
    console.note("\x9b31m")
    shown = capsys.readouterr()
    assert not set(shown.out + shown.err) & set("\x1b\r\x07\x9b")
    assert "a\\x1b[2Jb" in shown.out


def test_progress_is_a_bar_on_a_terminal_and_nothing_when_quiet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from flashgp.inference.fit import Progress

    step = Progress("fitting [red]", 3, "start 0", -12.5, 0.1, 2.0, 30.0, 0.25)
    with Console(quiet=True).progress() as callback:
        assert callback is None
    clock = iter((0.0, 9.0, 11.0, 11.0))
    with monkeypatch.context() as patch:
        patch.setattr("time.monotonic", lambda: next(clock))
        with Console().progress() as callback:
            assert callback is not None
            callback(step)
            assert capsys.readouterr().err == "", "ten seconds have not passed"
            callback(step)
            assert capsys.readouterr().err.startswith("fitting [red]: step 3, ")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with Console().progress() as callback:
        assert callback is not None
        callback(step)
    assert "fitting [red]" in capsys.readouterr().err


def test_the_module_runs_as_a_program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["flashgp", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("flashgp", run_name="__main__")
    gc.unfreeze()
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("flashgp 0.")


# -- time limits -----------------------------------------------------------------------------------------------------
def test_a_time_limit_counts_from_the_beginning_of_the_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the table is part of it: a table that took longer leaves no time for the search, and an answer."""
    import pyarrow.csv

    console, reading = Console(quiet=True), pyarrow.csv.read_csv

    def slowly(*given: Any, **how: Any) -> Any:
        console.began -= 60.0
        asked.append(given)
        return reading(*given, **how)

    asked: list[object] = []
    options = FitArguments(table=str(folder / "table.csv"), target="y", time_limit=60.0, target_transform="none")
    console.began -= 50.0
    said = run_fit(options, console)
    assert said["evaluations"] > 0, "ten seconds are left"
    console.began -= 10.0
    monkeypatch.setattr(pyarrow.csv, "read_csv", slowly)
    said = run_fit(options, console)
    assert asked
    assert said["evaluations"] == 0
    assert said["interrupted"]
    assert said["leave_one_out"] is not None, "of few rows it takes no time"
    assert "FIT_TIME_UP" in kinds(said)
