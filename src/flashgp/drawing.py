"""Figures of matplotlib as SVG for a page: its colours are variables of the page, its text stays text.

A drawing in one of `COLOURS` follows the page between light and dark; the text takes the font of the page. What a page
does with it is `flashgp.page`'s matter.
"""

import hashlib
import io
import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours of lines and areas are Okabe & Ito's (2008), told apart with any colour vision.
BLUE, VERMILLION, GREEN, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#E69F00", "#56B4E9"
INK, GREY, GRID, PAPER = "#222222", "#6b6b6b", "#e4e4e4", "#ffffff"
# Variable of the page for each colour of a drawing, and its value on dark paper; None where the page has it for itself.
COLOURS: dict[str, tuple[str, str | None]] = {
    BLUE: ("blue", "#4aa8e8"),
    VERMILLION: ("vermillion", "#f08a4b"),
    GREEN: ("green", "#33c296"),
    ORANGE: ("orange", "#f2b84b"),
    SKY: ("sky", "#8fd0f7"),
    INK: ("ink", None),
    GREY: ("quiet", None),
    GRID: ("line", None),
    PAPER: ("paper", None),
}
PAGE_SIZE = (4.0, 3.0)  # inches: its text can still be read on a telephone
_PNG_DPI = 192  # twice the resolution of a screen
_DOTS_DPI = 144  # of dots that are drawn as an image
_DIGITS = 1  # of a coordinate, in points
_VARIABLES = {colour.lower(): f"var(--{name})" for colour, (name, _) in COLOURS.items()} | {"#000000": "var(--ink)"}
_NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
_WITHOUT_VALUE = re.compile("[^\\x09\\x0a\\x0d\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")  # in XML 1.0
_REFERENCE = re.compile(r"#([\w.-]+)")
_COORDINATES = ("d", "x", "y", "width", "height", "points", "transform")
_DEFAULTS = frozenset({"stroke-linejoin: miter", "stroke-linejoin: round", "stroke-linecap: butt", "stroke-width: 1"})


def theme() -> str:
    """Style sheet with the variables of `COLOURS` that a page has not for itself, on light and on dark paper."""
    light = " ".join(f"--{name}: {colour};" for colour, (name, dark) in COLOURS.items() if dark)
    dark = " ".join(f"--{name}: {dark};" for name, dark in COLOURS.values() if dark)
    return f":root {{ {light} }}\n@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"


def png(ax: "Axes") -> bytes:
    """The figure of some axes as an image. Without matplotlib's version in it: equal figures give equal bytes."""
    stream = io.BytesIO()
    _figure(ax).savefig(stream, format="png", dpi=_PNG_DPI, metadata={"Software": None})
    return stream.getvalue()


def svg(ax: "Axes", label: str) -> str:
    """The figure of some axes as an <svg> element for HTML. Args: label, read aloud. Equal figures give equal text."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    stream = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure = _figure(ax)
    if (layout := figure.get_layout_engine()) is not None:  # once, where drawing would lay out in a pass of its own
        layout.execute(figure)
        figure.set_layout_engine("none")
    canvas, dpi, papers = figure.canvas, figure.dpi, [figure.patch, *(one.patch for one in figure.axes)]
    for paper in papers:
        paper.set_visible(False)
    figure.dpi = _DOTS_DPI
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "flashgp", "path.simplify_threshold": 0.3}):
        FigureCanvasSVG(figure).print_svg(stream, metadata=nothing)  # savefig would draw twice
    figure.dpi = dpi
    figure.set_canvas(canvas)
    for paper in papers:
        paper.set_visible(True)
    text = _WITHOUT_VALUE.sub("�", stream.getvalue())
    mark = hashlib.sha256(text.encode()).hexdigest()[:8]
    drawn = ElementTree.fromstring(text)
    used = set(_REFERENCE.findall(" ".join(v for e in drawn.iter() for k, v in e.attrib.items() if _refers(k, v))))
    found = _element(drawn, used, mark)
    found.attrib = {"viewBox": drawn.attrib["viewBox"], "role": "img", "aria-label": _WITHOUT_VALUE.sub("�", label)}
    return ElementTree.tostring(found, encoding="unicode")


def _figure(ax: "Axes") -> "Figure":
    from matplotlib.figure import Figure

    assert isinstance(ax.figure, Figure)
    return ax.figure


def _refers(name: str, value: str) -> bool:
    return name.endswith("href") or "url(#" in value


def _element(drawn: ElementTree.Element, used: set[str], mark: str) -> ElementTree.Element:
    """The element in the words of HTML and of the page: no namespaces, ids alone that are referred to, each with the
    mark of its figure, short numbers; groups that say nothing are gone, and what all members say stands once."""
    tag = drawn.tag.rpartition("}")[2]
    attributes: dict[str, str] = {}
    for name, value in drawn.attrib.items():
        name = name.rpartition("}")[2]
        if name == "id":
            if value in used:
                attributes["id"] = f"{mark}{value}"
        elif name == "style":
            if style := _style(value):
                attributes["style"] = style
        elif name == "transform" and value.startswith("rotate(-0 "):
            continue
        elif _refers(name, value) and not value.startswith("data:"):
            attributes[name] = _REFERENCE.sub(lambda found: f"#{mark}{found[1]}", value)
        else:
            attributes[name] = _shortened(value) if name in _COORDINATES else value
    found = ElementTree.Element(tag, attributes)
    found.text = drawn.text if tag in ("text", "tspan") else None
    for child in drawn:
        if child.tag.rpartition("}")[2] in ("metadata", "style"):
            continue
        _add(found, _element(child, used, mark))
    _share_style(found)
    return found


def _add(parent: ElementTree.Element, child: ElementTree.Element) -> None:
    """Append a child: an empty one not, members of a group without attributes instead of it, and those of a group like
    the last one to that."""
    empty = child.tag in ("g", "defs") and not len(child)
    nothing = child.tag == "path" and child.get("style") == "fill: none" and "id" not in child.attrib
    if empty or nothing:
        return
    if child.tag == "g" and not child.attrib:
        for member in list(child):
            _add(parent, member)
        return
    last = parent[-1] if len(parent) else None
    if child.tag == "g" and last is not None and last.tag == "g" and last.attrib == child.attrib:
        last.extend(list(child))
        return
    parent.append(child)


def _share_style(group: ElementTree.Element) -> None:
    """The style that all members of a group have becomes that of the group."""
    if group.tag != "g" or "style" in group.attrib or len(group) < 2:
        return
    styles = {member.get("style", "") for member in group}
    if len(styles) == 1 and (style := styles.pop()) and not re.search(r"(^|; )opacity", style):  # of each on its own
        group.set("style", style)
        for member in group:
            del member.attrib["style"]


def _style(text: str) -> str:
    """Declarations with variables for colours, without fonts and defaults."""
    kept = []
    for declaration in text.split(";"):
        name, _, value = (part.strip() for part in declaration.partition(":"))
        if not value or name == "font-family" or f"{name}: {value}" in _DEFAULTS:
            continue
        kept.append(f"{name}: {_VARIABLES.get(value.lower(), _shortened(value))}")
    return "; ".join(kept)


def _shortened(text: str) -> str:
    """Numbers rounded, white space as one space each."""
    rounded = _NUMBER.sub(lambda found: f"{round(float(found[0]), _DIGITS) + 0.0:g}", " ".join(text.split()))
    return re.sub(r"(?<=[MLCQlmz]) | (?=[MLCQz-])", "", rounded)
