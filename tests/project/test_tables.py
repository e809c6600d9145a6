"""Tables in documents equal the records, or the check fails."""

from pathlib import Path

import pytest
import tables

from flashgp.bench import write_record
from flashgp.bench.results import format_error, format_ratio, format_seconds

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


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"commit": "0123456789abcdef+dirty"}, "commit 0123456789 (with changes), 2026"),
        ({"threads": 1}, "2 cores, 1 thread, A card"),
        ({"threads": 2}, "2 cores, 2 threads, A card"),
        ({"threads": None, "cells": {"a": {"threads": None}}}, "2 cores, A card"),
        ({"threads": 2, "cells": {"a": {"threads": 1}, "b": {"threads": 1}}}, "2 cores, 1 thread, A card"),
        ({"threads": 2, "cells": {"a": {"threads": 1}, "b": {"threads": 2}}}, "2 cores, A card"),
        ({"threads": 2, "cells": [{"n": 10}]}, "2 cores, 2 threads, A card"),
        (
            {
                "commit": "several",
                "cells": {
                    "a": {"commit": "b123456789abcdef"},
                    "b": {"commit": "a123456789abcdef"},
                    "c": {"commit": "b123456789abcdef+dirty"},
                    "d": {"commit": None},
                },
            },
            "commits a123456789, b123456789 (with changes), 2026",
        ),
    ],
)
def test_the_caption_says_what_was_measured(change: dict[str, object], said: str) -> None:
    assert said in tables.markdown_table({**RECORD, **change}).splitlines()[-1]


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- table:claims -->\n", "must be closed"),
        ("x\n<!-- /table:claims -->\n", "on line 2 must pair"),
        ("<!-- table:claims -->\n<!-- /table:other -->\n", "table:claims open since line 1"),
        ("<!-- table:claims -->\n<!-- table:claims -->\n", "on line 2 must pair"),
        ("<!-- table:other -->\n<!-- /table:other -->\n", "other.json does not exist"),
    ],
)
def test_markers_that_do_not_pair(document: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    document.write_text(text)
    assert tables.main([str(document)]) == 1
    assert message in capsys.readouterr().err
    assert document.read_text() == text


def test_numbers_as_people_read_them() -> None:
    assert [format_seconds(s) for s in (None, 0.0, 1e-12, 2.5e-8, 9.994e-4, 0.0123, 123.4)] == [
        "-", "0 s", "1.0e-12 s", "25.0 ns", "999 µs", "12.3 ms", "123 s",
    ]  # fmt: skip
    assert [format_ratio(r) for r in (None, 0.5, 12.34, 456.7)] == ["-", "0.50x", "12.3x", "457x"]
    assert [format_error(e) for e in (None, 0.0, 1.26e-9)] == ["-", "0", "1.3e-09"]
