"""The page: one file, nothing loaded, everything escaped, whole or not at all."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.page import Facts, Figure, Notes, Page, PageTable, Preformatted, Section, write_page

HOSTILE = "<script>alert(1)</script>\"' onload=x &amp; \x1b[2J \ud800"
VOID = {"meta"}
SVG = '<svg viewBox="0 0 9 9"><path d="M0 0L9 9"/></svg>'


class Reader(HTMLParser):
    """Checks that tags are balanced and collects them, their attributes and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def page(text: str = "x") -> Page:
    return Page(
        title=text,
        lead=text,
        highlights=[(text, text)],
        sections=[
            Section(
                text,
                [
                    Facts([(text, text)]),
                    Notes([text]),
                    Notes([text, text]),
                    Preformatted(text),
                    Figure(SVG, text),
                    Figure(SVG, text),
                    PageTable([text, text], [[text, text]], numeric=(1,)),
                ],
            )
        ],
        footer=text,
        verdict=text,
        findings=[text],
        glance=[Figure(SVG, text)],
    )


def test_hostile_text_stays_text_everywhere() -> None:
    plain, hostile = Reader(page().html()), Reader(page(HOSTILE).html())
    assert hostile.tags == plain.tags
    assert [name for name, _ in hostile.attributes] == [name for name, _ in plain.attributes]
    shown = "<script>alert(1)</script>\"' onload=x &amp; �[2J �"
    for read, text in ((plain, "x"), (hostile, shown)):
        assert [read.text.count(text), sum(value == text for _, value in read.attributes)] == [22, 0]


def test_nothing_is_loaded_or_run() -> None:
    read = Reader(page().html())
    assert "script" not in read.tags
    assert "link" not in read.tags
    text = page().html()
    assert "http://" not in text
    assert "https://" not in text
    assert not re.search(r"url\((?!#)", text)
    assert "@import" not in text
    assert all(value is not None and value.startswith("data:") for name, value in read.attributes if name == "src")
    assert any("default-src 'none'" in str(value) for _, value in read.attributes)


def test_rows_fit_the_head() -> None:
    with pytest.raises(ShapeError, match="must have 2 cells each"):
        PageTable(["a", "b"], [["1", "2"], ["1"]])


class Broken(Page):
    def html(self) -> str:
        raise ZeroDivisionError


def test_it_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_page(path, page(HOSTILE))
    assert path.read_text(encoding="utf-8") == page(HOSTILE).html()
    with pytest.raises(ZeroDivisionError):
        write_page(path, Broken("t", "l", [], []))
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
    assert "alert(1)" in path.read_text(encoding="utf-8")
    with pytest.raises(DomainError, match="must be a file that can be written"):
        write_page(tmp_path / "absent" / "report.html", page())
