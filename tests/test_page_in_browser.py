"""Pages in a browser, where the machine has a Chromium: nothing overflows or is cut, at two widths, light and dark."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

pytest.importorskip("matplotlib")
from matplotlib.image import imread

import browser as chromium
from flashgp import plots
from flashgp.cli.application import application
from flashgp.drawing import PAGE_SIZE
from flashgp.page import Figure, Page, Section, write_page
from flashgp.plots.axes import new_axes

PROGRAM = chromium.found()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium on this machine: apt-get install chromium")

DESK, PHONE = (1280, 800), (400, 800)
OVERFLOW = "document.documentElement.scrollWidth - window.innerWidth"
ON_FIRST_SCREEN = (
    "[...document.querySelectorAll('figure')].filter(f => f.getBoundingClientRect().top < window.innerHeight).length"
)
CUT = """[...document.querySelectorAll('figure svg text')].filter(text => {
    const a = text.getBoundingClientRect(), b = text.ownerSVGElement.getBoundingClientRect();
    return a.left < b.left || a.right > b.right || a.top < b.top || a.bottom > b.bottom;
}).map(text => text.textContent)"""
SMALLEST = """Math.min(...[...document.querySelectorAll('figure svg text')].map(text =>
    parseFloat(getComputedStyle(text).fontSize) * text.ownerSVGElement.getScreenCTM().a))"""
# Of every row of figures how far it ends from the left and the right end of its block, captions counted.
HOLES = """[...document.querySelectorAll('.figures')].flatMap(block => {
    const all = block.getBoundingClientRect(), rows = {};
    for (const figure of block.children) {
        const one = figure.getBoundingClientRect();
        (rows[Math.round(one.top)] ??= []).push(one);
    }
    return Object.values(rows).map(row => Math.max(
        Math.min(...row.map(one => one.left)) - all.left, all.right - Math.max(...row.map(one => one.right))));
})"""
INK_AND_PAPER = """[...document.querySelectorAll('figure svg text')].slice(0, 1).map(text =>
    [getComputedStyle(text).fill, getComputedStyle(document.body).backgroundColor])[0]"""


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Browser]:
    assert PROGRAM is not None
    with chromium.browser(PROGRAM, tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a fit with categories, dates and a long name."""
    folder, r, n = tmp_path_factory.mktemp("page"), np.random.default_rng(0), 60
    town = r.choice(["Bonn", "Kiel", "a town whose name is so long that it does not fit beside a picture"], n)
    area = r.uniform(20.0, 200.0, n)
    table = pd.DataFrame(
        {
            "the area of the whole flat, balconies and cellar left out": area, "town": town,
            "sold": pd.date_range("2021-01-01", periods=n, freq="9D").strftime("%Y-%m-%d"),
            "rent per month without heating": 9.0 * area + 400.0 * (town == "Bonn") + r.normal(0.0, 60.0, n),
        }
    )  # fmt: skip
    table.to_csv(folder / "rents.csv", index=False)
    arguments = ["fit", str(folder / "rents.csv"), "-t", "rent per month without heating", "--starts", "1"]
    found = CliRunner().invoke(application, [*arguments, "--report", str(folder / "report.html")])
    assert found.exit_code == 0, found.output
    return folder / "report.html"


def brightness(colour: str) -> float:
    return float(np.mean([float(part) for part in colour.removeprefix("rgb(").rstrip(")").split(",")]))


@pytest.mark.parametrize("size", [DESK, PHONE])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_report_is_whole(
    tab: chromium.Browser, report: Path, size: tuple[int, int], scheme: Literal["light", "dark"], tmp_path: Path
) -> None:
    tab.show(report, *size, scheme)
    assert tab.evaluate(OVERFLOW) <= 0
    assert tab.evaluate(CUT) == []
    assert max(tab.evaluate(HOLES)) < 2.0
    assert 1 <= tab.evaluate(ON_FIRST_SCREEN) <= 3
    assert tab.evaluate(SMALLEST) > 9.0
    ink, paper = map(brightness, tab.evaluate(INK_AND_PAPER))
    assert (paper > 200 > 90 > ink) if scheme == "light" else (paper < 60 < 200 < ink)
    picture = tab.screenshot(whole=False)
    (tmp_path / f"report-{size[0]}-{scheme}.png").write_bytes(picture)
    image = imread(io.BytesIO(picture))
    assert image.shape[1::-1] == size
    assert (image[..., :3].mean() > 0.7) == (scheme == "light"), "figures are no white cards on a dark page"


def test_paper_is_white_and_holds_all_columns(tab: chromium.Browser, report: Path) -> None:
    tab.show(report, 720, 1000, "dark")
    tab.call("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    ink, paper = map(brightness, tab.evaluate(INK_AND_PAPER))
    assert ink < 90 < 200 < paper
    assert tab.evaluate(OVERFLOW) <= 0
    tab.call("Emulation.setEmulatedMedia", media="")


@pytest.mark.parametrize("width", [400, 800, 1280])
def test_any_number_of_figures_fills_its_rows(tab: chromium.Browser, tmp_path: Path, width: int) -> None:
    ax: Any = plots.calibration([0.0, 1.0], ([0.1, 0.8], [1.0, 1.0]), ax=new_axes(None, PAGE_SIZE))
    one = Figure.of(ax, "A caption of some words that say what is seen.")
    write_page(tmp_path / "p.html", Page("t", "l", [], [Section(f"{count}", [one] * count) for count in range(1, 10)]))
    tab.show(tmp_path / "p.html", width, 800)
    assert max(tab.evaluate(HOLES)) < 2.0
    assert tab.evaluate(OVERFLOW) <= 0
    assert tab.evaluate(CUT) == []
