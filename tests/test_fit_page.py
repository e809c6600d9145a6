"""The page of a fit: verdict first, rows named by their lines, figures and words for someone who decides."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("typer")
pytest.importorskip("matplotlib")
from flashgp.cli.console import Console
from flashgp.cli.fit_page import fit_page
from flashgp.cli.fit_pictures import scored_places, sliced_inputs, worst_rows
from flashgp.cli.options import FitArguments
from flashgp.cli.outcome import Asked, FitOutcome, outcome_of
from flashgp.cli.prepared import prepare_table
from flashgp.page import Figure, Page, PageTable
from flashgp.table_model.model import fit_prepared

KERNEL = "Matern(nu=2.5, lengthscale=3)"
WRONG = 41  # row of the table whose target is wrong


def outcome(path: Path, target: str, **options: Any) -> FitOutcome:
    asked, console = FitArguments(table=str(path), target=target, starts=1, **options), Console(quiet=True)
    prepared = prepare_table(asked, console)
    return outcome_of(prepared, fit_prepared(prepared), Asked(asked, 0.0), console)


@pytest.fixture(scope="module")
def sales(tmp_path_factory: pytest.TempPathFactory) -> FitOutcome:
    """Dates and towns; comments above, a cell with a line break, missing cells, and one wrong target."""
    r, n = np.random.default_rng(0), 60
    town, days = r.choice(["Bonn", "Kiel"], n), np.arange(n)
    y = 100.0 + 20.0 * (town == "Kiel") + 10.0 * np.sin(days / 10.0) + r.normal(0.0, 1.0, n)
    y[WRONG] = 10.0
    day = np.datetime64("2024-01-01") + days
    cells = [f'{day[k]},{town[k]},"a\nb",{"" if k in (3, 20) else f"{y[k]:.3f}"}' for k in range(n)]
    path = tmp_path_factory.mktemp("page") / "sales.csv"
    path.write_text("# of a shop\ndate,town,note,sales\n" + "\n".join(cells) + "\n")
    return outcome(path, "sales", drop=["note"], missing="drop")


@pytest.fixture(scope="module")
def page(sales: FitOutcome) -> Page:
    return fit_page(sales)


def figures(parts: Any) -> list[Figure]:
    return [part for part in parts if isinstance(part, Figure)]


def line_in_file(found: FitOutcome, row: int) -> int:
    """Line on which the row's record begins."""
    text = Path(found.options.table).read_text()
    day = str(np.datetime64("2024-01-01") + row)
    return text[: text.index(day)].count("\n") + 1


def test_rows_least_expected_are_named_by_their_lines(sales: FitOutcome) -> None:
    table = worst_rows(sales)
    assert table.head[:4] == ("line", "observed", "predicted", "95 % interval")
    first = dict(zip(table.head, table.rows[0], strict=True))
    assert first["line"] == str(line_in_file(sales, WRONG))
    assert first["observed"] == "10"
    assert first["date"] == "2024-02-11", "dates are dates"
    assert first["town"] in ("Bonn", "Kiel")
    places = scored_places(sales)
    assert places is not None
    assert (len(places[0]), places[1]) == (58, "line")
    assert line_in_file(sales, 3) not in places[0], "a row without a target is not scored"


def test_the_page_opens_with_the_verdict(sales: FitOutcome, page: Page) -> None:
    text = page.html()
    body = re.sub(r"\s+", " ", text.split("<body>")[1])
    assert body.index("<h1>sales</h1>") < body.index('class="verdict"') < body.index("<figure>")
    assert page.verdict == sales.verdict.sentence
    assert list(page.findings) == [str(finding) for finding in sales.verdict.findings]
    assert 1 <= len(page.glance) <= 3
    assert [name for _, name in page.highlights] == [
        "R²: share of the variance explained", "usual error (RMSE), in units of sales",
        "of rows inside their 95 % intervals",
    ]  # fmt: skip
    assert [section.title for section in page.sections][-1] == "How it was computed"
    early = body[: body.index("How it was computed")]
    assert "nats" not in early, "for those who ask how"
    assert "NLL" not in early
    assert "lengthscale" not in early


