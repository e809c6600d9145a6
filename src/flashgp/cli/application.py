"""The commands. What each can be asked for is in options.py, what they do in fitting, predicting, prepared
and machine; here is what they share: where they run, their profile, exit codes.

Exit codes: 0 done (also when Ctrl-C ended a fit early and its best model was kept), 1 failed, 2 bad usage or bad
input, 130 interrupted with nothing written.

A command imports what it runs when it runs, so that the others answer sooner.
"""

import gc
import importlib
import inspect
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import flashgp
from flashgp.cli.console import Console
from flashgp.cli.interruption import INTERRUPTED, NOTHING_WRITTEN, before_work, interrupted, launched, silent
from flashgp.cli.options import (
    BenchArguments,
    CommonArguments,
    DemoArguments,
    DoctorArguments,
    FitArguments,
    PlanArguments,
    PredictArguments,
    TuneArguments,
    UpdateArguments,
    require_writable,
)
from flashgp.cli.ranks import SilentConsole, all_ranks, own_stderr, shown_by_another_rank, usage_of_first
from flashgp.foundations.errors import DomainError, FlashGPError, ProcessGroupError
from flashgp.foundations.placement import Placement, runtime
from flashgp.foundations.processors import parse_cores
from flashgp.kernel_expression import GRAMMAR

Work = Callable[[Console], dict[str, Any]]

_BAD_INPUT = 2
_OVER_RANKS = ("fitting:run_fit", "machine:run_doctor")  # which several ranks can do together
_HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}


class _GivenOnce:
    """Before a command's arguments are read; a usage error names the first option that was repeated."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        parser: Any = self.make_parser(ctx)  # type: ignore[attr-defined]
        *_, order = parser.parse_args(args=list(args))
        for option, count in Counter(order).items():
            if option.param_type_name == "option" and not option.multiple and count > 1:
                ctx.fail(f"{'/'.join(option.opts)} takes one value and was given {count} times; give it once")
        rest: list[str] = super().parse_args(ctx, args)  # type: ignore[misc]
        return rest


class Command(_GivenOnce, TyperCommand):
    """Refuses an option given twice, where the last would silently win; lists may be repeated."""


class Group(_GivenOnce, TyperGroup):
    """`flashgp` itself, and `flashgp profile`, alike."""


application = typer.Typer(
    name="flashgp",
    cls=Group,
    help="Gaussian processes on tables: demo, fit, predict, update, plan, tune, doctor, bench, profile.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=_HELP_OPTIONS,
)


@application.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and stop.")] = False,
) -> None:
    """Gaussian processes on tables: demo, fit, predict, update, plan, tune, doctor, bench, profile."""
    if version:
        typer.echo(f"flashgp {flashgp.__version__}")
        raise typer.Exit


def _command(options: type, work: str) -> Callable[..., None]:
    """A function for typer whose parameters are the fields of `options` and of CommonArguments.

    Args:
        options: a dataclass; its values are what `work` takes.
        work: "module:function" in this package, imported when the command runs.
    """
    kinds = (options, CommonArguments)

    def run(context: typer.Context, **given: Any) -> None:
        asked, common = (kind(**{field.name: given[field.name] for field in fields(kind)}) for kind in kinds)
        began = context.find_root().obj or time.perf_counter()
        if launched() and work not in _OVER_RANKS:
            why = "rows are predicted one by one" if context.info_name == "predict" else "it does not share its work"
            raise typer.BadParameter(
                f"{context.info_name} needs no ranks, and torchrun has started several: {why}, and one process uses "
                "all cores; run it without torchrun"
            )
        place = placed(common.threads, common.cores)
        profiling = context.obj if isinstance(context.obj, _Profiling) else None

        def load() -> Work:
            module, _, function = work.partition(":")
            does = getattr(importlib.import_module(f".{module}", __package__), function)
            return lambda console: does(asked, console)

        _run(load, place, common, profiling, began)

    parameters = [inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    parameters += [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, annotation=field.type,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
        )
        for kind in kinds
        for field in sorted(fields(kind), key=lambda field: field.name not in kind.__annotations__)  # its own first
    ]  # fmt: skip
    command: Any = run
    command.__signature__ = inspect.Signature(parameters)
    command.__doc__ = options.__doc__
    return run


@dataclass(frozen=True)
class _Profiling:
    """Arguments of `flashgp profile`: the trace to write, whether without PyTorch's operations, as JSON."""

    trace: str | None
    coarse: bool
    json: bool

    def around(self, work: Work) -> Work:
        """Wrap the work so that its bottleneck table follows it; the result has the profile beside it."""

        def profiled(console: Console) -> dict[str, Any]:
            from flashgp.profiling import take_profile

            if self.trace is not None:
                require_writable(self.trace, "--trace")
            result, profile = take_profile(lambda: work(console), trace=self.trace, operations=not self.coarse)
            console.say()
            console.say("where the time went")
            console.table(*profile.table(), numeric=(1, 2, 3))
            if profile.operations:
                console.say("PyTorch's operations, without what they call")
                console.table(*profile.operations_table(), numeric=(1, 2, 3))
            for remark in profile.remarks():
                console.note(remark)
            if self.trace is not None:
                console.say(f"wrote {self.trace}")
            return {**result, "profile": profile.to_json()}

        return profiled


