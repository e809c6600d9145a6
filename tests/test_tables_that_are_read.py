"""Tables of several Parquet files: columns as in one held table, units, files that do not fit, the command line."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("matplotlib")
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

import flashgp as fgp
from flashgp.cli.console import Console
from flashgp.cli.options import FitArguments as CommandOptions
from flashgp.cli.outcome import Asked, outcome_of
from flashgp.cli.prepared import prepare_table
from flashgp.data.table_parts import EncodedRows, ParquetParts
from flashgp.foundations.deadline import Deadline
from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.table import Encoding, read_table
from flashgp.table.parts import learn_encoding
from flashgp.table_model.model import fit_prepared
from test_cli import read, run

Columns = dict[str, Any]
QUICK = ("--starts", 1, "--target-transform", "none")


def table(n: int = 240, seed: int = 0) -> Columns:
    draws = np.random.default_rng(seed)
    hour, city = draws.uniform(0.0, 24.0, n), draws.choice(["Bonn", "Ulm", "Wien"], n)
    wave = 100.0 + 20.0 * np.sin(hour / 3.0) + 8.0 * (city == "Ulm") + draws.normal(0.0, 1.0, n)
    day = np.datetime64("2024-01-01") + draws.integers(0, 90, n).astype("timedelta64[D]")
    return {
        "hour": hour, "city": city.tolist(), "open": (draws.random(n) < 0.5).tolist(), "day": day, "same": np.ones(n),
        "wave": wave,
    }  # fmt: skip


def written(folder: Path, columns: Columns, parts: int = 3, name: str = "part") -> str:
    """The table in so many files. Returns: their pattern."""
    whole = pa.table(columns)
    size = -(-len(whole) // parts)
    for part in range(parts):
        pq.write_table(whole.slice(part * size, size), folder / f"{name}-{part}.parquet")
    return str(folder / f"{name}-*.parquet")


def with_gaps(columns: Columns) -> Columns:
    """Missing values, and a level and a spread that only rows with them have."""
    columns = dict(columns)
    columns["city"] = [None, *columns["city"][1:-1], "Graz"]
    columns["hour"] = [*columns["hour"][:-1].tolist(), None]
    columns["nearly"] = [*[2.0] * (len(columns["hour"]) - 1), 3.0]
    return columns


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a model that the command line learned from three files."""
    folder = tmp_path_factory.mktemp("model")
    run("fit", written(folder, table(200)), "-t", "wave", *QUICK, "-o", folder / "m.safetensors")
    return folder / "m.safetensors"


@pytest.mark.parametrize("gaps", [False, True])
def test_columns_are_what_they_are_in_one_table_that_is_held(tmp_path: Path, *, gaps: bool) -> None:
    columns = table()
    columns["city"][3] = "Linz"  # a level that the first file alone has
    columns = with_gaps(columns) if gaps else columns
    pattern = written(tmp_path, columns)
    pq.write_table(pa.table(columns), tmp_path / "one.parquet")
    missing: Any = "drop" if gaps else "error"
    held = read_table(tmp_path / "one.parquet")
    wanted = Encoding.learn(held, "wave", (), missing)
    found, _ = learn_encoding(ParquetParts(pattern, batch_rows=50), "wave", (), missing)
    assert found == wanted
    assert found.constant == wanted.constant
    data = wanted.apply(held, need_target=True)
    rows = [*EncodedRows(ParquetParts(pattern, batch_rows=50), found).batches()]
    assert np.array_equal(np.concatenate([x for _, x, *_ in rows]), data.x)
    assert np.array_equal(np.concatenate([y for _, _, y, _ in rows]), data.y)


def test_a_model_is_that_of_the_held_table_in_its_units(tmp_path: Path) -> None:
    columns = table(300)
    options: dict[str, Any] = {"starts": 1, "inducing": 80, "target_transform": "none", "approximation": "sparse"}
    found = fgp.TableModel(**options).fit(written(tmp_path, columns), target="wave")
    held = fgp.TableModel(**options).fit(columns, target="wave")
    assert found.posterior.can("bound") is None
    assert found.posterior.state.held is None
    for one, other in zip(found.scaling.x_scale, held.scaling.x_scale, strict=True):
        assert one == pytest.approx(other, rel=1e-12)
    assert found.scaling.target.shift == pytest.approx(held.scaling.target.shift, rel=1e-12)
    new = table(40, seed=1)
    p, q = found.predict(new), held.predict(new)
    assert np.abs(p.mean - q.mean).max() < 0.5 * p.std.mean()
    assert p.scores is not None
    assert p.scores.rmse < 2.0
    again = found.predict(columns)
    assert again.known is None, "the rows are not held"
    assert again.scores is not None
    assert any("is not known" in note for note in again.notes)
    fgp.save(found, tmp_path / "m.safetensors")
    assert np.array_equal(fgp.load(tmp_path / "m.safetensors").predict(new).std, p.std)
    assert found.importance().names[found.importance().order[0]] in ("hour", "city")


