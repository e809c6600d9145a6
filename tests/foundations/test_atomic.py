"""Files are written whole or not at all, also where the process is killed in the middle."""

import os
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from flashgp.foundations.atomic import replacing, write_whole


def test_the_new_content_or_the_old(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, b"old")
    with pytest.raises(KeyboardInterrupt), replacing(path) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old"
    with replacing(path) as file:
        file.write(b"new")
        file.seek(0)
        assert file.read() == b"new"
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert [*tmp_path.iterdir()] == [path]


def test_links_folders_and_permissions(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    link.symlink_to(target)
    write_whole(link, b"content", mode=0o600)
    assert link.is_symlink()
    assert target.read_bytes() == b"content"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path, b"")
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "absent" / "file", b"")
    write_whole(tmp_path / ("n" * 200), b"a long name")
    assert len([*tmp_path.iterdir()]) == 3


@pytest.mark.parametrize("name", ["n" * 255, "\N{HIRAGANA LETTER A}" * 85], ids=["letters", "three bytes each"])
def test_every_name_that_the_system_takes(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.touch()
    write_whole(path, b"content")
    assert path.read_bytes() == b"content"


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="permissions are those of POSIX")
def test_a_folder_that_cannot_be_read() -> None:
    """Writing and entering are enough, also for who is not root."""
    me = os.geteuid()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if me == 0:
            os.chown(folder, 65534, -1)
        folder.chmod(0o300)
        try:
            if me == 0:
                os.seteuid(65534)
            write_whole(folder / "file", b"content")
            assert (folder / "file").read_bytes() == b"content"
        finally:
            os.seteuid(me)
            folder.chmod(0o700)


def test_an_error_while_renaming_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*paths: str) -> None:
        raise PermissionError("made up")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(PermissionError, match="made up"):
        write_whole(tmp_path / "file", b"content")
    assert not [*tmp_path.iterdir()]


def test_a_killed_process_leaves_the_old_file(tmp_path: Path, source_environment: dict[str, str]) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    program = (
        "import sys, time\nfrom flashgp.foundations.atomic import replacing\n"
        "with replacing(sys.argv[1]) as file:\n"
        "    file.write(b'half'); file.flush(); print('written', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True, env=source_environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    assert path.read_bytes() == b"old"
