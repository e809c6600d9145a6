"""Bad input on the command line: one plain sentence, exit code 2, nothing half-written."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer")
pytest.importorskip("matplotlib")
import typer

from flashgp.cli.application import application
from test_cli import run

COMMAND = typer.main.get_command(application)
PATHS = [(name,) for name in COMMAND.commands] + [("profile", name) for name in COMMAND.commands["profile"].commands]


# -- options given twice ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_an_option_given_twice_is_refused_unless_it_may_be_repeated(path: tuple[str, ...]) -> None:
    """Of every command, every option by its longest name."""
    command = COMMAND
    for name in path:
        command = command.commands[name]
    names = {max(option.opts, key=len): option for option in command.params if option.param_type_name == "option"}
    for name, option in names.items():
        given = [name] if option.is_flag else [name, "1"]
        said = " ".join(run(*path, *given, *given, code=2).stderr.split())
        assert ("takes one value and was given 2 times" in said) is not option.multiple, name
        assert option.multiple or name in said


def test_both_names_of_an_option_are_one() -> None:
    assert "--target/-t" in run("fit", "t.csv", "--target", "price", "-t", "rent", code=2).stderr
    assert "--json" in run("profile", "--json", "--json", "fit", "t.csv", "-t", "y", code=2).stderr
    run("fit", "t.csv", "-t", "y", "--header", "--no-header", code=2)


# -- files, columns and values ------------------------------------------------------------------------------------
GOOD = "size,city,sold,price\n" + "".join(
    f"{60 + 7 * i},{('Ulm', 'Bonn')[i % 2]},{('true', 'false')[i % 3 > 0]},{200 + 11 * i - 40 * (i % 2)}\n"
    for i in range(12)
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    (folder / "good.csv").write_text(GOOD)
    run("fit", folder / "good.csv", "-t", "price", "--starts", 1, "--quiet", "-o", folder / "model")
    return folder / "model"


FITS = {
    "empty": ("", "must have at least one row, got an empty file"),
    "one row": ("size,price\n1,2\n", "must have an input that varies"),
    "an infinite value": ("size,price\n1,2\ninf,3\n3,4\n", "got inf at row 2 (line 3), column 'size'"),
    "a target of text": (
        "size,price\n" + "".join(f"{i},about {'x' * i}\n" for i in range(30)),
        "'price' (text with 30 distinct values",
    ),
    "identifiers": ("size,price\n100000000000000001,1\n100000000000000002,2\n", "'size' (100000000000000001 at row 1"),
    "no target": ("size,cost\n1,2\n2,3\n", "`target` must name a column"),
}


@pytest.mark.parametrize("case", FITS)
def test_a_table_that_cannot_be_fitted(tmp_path: Path, case: str) -> None:
    text, said = FITS[case]
    (tmp_path / "t.csv").write_text(text)
    outputs = ("-o", tmp_path / "m", "--report", tmp_path / "r.html", "--checkpoint", tmp_path / "c")
    result = run("fit", tmp_path / "t.csv", "-t", "price", *outputs, code=2)
    one_sentence(result, said)
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


PREDICTIONS = {
    "a column missing": ("size,sold\n70,true\n", "missing 'city'"),
    "a column renamed": ("size,town,sold\n70,Ulm,true\n", "missing 'city'"),
    "text for numbers": ("size,city,sold\nbig,Ulm,true\n", "column 'size' of"),
    "some text for numbers": ("size,city,sold\n70,Ulm,true\nbig,Ulm,true\n", "the first that is not is 'big' at row 2"),
    "numbers for booleans": ("size,city,sold\n70,Ulm,7\n", "column 'sold' of"),
    "dates for categories": ("size,city,sold\n70,2020-01-01,true\n", "column 'city' of"),
    "an unseen category": ("size,city,sold\n70,Ulm,true\n70,Paris,true\n", "got 'Paris' at row 2 (line 3)"),
    "a missing value": ("size,city,sold\n70,,true\n", "column 'city'"),
    "an infinite value": ("size,city,sold\n-inf,Ulm,true\n", "got -inf at row 1 (line 2), column 'size'"),
    "an all-missing column": ("size,city,sold\n,Ulm,true\n,Bonn,true\n", "column 'size'"),
    "an empty table": ("", "got an empty file"),
    "no rows": ("size,city,sold\n", "must have at least one row of data"),
    "a zip": ("PK\x03\x04", "got a zip archive"),
}  # fmt: skip


@pytest.mark.parametrize("command", ["predict", "update"])
@pytest.mark.parametrize("case", PREDICTIONS)
def test_a_table_that_does_not_fit_the_model(model: Path, tmp_path: Path, case: str, command: str) -> None:
    text, said = PREDICTIONS[case]
    if command == "update":
        head, *rows = text.splitlines() or [""]
        text = (
            "".join(f"{line}\n" for line in (f"{head},price", *(f"{row},300" for row in rows))) if "," in text else text
        )
    (tmp_path / "t.csv").write_text(text)
    before = model.read_bytes()
    one_sentence(run(command, model, tmp_path / "t.csv", "--out", tmp_path / "out.csv", code=2), said)
    assert model.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_columns_in_another_order_or_of_a_lenient_type_are_matched(model: Path, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("size,city,sold\n70,Ulm,true\n90,Bonn,false\n")
    (tmp_path / "b.csv").write_text("extra,sold,city,size\nx,1,Ulm,70.0\ny,0,Bonn,9e1\n")
    for name in "ab":
        run("predict", model, tmp_path / f"{name}.csv", "--std", "-o", tmp_path / f"{name}.out.csv")
    assert (tmp_path / "a.out.csv").read_bytes() == (tmp_path / "b.out.csv").read_bytes()


def one_sentence(result: Any, said: str) -> None:
    """One line of error that says it, with something to do."""
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert said in result.stderr
    assert "Traceback" not in result.output
    assert len(errors[0]) > len("error: ")