profile = typer.Typer(cls=Group, no_args_is_help=True, rich_markup_mode=None, context_settings=_HELP_OPTIONS)
for _name, _options, _work, _epilog in (
    ("demo", DemoArguments, "demo:run_demo", None),
    ("fit", FitArguments, "fitting:run_fit", GRAMMAR),
    ("predict", PredictArguments, "predicting:run_predict", None),
    ("update", UpdateArguments, "predicting:run_update", None),
    ("plan", PlanArguments, "prepared:run_plan", GRAMMAR),
    ("tune", TuneArguments, "machine:run_tune", None),
    ("doctor", DoctorArguments, "machine:run_doctor", None),
    ("bench", BenchArguments, "machine:run_bench", None),
):
    application.command(_name, cls=Command, epilog=_epilog)(_command(_options, _work))
    if _name in ("fit", "predict", "update"):
        profile.command(_name, cls=Command, epilog=_epilog)(_command(_options, _work))
application.add_typer(profile, name="profile")


@profile.callback()
def profile_options(
    context: typer.Context,
    trace: Annotated[
        str | None,
        typer.Option("--trace", metavar="FILE", help="Chrome trace to write: .json or .json.gz (ui.perfetto.dev)."),
    ] = None,
    coarse: Annotated[
        bool,
        typer.Option("--coarse", help="The table alone, without PyTorch's operations: for commands of many minutes."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on standard output and nothing else there.")
    ] = False,
) -> None:
    """Run fit, predict or update, and say where the time went: products, factorisation, solves, transfers, idle.

    Options of profile come before the command: flashgp profile --trace trace.json fit TABLE --target y. The same
    ranges are in the trace, and NVTX ranges for Nsight Systems where there is CUDA; the device is waited for at the end
    of each, so that what it did is inside. A profile with operations takes about a kilobyte for each of them.
    """
    if coarse and trace is not None:
        raise typer.BadParameter("a trace is made of the operations that --coarse leaves out", param_hint="--trace")
    context.obj = _Profiling(trace, coarse, as_json)


def main(began: float | None = None) -> None:
    """The entry point: reads sys.argv, ends by SystemExit with the exit code.

    Args: began: when the command began, by `time.perf_counter`; now by default.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal that cannot show a name is no reason to fail
    with usage_of_first():
        application(obj=began)


def placed(threads: int | None, cores: str | None) -> AbstractContextManager[Placement | None]:
    """`flashgp.runtime` as --threads and --cores ask for it, not yet entered.

    Raises: BadParameter for what names no cores.
    """
    if threads is None and cores is None:
        return nullcontext()
    try:
        chosen = None if cores is None else parse_cores(cores, "--cores")
    except DomainError as error:
        raise typer.BadParameter(str(error)) from None
    return runtime(threads=threads, cores=chosen)


def _run(
    load: Callable[[], Work],
    place: AbstractContextManager[Any],
    common: CommonArguments,
    profiling: _Profiling | None,
    began: float,
) -> None:
    """Do the work where it was placed; a failure that was foreseen is one clear message and exit code 1, or 2 where
    what was given is to blame."""
    as_json = common.as_json or (profiling is not None and profiling.json)
    console = SilentConsole(began) if silent() else Console(json=as_json, quiet=common.quiet, began=began)
    if signal.getsignal(signal.SIGINT) is before_work:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # from here on work may have to be put away
    try:
        with own_stderr(), console.listening(), place:
            work = load()  # what it imports may take as long as what it does
            if not gc.isenabled():  # what is imported stays, and is never looked through
                gc.freeze()
                gc.enable()
            work = work if profiling is None else profiling.around(work)
            with all_ranks(console):
                result = work(console)
        console.finish(result)
    except KeyboardInterrupt as stop:
        console.error(KeyboardInterrupt(str(stop) or NOTHING_WRITTEN))
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        # Whoever read our output has gone: no more of it, and no complaint when Python closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
    except (FlashGPError, OSError) as error:
        if common.debug and not shown_by_another_rank(console, error):
            raise
        if isinstance(error, ProcessGroupError) and interrupted():
            console.error(KeyboardInterrupt(NOTHING_WRITTEN))
            raise typer.Exit(INTERRUPTED) from None
        console.error(error)
        raise typer.Exit(_BAD_INPUT if isinstance(error, ValueError) else 1) from None
    except Exception as error:
        if shown_by_another_rank(console, error):
            raise typer.Exit(1) from None
        raise
