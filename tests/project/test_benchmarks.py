"""Every benchmark suite runs at toy size, without the peers it compares with."""

import importlib.util
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmark"
SUITES = sorted([*BENCHMARK.glob("suite_*.py"), *BENCHMARK.glob("claim_*.py")])


@pytest.mark.skipif(not SUITES, reason="no benchmark suite is written yet")
@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
def test_suite_runs_at_toy_size(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(BENCHMARK))  # a suite is run as a script, beside what it shares with the others
    before = {record: record.stat().st_mtime_ns for record in BENCHMARK.rglob("*.json")}
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    suite = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(suite)
    assert suite.main(["--toy"]) in (None, 0)
    after = {record: record.stat().st_mtime_ns for record in BENCHMARK.rglob("*.json")}
    assert after == before, "a toy run is no record"
