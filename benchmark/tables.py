"""Tables in documents, generated from records, so that a claim cannot drift from what was measured.

A document holds, each on a line of its own and outside code fences,

    <!-- table:NAME -->
    <!-- /table:NAME -->

and what stands between them is rewritten from the record `NAME.json`, which has

- `title`: text; `rows`: a list of objects; any further keys (hardware, versions, commit, threads, date: see `records`),
  and `cells`, whose own commits and threads go before the record's in the line below the table;
- `columns`: a list whose entries are a key of the rows, or an object `{"key", "title", "format"}`, with format one of
  text, integer, seconds, bytes, ratio, error, percent, fixed2, fixed4. Without a format the key decides: `*_seconds`,
  `*_bytes`, `ratio` and `target`, `*error`.

`python benchmark/tables.py README.md` rewrites the document; with `--check` it changes nothing and fails if the
document differs from its records.
"""

import argparse
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headlines import headline_record

from flashgp.bench import Comparison
from flashgp.bench.records import read_record
from flashgp.bench.results import format_error, format_ratio, format_seconds
from flashgp.foundations.errors import DomainError, FlashGPError
from flashgp.foundations.quantities import readable_bytes

__all__ = ["CLAIM_COLUMNS", "claim_row", "main", "markdown_table", "render_document"]

# Columns of a table of rows made by `claim_row`.
CLAIM_COLUMNS: tuple[dict[str, str], ...] = (
    {"key": "work", "title": "work"},
    {"key": "against", "title": "against"},
    {"key": "ours_seconds", "title": "FlashGP"},
    {"key": "peer_seconds", "title": "peer"},
    {"key": "ratio", "title": "times faster"},
    {"key": "target", "title": "at least"},
    {"key": "error", "title": "error"},
    {"key": "peak_bytes", "title": "peak memory"},
)

COMMIT_LETTERS = 10  # of a commit, below a table

_OPEN = re.compile(r"<!-- table:([\w.-]+) -->")
_CLOSE = re.compile(r"<!-- /table:([\w.-]+) -->")
_FORMATS: dict[str, Callable[[Any], str]] = {
    "text": str,
    "integer": lambda value: f"{value:,.0f}",
    "seconds": format_seconds,
    "bytes": readable_bytes,
    "ratio": format_ratio,
    "error": format_error,
    "percent": lambda value: f"{100 * value:.1f} %",
    "fixed2": lambda value: f"{value:.2f}",
    "fixed4": lambda value: f"{value:.4f}",
}


def claim_row(
    comparison: Comparison, *, work: str, against: str, ours: str, peer: str, target: float | None = None
) -> dict[str, Any]:
    """One row of a claims record: `ours` and `peer` name candidates, `ratio` is how many times faster ours is.

    Raises: DomainError if either was refused, since then nothing can be claimed.
    """
    mine, theirs = comparison[ours], comparison[peer]
    for argument, candidate in (("ours", mine), ("peer", theirs)):
        if candidate.seconds is None:
            raise DomainError(
                f"`{argument}` must be an accepted candidate, got {candidate.name!r}, refused because it "
                f"{candidate.reason}; correct the candidate before claiming anything"
            )
    assert mine.seconds is not None
    assert theirs.seconds is not None
    ratio = theirs.seconds / mine.seconds
    return {
        "work": work,
        "against": against,
        "ours_seconds": mine.seconds,
        "ours_spread_seconds": mine.spread,
        "peer_seconds": theirs.seconds,
        "peer_spread_seconds": theirs.spread,
        "ratio": ratio,
        "target": target,
        "met": None if target is None else ratio >= target,
        "error": mine.error,
        "peer_error": theirs.error,
        "peak_bytes": mine.peak_bytes,
        "peer_peak_bytes": theirs.peak_bytes,
        **{key: comparison.settings[key] for key in ("tolerance", "seed", "repeats", "inputs")},
    }


def markdown_table(record: Mapping[str, Any], *, source: str | None = None) -> str:
    """A record as a Markdown table, with a line below it that says on what and when it was measured.

    Args:
        record: with `columns` and `rows`, as the module describes. A row without a column's key, or with None there,
            gets a dash.
        source: name of the record's file, quoted below the table.
    Raises: DomainError if `columns` or `rows` is missing, empty, or of another form.
    """
    columns = [_column(entry) for entry in _listed(record, "columns")]
    lines = ["| " + " | ".join(_cell(title) for _, title, _ in columns) + " |"]
    lines.append("| " + " | ".join("---" if form == "text" else "---:" for _, _, form in columns) + " |")
    for row in _listed(record, "rows"):
        if not isinstance(row, Mapping):
            raise DomainError(f"`rows` must hold objects, got {row!r}; write one object with a key for each column")
        cells = [_cell(_formatted(row.get(key), key, form)) for key, _, form in columns]
        lines.append("| " + " | ".join(cells) + " |")
    origin = _origin(record, source)
    return "\n".join([*lines, "", origin] if origin else lines)


