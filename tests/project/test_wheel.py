"""The wheel that the README shows: built from the checkout, installed into a fresh environment, it fits a table."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("setuptools", "77", reason="the wheel is built with setuptools 77 or later")


@pytest.fixture(scope="module")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that the checkout stays as it is."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
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


def test_it_installs_into_a_fresh_environment_and_fits_a_table(wheel: Path, root: Path, tmp_path: Path) -> None:
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
    table = "\n".join(f"{n / 9},{(n % 7) / 7},{n * n / 900}" for n in range(30))
    (tmp_path / "rows.csv").write_text(f"a,b,y\n{table}\n")
    command = [scripts / "flashgp", "fit", "rows.csv", "--target", "y", "--out", "model.safetensors"]
    subprocess.run(command, env=environment, cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "model.safetensors").stat().st_size > 0
