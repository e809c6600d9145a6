"""`torchrun -m flashgp`: the words and the exit code of one command, and a model of all rows, whatever the ranks."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch

import flashgp as fgp
from forked import TIMEOUT, Forked

pytest.importorskip("pyarrow")
pytest.importorskip("typer")
PROGRAM = "from flashgp.cli import process; process()"


def started(ranks: int, *words: object, program: str = PROGRAM) -> list[Forked]:
    """`flashgp` on every rank, started as torchrun starts them. Args: program: that does it."""
    whole = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(29500 + os.getpid() % 2000)}
    return [Forked(program, *words, **whole, RANK=str(rank), LOCAL_RANK=str(rank)) for rank in range(ranks)]


def ended(processes: list[Forked]) -> tuple[list[int], list[str], list[str]]:
    """Exit codes, standard outputs and errors."""
    codes, outs, errors = zip(*(process.ended() for process in processes), strict=True)
    return list(codes), list(outs), list(errors)


def command(ranks: int, *words: object, program: str = PROGRAM) -> tuple[list[int], list[str], list[str]]:
    """`flashgp` on every rank to its end."""
    return ended(started(ranks, *words, program=program))


@pytest.fixture(scope="module")
def csv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("table") / "table.csv"
    generator = torch.Generator().manual_seed(0)
    a, b = torch.rand(2, 301, generator=generator)
    lines = [
        f"{x:.6f},{('Ulm', 'Bonn')[i % 2]},{torch.sin(4 * x) + 0.3 * y + i % 2:.6f}"
        for i, (x, y) in enumerate(zip(a, b, strict=True))
    ]
    path.write_text("a,city,y\n" + "\n".join(lines) + "\n")
    return path


# Two decimals more than people read: the search ends where rounding of its last steps takes it.
TOLERANCE = 1e-6


def test_a_fit_by_ranks_is_that_of_one(csv: Path, tmp_path: Path) -> None:
    """Exact by default: scores, likelihood, parameters, importance and predictions."""
    one, two = tmp_path / "one.safetensors", tmp_path / "two.safetensors"
    words = ("fit", csv, "--target", "y", "--starts", 1, "--test-fraction", 0.2, "--json")
    codes, outs, errors = command(2, *words, "--out", two, "--report", tmp_path / "two.html")
    assert codes == [0, 0], errors
    assert outs[1] == ""
    assert errors[1] == ""
    assert (tmp_path / "two.html").stat().st_size > 0
    ours, alone = json.loads(outs[0]), json.loads(command(1, *words, "--out", one)[1][0])
    for name in ("rows", "rows_fitted", "rows_held_out", "approximation", "target_transform", "evaluations"):
        assert ours[name] == alone[name], name
    assert ours["plan"]["route"] == alone["plan"]["route"]
    assert ours["log_marginal_likelihood"] == pytest.approx(alone["log_marginal_likelihood"], rel=TOLERANCE)
    assert ours["held_out"] == pytest.approx(alone["held_out"], rel=TOLERANCE)
    numbers = [[row["standardised"] for row in result["parameters"]] for result in (ours, alone)]
    assert numbers[0] == pytest.approx(numbers[1], rel=TOLERANCE)
    assert [row["input"] for row in ours["importance"]] == [row["input"] for row in alone["importance"]]
    new = {"a": [0.1, 0.6], "city": ["Ulm", "Bonn"]}
    predicted = [fgp.load(path).predict(new) for path in (one, two)]
    assert predicted[1].mean == pytest.approx(predicted[0].mean, rel=TOLERANCE)
    assert predicted[1].interval(0.95)[0] == pytest.approx(predicted[0].interval(0.95)[0], rel=TOLERANCE)


def test_inducing_points_by_ranks_are_those_of_one(csv: Path, tmp_path: Path) -> None:
    """Of a table of text, which every rank reads whole; each row is there twice."""
    twice, (head, *lines) = tmp_path / "twice.csv", csv.read_text().splitlines()
    twice.write_text("\n".join([head, *lines, *lines]) + "\n")
    one, two = tmp_path / "one.safetensors", tmp_path / "two.safetensors"
    words = ("fit", twice, "--target", "y", "--starts", 1, "--approximation", "sparse", "--json")
    codes, outs, errors = command(2, *words, "--out", two)
    assert codes == [0, 0], errors
    assert outs[1] == ""
    assert errors[1] == ""
    result = json.loads(outs[0])
    assert (result["rows"], result["rows_fitted"], result["approximation"]) == (602, 602, "sparse")
    alone = json.loads(command(1, *words, "--out", one)[1][0])
    assert result["plan"]["distinct"] == alone["plan"]["distinct"] == 301
    assert result["leave_one_out"] == pytest.approx(alone["leave_one_out"], rel=1e-3)
    of_ranks, of_one = ({event["kind"]: event for event in said["events"]} for said in (result, alone))
    assert of_ranks["SHARED"]["fields"]["ranks"] == 2
    assert of_ranks["STREAMED"] == of_one["STREAMED"]  # of rows that are held
    new = {"a": [0.1, 0.6], "city": ["Ulm", "Bonn"]}
    predicted = [fgp.load(path).predict(new).mean for path in (one, two)]
    assert predicted[1] == pytest.approx(predicted[0], rel=1e-3)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("fit", "CSV", "--target", "nothing"), 2, "must name a column"),
        (("tune",), 2, "tune needs no ranks"),
        (("fit", "CSV", "--target", "y", "--starts", "0"), 2, "Invalid value"),
    ],
)  # fmt: skip
def test_every_rank_ends_with_the_same_code(csv: Path, words: tuple[str, ...], code: int, said: str) -> None:
    codes, outs, errors = command(2, *(csv if word == "CSV" else word for word in words))
    assert codes == [code, code]
    assert outs[1] == ""
    assert errors[1] == ""
    assert said in " ".join((outs[0] + errors[0]).replace("│", " ").split())


def test_a_warning_of_all_ranks_is_said_once(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("a,y\n" + "\n".join(f"{i / 40:.3f},{i % 2}" for i in range(40)) + "\n")
    codes, outs, errors = command(
        2, "fit", path, "--target", "y", "--likelihood", "gaussian", "--starts", "1", "--json"
    )
    assert codes == [0, 0]
    assert (outs[1], errors[1]) == ("", "")
    assert errors[0].count("warning") == 1
    (said,) = json.loads(outs[0])["warnings"]
    assert "2 values" in said


PARTED = """
import os, time
from flashgp.cli import fitting, process
whole = fitting.outcome_of
def late(*given):
    while os.environ["RANK"] == "0" and not os.path.exists(os.environ["GO_ON"]):
        time.sleep(0.02)
    return whole(*given)
