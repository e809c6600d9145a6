"""Bad input on the command line: one plain sentence, exit code 2, nothing half-written."""

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
