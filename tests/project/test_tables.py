"""Tables in documents equal the records, or the check fails."""

from pathlib import Path

import pytest
import tables

from flashgp.bench import write_record

RECORD = {
    "title": "Claims",
    "columns": [
        *tables.CLAIM_COLUMNS,
        {"key": "share", "title": "share|part", "format": "percent"},
        {"key": "met"},
    ],
    "rows": [
        {
            "work": "fit | n=50",
            "against": "peer",
            "ours_seconds": 0.00123,
            "peer_seconds": 2.5,
            "ratio": 4.09,
            "target": 4,
            "error": 3.14e-9,
            "peak_bytes": 3 << 20,
            "share": 0.125,
            "met": True,
        },
        {"work": "predict", "target": "under 1 GiB", "peak_bytes": 0, "error": 0.0, "met": False},
    ],
    "hardware": {"cpu": "A chip", "cores": 2, "gpus": [{"name": "A card"}]},
    "versions": {"torch": "2.13.0"},
    "commit": "0123456789abcdef",
    "threads": 2,
    "date": "2026-01-02T03:04:05+00:00",
}
TABLE = """\
| work | against | FlashGP | peer | times faster | at least | error | peak memory | share\\|part | met |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |
| fit \\| n=50 | peer | 1.23 ms | 2.50 s | 4.09x | 4.00x | 3.1e-09 | 3.0 MiB | 12.5 % | yes |
| predict | - | - | - | - | under 1 GiB | 0 | 0 B | - | no |

*Measured on A chip, 2 cores, 2 threads, A card, torch 2.13.0, commit 0123456789, 2026-01-02, record `claims.json`.*"""


@pytest.fixture
def document(tmp_path: Path) -> Path:
    write_record(tmp_path / "benchmark" / "records" / "claims.json", RECORD)
    path = tmp_path / "docs" / "page.md"
    path.parent.mkdir()
    path.write_text(
        "before\n\n<!-- table:claims -->\nold\n<!-- /table:claims -->\n\nafter\n"
        "```\n<!-- table:example -->\n```\n    text <!-- table:example --> in a line\n"
    )
    return path


def test_a_record_becomes_a_table() -> None:
    assert tables.markdown_table(RECORD, source="claims.json") == TABLE


def test_the_document_is_rewritten_between_its_markers_only(document: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = document.read_text()
    assert tables.main([str(document), "--check"]) == 1
    assert "differs from its records" in capsys.readouterr().err
    assert document.read_text() == before
    assert tables.main([str(document)]) == 0
    assert document.read_text() == before.replace("old", TABLE)
    assert tables.main([str(document), "--check"]) == 0
    assert tables.main([str(document)]) == 0
    assert "rewritten" in capsys.readouterr().out.splitlines()[0]
