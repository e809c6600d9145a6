"""A fit that takes a while shows a bar where somebody looks, and nothing elsewhere."""

import io

import pytest
import torch
from rich.console import Console

import flashgp as fgp
from flashgp.inference.progress_bar import NotebookBar, ProgressBar, shown_progress
from flashgp.inference.training.history import Progress
from inference.training.tables import prior, table

STEP = Progress("fitting 400 rows", 7, "subset 0", -12.5, 0.1, 3.0, 60.0, 0.25)


def test_a_bar_says_the_phase_and_goes_away() -> None:
    file = io.StringIO()
    bar = ProgressBar(Console(file=file, force_terminal=True, width=120), after=0.0)
    bar(STEP)
    assert "fitting 400 rows: step 7, 3.0 s, about 60.0 s left" in file.getvalue()
    shown = len(file.getvalue())
    bar(STEP)
    assert len(file.getvalue()) == shown, "ten lines a second are enough"
    bar.close()
    assert file.getvalue().endswith("\x1b[2K"), "the line is taken away"


def test_a_notebook_has_one_output_that_is_rewritten() -> None:
    shown, calls = {}, []

    def display(data, *, raw, display_id, update):
        calls.append(update)
        shown[display_id] = data["text/html"]

    bar = NotebookBar(display, after=0.0)
    bar(STEP)
    assert list(shown.values()) == [f'<progress value="{STEP.fraction:.3f}"></progress> {STEP}']
    bar(STEP)
    bar.close()
    assert (calls, list(shown.values())) == ([False, True], [""])


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


def test_what_is_no_callback_is_refused() -> None:
    x, y = table(10)
    with pytest.raises(fgp.DomainError, match="`progress` must be a function, None for a bar, or False"):
        fgp.fit(prior(), x, y, progress=torch)
