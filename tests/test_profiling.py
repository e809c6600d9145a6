"""Where the time went: attribution of moments, the primitives that say what they do, and `flashgp profile`."""

import gzip
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer")
pytest.importorskip("matplotlib")
import torch

import flashgp as fgp
from flashgp.foundations import profile_ranges as ranges
from flashgp.foundations.profile_ranges import ProfileRange, profile_range, recording
from flashgp.profiling import attributed, take_profile
from test_cli import HEAD, columns, run, write

F64 = torch.float64
PRODUCTS, FACTOR, SOLVES, TRANSFERS = ranges.KINDS


def seconds_of(*ranges: tuple[Any, int, float, float]) -> dict[str, float]:
    made = [ProfileRange(kind, thread, int(a * 1e9), int(b * 1e9)) for kind, thread, a, b in ranges]
    return {kind: round(s, 9) for kind, s in attributed(made, 0)[0].items() if s}


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ([], {}),
        ([(FACTOR, 0, 1, 4)], {FACTOR: 3.0}),
        ([(PRODUCTS, 7, 0, 4), (SOLVES, 8, 1, 3)], {PRODUCTS: 2.0, SOLVES: 2.0}),
    ],
)
def test_every_moment_belongs_to_the_innermost_range(ranges: list[Any], expected: dict[str, float]) -> None:
    # Two that begin and end together: recorded in the order in which they ended, the inner one first.
    assert seconds_of(*ranges) == expected


def test_shares_add_up_and_waiting_is_idle() -> None:
    def work() -> int:
        with profile_range("transfers"):
            time.sleep(0.02)
        time.sleep(0.1)
        return 7

    result, profile = take_profile(work, operations=False)
    assert result == 7
    found = {one.work: one for one in profile.bottlenecks}
    assert sum(one.seconds for one in profile.bottlenecks) == pytest.approx(profile.seconds)
    assert sum(one.share for one in profile.bottlenecks) == pytest.approx(1.0)
    assert found["transfers"].calls == 1
    assert found["transfers"].seconds >= 0.02
    assert found["idle"].seconds > found["other"].seconds
    assert found["idle"].calls is None
    assert (profile.operations, profile.device_seconds) == ((), None)
    times = [one.seconds for one in profile.bottlenecks]
    assert times == sorted(times, reverse=True)


def test_computing_outside_ranges_is_other() -> None:
    def work() -> None:
        end = time.thread_time() + 0.1
        while time.thread_time() < end:
            pass

    found = {one.work: one.seconds for one in take_profile(work, operations=False)[1].bottlenecks}
    assert found["other"] >= 0.1


