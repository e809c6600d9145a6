"""The long benchmarks: their references against the library, cells that resume, say what is missing, and end alone."""

import importlib
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import flashgp as fgp
from flashgp.bench import read_record, write_record

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmark"


@pytest.fixture(autouse=True)
def beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts are imported beside what they share, also by the processes that they start."""
    monkeypatch.syspath_prepend(str(BENCHMARK))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(BENCHMARK.parent / "src"), str(BENCHMARK)]))


# -- references -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("squared exponential", fgp.kernels.RBF(0.4)),
        ("Matern-1/2", fgp.kernels.Matern(0.5, 0.4)),
        ("Matern-3/2", fgp.kernels.Matern(1.5, 0.4)),
    ],
)
def test_the_plain_reference_is_the_direct_route(
    name: str, kernel: fgp.kernels.Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems = importlib.import_module("problems")
    monkeypatch.setattr(problems, "STRIP_NUMBERS", 150)  # several strips, the last one shorter
    monkeypatch.setattr(problems, "PANEL", 20)
    table = problems.drawn_table(47, 9, 2, 0.4, 0.01)
    gp = fgp.GP(kernel, fgp.means.Zero(), fgp.likelihoods.Gaussian(0.01))
    post = gp.condition(torch.from_numpy(table.x), torch.from_numpy(table.y), dtype=torch.float64)
    p = post.predict(torch.from_numpy(table.x_test))
    plain = problems.Reference(name, table.x / 0.4, table.y, 0.01)
    rounding = 10 * np.finfo(float).eps * 47 / 0.01  # eps times the largest condition number
    np.testing.assert_allclose(plain.mean(table.x_test / 0.4), p.mean, rtol=0, atol=10 * rounding)
    np.testing.assert_allclose(plain.variance(table.x_test / 0.4), p.variance, rtol=0, atol=rounding)
    assert plain.log_marginal_likelihood == pytest.approx(float(post.log_marginal_likelihood()), abs=47 * rounding)


def test_the_plain_gradient_is_that_of_automatic_differentiation(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = importlib.import_module("problems")
    monkeypatch.setattr(problems, "STRIP_NUMBERS", 200)
    table = problems.drawn_table(31, 1, 3, 0.5, 0.05)
    values = torch.tensor([0.4, 0.7, 1.3, 1.7, 0.05], dtype=torch.float64)
    logs, mean = values.log().requires_grad_(), torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    x, y = torch.from_numpy(table.x) / logs[:3].exp(), torch.from_numpy(table.y)
    squared = (x[:, None] - x[None]).square().sum(-1)
    s = (3.0 * squared + torch.eye(31, dtype=torch.float64)).sqrt() - torch.eye(
        31, dtype=torch.float64
    )  # the root has no slope at 0
    K = logs[3].exp() * (1.0 + s) * (-s).exp() + logs[4].exp() * torch.eye(31, dtype=torch.float64)
    normal = torch.distributions.MultivariateNormal(mean.expand(31), K)
    normal.log_prob(y).backward()
    expected = torch.cat([logs.grad, mean.grad.reshape(1)]).numpy()
    found = problems.matern_gradient(table.x, table.y, values[:3].numpy(), *values[3:].tolist(), 0.3)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_a_draw_of_the_prior_has_its_covariance_and_does_not_depend_on_how_many_rows_there_are() -> None:
    problems = importlib.import_module("problems")
    x = np.array([[0.0, 0.0], [0.2, 0.1], [0.6, 0.5]])
    draws = np.stack([problems.prior_draw(x, 0.4, seed, 256) for seed in range(2000)])
    expected = problems.covariance("Matern-3/2", x / 0.4, x / 0.4)
    np.testing.assert_allclose(draws.T @ draws / 2000, expected, atol=4 * math.sqrt(2 / 2000))
    few, many = (problems.drawn_table(n, 5, 2, 0.4, 0.1) for n in (7, 50))
    np.testing.assert_array_equal(few.f_test, many.f_test)
    np.testing.assert_allclose(few.y, many.y[:7], rtol=1e-12)


def test_what_is_kept_is_made_once(tmp_path: Path) -> None:
    problems = importlib.import_module("problems")
    made: list[int] = []

    def make() -> dict[str, Any]:
        made.append(1)
        return {"a": np.arange(3.0)}

    for _ in range(2):
        np.testing.assert_array_equal(problems.kept(tmp_path / "new" / "a.npz", make)["a"], np.arange(3.0))
    assert len(made) == 1
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.npz"]


# -- cells ------------------------------------------------------------------------------------------------------------
def test_cells_run_alone_resume_and_say_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, cells = importlib.import_module("claim_training_step"), importlib.import_module("cells")
    record = tmp_path / "step.json"
    command = ["--n", "120", "--repeats", "1", "--record", str(record), "--scratch", str(tmp_path)]
    assert claim.main([*command, "--list"]) == 0
    assert capsys.readouterr().out.count("missing") == 4
    assert claim.main([*command, "--cells", "/stored"]) == 0
    found = read_record(record)["cells"]
    assert list(found) == ["n=120/stored"]
    entry = found["n=120/stored"]
    assert entry["status"] == "done"
    assert 0 < entry["gradient_error"] < 0.3
    assert entry["step_seconds"] > 0
    for key in ("commit", "hardware", "versions", "peak_bytes", "passes", "predicted_step_seconds"):
        assert key in entry
    asked: list[str] = []

    def other(module: str, function: str, job: Any, patience: float | None) -> Mapping[str, Any]:
        asked.append(job.key)
        return {**entry, **job.settings(), "status": "missing", "error": "not installed: gpytorch"}

    monkeypatch.setattr(cells, "in_process", other)
    capsys.readouterr()
    assert claim.main([*command, "--cells", "/stored", "/keops"]) == 0
    assert asked == ["n=120/keops", "n=120/keops-own-start"]
    said = capsys.readouterr().out
    assert "n=120/stored: kept, error of the gradient" in said
    assert "for all 2 that are left" in said
    assert "missing: not installed: gpytorch" in said
    assert "| GPyTorch + KeOps, n=120 | - |" in said
    claim.main([*command, "--cells", "/keops"])
    assert len(asked) == 4, "what was not installed is asked for again"


def test_the_training_step_is_compared_with_keops(monkeypatch: pytest.MonkeyPatch) -> None:
    claim = importlib.import_module("claim_training_step")
    common = {
        "status": "done", "n": 10_000, "gradient_error": 0.03, "step_seconds": 1.0, "compile_seconds": 0.0,
        "peak_bytes": 1,
    }  # fmt: skip
    entries = {
        "n=10000/recomputed": {**common, "method": "recomputed"},
        "n=10000/keops": {**common, "method": "keops", "step_seconds": 19.0, "gradient_error": 0.5},
    }
    ours, peer = claim.rows(entries)
    assert (ours["ratio"], ours["met"]) == (19.0, False)
    assert "met" not in peer
    entries["n=10000/keops"]["step_seconds"] = 21.0
    assert claim.rows(entries)[0]["met"] is True
    entries["n=10000/recomputed"]["gradient_error"] = 0.051
    assert claim.rows(entries)[0]["met"] is False


def test_a_route_is_short_of_what_it_misses() -> None:
    claim = importlib.import_module("claim_conditioning")
    entry = {
        "status": "done", "what": "stored", "n": 2000, "noise": 0.1, "route": "stored", "mean_error": 9e-4,
        "variance_error": 9e-3, "peak_bytes": 11 * 10**9, "predicted_bytes": 10**10,
    }  # fmt: skip
    worse = {"mean_error": 1.1e-3, "variance_error": 1.1e-2, "peak_bytes": 12 * 10**9}
    assert claim.rows({"a": entry})[0]["met"] == "yes"
    assert claim.rows({"a": entry | worse})[0]["met"] == "mean, variance, memory"
    sampled = {"status": "done", "what": "sampled", "n": 2000, "noise": 0.1, "route": "direct", "coverage": 0.92}
    assert claim.rows({"a": sampled})[0]["met"] == "coverage"


def test_every_switch_between_two_sizes_is_found() -> None:
    claim = importlib.import_module("claim_continuity")
    edges = (53, 54, 257, 1024, 2501)
    assert claim.switches(lambda n: sum(n >= edge for edge in edges), [50, 60, 400, 3000]) == list(edges)
    assert claim.switches(lambda n: "one", [50, 3000]) == []


def test_the_switches_are_those_of_the_code() -> None:
    claim = importlib.import_module("claim_continuity")
    from flashgp.operators.multiplication import LEAST_PAIRS
    from flashgp.pairwise.small import COMPILED_ROWS

    x, y, _ = claim._data(3000, 1, 0.1)
    gp = fgp.GP(fgp.kernels.Matern(1.5, 0.5), fgp.means.Zero(), fgp.likelihoods.Gaussian(0.1))
    found = claim.switches(lambda n: claim.active(gp, x, y, n, 4000), [900, 2000, 3000])
    assert COMPILED_ROWS + 1 in found
    assert LEAST_PAIRS // 4000 in found, "where predictions begin to follow a plan"


def point(n: int, **values: Any) -> dict[str, Any]:
    tolerances = {"mean": 1e-3, "variance": 1e-2, "likelihood": n * 1e-10}
    found = {"mean": 1e-9, "variance": 1e-9, "likelihood": 1e-10, "seconds": 1.0, "peak_bytes": 10 * n}
    return {"n": n, "route": "direct", "tolerances": tolerances, **found, **values}


def test_the_worst_of_a_cell_is_that_of_its_tolerance(tmp_path: Path) -> None:
    claim = importlib.import_module("claim_continuity")
    points = [point(50, likelihood=4e-9), point(256), point(3000, likelihood=5e-9, mean=2e-9)]
    entry = {"status": "done", "kernel": "Matern-3/2", "noise": 0.1, "switches": [256], "points": points}
    (row,) = claim.rows({"a": entry})
    assert (row["likelihood_error"], row["likelihood_at"], row["mean_at"]) == (4e-9, 50, 3000)
    assert (row["met"], row["switches"], row["peak_bytes"], row["total_seconds"]) == ("yes", "256", 30_000, 3.0)
    points[1]["variance"] = 0.02
    (row,) = claim.rows({"a": entry})
    assert (row["met"], row["variance_at"]) == ("not variance", 256)
    pytest.importorskip("matplotlib")
    claim.picture({"a": entry}, tmp_path / "continuity.png")
    assert (tmp_path / "continuity.png").stat().st_size > 1000


def test_budgets_are_compared_with_the_largest() -> None:
    claim = importlib.import_module("claim_budget")
    values = {"lengthscale": [1.0, 2.0], "variance": 1.0, "noise_variance": 0.01, "mean": 0.0}
    best = {
        "status": "done", "n": 40_000, "memory": "8GiB", "peak_bytes": 10**10, "planned_bytes": 10**10, "rmse": 0.3,
        "nll": 0.2, "hyperparameters": values, "interrupted": False,
    }  # fmt: skip
    other = best | {"memory": "2GiB", "rmse": 0.3019, "hyperparameters": values | {"lengthscale": [1.0, 2.2]}}
    small, large = claim.rows({"a": other, "b": best})
    assert small["parameter_error"] == pytest.approx(math.log(1.1))
    assert (small["met"], large["met"], large.get("parameter_error")) == ("yes", "yes", None)
    other |= {"rmse": 0.297, "nll": 0.211, "peak_bytes": 12 * 10**9, "interrupted": True}
    assert claim.rows({"a": other, "b": best})[0]["met"] == "not memory, RMSE, NLL, ended by its time limit"
    assert claim.main(["--budgets", "many"]) == 2


def test_paths_take_the_posterior_that_the_mean_has_left(tmp_path: Path) -> None:
    claim, cells = importlib.import_module("claim_million"), importlib.import_module("cells")
    common = {"n": 90, "d": 3, "points": 11, "paths": 5, "time_limit": None, "memory": None, "device": "cpu"}
    beside = {"scratch": str(tmp_path)}
    first, second = (cells.Cell(f"n=90/d=3/{what}", common | {"what": what}, 1.0, beside) for what in ("mean", "paths"))
    alone = claim.run_cell(second)
    assert alone["loaded"] is False
    mean = claim.run_cell(first)
    assert 0.0 < mean["rmse"] < 2.0 * mean["function_sd"]
    after = claim.run_cell(second)
    assert after["loaded"] is True
    assert after["rmse"] == pytest.approx(alone["rmse"], rel=1e-6)
    limited = {"status": "done", **first.settings(), **mean, "time_limit": 1e-9}
    (row,) = claim.rows({"a": limited})
    assert "ended by its time limit" in row["note"]
    wrong = cells.Cell("n=80", common | {"what": "paths", "n": 80}, 1.0, beside)
    claim._file(first).rename(claim._file(wrong))
    with pytest.raises(ValueError, match="posterior of other data"):
        claim.run_cell(wrong)


def test_what_learning_online_must_reach() -> None:
    claim = importlib.import_module("claim_online")
    step = {
        "status": "done", "what": "step", "n": 500, "append": 1e-3, "predict": 1e-3, "peer_append": 6e-2,
        "peer_predict": 4e-2, "error": 1e-10,
    }  # fmt: skip
    append, predict = claim.rows({"a": step})
    assert append["faster"] == pytest.approx(60.0)
    assert predict["faster"] == pytest.approx(40.0)
    assert (append["met"], predict["met"]) == (True, True)
    append, predict = claim.rows({"a": step | {"append": 2e-3}})
    assert (append["met"], predict["met"]) == (False, True)
    assert [row["met"] for row in claim.rows({"a": step | {"error": 1e-7}})] == [False, False]
    window = {
        "status": "done", "what": "window", "n": 2000, "seconds": 5e-3, "peer_seconds": 0.5, "p99": 1.2, "largest": 3.0,
        "error": 1e-10,
    }  # fmt: skip
    for worse, met in (({}, True), ({"seconds": 9e-3}, False), ({"peer_seconds": 0.2}, False), ({"p99": 1.6}, False)):
        assert [row["met"] for row in claim.rows({"a": window | worse})] == [met]
    stream = {"status": "done", "what": "stream", "n": 100, "repeats": 10, "seconds": 1.0, "p99": 1.9, "largest": 5.0,
              "first_seconds": 0.09, "error": 1e-10}  # fmt: skip
    assert claim.rows({"a": stream})[0]["met"] is True
    assert claim.rows({"a": stream | {"largest": 7.0}})[0]["met"] is False
    many = {"status": "done", "what": "fantasies", "n": 2000, "members": 64, "q": 4, "seconds": 0.1, "error": 1e-10,
            "peer_seconds": 2.5}  # fmt: skip
    assert claim.rows({"a": many})[0]["met"] is True
    assert claim.rows({"a": many | {"peer_seconds": 1.5}})[0]["met"] is False
    used = {"status": "done", "what": "operations", "n": 150, "repeats": 1000, "bytes_per_cycle": 300.0, "objects": -9,
            "error": 1e-10}  # fmt: skip
    for worse, met in (
        ({}, True),
        ({"bytes_per_cycle": 2e3}, False),
        ({"objects": 60}, False),
        ({"error": 1e-7}, False),
    ):
        assert [row["met"] for row in claim.rows({"a": used | worse})] == [met]
    appended = {"appended": 16, "seconds": 10.0, "peer_seconds": 20.0, "iterations": 15, "peer_iterations": 30,
                "bound": 9e-5, "peer_bound": 8e-5, "error": 1e-6}  # fmt: skip
    beyond = {"status": "done", "what": "beyond", "n": 20_000, "route": "stored", "asked": 1e-4, "error": 1e-6,
              "steps": [appended]}  # fmt: skip
    for worse, met in (
        ({}, True),
        ({"seconds": 14.0}, False),
        ({"bound": 1.1e-4}, False),
        ({"error": 2e-4}, False),
    ):
        (row,) = claim.rows({"a": beyond | {"steps": [appended | worse]}})
        assert row["met"] is met
    assert (row["seconds"], row["error"]) == (10.0, 2e-4)
    sizes = {"status": "done", "what": "sizes", "n": 100, "most": 6000, "neighbours": 1.2, "error": 1e-10}
    assert claim.rows({"a": sizes})[0]["met"] is True
    assert claim.rows({"a": sizes | {"neighbours": 1.4}})[0]["met"] is False


def test_a_curve_is_not_bent_by_late_rows() -> None:
    claim = importlib.import_module("claim_online")
    n = np.arange(100.0, 400.0)
    design = np.stack([n**0, n, n**2], axis=1)
    taken = design @ np.array([1e-3, 1e-6, 1e-8])
    late = taken.copy()
    late[::20] *= 10.0
    np.testing.assert_allclose(design @ claim._robust(design, late), taken, rtol=1e-2)


# -- fgp.linalg --------------------------------------------------------------------------------------------------------
def test_choices_that_missed_are_in_the_table() -> None:
    suite = importlib.import_module("suite_linalg")

    def cell(work: str, n: int, auto: float, cpu: float, cuda: float | None, met: bool, home: str) -> dict[str, Any]:
        better = cpu if cuda is None else min(cpu, cuda)
        return {
            "work": work, "dtype": "float32", "home": home, "n": n, "torch_seconds": 7.0, "auto_seconds": auto,
            "cpu_seconds": cpu, "cuda_seconds": cuda, "over_better": auto / better, "met": met,
        }  # fmt: skip

    cells = [
        cell("qr", 10, 1.0, 1.0, None, True, "cpu"),
        cell("qr", 2000, 3.0, 2.0, None, False, "cpu"),
        cell("eigh", 50, 2.2, 4.0, 2.0, True, "cuda"),
    ]
    qr, eigh, everything = suite.summary(cells)
    assert (qr["work"], qr["cells"], qr["within"], qr["met"]) == ("qr", 2, 1, False)
    assert (qr["ratio"], qr["where"]) == (1.5, "qr, n=2,000, float32")
    assert (qr["auto_seconds"], qr["better_seconds"], qr["torch_seconds"]) == (3.0, 2.0, 7.0)
    assert (eigh["where"], eigh["better_seconds"]) == ("eigh, n=50, float32, data on cuda", 2.0)
    assert (eigh["cells"], eigh["within"], eigh["met"]) == (1, 1, True)
    assert {**everything, "work": "qr"} == {**qr, "cells": 3, "within": 2}


def test_the_table_of_choices_is_that_of_its_own_cells(tmp_path: Path) -> None:
    suite = importlib.import_module("suite_linalg")
    path = BENCHMARK / "records" / "linalg.json"
    record = read_record(path)
    assert record["rows"] == suite.summary(record["cells"])
    stale = tmp_path / "linalg.json"
    write_record(stale, {**record, "rows": [], "date": "2026-01-02T03:04:05+00:00"})
    suite.summarise(stale)
    assert read_record(stale) == {**record, "date": "2026-01-02T03:04:05+00:00"}
