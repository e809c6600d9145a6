"""Figures as SVG: they follow the page's colours, their text stays text inside the picture, nothing runs in them."""

import re
from collections.abc import Callable, Iterator
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

pytest.importorskip("matplotlib")
from matplotlib import font_manager

from flashgp import drawing, plots
from flashgp.plots.axes import legend, new_axes, style
from flashgp.targets import Number
from flashgp.units import Scaling
from test_plots import PLOTS, data, important, posterior, posterior_of_places

HOSTILE = "</text><script>alert(1)</script> $a^2$ & \x07 \ud800"


def page_axes() -> Any:
    return new_axes(None, drawing.PAGE_SIZE)


def parsed(text: str) -> ElementTree.Element:
    assert "xmlns" not in text
    return ElementTree.fromstring(text)


def width_of(text: str, size: float) -> float:
    """Points that a text takes in the font that figures are laid out with, which is wider than those of browsers."""
    font = font_manager.get_font(font_manager.findfont("DejaVu Sans"))
    font.set_size(size, 72.0)
    font.set_text(text, 0.0)
    return float(font.get_width_height()[0]) / 64.0


def styled(element: ElementTree.Element, above: dict[str, str]) -> Iterator[tuple[ElementTree.Element, dict[str, str]]]:
    """Every element with its style and those that it inherits."""
    own = above | dict(part.split(": ", 1) for part in element.attrib.get("style", "").split("; ") if part)
    yield element, own
    for child in element:
        yield from styled(child, own)


def cut_texts(svg: ElementTree.Element) -> list[str]:
    """Texts that reach beyond the picture."""
    _, _, width, height = map(float, svg.attrib["viewBox"].split())
    cut = []
    for element, rules in styled(svg, {}):
        if element.tag != "text":
            continue
        size = float(rules["font-size"].removesuffix("px"))
        long = width_of(element.text or "", size)
        moved = re.match(r"translate\((\S+) (\S+?)\)", element.attrib.get("transform", ""))
        x, y = map(float, moved.groups() if moved else (element.attrib["x"], element.attrib["y"]))
        begin = {"start": 0.0, "middle": -0.5, "end": -1.0}[rules.get("text-anchor", "start")] * long
        turn = re.search(r"rotate\((-?[\d.]+)", element.attrib.get("transform", ""))
        angle = np.deg2rad(float(turn[1]) if turn else 0.0)
        corners = np.array([[begin, 0.0], [begin + long, 0.0], [begin, -0.75 * size], [begin + long, -0.75 * size]])
        across = x + corners @ [np.cos(angle), -np.sin(angle)]
        up = y + corners @ [np.sin(angle), np.cos(angle)]
        if across.min() < -1.0 or up.min() < -1.0 or across.max() > width + 1.0 or up.max() > height + 1.0:
            cut.append(element.text or "")
    return cut


LONG = "how many kilograms of a thing with a long name there are, per cubic metre"
MORE: dict[str, Callable[..., Any]] = {
    "long labels": lambda **o: plots.predicted_observed(*data(50), label=LONG, **o),
    "long names": lambda **o: plots.importance(important([1.0, 0.5], [LONG, "a"]), unit=f"in units of {LONG}", **o),
    "many names": lambda **o: plots.importance(
        important(list(np.linspace(1, 2, 300)), [f"column {k}" for k in range(300)]), rows=8, **o
    ),
    "long categories": lambda **o: plots.by_category(*posterior_of_places()[:2], [LONG, "there", "far"], **o),
    "constant": lambda **o: plots.posterior_1d(
        posterior(), samples=0, scaling=Scaling((0.0,), (1.0,), Number(5.0e6, 1e-3)), y_label="y", **o
    ),
    "dates": lambda **o: plots.residuals(*data(50), against=np.linspace(19_000, 19_400, 50), dates=True, **o),
    "many rows": lambda **o: plots.residuals(*data(6_000), **o),
    "many classes": lambda **o: plots.confusion(
        np.arange(40) % 20, np.full((40, 20), 0.05), labels=[f"class {k}" for k in range(20)], **o
    ),
}


@pytest.mark.parametrize(
    "name", [*(name for name in PLOTS if name != "components"), *MORE]
)  # which has a figure of its own size
def test_a_figure_follows_the_page_and_nothing_is_cut(name: str) -> None:
    svg = drawing.svg((PLOTS | MORE)[name](ax=page_axes()), "label")
    found = parsed(svg)
    assert set(found.attrib) == {"viewBox", "role", "aria-label"}
    colours = re.findall(r"(?:fill|stroke|color): ([^;\"]+)", svg)
    assert colours
    assert {one for one in colours if not re.fullmatch(r"none|var\(--[a-z]+\)", one)} == set()
    assert cut_texts(found) == []
    ids = [element.attrib["id"] for element in found.iter() if "id" in element.attrib]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"#([\w.-]+)", svg)) == set(ids), "what is referred to is there, and no other has an id"
    assert len(svg) < 100_000
    sizes = [float(size) for size in re.findall(r"font-size: ([\d.]+)px", svg)]
    assert min(sizes) * 360 / 288 > 10.0, "on a telephone of 400 pixels, of which margins take 40"


def test_variables_of_figures_are_those_of_the_page() -> None:
    from pathlib import Path

    style_sheet = drawing.theme() + Path(drawing.__file__).with_name("page.css").read_text()
    for name, _ in drawing.COLOURS.values():
        assert len(re.findall(rf"--{name}:", style_sheet)) >= 2, f"{name} on light and on dark paper"


def test_names_stay_text() -> None:
    ax = page_axes()
    style(ax, HOSTILE, "y")
    ax.plot([0, 1], [0, 1], label=HOSTILE)
    legend(ax)
    ax.text(0.5, 0.5, "a bell: \x07")
    found = parsed(drawing.svg(ax, HOSTILE))
    assert found.attrib["aria-label"].startswith("</text><script>")
    assert [element.tag for element in found.iter("script")] == []
    texts = " ".join(element.text or "" for element in found.iter("text"))
    assert texts.count("<script>alert(1)</script>") == 2
    assert texts.count("$a^2$") == 2, "a name is no mathematics"


def test_it_is_drawn_the_same_each_time() -> None:
    drawn = [plots.calibration([0.0, 1.0], ([0.1, 0.8], [1.0, 1.0])) for _ in range(2)]
    assert len({drawing.svg(ax, "c") for ax in drawn}) == 1
    images = {drawing.png(ax) for ax in drawn}
    assert len(images) == 1
    assert images.pop().startswith(b"\x89PNG")


def test_many_dots_are_an_image_and_few_are_not() -> None:
    few, many = (drawing.svg(plots.residuals(*data(n), ax=page_axes()), "c") for n in (300, 3_000))
    assert "<image" not in few
    assert len(parsed(many).findall(".//image")) >= 1
    assert 'href="data:image/png;base64,' in many
