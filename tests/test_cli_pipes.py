"""Tables of the command line in other forms: with keys, from and to pipes, in other encodings."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("typer")
pytest.importorskip("matplotlib")

import pyarrow
import pyarrow.parquet
from typer.testing import CliRunner

from flashgp.cli.application import application
from test_cli import HEAD, NASTY, columns, read, run, write


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table and a model of it."""
    path = tmp_path_factory.mktemp("pipes")
    write(path / "table.csv", HEAD, columns(30))
    run("fit", path / "table.csv", "--target", "y", "--starts", 1, "--kernel", "RBF()", "--out", path / "m")
    return path


def test_predictions_have_the_key_of_their_rows(folder: Path, tmp_path: Path) -> None:
    x, z, site, _ = columns(4, seed=1)
    table = write(tmp_path / "new.csv", [*HEAD[:3], "id", "a,b"], [x, z, site, ["007", "", "x y", "8"], [1, 2, 3, 4]])
    common = ("predict", folder / "m", table)
    said = json.loads(run(*common, "--out", tmp_path / "p.csv", "--keep", "id,site", "--keep", "a,b", "--json").stdout)
    assert said["columns"] == ["id", "site", "a,b", "mean"]
    with (tmp_path / "p.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == ["007", "", "x y", "8"]
    assert [row["site"] for row in rows] == list(site)
    run(*common, "--out", tmp_path / "p.parquet", "--keep", "id")
    kept = pyarrow.parquet.read_table(tmp_path / "p.parquet")
    assert kept.column_names == ["id", "mean"]
    stored = pyarrow.table({"x": x, NASTY: z, "site": list(site), "id": [3, 1, 2, 9]})
    pyarrow.parquet.write_table(stored, tmp_path / "new.parquet")
    run("predict", folder / "m", tmp_path / "new.parquet", "--out", tmp_path / "q.csv", "--keep", "id")
    assert read(tmp_path / "q.csv")["id"].tolist() == [3, 1, 2, 9]
    assert np.array_equal(read(tmp_path / "q.csv")["mean"], kept["mean"].to_numpy())
    assert "`keep` must name a column" in run(*common, "--out", tmp_path / "p.csv", "--keep", "nr", code=2).stderr
    mean = write(tmp_path / "mean.csv", [*HEAD[:3], "mean"], [x, z, site, [1, 2, 3, 4]])
    said = run(*common[:2], mean, "--out", tmp_path / "p.csv", "--keep", "mean", code=2).stderr
    assert "`--keep` must name columns beside mean, got 'mean'" in said


def test_tables_come_from_and_go_to_pipes(folder: Path, tmp_path: Path) -> None:
    table = write(tmp_path / "new.csv", HEAD, columns(5, seed=1))
    run("predict", folder / "m", table, "--out", tmp_path / "p.csv", "--std")
    words = ["predict", str(folder / "m"), "-", "--out", "-", "--std"]
    piped = CliRunner().invoke(application, words, input=table.read_bytes())
    assert piped.exit_code == 0, piped.output
    assert piped.stdout == (tmp_path / "p.csv").read_text()
    assert "predicted 5 rows" in piped.stderr
    assert "both write to standard output" in run("predict", folder / "m", table, "--out", "-", "--json", code=2).stderr
    words = ["fit", "-", "--target", "y", "--starts", "1", "--kernel", "RBF()", "--json"]
    fitted = CliRunner().invoke(application, words, input=(folder / "table.csv").read_bytes())
    assert json.loads(fitted.stdout)["rows"] == 30
    words = ["update", str(folder / "m"), "-", "--out", str(tmp_path / "m"), "--json"]
    assert json.loads(CliRunner().invoke(application, words, input=table.read_bytes()).stdout)["rows_learned"] == 5


def test_a_table_in_another_encoding_with_comments(tmp_path: Path) -> None:
    x = np.linspace(0, 3, 12)
    text = "% von Hand\ngr\u00f6\u00dfe;y\n" + "".join(f"{a:.3f};{np.sin(a):.3f}\n" for a in x)
    (tmp_path / "t.csv").write_bytes(text.encode("latin-1"))
    common = ("fit", tmp_path / "t.csv", "--target", "y", "--starts", 1, "--out", tmp_path / "m", "--json")
    said = json.loads(run(*common, "--encoding", "latin-1", "--comment", "%").stdout)
    assert said["inputs"] == ["gr\u00f6\u00dfe"]
    assert "--encoding" in run(*common, "--comment", "%", code=2).stderr
    as_written = ("--encoding", "latin-1", "--comment", "%")
    run("predict", tmp_path / "m", tmp_path / "t.csv", "--out", tmp_path / "p.csv", *as_written)
    pyarrow.parquet.write_table(pyarrow.table({"x": x, "y": x}), tmp_path / "part-1.parquet")
    said = run("fit", tmp_path / "part-*.parquet", "-t", "y", "--encoding", "latin-1", code=2).stderr
    assert "`--encoding` is of text" in said


def test_an_interrupt_before_work_begins_is_one_sentence() -> None:
    """Ctrl-C comes while the version is written."""
    text = (
        "import io, signal, sys\n"
        "from flashgp.cli import process\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background jobs ignore it
        "class Interrupted(io.StringIO):\n"
        "    def write(self, text):\n"
        "        signal.raise_signal(signal.SIGINT)\n"
        "sys.argv, sys.stdout = ['flashgp', '--version'], Interrupted()\n"
        "process()\n"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "error: interrupted; nothing was written\n")


WHILE_TORCH_IS_IMPORTED = """
import runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Finder:
    def find_spec(self, name, *rest):
        if name == "torch":
            {how}
sys.meta_path.insert(0, Finder())
sys.argv = ["flashgp", "fit", "nowhere.csv"]
{entry}
"""


ENTRY = "from flashgp.cli import process; process()"
MODULE = "runpy.run_module('flashgp', run_name='__main__', alter_sys=True)"
SIGNAL = "signal.raise_signal(signal.SIGINT)"
CASES = [(ENTRY, SIGNAL, None), (MODULE, "raise KeyboardInterrupt", "0"), (MODULE, SIGNAL, "1")]


@pytest.mark.parametrize(("entry", "how", "rank"), CASES)
def test_an_interrupt_while_torch_is_imported_is_one_sentence(entry: str, how: str, rank: str | None) -> None:
    text = WHILE_TORCH_IS_IMPORTED.format(how=how, entry=entry)
    own = {"RANK": rank, "WORLD_SIZE": "2"} if rank is not None else {}
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, env=os.environ | own, check=False
    )
    said = "" if rank == "1" else "error: interrupted; nothing was written\n"
    assert (done.returncode, done.stderr) == (130, said)