fitting.outcome_of = late
process()
"""


def test_no_rank_waits_while_rank_0_scores(csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long that takes: the others have ended before it."""
    go_on, model = tmp_path / "go on", tmp_path / "m.safetensors"
    monkeypatch.setenv("GO_ON", str(go_on))
    words = ("fit", csv, "--target", "y", "--starts", 1, "--approximation", "sparse", "--out", model, "--json")
    first, second = started(2, *words, program=PARTED)
    try:
        assert second.wait(TIMEOUT) == 0
        assert first.poll() is None
        assert model.exists()
    finally:
        go_on.touch()
    codes, outs, errors = ended([first, second])
    assert codes == [0, 0], errors
    assert json.loads(outs[0])["leave_one_out"]["rows"] == 301
    assert outs[1] == errors[1] == ""


PLANTED = """
from flashgp.cli import fitting, process
def fail(*given):
    raise {error}
fitting.fit_prepared = fail
process()
"""


@pytest.mark.parametrize(
    ("error", "said"),
    [("ZeroDivisionError('planted')", "ZeroDivisionError: planted"), ("OSError('planted')", "error: planted")],
)
def test_an_error_of_all_ranks_is_shown_once(csv: Path, error: str, said: str) -> None:
    codes, _, errors = command(2, "fit", csv, "--target", "y", "--starts", 1, program=PLANTED.format(error=error))
    assert codes == [1, 1], errors
    assert errors[0].count(said) == 1
    assert errors[1] == ""


def test_an_error_of_rank_1_alone_is_shown_where_it_happened(csv: Path) -> None:
    fail = "    os.environ['RANK'] == '0' or 1 // 0\n    given[0].options.run.group.number_of_first(1.0)"
    program = "import os" + PLANTED.replace("    raise {error}", fail)
    codes, _, errors = command(2, "fit", csv, "--target", "y", "--starts", 1, program=program)
    assert codes == [1, 1]
    for text in errors:
        assert text.count("ZeroDivisionError: integer division or modulo by zero") == 1
    assert "in fail" in errors[1]


