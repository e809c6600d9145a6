"""Records: complete, plain, finite, and written whole or not at all."""

import math
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from flashgp.bench import read_record, records, write_record
from flashgp.foundations.errors import DomainError
from flashgp.foundations.events import Event, EventKind


def test_records_that_a_run_has_written_are_no_changes_of_its_code(tmp_path: Path) -> None:
    assert records.commit(tmp_path) is None, "the working directory's commit says nothing of another folder"
    code, record, program = "src/flashgp/__init__.py", "benchmark/records/a.json", "benchmark/claim.py"
    for name in (code, record, program):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1\n")

    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True)

    git("init", "-q")
    git("add", "benchmark")
    git("commit", "-qm", "somebody else's")
    assert records.commit(tmp_path) is None
    git("add", ".")
    git("commit", "-qm", "all")
    (tmp_path / record).write_text("2\n")
    assert str(records.commit(tmp_path)).isalnum()
    for name in (code, program):
        (tmp_path / name).write_text("2\n")
        assert str(records.commit(tmp_path)).endswith("+dirty")
        (tmp_path / name).write_text("1\n")


def test_a_record_comes_back_with_its_environment(tmp_path: Path) -> None:
    path = tmp_path / "new" / "record.json"
    payload = {
        "title": "é",
        "value": torch.tensor(1.5),
        "count": np.int64(3),
        "half": np.float32(0.5),
        "dtype": torch.float32,
        "sizes": (1, 2),
        "nothing": None,
        "events": (Event(EventKind.ROWS_JOINED, rows=12, distinct=7),),
        "met": True,
    }
    written = write_record(path, payload)
    assert read_record(path) == written
    assert {"hardware", "versions", "commit", "threads", "date", "schema"} <= written.keys()
    assert (written["value"], written["count"], written["half"]) == (1.5, 3, 0.5)
    assert written["events"] == [{"kind": "ROWS_JOINED", "fields": {"distinct": 7, "rows": 12}}]
    assert (written["dtype"], written["sizes"], written["met"]) == ("float32", [1, 2], True)
    assert write_record(path, {"threads": 99})["threads"] == 99, "what the payload says stands"
    assert os.listdir(path.parent) == ["record.json"]


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor(math.nan),
        object(),
    ],
)
def test_what_json_cannot_say_is_refused_and_the_old_record_stays(tmp_path: Path, value: object) -> None:
    path = tmp_path / "record.json"
    before = write_record(path, {"rows": []})
    with pytest.raises(DomainError, match=r"`payload\['rows'\]\[0\]\['x'\]` must be"):
        write_record(path, {"rows": [{"x": value}]})
    assert read_record(path) == before


@pytest.mark.parametrize("text", ['{"schema": "flashgp', "[]", "{}", '{"schema": "other/1"}'])
def test_a_foreign_or_broken_record_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "record.json"
    path.write_text(text)
    with pytest.raises(DomainError, match="`path` must be a benchmark record"):
        read_record(path)
