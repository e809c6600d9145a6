"""A fit that takes a while shows a bar where somebody looks, and nothing elsewhere."""

import importlib.util
import io
import sys

import pytest
import torch
from rich.console import Console

import flashgp as fgp
from flashgp.inference.progress_bar import ProgressBar, shown_progress
from flashgp.inference.training.history import Progress
from inference.training.tables import prior, table

STEP = Progress("fitting 400 rows", 7, "subset 0", -12.5, 0.1, 3.0, 60.0, 0.25)


def test_a_bar_says_the_phase_and_goes_away() -> None:
    file = io.StringIO()
    bar = ProgressBar(Console(file=file, force_terminal=True, width=120), after=0.0)
    bar(STEP)
    assert "fitting 400 rows: evaluation 7, log joint -12.50, 3.0 s, about 60.0 s left" in file.getvalue()
    shown = len(file.getvalue())
    bar(STEP)
    assert len(file.getvalue()) == shown, "ten lines a second are enough"
    bar.close()
    assert file.getvalue().endswith("\x1b[2K"), "the line is taken away"


def test_a_quick_fit_shows_nothing() -> None:
    file = io.StringIO()
    bar = ProgressBar(Console(file=file, force_terminal=True))
    bar(STEP)
    bar.close()
    assert file.getvalue() == ""


def test_where_nobody_looks_there_is_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    for progress in (None, False):
        with shown_progress(progress) as callback:
            assert callback is None
    with shown_progress(print) as callback:
        assert callback is print
    assert capsys.readouterr().err == ""


def test_a_bar_is_closed_by_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with pytest.raises(ZeroDivisionError), shown_progress(None) as callback:
        assert isinstance(callback, ProgressBar)
        callback._next = 0.0
        callback(STEP)
        raise ZeroDivisionError
    assert not callback._bar.live.is_started


def test_what_is_printed_to_a_file_meanwhile_stays_there(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    bar = ProgressBar(Console(file=io.StringIO(), force_terminal=True, width=120), after=0.0)
    bar(STEP)
    sys.stdout.write("a line of the user's\n")
    bar.close()
    assert out.getvalue() == "a line of the user's\n"


@pytest.mark.parametrize("drawn", [True, False])
def test_a_notebook_that_cannot_draw_gets_no_bar(monkeypatch: pytest.MonkeyPatch, drawn: bool) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr(Console, "is_terminal", False)
    monkeypatch.setattr(Console, "is_dumb_terminal", False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if drawn else None)
    with shown_progress(None) as callback:
        assert (callback is not None) == drawn


def test_what_is_no_callback_is_refused() -> None:
    x, y = table(10)
    with pytest.raises(fgp.DomainError, match="`progress` must be a function, None for a bar, or False"):
        fgp.fit(prior(), x, y, progress=torch)
