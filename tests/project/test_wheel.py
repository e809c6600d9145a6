"""The wheel that the README shows: built from the checkout, installed into a fresh environment, it shows itself."""

import csv
import math
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("typer")
pytest.importorskip("matplotlib")
pytest.importorskip("setuptools", "77", reason="the wheel is built with setuptools 77 or later")


from flashgp.cli.demo import NOISE, flats


@pytest.fixture(scope="module")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that the checkout stays as it is."""
    folder = tmp_path_factory.mktemp("wheel")
    (folder / "docs").mkdir()
    for name in ("pyproject.toml", "docs/package.md", "LICENSE"):
        shutil.copy(root / name, folder / name)
    shutil.copytree(root / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "-w", "dist", "."], cwd=folder, check=True)
    (built,) = (folder / "dist").glob("flashgp-*.whl")
    return built


def test_the_wheel_holds_the_library_alone(wheel: Path, root: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    sources = {
        str(path.relative_to(root / "src"))
        for path in (root / "src" / "flashgp").rglob("*")
        if path.is_file() and path.parent.name != "__pycache__"
    }
    assert names == sources


def test_the_page_of_a_package_index_leads_nowhere_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith("METADATA"))
        headers, _, page = archive.read(metadata).decode().partition("\n\n")
    assert "Description-Content-Type: text/markdown" in headers
    assert page.startswith("# FlashGP")
    assert re.findall(r"\]\((?!https?:)[^)]*\)", page) == []


def test_it_installs_into_a_fresh_environment_and_shows_itself(wheel: Path, root: Path, tmp_path: Path) -> None:
    fresh = tmp_path / "fresh"
    venv.create(fresh, with_pip=False, symlinks=True)
    scripts = fresh / ("Scripts" if os.name == "nt" else "bin")
    python = scripts / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, str(wheel)], check=True)
    # The packages that it requires are those of this environment, found after the fresh one's own.
    (packages,) = fresh.rglob("site-packages")
    (packages / "requirements.pth").write_text(sysconfig.get_path("purelib") + "\n")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    code = "import flashgp; print(flashgp.__file__)"
    said = subprocess.run(
        [python, "-c", code], env=environment, cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert Path(said.stdout.strip()).is_relative_to(fresh)
    command = [scripts / "flashgp", "demo", "there"]
    shown = subprocess.run(command, env=environment, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert "$ flashgp predict " in shown
    assert {path.name for path in (tmp_path / "there").iterdir()} == {
        "flats.csv", "model.safetensors", "new_flats.csv", "predictions.csv", "report.html",
    }  # fmt: skip
    with (tmp_path / "there" / "predictions.csv").open() as file:
        means = [float(row["mean"]) for row in csv.DictReader(file)]
    errors = [mean - float(row[-1]) for mean, row in zip(means, flats(12, 2), strict=True)]
    assert math.sqrt(sum(error**2 for error in errors) / 12) < 2.0 * NOISE