def render_document(text: str, records: str | os.PathLike[str]) -> str:
    """The document with every marked table made anew from the records in that folder, `headlines` from several.

    Raises: DomainError if markers do not pair, or a record is missing or unusable; it names the line and the file.
    """
    result: list[str] = []
    opened: tuple[str, int] | None = None
    fence: str | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        opening, closing = _OPEN.fullmatch(stripped), _CLOSE.fullmatch(stripped)
        if opened is None:
            if stripped.startswith(("```", "~~~")):
                fence = None if fence == stripped[:3] else fence or stripped[:3]
            if fence is not None or not (opening or closing):
                result.append(line)
                continue
        if opening and opened is None:
            opened = (opening[1], number)
            path = Path(records) / f"{opening[1]}.json"
            if opening[1] == "headlines":
                table = markdown_table(headline_record(Path(records)))
                result += [line, table, line.replace("table:", "/table:", 1)]
                continue
            if not path.is_file():
                raise DomainError(
                    f"`table:{opening[1]}` on line {number} must have a record, but {path} does not exist; "
                    "run its benchmark, or correct the name"
                )
            result += [line, markdown_table(read_record(path), source=path.name), line.replace("table:", "/table:", 1)]
        elif closing and opened is not None and closing[1] == opened[0]:
            opened = None
        elif opening or closing:
            found = "none open" if opened is None else f"table:{opened[0]} open since line {opened[1]}"
            raise DomainError(
                f"`{stripped}` on line {number} must pair with an opening marker of the same name, got {found}; "
                "correct the markers"
            )
    if opened is not None:
        raise DomainError(
            f"`table:{opened[0]}` on line {opened[1]} must be closed, but the document ends; "
            f"add `<!-- /table:{opened[0]} -->`"
        )
    return "\n".join(result) + ("\n" if text.endswith("\n") else "")


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite or check documents; returns the exit code: 0 done or equal, 1 different or failed (2 bad usage)."""
    parser = argparse.ArgumentParser(
        prog="python benchmark/tables.py", description="Rewrite the tables of documents from benchmark records."
    )
    parser.add_argument("documents", nargs="+", type=Path, metavar="DOCUMENT")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a document differs")
    parser.add_argument(
        "--records", type=Path, help="folder of the records (default: benchmark/records beside or above the document)"
    )
    options = parser.parse_args(arguments)
    failed = False
    for document in options.documents:
        try:
            before = document.read_bytes().decode("utf-8")
            after = render_document(before.replace("\r\n", "\n"), options.records or _records_folder(document))
        except (FlashGPError, OSError, UnicodeDecodeError) as error:
            sys.stderr.write(f"{document}: {error}\n")
            failed = True
            continue
        if after == before.replace("\r\n", "\n"):
            continue
        if options.check:
            sys.stderr.write(f"{document}: differs from its records; run python benchmark/tables.py {document}\n")
            failed = True
        else:
            document.write_text(after, encoding="utf-8", newline="\n")
            sys.stdout.write(f"{document}: rewritten\n")
    return 1 if failed else 0


def _records_folder(document: Path) -> Path:
    for folder in document.resolve().parents:
        if (folder / "benchmark" / "records").is_dir():
            return folder / "benchmark" / "records"
    return document.resolve().parent / "benchmark" / "records"


def _listed(record: Mapping[str, Any], key: str) -> list[Any]:
    entries = record.get(key)
    if not isinstance(entries, list | tuple) or not entries:
        raise DomainError(f"`{key}` of a record must be a list with entries, got {entries!r}; add it to the record")
    return list(entries)


def _column(entry: Any) -> tuple[str, str, str]:
    column = {"key": entry} if isinstance(entry, str) else entry
    if not isinstance(column, Mapping) or "key" not in column or not set(column) <= {"key", "title", "format"}:
        raise DomainError(f"`columns` must hold keys or objects with key, title and format, got {entry!r}; correct it")
    key = str(column["key"])
    form = str(column.get("format", _format_of(key)))
    if form not in _FORMATS:
        raise DomainError(f"`format` of column {key!r} must be one of {', '.join(_FORMATS)}, got {form!r}; correct it")
    return key, str(column.get("title", key.replace("_", " "))), form


def _format_of(key: str) -> str:
    if key in ("ratio", "target"):
        return "ratio"
    for ending in ("seconds", "bytes", "error"):
        if key == ending or key.endswith("_" + ending):
            return ending
    return "text"


def _formatted(value: Any, key: str, form: str) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    # A target or a bound may be said in words ("under 1 GiB") in a column of numbers.
    if isinstance(value, str):
        return value
    try:
        return _FORMATS[form](value)
    except (TypeError, ValueError) as error:
        raise DomainError(
            f"`{key}` must be a number to be written as {form}, got {value!r}; correct the row"
        ) from error


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _said(record: Mapping[str, Any], key: str) -> list[Any]:
    """What the cells of a record say, each of them once; what the record says where they say nothing."""
    cells = record.get("cells")
    entries = cells.values() if isinstance(cells, Mapping) else cells or ()
    values = dict.fromkeys(entry[key] for entry in entries if isinstance(entry, Mapping) and entry.get(key))
    return list(values) or ([record[key]] if record.get(key) else [])


def _origin(record: Mapping[str, Any], source: str | None) -> str:
    hardware, versions = record.get("hardware") or {}, record.get("versions") or {}
    gpus = [str(gpu.get("name")) for gpu in hardware.get("gpus") or []]
    parts = [str(hardware["cpu"])] if hardware.get("cpu") else []
    parts += [f"{hardware['cores']} cores"] if hardware.get("cores") else []
    threads = _said(record, "threads")
    if len(threads) == 1:
        parts += [f"{threads[0]} thread{'' if threads[0] == 1 else 's'}"]
    parts += gpus
    parts += [f"{name} {version}" for name, version in versions.items()]
    commits = [str(commit) for commit in _said(record, "commit")]
    short = sorted({commit[:COMMIT_LETTERS] for commit in commits})
    changed = {commit[:COMMIT_LETTERS] for commit in commits if commit.endswith("+dirty")}
    named = ", ".join(commit + (" (with changes)" if commit in changed else "") for commit in short)
    parts += [f"commit{'s' if len(short) > 1 else ''} {named}"] if short else []
    parts += [str(record["date"])[:10]] if record.get("date") else []
    parts += [f"record `{source}`"] if source else []
    return f"*Measured on {', '.join(parts)}.*" if parts else ""


if __name__ == "__main__":
    raise SystemExit(main())
