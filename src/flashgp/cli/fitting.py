"""`flashgp fit`: from a table to a model, its figures, a file and a report."""

import shlex
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from flashgp.data.files import found_files, is_pattern
from flashgp.foundations.deadline import Deadline
from flashgp.foundations.errors import FitInterrupted
from flashgp.foundations.quantities import counted, readable_bytes, readable_seconds
from flashgp.inference.findings import Unfinished
from flashgp.inference.gp import GP
from flashgp.page import write_page
from flashgp.planner.plan import FACTORED
from flashgp.plots.axes import require_matplotlib
from flashgp.processes.agreement import deadline_of
from flashgp.table_model.model import fit_prepared
from flashgp.table_model.preparation import PreparedTable

from .after_fit import AFTER_FIT
from .console import Console
from .fit_page import fit_page
from .options import FitArguments, require_distinct, require_writable
from .outcome import Asked, fit_seconds, outcome_json, outcome_of, say_outcome
from .parameters import parameter_rows, parameter_table
from .prepared import plan_summary, prepare_table
from .ranks import explained, leave_group


def run_fit(options: FitArguments, console: Console) -> dict[str, Any]:
    """Fit, score, write. Returns: the result as JSON values. Raises: FlashGPError, OSError."""
    deadline, group = Deadline.after(options.time_limit, began=console.began), console.group
    console.brief = not options.verbose
    _check_outputs(options)
    prepared = prepare_table(options, console, deadline)
    if options.verbose:
        console.pairs("how it is computed", plan_summary(prepared))
    exact = prepared.exact_plan
    if prepared.held_out is None and exact is not None and exact.route not in FACTORED:
        console.note(
            "leave-one-out scores need a Cholesky factor, which this fit does without; --test-fraction holds rows out."
        )
    # Several processes have no best so far in common, but for the parameters that the last solve is of.
    together = nullcontext() if group.size == 1 else explained(lambda: _without_model(options.checkpoint))
    try:
        with console.progress() as progress, together:
            until = deadline.before(AFTER_FIT.reserved(options, prepared, deadline))
            model = fit_prepared(prepared, until, options.checkpoint, progress)
    except FitInterrupted as stop:
        _say_interrupted(stop, prepared, options.checkpoint, console)
        raise
    result = model.training
    assert result is not None
    if result.interrupted:
        written, done = "; the model is written as it is" if options.out else "", len(result.history)
        what = f"the fit was cut short after {counted(done, 'evaluation')}: this is the best so far"
        if not done:
            ended = "Ctrl-C" if result.unfinished is Unfinished.INTERRUPT else "the time limit"
            what = f"{ended} left no time for a fit: the parameters are those that it began with"
        console.warn(f"{what}{written}")
    if options.out is not None and not group.rank:
        model.save(options.out)  # before anything else can fail
    if model.posterior.state.run.group.size > 1:  # an exact one, which all ranks ask together
        deadline = deadline_of(group, deadline)
    else:
        leave_group(console)  # rank 0 has all that it takes to score, write and say what all have found
        if group.rank:
            return {}
    by_hand = result.unfinished is Unfinished.INTERRUPT
    if by_hand and group.size == 1:
        deadline = Deadline.after(min(AFTER_FIT.interrupt_seconds, max(0.0, deadline.left)))
    kept = "nothing was written" if options.out is None else f"the model is in {options.out}, without its scores"
    with explained(lambda: f"interrupted; {kept}"), console.stages() as stage:
        outcome = outcome_of(prepared, model, Asked(options, console.began, deadline, by_hand), console, stage)
        if stage is not None:
            stage("drawing the report", 0.7)
        page = None if options.report is None else fit_page(outcome)  # which predicts, on every rank
    if group.rank:
        return {}
    say_outcome(outcome, console)
    if options.report is not None and page is not None:
        write_page(options.report, page)
    files = [path for path in (options.out, options.report) if path is not None]
    sizes = ", ".join(f"{path} ({readable_bytes(Path(path).stat().st_size)})" for path in files)
    times = (fit_seconds(prepared, result), time.perf_counter() - console.began)
    console.rest()
    console.say(
        f"fitted in {readable_seconds(times[0])}, {readable_seconds(times[1])} in all; "
        f"{f'wrote {sizes}' if files else 'nothing is written without --out'}"
    )
    if options.out is not None:
        console.say(f"predict new rows: flashgp predict {shlex.quote(options.out)} NEW.csv --out predictions.csv")
    return outcome_json(outcome)


def _without_model(checkpoint: str | None) -> str:
    """Message for a fit without a model: the reason, and how the fit goes on."""
    again = "with --checkpoint the same command would go on from there"
    if checkpoint is not None:
        there = Path(checkpoint).is_file()
        again = f"the same command goes on from {checkpoint}" if there else "the fit had not begun"
    return f"interrupted, no model was written; {again}"


def _say_interrupted(stop: FitInterrupted, prepared: PreparedTable, checkpoint: str | None, console: Console) -> None:
    """Prints the parameters reached before Ctrl-C; the error itself, which all ranks share, says how to go on."""
    assert isinstance(stop.gp, GP)
    encoding = prepared.encoding
    rows = parameter_rows(stop.gp, prepared.names, prepared.scaling, encoding.target, units=encoding.units)
    console.say("parameters found")
    console.table(*parameter_table(rows))
    again = "with --checkpoint the same command would go on from there"
    if checkpoint is not None:
        again = f"the same command goes on from {checkpoint}"
    stop.args = (f"interrupted in the last solve, no model was written; {again}",)


def _check_outputs(options: FitArguments) -> None:
    """Check all that can be known before work starts."""
    written = {"--out": options.out, "--report": options.report, "--checkpoint": options.checkpoint}
    for table in found_files(options.table) if is_pattern(options.table) else [options.table]:
        require_distinct({"TABLE": table, **written})
    for argument, path in written.items():
        if path is not None:
            require_writable(path, argument)
    if options.report is not None:
        require_matplotlib("--report")
