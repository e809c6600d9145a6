"""`flashgp update`: rows are scored, learned and written; what goes wrong leaves the model file as it was."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer")
pytest.importorskip("matplotlib")

import torch

import flashgp as fgp
from flashgp.table_model import TableModel
from test_cli import HEAD, columns, run, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model of 60 rows and a table of 100 more."""
    write(tmp_path / "table.csv", HEAD, columns(60))
    write(tmp_path / "rows.csv", HEAD, columns(100, seed=1))
    run(
        "fit",
        tmp_path / "table.csv",
        "--target",
        "y",
        "--starts",
        1,
        "--target-transform=none",
        "--quiet",
        "--out",
        tmp_path / "m.safetensors",
    )
    return tmp_path


def update(folder: Path, *arguments: object, code: int = 0) -> Any:
    return run("update", folder / "m.safetensors", folder / "rows.csv", *arguments, code=code)


def test_rows_are_learned_in_place(folder: Path) -> None:
    before = TableModel.load(folder / "m.safetensors")
    said = json.loads(update(folder, "--json").stdout)
    assert (said["rows_before"], said["rows_learned"], said["rows_now"]) == (60, 100, 160)
    after = TableModel.load(folder / "m.safetensors")
    wanted = before.posterior.gp.condition(after.posterior.x, after.posterior.y)
    at = after.posterior.x[:7]
    assert torch.allclose(after.posterior.predict(at).mean, wanted.predict(at).mean, atol=1e-9)
    assert torch.equal(after.posterior.x[:60], before.posterior.x)
    assert after.scaling == before.scaling
    assert after.posterior.state.online.appended == 100
    assert said["relative_residual"] < 1e-8
    run("predict", folder / "m.safetensors", folder / "rows.csv", "--out", folder / "p.csv")


def test_scores_are_of_predictions_before_learning(folder: Path) -> None:
    write(folder / "rows.csv", HEAD, columns(50, seed=1))  # one block: all are predicted before any is learned
    predicted = run("predict", folder / "m.safetensors", folder / "rows.csv", "--out", folder / "p.csv", "--json")
    said = json.loads(update(folder, "--json", "--out", folder / "new.safetensors").stdout)
    wanted = json.loads(predicted.stdout)["scores"]
    assert said["scores"] == pytest.approx(wanted)
    assert TableModel.load(folder / "m.safetensors").posterior.count == 60, "--out leaves MODEL alone"
    assert TableModel.load(folder / "new.safetensors").posterior.count == 110


def test_counts_go_on_over_files(folder: Path) -> None:
    for expected in (100, 200):
        said = json.loads(update(folder, "--json", "--window", 120).stdout)
        assert said["rows_now"] == 120
        assert TableModel.load(folder / "m.safetensors").posterior.state.online.appended == expected
        online = [event["fields"] for event in said["events"] if event["kind"] == "UPDATED"]
        assert len(online) == 1
        assert online[0]["appended"] == expected


def test_refining_after_learning(folder: Path) -> None:
    before = TableModel.load(folder / "m.safetensors").posterior.gp
    said = json.loads(update(folder, "--json", "--refine", 3).stdout)
    after = TableModel.load(folder / "m.safetensors").posterior
    assert any(event["fields"].get("refined") == 1 for event in said["events"])
    assert not all(torch.equal(a, b) for a, b in zip(before.parameters(), after.gp.parameters(), strict=True))


def test_what_fails_on_the_way_leaves_the_old_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = folder / "m.safetensors"
    before = model.read_bytes()

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("the power went")

    monkeypatch.setattr("os.replace", fail)
    assert "the power went" in update(folder, code=2).output
    assert model.read_bytes() == before
    assert sorted(p.name for p in folder.iterdir()) == ["m.safetensors", "rows.csv", "table.csv"]


def test_bad_rows(folder: Path) -> None:
    before = (folder / "m.safetensors").read_bytes()
    x, z, site, y = columns(5)
    write(folder / "rows.csv", HEAD[:3], [x, z, site])
    assert "'y'" in update(folder, code=2).output
    write(folder / "rows.csv", HEAD, [x, z, ["c"] * 5, y])
    assert "c" in update(folder, code=2).output
    write(folder / "rows.csv", HEAD, [x, z, site, [1.0, "", 3.0, 4.0, 5.0]])
    assert "--missing" in update(folder, code=2).output or "missing" in update(folder, code=2).output
    assert (folder / "m.safetensors").read_bytes() == before
    said = json.loads(update(folder, "--missing", "drop", "--json").stdout)
    assert said["rows_learned"] == 4
    assert "`ROWS` must differ" in run("update", folder / "m.safetensors", folder / "m.safetensors", code=2).output


@pytest.mark.parametrize("options", [{"dtype": torch.float32}, {"solver": "cg"}], ids=["refined", "iterations"])
def test_a_model_without_a_float64_factor_learns(folder: Path, options: dict[str, Any]) -> None:
    model = TableModel.load(folder / "m.safetensors")
    post = model.posterior
    single = post.gp.condition(post.x, post.y, tolerance=1e-5, **options)
    model.with_posterior(single).save(folder / "m.safetensors")
    for rows in (160, 260):
        said = json.loads(update(folder, "--json").stdout)
        assert said["rows_now"] == rows
        assert any(event["kind"] == "UPDATED" and event["fields"]["bound"] > 0.0 for event in said["events"])
    after = fgp.load(folder / "m.safetensors").posterior
    wanted = after.gp.condition(after.x, after.y, dtype=torch.float64)
    assert float((after.predict(after.x[:9]).mean - wanted.predict(after.x[:9]).mean).abs().max()) < 1e-4
    assert after.state.online.appended == 200
