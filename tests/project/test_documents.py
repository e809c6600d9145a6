"""Every code block of the README and of docs/ runs.

The blocks of one document share a namespace and run in order in a temporary folder beside the first rows
of the tables of data/:
```python blocks as Python, the lines of ```console and ```sh blocks that start with `flashgp` through the command
line's entry point (other lines, such as `make demo`, are for readers). `<!-- no-run: reason -->` before a block leaves
it out.
"""

import importlib.util
import random
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import tables

ROOT = Path(__file__).resolve().parents[2]
PAGES = [path for path in sorted((ROOT / "docs").rglob("*.md")) if "made" not in path.parts]  # made: by the site
DOCUMENTS = [path for path in [ROOT / "README.md", *PAGES] if path.exists()]
ROWS = 120
SCREENS, SCREEN = 2, (45, 110)  # a page of the tour, and a screen in lines and columns
PYTHON, SHELL = {"python", "py"}, {"console", "sh", "bash", "shell"}


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, the line its text starts on, why it is left out (None: it runs)."""

    language: str
    text: str
    line: int
    no_run: str | None


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a markdown text, in order. An unclosed fence is an error."""
    found: list[Block] = []
    fence, language, start, no_run = "", "", 0, None
    lines: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        opening = re.match(r"\s*(```+|~~~+)\s*([\w-]*)", line)
        if fence:
            if line.strip() == fence:
                found.append(Block(language, "\n".join(lines) + "\n", start, no_run))
                fence, no_run = "", None
            else:
                lines.append(line)
        elif opening:
            fence, language, start, lines = opening[1], opening[2].lower(), number + 1, []
        elif comment := re.fullmatch(r"\s*<!--\s*no-run:\s*(\S.*?)\s*-->\s*", line):
            no_run = comment[1]
        elif line.strip():
            no_run = None
    if fence:
        raise ValueError(f"the block that opens above line {start} is never closed")
    return found


def commands(block: Block) -> list[list[str]]:
    """The `flashgp` command lines of a shell block, as arguments; in a console block they follow a `$`."""
    text = block.text.replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines()]
    if block.language == "console":
        lines = [line[1:].strip() for line in lines if line.startswith("$")]
    return [shlex.split(line, comments=True)[1:] for line in lines if re.match(r"flashgp(\s|$)", line)]


def run_command(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the command line's entry point; any exit code but 0 is a failure."""
    from flashgp.cli.application import main  # the installed command calls it the same way, without arguments

    monkeypatch.setattr(sys, "argv", ["flashgp", *arguments])
    try:
        code = main()
    except SystemExit as stop:
        code = stop.code
    assert code in (None, 0), f"`flashgp {shlex.join(arguments)}` ended with {code}"


def run_document(text: str, name: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the blocks of a document in order; the number of pieces that ran."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    count = 0
    for block in blocks(text):
        if block.no_run is not None:
            continue
        if block.language in PYTHON:
            # Empty lines in front keep the document's line numbers in a traceback.
            exec(compile("\n" * (block.line - 1) + block.text, name, "exec"), namespace)
            count += 1
        elif block.language in SHELL:
            for arguments in commands(block):
                if importlib.util.find_spec("flashgp.cli") is None:
                    pytest.skip("flashgp.cli is not written yet")
                run_command(arguments, monkeypatch)
                count += 1
    return count


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Someone in an empty folder beside data/, whose plots open no window."""
    import numpy as np
    import torch

    (tmp_path / "data").mkdir()
    for path in (ROOT / "data").glob("*.csv"):  # the first rows only: a document shows that it runs
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        (tmp_path / "data" / path.name).write_text("".join(lines[:ROWS]), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  documents may use the legacy generator
    torch.manual_seed(0)
    return monkeypatch


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_document_runs(path: Path, reader: pytest.MonkeyPatch) -> None:
    run_document(path.read_text(encoding="utf-8"), str(path), reader)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_document_names_files_that_exist(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text(encoding="utf-8"))
    local = [target for target in targets if not re.match(r"[a-z]+:|made/", target)]  # made: by the site
    assert [target for target in local if not (path.parent / target).exists()] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_document_quotes_its_records(path: Path) -> None:
    assert tables.main([str(path), "--check"]) == 0, "`make tables` rewrites the tables from benchmark/records"


def shown_lines(text: str) -> int:
    """Lines of a text on a screen, long ones wrapped."""
    return sum(max(1, -(-len(line) // SCREEN[1])) for line in text.splitlines())


def test_pages_of_the_tour_are_short_and_in_its_index() -> None:
    pages = sorted((ROOT / "docs" / "tour").glob("*.md"))
    index = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
    assert [page.name for page in pages] == sorted(re.findall(r"\(tour/([\w-]+\.md)\)", index))
    texts = {page.name: page.read_text(encoding="utf-8") for page in pages} | {"tour.md": index}
    assert {name: n for name, text in texts.items() if (n := shown_lines(text)) > SCREENS * SCREEN[0]} == {}


def test_design_describes_files_that_are_there() -> None:
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    there = [f"/{path.relative_to(ROOT).as_posix()}" for top in ("src", "tests") for path in (ROOT / top).rglob("*.py")]
    folders = {path.rsplit("/", 1)[0] + "/" for path in there}
    described = re.findall(r"`([\w/]+(?:/|\.py))`", text)
    assert described
    assert [name for name in described if not any(path.endswith("/" + name) for path in (*there, *folders))] == []


def test_design_counts_the_lines_to_read_first() -> None:
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    section = text[text.index("## Files to read first") : text.index("## The one idea")]
    names = re.findall(r"^\| `([\w/]+\.py)`", section, re.MULTILINE)
    lines = sum(len((ROOT / "src" / "flashgp" / name).read_text(encoding="utf-8").splitlines()) for name in names)
    said = re.search(r"about ([\d,]+) lines", section)
    assert said
    assert int(said[1].replace(",", "")) == pytest.approx(lines, rel=0.1)


def test_a_failing_block_fails_with_its_line(reader: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError) as error:
        run_document("a\n\n```python\nvalue = 1\nvalue / 0\n```\n", "document.md", reader)
    place = error.tb
    while place.tb_next:
        place = place.tb_next
    assert (place.tb_frame.f_code.co_filename, place.tb_lineno) == ("document.md", 5)
    with pytest.raises(NameError):
        run_document("<!-- no-run: old -->\ntext\n```python\nmissing\n```\n", "document.md", reader)
    with pytest.raises(ValueError, match="never closed"):
        blocks("```python\n1\n")


def test_commands_are_found() -> None:
    text = "$ make demo\n$ flashgp fit a.csv \\\n    --target 'two words'  # why\nflashgp output\n"
    console = Block("console", text, 1, None)
    assert commands(console) == [["fit", "a.csv", "--target", "two words"]]
    shell = Block("sh", "pip install flashgp\nflashgp --version\n", 1, None)
    assert commands(shell) == [["--version"]]
