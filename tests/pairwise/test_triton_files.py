"""Generated source on disk: owner-only, written whole, repaired, and refused where it is not ours."""

import inspect
import os
import stat
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from flashgp.foundations.errors import FlashGPWarning
from flashgp.pairwise.triton import source_files

TEXT = "def answer():\n    return 42\n"
needs_owners = pytest.mark.skipif(not hasattr(os, "getuid"), reason="needs file owners")


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_files, "_MODULES", {})
    monkeypatch.setattr(source_files, "cache_directory", lambda: tmp_path / "cache" / "triton")
    source_files._fallback.cache_clear()


def test_a_module_has_a_file_and_its_source(tmp_path: Path) -> None:
    module = source_files.source_module(TEXT)
    assert module.answer() == 42
    assert inspect.getsource(module.answer) == TEXT
    files = list((tmp_path / "cache" / "triton").iterdir())
    assert [file.read_text() for file in files] == [TEXT], "no .pyc and no partial file is left"
    assert source_files.source_module(TEXT) is module
    assert source_files.source_module(TEXT + "\n") is not module


@needs_owners
def test_only_the_owner_may_enter(tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "triton"
    folder.mkdir(parents=True, mode=0o777)
    folder.chmod(0o777)
    source_files.source_module(TEXT)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_damaged_file_is_written_again(tmp_path: Path) -> None:
    source_files.source_module(TEXT)
    (file,) = (tmp_path / "cache" / "triton").iterdir()
    file.write_text("def answer():\n    return 13\n")
    source_files._MODULES.clear()
    assert source_files.source_module(TEXT).answer() == 42
    assert file.read_text() == TEXT


@needs_owners
@pytest.mark.parametrize("trouble", ["another owner", "a link", "a file"])
def test_a_directory_that_is_not_ours_is_not_used(
    trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cache" / "triton"
    folder.parent.mkdir()
    if trouble == "a link":
        (tmp_path / "elsewhere").mkdir()
        folder.symlink_to(tmp_path / "elsewhere")
    elif trouble == "a file":
        folder.write_text("")
    else:
        owner = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert source_files.source_module(TEXT).answer() == 42
        assert source_files.source_module(TEXT + "\n").answer() == 42
    (one,) = caught  # one warning, not one per file
    assert one.category is FlashGPWarning
    assert "must be writable and the user's own" in str(one.message)
    assert not (tmp_path / "elsewhere").exists() or not any((tmp_path / "elsewhere").iterdir())


def test_a_directory_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.warns(FlashGPWarning, match="Read-only file system"):
        assert source_files.source_module(TEXT).answer() == 42


def test_a_usable_directory_brings_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        source_files.source_module(TEXT)


def test_processes_at_once(tmp_path: Path, source_environment: dict[str, str]) -> None:
    code = (
        "from flashgp.pairwise.triton.source_files import source_module\n"
        f"assert source_module({TEXT * 200!r}).answer() == 42"
    )
    environment = {**source_environment, "XDG_CACHE_HOME": str(tmp_path), "PYTHONWARNINGS": "error::UserWarning"}
    environment["OMP_NUM_THREADS"] = "1"
    runs = [subprocess.Popen([sys.executable, "-c", code], env=environment) for _ in range(2)]
    assert [run.wait() for run in runs] == [0] * len(runs)
    (file,) = (tmp_path / "flashgp" / "triton").iterdir()
    assert file.read_text() == TEXT * 200
