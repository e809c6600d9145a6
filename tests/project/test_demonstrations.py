"""The demonstrations run at small sizes, write their pictures and show what they are for."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("matplotlib")


def example(root: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, root / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_streams(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demo = example(root, "stream_demo")
    demo.main(["--rows", "420", "--out", str(tmp_path)])
    said = capsys.readouterr().out
    assert said.count("220 rows: RMSE") == 2
    assert (tmp_path / "stream.png").stat().st_size > 20_000


def test_learning_halves_the_error_at_least(root: Path, tmp_path: Path) -> None:
    """Latency is not judged here: the machine is shared with other tests."""
    found = example(root, "control_demo").main(["--seconds", "6", "--out", str(tmp_path)])
    assert found["steps"] == 600
    assert found["learned"] < 0.5 * found["alone"]
    assert (tmp_path / "control.png").stat().st_size > 10_000