def test_time_and_categories_are_drawn(sales: FitOutcome, page: Page) -> None:
    drawn = {figure.caption: figure.svg for section in page.sections for figure in figures(section.parts)}
    drawn |= {figure.caption: figure.svg for figure in figures(page.glance)}
    over = next(svg for caption, svg in drawn.items() if caption.startswith("Errors over date"))
    along = next(svg for caption, svg in drawn.items() if caption.startswith("Along date"))
    by = next(svg for caption, svg in drawn.items() if caption.startswith("By town"))
    for svg in (over, along):
        assert ">Feb<" in svg or "2024-Feb" in svg or ">2024<" in svg, "dates on axes"
    assert "Bonn (" in by
    assert "Kiel (" in by
    assert set(sliced_inputs(sales)) <= {0, 1}


def test_inputs_that_act_together_are_drawn_together(tmp_path: Path) -> None:
    r, n = np.random.default_rng(0), 60
    a, b, side = r.uniform(-2.0, 2.0, n), r.uniform(-2.0, 2.0, n), r.choice(["up", "down"], n)
    y = a * b + 4.0 * a * (side == "up")
    path = tmp_path / "t.csv"
    path.write_text("a,side,b,y\n" + "\n".join(f"{a[k]},{side[k]},{b[k]},{y[k]}" for k in range(n)))
    found = outcome(path, "y", kernel="Matern(nu=2.5, lengthscale=[3, 3], active_dims=[a, b]) * Categorical()")
    (learned,) = [one for one in fit_page(found).sections if one.title == "What has the model learned?"]
    captions = [figure.caption for figure in figures(learned.parts)]
    assert any(caption.startswith("Over a and side") for caption in captions), "a line for each category"
    table = next(part for part in learned.parts if isinstance(part, PageTable))
    assert table.head[-2:] == ["of the variance alone", "with others"]
    assert not any(cell.startswith("-") for row in table.rows for cell in row[-2:])
    shares = [[float(cell.removesuffix(" %")) for cell in row[-2:]] for row in table.rows]
    assert all(alone <= total for alone, total in shares)


def test_scores_that_are_too_good_are_not_shown_first(tmp_path: Path) -> None:
    r = np.random.default_rng(1)
    a, b = r.uniform(0.0, 10.0, (2, 20))
    path = tmp_path / "t.csv"
    rows = "\n".join(f"{u},{v},{np.sin(u) + v}" for u, v in zip(a, b, strict=True))
    path.write_text(f"a,b,y\n{rows}\n{rows}\n")
    page = fit_page(outcome(path, "y", kernel=KERNEL))
    assert page.verdict.startswith("Not judged: most rows repeat another one")
    assert page.highlights == []


def test_a_share_held_out_keeps_its_lines(tmp_path: Path) -> None:
    r = np.random.default_rng(1)
    x = r.uniform(0.0, 10.0, 50)
    path = tmp_path / "t.csv"
    path.write_text("x,y\n" + "\n".join(f"{a},{np.sin(a)}" for a in x))
    found = outcome(path, "y", test_fraction=0.3, kernel=KERNEL)
    places = scored_places(found)
    assert places is not None
    np.testing.assert_allclose(x[places[0] - 2], found.scored_x[:, 0])


def test_a_series_has_its_forecast_and_its_terms(tmp_path: Path) -> None:
    r, days = np.random.default_rng(0), np.arange(70)
    y = np.sin(2 * np.pi * days / 7) + 0.05 * days + r.normal(0.0, 0.1, 70)
    path = tmp_path / "t.csv"
    path.write_text("day,y\n" + "\n".join(f"{np.datetime64('2024-01-01') + k},{y[k]}" for k in days))
    found = outcome(
        path, "y", test_last=0.2, kernel="2 * Matern(nu=2.5, lengthscale=30) + Periodic(period=7, lengthscale=1)",
        target_transform="none",
    )  # fmt: skip
    page = fit_page(found)
    assert "14 (the last 0.2)" in page.html()
    forecast = next(figure.svg for figure in figures(page.glance) if "beyond the last date" in figure.caption)
    assert ">held out<" in forecast
    terms = [figure for section in page.sections for figure in figures(section.parts) if "made of" in figure.caption]
    assert len(terms) == 1
    assert terms[0].svg.count("% of") == 2, "a picture for each term"