def test_a_transform_is_chosen_by_a_sample_and_its_units_are_those_of_all_rows(tmp_path: Path) -> None:
    columns = table(120)
    columns["wave"] = np.exp((columns["wave"] - 100.0) / 10.0)
    model = fgp.TableModel(starts=1, approximation="sparse", inducing=20, target_transform="log").fit(
        written(tmp_path, columns), "wave"
    )
    logs = model.scaling.target.transform.forward(np.asarray(columns["wave"]))
    assert model.scaling.target.shift == pytest.approx(logs.mean(), rel=1e-12, abs=1e-12)
    assert model.scaling.target.scale == pytest.approx(logs.std(), rel=1e-12)
    columns["wave"][7] = -1.0
    with pytest.raises(DomainError, match="`wave` must be positive"):
        fgp.TableModel(target_transform="log").fit(written(tmp_path, columns), target="wave")


def changed(columns: Columns, part: int, folder: Path, change: Callable[[Columns], Any]) -> str:
    """The files, one of which has been written with a change."""
    pattern = written(folder, columns)
    path = folder / f"part-{part}.parquet"
    stored = pq.read_table(path).to_pydict()
    change(stored)
    pq.write_table(pa.table(stored), path)
    return pattern


@pytest.mark.parametrize(
    ("change", "texts"),
    [
        (lambda t: t.pop("city"), ("part-1", "'city'", "missing")),
        (lambda t: t.update(hour=[str(h) for h in t["hour"]]), ("'hour'", "part-1", "category")),
        (lambda t: t.update(hour=[None, *t["hour"][1:]]), ("part-1", "'hour'", "row 1", "missing")),
        (lambda t: t.update(hour=[np.inf, *t["hour"][1:]]), ("part-1", "'hour'", "row 1", "finite")),
    ],
)
def test_files_that_do_not_fit_are_refused_by_file_and_column(
    tmp_path: Path, change: Callable[[Columns], Any], texts: tuple[str, ...]
) -> None:
    pattern = changed(table(), 1, tmp_path, change)
    with pytest.raises(DomainError) as error:
        fgp.TableModel().fit(pattern, target="wave")
    for text in texts:
        assert text in str(error.value)


def test_scores_of_part_of_the_sample(tmp_path: Path) -> None:
    """Of a random part, whatever the order of the files; none where the posterior has not learned all rows."""
    columns = table(200)
    pattern = written(tmp_path, {**columns, "wave": np.sort(columns["wave"])})
    console = Console(quiet=True)
    options = CommandOptions(table=pattern, target="wave", target_transform="none", starts=1, drop=["day"])
    prepared = prepare_table(options, console)
    assert prepared.read
    model = fit_prepared(prepared)
    partly = dataclasses.replace(prepared, count=prepared.count + 1)
    assert outcome_of(partly, model, Asked(options, 0.0), console).scores is None
    model.posterior.report.seconds = 100.0  # for each of 200 rows half a second, to predict it too
    assert model.training is not None
    model.training.posterior = model.posterior
    late = outcome_of(prepared, model, Asked(options, 0.0, Deadline(60.0, 60.0, lambda: 0.0)), console)
    assert len(late.observed) == 100
    assert abs(late.observed.mean() - columns["wave"].mean()) < 0.4 * columns["wave"].std(), "0.8 for the first files"


