"""A self-contained HTML page: headings, notes, tables and figures in one file, for screens, dark screens and paper.

No script, no request to anywhere: styles are inline, figures are SVG in the page itself, in its colours. Every text is
escaped where it enters the page, so that names from a table cannot become markup. What a page says is its caller's
matter.
"""

import html
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flashgp import drawing
from flashgp.foundations.atomic import replacing
from flashgp.foundations.errors import DomainError, ShapeError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Facts:
    """Names with values, one pair a line."""

    pairs: Sequence[tuple[str, str]]

    def markup(self) -> str:
        rows = "".join(
            f'<tr><th scope="row">{_text(name)}</th><td>{_text(value)}</td></tr>' for name, value in self.pairs
        )
        return f'<div class="wide"><table class="facts"><tbody>{rows}</tbody></table></div>'


@dataclass(frozen=True)
class Notes:
    """Sentences, as a list; a single one as a paragraph."""

    sentences: Sequence[str]

    def markup(self) -> str:
        if len(self.sentences) == 1:
            return f"<p>{_text(self.sentences[0])}</p>"
        return "<ul>" + "".join(f"<li>{_text(sentence)}</li>" for sentence in self.sentences) + "</ul>"


@dataclass(frozen=True)
class Preformatted:
    """Text kept as it is, such as a command."""

    text: str

    def markup(self) -> str:
        return f"<pre>{_text(self.text)}</pre>"


@dataclass(frozen=True)
class PageTable:
    """A table with a head; columns named in `numeric` (from 0) are set to the right."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: Sequence[int] = ()

    def __post_init__(self) -> None:
        wrong = next((row for row in self.rows if len(row) != len(self.head)), None)
        if wrong is not None:
            raise ShapeError(
                f"`rows` must have {len(self.head)} cells each, like `head`, got {len(wrong)}; fill them in"
            )

    def markup(self) -> str:
        def cells(tag: str, row: Sequence[str]) -> str:
            return "".join(
                f"<{tag}{' class=number' if j in self.numeric else ''}>{_text(cell)}</{tag}>"
                for j, cell in enumerate(row)
            )

        body = "".join(f"<tr>{cells('td', row)}</tr>" for row in self.rows)
        head = f"<thead><tr>{cells('th', self.head)}</tr></thead>"
        return f'<div class="wide"><table>{head}<tbody>{body}</tbody></table></div>'


@dataclass(frozen=True)
class Figure:
    """A picture with a caption, which is also what is read aloud. `svg` is its element."""

    svg: str
    caption: str

    @staticmethod
    def of(ax: "Axes", caption: str) -> "Figure":
        """Draw the figure of some axes. Needs matplotlib, which made the axes."""
        return Figure(drawing.svg(ax, caption), caption)

    def markup(self) -> str:
        return f"<figure>{self.svg}<figcaption>{_text(self.caption)}</figcaption></figure>"


Part = Facts | Notes | Preformatted | PageTable | Figure


def _markup(parts: Sequence[Part]) -> str:
    """Parts below each other, figures beside each other where there is room."""
    blocks: list[str] = []
    figures: list[str] = []
    for part in parts:
        if isinstance(part, Figure):
            figures.append(part.markup())
            continue
        blocks.extend(_grid(figures))
        blocks.append(part.markup())
    blocks.extend(_grid(figures))
    return "".join(blocks)


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it; figures beside each other where there is room."""

    title: str
    parts: Sequence[Part]

    def markup(self) -> str:
        return f"<section><h2>{_text(self.title)}</h2>{_markup(self.parts)}</section>"


@dataclass(frozen=True)
class Page:
    """A page.

    Fields: title; lead, a sentence under it; highlights, (value, name) pairs set large; sections; footer; verdict, the
    sentence that a reader takes along; findings, sentences under it; glance, what stands before all sections.
    """

    title: str
    lead: str
    highlights: Sequence[tuple[str, str]]
    sections: Sequence[Section]
    footer: str = ""
    verdict: str = ""
    findings: Sequence[str] = ()
    glance: Sequence[Part] = ()

    def html(self) -> str:
        """The whole file as text."""
        style = drawing.theme() + Path(__file__).with_name("page.css").read_text(encoding="utf-8")
        large = "".join(
            f"<div><strong>{_text(value)}</strong><span>{_text(name)}</span></div>" for value, name in self.highlights
        )
        return (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            # Nothing may be loaded or run, whatever a browser finds in the page.
            '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
            "style-src 'unsafe-inline'\">\n"
            f"<title>{_text(self.title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
            f"<header><h1>{_text(self.title)}</h1><p>{_text(self.lead)}</p></header>\n"
            + (f'<p class="verdict">{_text(self.verdict)}</p>\n' if self.verdict else "")
            + (f'<div class="findings">{Notes(self.findings).markup()}</div>\n' if self.findings else "")
            + (f'<div class="highlights">{large}</div>\n' if large else "")
            + _markup(self.glance)
            + "\n".join(section.markup() for section in self.sections)
            + f"\n<footer>{_text(self.footer)}</footer>\n</main>\n</body>\n</html>\n"
        )


def write_page(path: str | os.PathLike[str], page: Page) -> None:
    """Write a page, whole or not at all.

    Raises: DomainError for a file that cannot be written; nothing is left behind.
    """
    try:
        with replacing(path) as file:
            file.write(page.html().encode())
    except OSError as error:
        raise DomainError(
            f"`path` must be a file that can be written, got {os.fspath(path)!r} ({error.strerror or error}); "
            "choose an existing folder where you may write"
        ) from None


def _text(text: str) -> str:
    """Escaped for content and attributes; what cannot be shown or encoded becomes a mark."""
    shown = "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)
    return html.escape(shown.encode("utf-8", "replace").decode("utf-8"), quote=True)


def _grid(figures: list[str]) -> list[str]:
    """The figures gathered so far as one block, three beside each other where they fill rows; empties the list."""
    kind = "figures three" if len(figures) % 3 == 0 else "figures"
    block = [f'<div class="{kind}">{"".join(figures)}</div>'] if figures else []
    figures.clear()
    return block