def test_an_error_passes_and_leaves_nothing_open() -> None:
    with pytest.raises(ZeroDivisionError):
        take_profile(lambda: 1 // 0)
    assert ranges._recorder is None


def kinds_in(work: Any) -> set[str]:
    with recording() as record:
        work()
    return {one.kind for one in record.ranges if one.thread == threading.get_ident()}


def test_the_primitives_say_what_they_do() -> None:
    x = torch.linspace(0.0, 1.0, 60, dtype=F64)[:, None]
    y = torch.sin(6.0 * x[:, 0])
    gp = fgp.GP(fgp.kernels.Matern(nu=1.5, lengthscale=torch.tensor([0.3])), likelihood=fgp.likelihoods.Gaussian(0.1))
    operator = gp.kernel.operator(x)
    right = torch.ones(60, 2, dtype=F64)
    assert kinds_in(lambda: operator @ right) == {PRODUCTS}
    assert kinds_in(operator.to_dense) == {PRODUCTS}
    with torch.no_grad():
        assert kinds_in(operator.diagonal) == {PRODUCTS}
    assert kinds_in(lambda: gp.condition(x, y)) >= {PRODUCTS, FACTOR, SOLVES}
    post = gp.condition(x, y)
    assert kinds_in(lambda: post.predict(x + 0.01).variance) >= {PRODUCTS, SOLVES}
    assert kinds_in(lambda: post.append(x[:1] + 2.0, y[:1])) >= {PRODUCTS, FACTOR, SOLVES}
    assert kinds_in(lambda: post.drop([3])) >= {FACTOR}
    assert kinds_in(lambda: gp.log_marginal_likelihood(x, y)) >= {PRODUCTS, FACTOR}
    assert kinds_in(lambda: fgp.fit(gp, x, y, starts=1)) >= {PRODUCTS, FACTOR, TRANSFERS}
    iterative = fgp.plan(gp, n=60, d=1, solver="cg")
    assert kinds_in(lambda: gp.condition(x, y, plan=iterative)) >= {PRODUCTS, FACTOR}
    matrix = operator.with_noise(0.1).to_dense()
    for factorise in (fgp.linalg.cholesky, fgp.linalg.eigh, fgp.linalg.qr):
        assert kinds_in(lambda factorise=factorise: factorise(matrix)) == {FACTOR}
    assert kinds_in(lambda: fgp.linalg.solve_triangular(matrix, right, upper=True)) == {SOLVES}


def test_operations_and_trace(tmp_path: Path) -> None:
    matrix = torch.eye(50, dtype=F64)
    _, profile = take_profile(lambda: torch.linalg.cholesky(matrix), trace=tmp_path / "trace.json")
    assert any("cholesky" in one.name for one in profile.operations)
    assert all(one.calls >= 1 and one.seconds >= 0.0 for one in profile.operations)
    assert "traceEvents" in json.loads((tmp_path / "trace.json").read_text())
    take_profile(lambda: None, trace=tmp_path / "trace.json.gz")
    assert "traceEvents" in json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trace.json", "trace.json.gz"]


# The command ---------------------------------------------------------------------------------------------------------


QUICK = ("--target", "y", "--starts", 1, "--target-transform", "none", "--drop", "site")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "table.csv", HEAD, columns(50))
    return tmp_path


def test_fit_predict_and_update_are_profiled(folder: Path) -> None:
    table, model = folder / "table.csv", folder / "m.safetensors"
    fit = run("profile", "--trace", folder / "t.json", "fit", table, *QUICK, "--out", model)
    assert fit.stdout.index("wrote " + str(model)) < fit.stdout.index("where the time went")
    assert "factorisation" in fit.stdout
    assert "aten::" in fit.stdout
    names = {event.get("name") for event in json.loads((folder / "t.json").read_text())["traceEvents"]}
    assert "flashgp: factorisation" in names
    predicted = run("profile", "--json", "predict", model, table, "--out", folder / "p.csv", "--std")
    said = json.loads(predicted.stdout)
    assert said["command"] == "predict"
    assert {"idle", "other", "triangular solves"} <= {one["work"] for one in said["profile"]["bottlenecks"]}
    assert said["profile"]["operations"]
    updated = run("profile", "--coarse", "update", model, table, "--json")
    said = json.loads(updated.stdout)
    assert said["command"] == "update"
    assert said["profile"]["operations"] == []
    assert sum(one["share"] for one in said["profile"]["bottlenecks"]) == pytest.approx(1.0)
    assert "profile" not in json.loads(run("predict", model, table, "--out", folder / "p.csv", "--json").stdout)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--trace", "t.json", "--coarse", "fit", "x.csv", "--target", "y"), 2, "that --coarse leaves out"),
        (("--trace", "/no/such/folder/t.json", "fit", "x.csv", "--target", "y"), 2, "`--trace` must be a file"),
        (("fit", "missing.csv", "--target", "y"), 2, "missing.csv"),
        (("fit", "x.csv"), 2, "--target"),
        (("nothing",), 2, "nothing"),
    ],
)
def test_bad_usage(arguments: tuple[str, ...], code: int, message: str) -> None:
    assert message in run("profile", *arguments, code=code).output