def test_what_is_no_table_to_fit_is_refused(tmp_path: Path) -> None:
    pattern = written(tmp_path, table(60))
    with pytest.raises(DomainError, match="`target` must name a column"):
        fgp.TableModel().fit(pattern, target="weave")
    with pytest.raises(DomainError, match="no file matches"):
        fgp.TableModel().fit(str(tmp_path / "path-*.parquet"), target="wave")
    with pytest.raises(DomainError, match="full_scale"):
        fgp.TableModel(approximation="full_scale").fit(pattern, target="wave")
    with pytest.raises(DomainError, match="numeric column"):
        fgp.TableModel(likelihood="gaussian").fit(pattern, target="city")
    only = written(tmp_path, {"wave": table(60)["wave"], "same": np.ones(60)}, name="only")
    with pytest.raises(DomainError, match="an input that varies"):
        fgp.TableModel().fit(only, target="wave")
    ids = {"id": [f"row {i}" for i in range(60)], "wave": table(60)["wave"]}
    with pytest.raises(DomainError, match="'id'"):
        fgp.TableModel().fit(written(tmp_path, ids, name="ids"), target="wave")
    empty = written(tmp_path, {"hour": np.empty(0), "wave": np.empty(0)}, 1, name="empty")
    with pytest.raises(ShapeError, match="at least one row"):
        fgp.TableModel().fit(empty, target="wave")
    path = tmp_path / "part-1.parquet"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DomainError, match=r"part-1\.parquet.*whole Parquet file"):
        fgp.TableModel().fit(pattern, target="wave")


# -- the command line --------------------------------------------------------------------------------------------------
def test_fit_and_predict_of_a_pattern(tmp_path: Path) -> None:
    pattern, model, page = written(tmp_path, table(200)), tmp_path / "m.safetensors", tmp_path / "report.html"
    said = json.loads(run("fit", pattern, "-t", "wave", "-o", model, "--report", page, *QUICK, "--json").stdout)
    assert (said["rows"], said["rows_fitted"], said["approximation"]) == (200, 200, "sparse")
    assert (said["plan"]["approximation"], said["plan"]["n"]) == ("sparse", 200)
    assert said["leave_one_out"]["rows"] == 200
    assert said["leave_one_out"]["rmse"] < 2.0
    assert 0.85 < said["leave_one_out"]["coverage_95"] <= 1.0
    assert "random sample" not in page.read_text()  # all rows are scored
    run("predict", model, tmp_path / "part-0.parquet", "-o", tmp_path / "p.csv", "--std")
    assert np.abs(read(tmp_path / "p.csv")["mean"] - table(200)["wave"][:67]).mean() < 2.0
    text = run("fit", pattern, "-t", "wave", *QUICK, "--approximation", "auto").stdout
    assert "inducing points" in text
    assert "leave-one-out, 200 rows" in text


@pytest.mark.parametrize("kind", ["full_scale"])
def test_one_file_is_held_whatever_the_approximation(tmp_path: Path, kind: str) -> None:
    pq.write_table(pa.table(table(150)), tmp_path / "one.parquet")
    model, page = tmp_path / "m.safetensors", tmp_path / "r.html"
    arguments = ("fit", tmp_path / "one.parquet", "-t", "wave", *QUICK, "--approximation", kind)
    said = json.loads(run(*arguments, "-o", model, "--report", page, "--json").stdout)
    assert said["approximation"] == kind
    assert said["leave_one_out"]["rows"] == 150
    held = json.loads(run(*arguments, "--test-fraction", 0.2, "--json").stdout)
    assert held["held_out"]["rows"] == 30
    run("predict", model, tmp_path / "one.parquet", "-o", tmp_path / "p.csv")


