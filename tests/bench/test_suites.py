"""The suites of `flashgp bench`: each runs at toy size, shows unevaluated results as such, and refuses bad options."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("typer")

from flashgp.bench import read_record, suites
from flashgp.bench.results import format_ratio
from flashgp.bench.suite import Options, available_devices, peer
from flashgp.bench.suites import SUITES
from flashgp.foundations.errors import BackendUnavailableError, DomainError
from test_cli import run

TOY = Options(sizes=(12,), repeats=1, peers=False, devices=("cpu",))


def toy(name: str, **change: Any) -> Any:
    return SUITES[name].measure(Options(**{**vars(TOY), **change}))


@pytest.mark.parametrize("name", SUITES)
def test_every_suite_runs_and_every_answer_is_right(name: str) -> None:
    lines: list[str] = []
    measured = toy(name, progress=lines.append)
    assert len(lines) == len(measured.findings) >= 1
    for finding in measured.findings:
        names = {candidate.name for candidate in finding.comparison.candidates}
        assert name == "linalg" or {"broadcasting", "nested vmap"} <= names
        for candidate in finding.comparison.candidates:
            assert candidate.accepted or candidate.name == "arithmetic in bfloat16", candidate
    record = measured.record()
    assert {"hardware", "versions", "commit", "date", "schema", "columns", "rows"} <= record.keys()


def test_what_has_no_numbers_is_shown_beside_what_computes_them() -> None:
    measured = toy("kernel-matrix", dtypes=("float64",))
    (finding,) = measured.findings
    closure, operator = finding.unevaluated
    assert str(closure.reason).startswith("returned a function, which may still have work to do")
    assert "CovarianceOperator" in str(operator.reason)
    assert closure.seconds is not None
    seconds = {row["candidate"]: row["seconds"] for row in measured.record()["rows"]}
    assert seconds["vmap, not called"] == closure.seconds > 0
    assert format_ratio(seconds["broadcasting"] / closure.seconds) in str(measured)
    assert format_ratio(seconds["broadcasting"] / seconds["nested vmap"]) in str(measured)


def test_arithmetic_in_bfloat16_is_refused_and_storage_is_not() -> None:
    (finding,) = toy("kernel-matrix", sizes=(100,), dtypes=("bfloat16",)).findings
    assert "wrong answer" in str(finding.comparison["arithmetic in bfloat16"].reason)
    assert finding.comparison["FlashGP"].error == pytest.approx(2.0**-9, rel=0.5)


def test_plain_covariances_agree() -> None:
    x, z = (suites.smooth_data(n, 3, torch.float64, seed=n)[0] for n in (5, 7))
    wanted = torch.tensor(
        [[torch.exp(-((a - b) ** 2).sum() / (2 * 0.7**2)) for b in z] for a in x], dtype=torch.float64
    )
    for function in (suites.broadcasting, suites.vmapped, suites.from_products, suites.exact):
        assert torch.allclose(function(x, z, 0.7), wanted, rtol=0.0, atol=1e-14)
    assert peer("no_such_module_anywhere") is None
    assert peer("json") is json


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sizes": (1,)}, "`sizes` must be at least 2 rows, got 1"),
        ({"dtypes": ("float8",)}, "`dtypes` of linalg must be among float32, float64, got 'float8'"),
        ({"devices": ("abacus",)}, "`device` must be auto, cpu, cuda, mps or xpu, got 'abacus'"),
        ({"repeats": 0}, "`repeats` must be"),
    ],
)
def test_unusable_options(change: dict[str, Any], message: str) -> None:
    with pytest.raises(DomainError, match=message):
        toy("linalg", **change)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_a_device_that_is_not_there() -> None:
    with pytest.raises(BackendUnavailableError, match=r"'cuda', which this machine .* \(it has cpu\)"):
        available_devices(["cuda"])
    assert available_devices([]) == available_devices(["auto"]) == ("cpu",)


# The command ---------------------------------------------------------------------------------------------------------


def test_the_command_prints_and_writes(tmp_path: Path) -> None:
    file = tmp_path / "it.json"
    options = ("--sizes", "10,20", "--dtypes", "float32", "--repeats", 1, "--no-peers", "--out", file)
    said = run("bench", "kernel-matrix", *options)
    assert "vmap, not called" in said.stdout
    record = read_record(file)
    assert {row["work"] for row in record["rows"]} == {"n=10, float32, cpu", "n=20, float32, cpu"}
    (closure, _) = (row for row in record["rows"] if row["candidate"] == "vmap, not called")
    assert closure["verdict"].startswith("refused: returned a function")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("nothing",), 2, "kernel-matrix"),
        (("online", "--sizes", "many"), 2, "must be whole numbers with commas, got 'many'"),
        (("online", "--out", "x.txt"), 2, "`--out` must end in .json, got 'x.txt'"),
        (("online", "--out", "/no/such/folder/x.json"), 2, "the folder '/no/such/folder' does not exist"),
        (("online", "--device", "abacus"), 2, "`device` must be"),
    ],
)
def test_bad_usage(arguments: tuple[str, ...], code: int, message: str) -> None:
    assert message in run("bench", *arguments, code=code).output
