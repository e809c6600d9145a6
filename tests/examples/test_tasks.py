"""Each task in examples/tasks/ runs as it stands, is short, and has its line on the page of tasks."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TASKS = sorted((ROOT / "examples" / "tasks").glob("*.*"))
LONGEST = 30  # lines


def title(path: Path) -> str:
    first = path.read_text(encoding="utf-8").splitlines()[0]
    return first.strip('"# ').removesuffix(".")


@pytest.mark.parametrize("path", [path for path in TASKS if path.suffix == ".py"], ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore")
def test_a_task_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("name", ["command_line.sh"])
def test_commands_run(name: str, tmp_path: Path) -> None:
    script = ROOT / "examples" / "tasks" / name
    folder = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "intervals hold" in done.stdout
    assert (tmp_path / "predictions.csv").read_text().startswith("hour,")


def test_tasks_are_short_and_listed() -> None:
    page = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"\[([^\]]*)\]\(\.\./examples/tasks/([\w.]+)\)", page))
    assert {name: text for text, name in listed.items()} == {path.name: title(path) for path in TASKS}
    assert [path.name for path in TASKS if len(path.read_text().splitlines()) >= LONGEST] == []
    assert "(docs/tasks.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