def test_what_a_pattern_cannot_have_is_bad_usage(tmp_path: Path) -> None:
    pattern = written(tmp_path, table(60))
    for more in (("--test-fraction", 0.2), ("--split", 0), ("--no-header",), ("--approximation", "full_scale"),
                 ("--solver", "cg"), ("--dtype", "float32")):  # fmt: skip
        said = run("fit", pattern, "-t", "wave", *more, code=2).output
        assert str(more[0]).removeprefix("--").removeprefix("no-") in said
        assert "x and y" not in said, "the command line has neither"
        if more[0] in ("--approximation", "--solver", "--dtype", "--no-header"):
            run("plan", pattern, "-t", "wave", *more, code=2)
    assert "pattern" in run("plan", pattern, "-t", "wave", "--test-rows", 5, code=2).output


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "parquet"])
def test_a_pattern_is_predicted_a_part_at_a_time(model: Path, tmp_path: Path, suffix: str) -> None:
    """As one file that is held: every column, the scores, what is missing."""
    new = with_gaps(table(90, seed=1))
    new["city"][-1] = "Ulm"
    new["wave"] = [None, *new["wave"][1:].tolist()]
    pattern = written(tmp_path, new, parts=4, name="new")
    pq.write_table(pa.table(new), tmp_path / "one.parquet")
    pa.csv.write_csv(pa.table(new), tmp_path / "one.csv")
    found = {}
    for name in (pattern, tmp_path / "one.parquet", tmp_path / "one.csv"):
        out = tmp_path / f"p.{suffix}"
        asked = ("--std", "--interval", 0.9, "--missing", "drop", "--json")
        said = json.loads(run("predict", model, name, "-o", out, *asked).stdout)
        rows = {column.name: column.values for column in read_table(out).columns}
        found[str(name)] = said, rows
    (parts, of_parts), *others = found.values()
    assert (parts["rows"], parts["rows_predicted"], parts["scores"]["rows"]) == (90, 88, 88)
    assert parts["columns"] == ["mean", "std", "lower", "upper"] == [*of_parts]
    for said, rows in others:
        for name, values in rows.items():
            assert np.allclose(of_parts[name], values, rtol=1e-9, equal_nan=True), name
        assert said["scores"] == pytest.approx(parts["scores"], rel=1e-9)
        assert {note for note in said["notes"] if "left out" not in note} <= {*parts["notes"]}
    assert any("2 rows with missing values" in note for note in parts["notes"])


def test_parts_of_a_prediction_are_as_small_as_they_are_asked_for(tmp_path: Path) -> None:
    columns = table(120)
    model = fgp.TableModel(starts=1, target_transform="none").fit(columns, target="wave")
    parts = [*model.predict_parts(written(tmp_path, columns), rows=25)]
    assert max(map(len, parts)) <= 25
    assert sum(map(len, parts)) == 120
    whole = model.predict(columns)
    assert np.allclose(np.concatenate([part.mean for part in parts]), whole.mean, rtol=1e-9)
    assert np.allclose(np.concatenate([part.std for part in parts]), whole.std, rtol=1e-9)
    with pytest.raises(DomainError, match="rows"):
        next(model.predict_parts(tmp_path / "part-0.parquet", rows=0))


def test_a_part_that_fails_leaves_no_predictions(model: Path, tmp_path: Path) -> None:
    """An unseen level in the last file is named with it, and the old predictions stay."""
    out, new = tmp_path / "p.csv", table(60, seed=1)
    new["city"][-1] = "Graz"
    pattern = written(tmp_path, new, name="new")
    out.write_text("old")
    said = run("predict", model, pattern, "-o", out, code=2).output
    assert "new-2.parquet" in said
    assert "--unseen" in said
    assert out.read_text() == "old"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".p.csv")]
    run("predict", model, pattern, "-o", out, "--unseen", "new")
    assert len(read(out)["mean"]) == 60


def test_what_a_prediction_of_a_pattern_cannot_have(model: Path, tmp_path: Path) -> None:
    out, pattern = tmp_path / "p.parquet", written(tmp_path, table(60))
    assert "--decimal" in run("predict", model, pattern, "-o", out, "--decimal", ",", code=2).output
    first = tmp_path / "part-0.parquet"
    assert "must differ" in run("predict", model, pattern, "-o", first, code=2).output
    assert "no file matches" in run("predict", model, tmp_path / "other-*.parquet", "-o", out, code=2).output
    pq.write_table(pa.table({"hour": pa.array([], pa.float64())}), tmp_path / "none.parquet")
    assert "at least one row" in run("predict", model, tmp_path / "none.parquet", "-o", out, code=2).output
    pq.write_table(pa.table({"hour": [1.0]}), tmp_path / "none.parquet")
    assert "city" in run("predict", model, tmp_path / "none.parquet", "-o", out, code=2).output
    data = first.read_bytes()
    first.write_bytes(data[: len(data) // 2])
    assert "whole Parquet file" in run("predict", model, pattern, "-o", out, code=2).output
    assert not out.exists()


def test_refinement_of_inducing_points_is_refused_before_anything_is_learned(tmp_path: Path) -> None:
    options: Columns = {"approximation": "sparse", "inducing": 9, "target_transform": "none"}
    model = fgp.TableModel(starts=1, **options).fit(table(60), target="wave")
    said: list[str] = []
    with pytest.raises(DomainError, match="refine"):
        model.update(table(30, seed=1), refine=2, progress=lambda what, _: said.append(what))
    assert not said