# Ranks have as long as they need to end together, where measurements may stop them.
PATIENT = f"from flashgp.cli import process; process({TIMEOUT})"


INTERRUPTED_AT_THE_END = """
import os, signal
from flashgp.cli import process
from flashgp.inference.full_scale import fit
whole = fit.condition
def interrupted(*given):
    if os.environ["RANK"] in "{ranks}":
        signal.raise_signal(signal.SIGINT)
    return whole(*given)
fit.condition = interrupted
process(600.0)
"""


@pytest.mark.parametrize("ranks", ["1", "01"])
def test_ctrl_c_in_the_last_pass_leaves_the_parameters(csv: Path, tmp_path: Path, ranks: str) -> None:
    checkpoint = tmp_path / "fit.checkpoint"
    words = ("fit", csv, "--target", "y", "--starts", 1, "--approximation", "full_scale", "--checkpoint", checkpoint)
    codes, outs, errors = command(2, *words, program=INTERRUPTED_AT_THE_END.format(ranks=ranks))
    assert codes == [130, 130], errors
    assert "parameters found" in outs[0]
    assert "lengthscale" in outs[0].partition("parameters found")[2]
    assert (outs[1], errors[1]) == ("", "")
    (said,) = [line for line in errors[0].splitlines() if line.startswith("error")]
    assert said == (
        f"error: interrupted in the last solve, no model was written; the same command goes on from {checkpoint}"
    )


def test_ctrl_c_is_one_message_and_a_checkpoint_to_go_on_from(tmp_path: Path) -> None:
    """Under torchrun it comes twice: from the terminal, and from torchrun."""
    path, checkpoint, model = tmp_path / "table.csv", tmp_path / "fit.checkpoint", tmp_path / "m.safetensors"
    x = torch.rand(2000, 4, generator=torch.Generator().manual_seed(0))
    y = torch.sin(5.0 * x[:, 0]) + x[:, 1] * x[:, 2]
    lines = [",".join(f"{cell:.5f}" for cell in row) for row in torch.cat([x, y[:, None]], dim=1).tolist()]
    path.write_text("a,b,c,d,y\n" + "\n".join(lines) + "\n")
    processes = started(
        2, "fit", path, "--target", "y", "--target-transform", "none", "--starts", 40, "--checkpoint", checkpoint,
        "--out", model, program=PATIENT,
    )  # fmt: skip
    while not checkpoint.exists() and all(process.poll() is None for process in processes):
        time.sleep(0.02)
    for _ in range(2):
        for process in processes:
            process.send_signal(signal.SIGINT)
    codes, _, errors = ended(processes)
    assert codes == [130, 130], errors
    assert errors[1] == ""
    assert errors[0].splitlines() == [
        f"error: interrupted, no model was written; the same command goes on from {checkpoint}"
    ]
    assert not model.exists()


STUCK = """
import ctypes, signal, threading
from flashgp.cli.interruption import OneInterrupt
OneInterrupt(together_seconds=0.2).install()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # as a thread that does not come back to Python
threading.Timer(0.5, print, ["ready"], {"flush": True}).start()
ctypes.CDLL(None).pause()  # for ever: no handler runs in this thread
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_rank_that_waits_for_others_ends_with_ctrl_c(rank: str) -> None:
    process = Forked(STUCK, RANK=rank, WORLD_SIZE="2")
    while process.text("out") != "ready\n" and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    (codes, _, errors) = ended([process])
    assert codes == [130]
    assert ("did not end together within 0.2 s" in errors[0]) == (rank == "0")


ELASTIC = "import os; os.environ['TORCHELASTIC_RUN_ID'] = '1'\n" + PROGRAM


def test_rank_0_says_what_is_wrong_with_the_words_also_as_the_last() -> None:
    """torchrun ends all ranks as soon as one has failed: the others wait until rank 0 has had time to say it."""
    first, second = started(2, "tune", "--no-such-option", program=ELASTIC)
    assert first.wait(TIMEOUT) == 2
    assert second.poll() is None
    second.kill()
    assert first.text("err").count("No such option: --no-such-option") == 1


def test_doctor_knows_the_ranks() -> None:
    codes, outs, _ = command(2, "doctor", "--json")
    assert codes == [0, 0]
    assert outs[1] == ""
    findings = [one for one in json.loads(outs[0])["findings"] if one["topic"] == "ranks"]
    assert findings[0]["values"]["size"] == 2
    assert findings[0]["values"]["backends"] == {"cpu": "gloo"}
