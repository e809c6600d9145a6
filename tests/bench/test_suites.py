"""The project's claims as suites: each runs at toy size, says what it found in every form, and refuses honestly."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("typer")

from flashgp.bench import read_record
from flashgp.bench.claims import (
    SUITES,
    Options,
    kernel_matrix,
    online,
    plain,
    prediction,
    products,
    suite_named,
    training,
)
from flashgp.bench.claims import linalg as linalg_suite
from flashgp.bench.claims.peers import peer, smooth_data
from flashgp.bench.claims.suite import Finding, devices_named, measure
from flashgp.bench.tables import markdown_table
from flashgp.foundations.errors import BackendUnavailableError, DomainError
from test_cli import run

TOY = Options(sizes=(12, 20), repeats=1, clocks=("profiler",), peers=False, devices=("cpu",))


def toy(name: str, **change: Any) -> Any:
    return suite_named(name).measure(Options(**{**vars(TOY), **change}))


@pytest.mark.parametrize("name", SUITES)
def test_every_suite_runs_and_every_answer_is_right(name: str) -> None:
    heard: list[str] = []
    outcome = suite_named(name).measure(TOY, heard.append)
    assert len(heard) == len(outcome.findings) >= 2
    assert {finding.size for finding in outcome.findings} == {12, 20}
    for finding in outcome.findings:
        assert finding.comparison.settings["clocks"] == ["profiler"]
        for candidate in finding.comparison.candidates:
            assert candidate.accepted or candidate.name == "arithmetic in bfloat16", candidate
    record = outcome.record()
    assert {"hardware", "versions", "commit", "date", "schema"} <= record.keys()
    assert markdown_table(record).count("\n") >= len(record["rows"])
    assert suite_named(name).name == name


@pytest.mark.parametrize("name", [name for name in SUITES if name != "linalg"])
def test_plain_torch_always_takes_part(name: str) -> None:
    for finding in toy(name, sizes=(12,)).findings:
        assert {"broadcasting", "nested vmap"} <= {one.name for one in finding.comparison.candidates}


def test_the_artefact_is_shown_with_both_figures() -> None:
    outcome = toy("kernel-matrix")
    assert [finding.group for finding in outcome.findings] == [
        f"{dtype}, cpu" for dtype in ("float32", "bfloat16", "float64") for _ in range(2)
    ]
    for finding, row in zip(outcome.findings, outcome.rows, strict=True):
        closure = finding.built[0]
        assert closure.name == "vmap, not called"
        assert closure.reason.startswith("returned a function, which may still have work to do")
        assert "CovarianceOperator" in finding.built[1].reason
        seconds = {one.name: one.seconds for one in finding.comparison.candidates}
        assert row["closure_seconds"] == closure.seconds > 0
        assert row["artefact"] == pytest.approx(seconds["broadcasting"] / closure.seconds)
        assert row["vmap_seconds"] == seconds["nested vmap"]
        assert row["vmap_ratio"] == pytest.approx(seconds["broadcasting"] / seconds["nested vmap"])
        assert row["ours_ratio"] == pytest.approx(seconds["broadcasting"] / seconds["FlashGP"])
    text = outcome.text()
    assert '"faster" than broadcasting' in text
    assert "returned a function" in text


def test_arithmetic_in_bfloat16_is_refused_and_storage_is_not() -> None:
    (finding,) = toy("kernel-matrix", sizes=(100,), dtypes=("bfloat16",)).findings
    assert "wrong answer" in str(finding.comparison["arithmetic in bfloat16"].reason)
    assert finding.comparison["FlashGP"].error == pytest.approx(2.0**-9, rel=0.5)


def test_peers_that_are_lazy_are_shown_lazy_and_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lazy:
        def __init__(self, x: torch.Tensor) -> None:
            self.x = x

        def to_dense(self) -> torch.Tensor:
            return plain.broadcasting(self.x, self.x, kernel_matrix.LENGTHSCALE)

    class Kernel:
        lengthscale = 1.0

        def to(self, *_: Any) -> "Kernel":
            return self

        def __call__(self, x: torch.Tensor) -> Lazy:
            return Lazy(x)

    fake = SimpleNamespace(kernels=SimpleNamespace(RBFKernel=Kernel))
    monkeypatch.setattr(kernel_matrix, "peer", lambda name: fake)
    (finding,) = toy("kernel-matrix", sizes=(12,), dtypes=("float64",), peers=True).findings
    assert finding.comparison["GPyTorch"].accepted
    assert [built.numbers for built in finding.built] == ["nested vmap", "FlashGP", "GPyTorch"]
    assert "Lazy" in finding.built[2].reason


def test_a_missing_peer_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((kernel_matrix, "GPyTorch"), (products, "KeOps"), (training, "GPyTorch"),
                         (prediction, "GPyTorch"), (online, "GPyTorch")):  # fmt: skip
        monkeypatch.setattr(module, "peer", lambda name: None)
        notes = toy(module.SUITE.name, sizes=(12,), peers=True).notes
        assert any(note.startswith(f"{name} is not installed") for note in notes)
    assert peer("no_such_module_anywhere") is None
    assert peer("json") is json


def test_what_does_not_fit_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flashgp.bench.claims.suite.available_bytes", lambda device: 1000)
    x = torch.linspace(1.0, 2.0, 8, dtype=torch.float64)
    finding, notes = measure(
        "here", 8, {"small": torch.sin, "large": torch.sin}, (x,), torch.sin, 1e-9, TOY, {"large": 1001, "small": 1000}
    )
    assert [one.name for one in finding.comparison.candidates] == ["small"]
    assert "large left out, it would take" in notes[0]


def test_linalg_takes_part_where_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linalg_suite, "MODULE", "torch.linalg")
    outcome = toy("linalg", sizes=(12,))
    assert outcome.notes == ()
    assert [finding.group.split(",")[0] for finding in outcome.findings] == [
        "Cholesky", "QR", "eigh", "triangular solve"
    ]  # fmt: skip
    for finding in outcome.findings:
        assert finding.comparison["fgp.linalg"].accepted
    monkeypatch.setattr(linalg_suite, "MODULE", "flashgp.no_such_module")
    assert "no fgp.linalg" in toy("linalg", sizes=(12,)).notes[0]


def test_plain_covariances_agree() -> None:
    x, z = (smooth_data(n, 3, torch.float64, seed=n)[0] for n in (5, 7))
    wanted = torch.tensor(
        [[torch.exp(-((a - b) ** 2).sum() / (2 * 0.7**2)) for b in z] for a in x], dtype=torch.float64
    )
    for found in (plain.broadcasting, plain.vmapped, plain.from_products, plain.exact):
        assert torch.allclose(found(x, z, 0.7), wanted, rtol=0.0, atol=1e-14)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"sizes": (1,)}, DomainError, "`sizes` must be at least 2 rows, got 1"),
        ({"dtypes": ("float8",)}, DomainError, "`dtypes` of products must be among float32, float64, got 'float8'"),
        ({"devices": ("abacus",)}, DomainError, "`device` must be auto, cpu, cuda, mps or xpu, got 'abacus'"),
        ({"clocks": ("sundial",)}, DomainError, "`clocks` must be among"),
        ({"repeats": 0}, DomainError, "`repeats` must be"),
    ],
)
def test_unusable_options(change: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        toy("products", **change)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_a_device_that_is_not_there() -> None:
    with pytest.raises(BackendUnavailableError, match=r"'cuda', which this machine .* \(it has cpu\)"):
        devices_named(["cuda"])
    assert devices_named([]) == devices_named(["auto"]) == ("cpu",)


# The command ---------------------------------------------------------------------------------------------------------


def test_the_command_prints_writes_and_draws(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    files = [tmp_path / f"it{ending}" for ending in (".json", ".png", ".html")]
    outs = [part for file in files for part in ("--out", file)]
    said = run("bench", "kernel-matrix", "--sizes", "10,20", "--dtypes", "float32", "--repeats", 1, "--no-peers", *outs)
    assert "vmap, not called" in said.stdout
    record = read_record(files[0])
    assert [row["work"] for row in record["rows"]] == ["n=10, float32, cpu", "n=20, float32, cpu"]
    assert record["comparisons"][0]["built"][0]["reason"].startswith("returned a function")
    assert "profiler" in record["comparisons"][0]["clocks"]
    assert files[1].read_bytes().startswith(b"\x89PNG")
    page = files[2].read_text(encoding="utf-8")
    assert "What was built, and what was computed" in page
    assert "returned a function" in page
    assert page.count("<figure>") == 3


def test_the_command_as_json_alone() -> None:
    said = run("bench", "products", "--sizes", 10, "--repeats", 1, "--clocks", "none", "--no-peers", "--json")
    found = json.loads(said.stdout)
    assert found["command"] == "bench"
    assert found["comparisons"][0]["clocks"] == []
    assert {row["candidate"] for row in found["rows"]} == {"FlashGP", "broadcasting", "nested vmap"}


def test_what_peers_print_is_not_between_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    def loud(options: Options, say: Any) -> Any:
        print("a peer says hello")  # noqa: T201
        return products.SUITE.outcome([])

    monkeypatch.setattr(products, "SUITE", type(products.SUITE)(**{**vars(products.SUITE), "run": loud}))
    said = run("bench", "products", "--json")
    assert json.loads(said.stdout)["comparisons"] == []


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("nothing",), 2, "kernel-matrix"),
        (("products", "--sizes", "many"), 2, "must be whole numbers with commas, got 'many'"),
        (("products", "--sizes", "1"), 1, "`sizes` must be at least 2 rows"),
        (("products", "--out", "x.txt"), 1, "`--out` must end in .json, .png, .html, .htm, got 'x.txt'"),
        (("products", "--out", "/no/such/folder/x.json"), 1, "the folder '/no/such/folder' does not exist"),
        (("products", "--out", "x.json", "--out", "./x.json"), 1, "must differ from"),
        (("products", "--repeats", "0"), 2, "repeats"),
        (("products", "--device", "abacus"), 1, "`device` must be"),
    ],
)
def test_bad_usage(arguments: tuple[str, ...], code: int, message: str) -> None:
    assert message in run("bench", *arguments, code=code).output


def test_a_group_and_a_size_name_the_work() -> None:
    assert Finding("float32, cpu", 12345, SimpleNamespace()).work == "n=12,345, float32, cpu"  # type: ignore[arg-type]
