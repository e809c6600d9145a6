"""Arguments of each command: one dataclass a command, whose fields are its arguments and options.

The docstring of a class is the command's help. Values are checked here, so that bad usage is known before any work.
Nothing is imported here that a command needs only once it runs.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

import typer

from flashgp.foundations.errors import DomainError
from flashgp.foundations.machine import parse_bytes
from flashgp.kernel_expression import parse_kernel
from flashgp.planner.tuning import PARTS

Table = Annotated[
    str, typer.Argument(metavar="TABLE", help="CSV, CSV.gz or Parquet; - for standard input.", show_default=False)
]
Model = Annotated[str, typer.Argument(metavar="MODEL", help="What `flashgp fit --out` wrote.", show_default=False)]
Memory = Annotated[
    str | None, typer.Option("--memory", metavar="SIZE", help="Budget, such as 8GiB; what is free if left out.")
]


@dataclass(frozen=True, kw_only=True)
class CommonArguments:
    """Options of every command."""

    threads: Annotated[
        int | None,
        typer.Option(
            "--threads", metavar="N", min=1,
            help="Threads of torch, BLAS and compiled code; torch's choice if left out.",
        ),
    ] = None  # fmt: skip
    cores: Annotated[
        str | None,
        typer.Option(
            "--cores", metavar="LIST", help="Run on these cores only, such as 0-3,8, with no more threads. Linux only."
        ),
    ] = None
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on standard output and nothing else there.")
    ] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No text but warnings and errors.")] = False
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from.")] = False


@dataclass(frozen=True, kw_only=True)
class TextArguments:
    """Options of reading a table of text."""

    delimiter: Annotated[str | None, typer.Option("--delimiter", help="One character; decided if left out.")] = None
    decimal: Annotated[str | None, typer.Option("--decimal", help="Decimal mark, . or ,; decided if left out.")] = None
    encoding: Annotated[
        str | None, typer.Option("--encoding", metavar="NAME", help="Such as cp1252; UTF-8 if left out.")
    ] = None
    comment: Annotated[
        str | None,
        typer.Option("--comment", metavar="MARK", help="What begins a comment line, such as #; decided if left out."),
    ] = None

    @property
    def text(self) -> dict[str, Any]:
        """The options as keyword arguments of `read_table`."""
        return {field.name: getattr(self, field.name) for field in fields(TextArguments)}

    def refuse_beside_pattern(self, pattern: str) -> None:
        """Raises: DomainError for what is of text, beside a pattern of Parquet files."""
        wrong = next((name for name, value in self.text.items() if value is not None), None)
        if wrong is not None:
            raise DomainError(
                f"`--{wrong}` is of text, got it beside the pattern {pattern!r}, which means Parquet files; leave it "
                "out"
            )


@dataclass(frozen=True, kw_only=True)
class TableArguments(TextArguments):
    """Options of reading a table, and the roles of its columns."""

    kernel: Annotated[
        str | None,
        typer.Option(
            "--kernel",
            metavar="EXPR",
            help="Covariance function, such as 'Matern(nu=2.5) + Linear()', see below; or auto, the best of five. Left "
            "out: Matern(nu=1.5) + Linear(), times Categorical() of columns of categories.",
        ),
    ] = None
    memory: Memory = None
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")] = "auto"
    dtype: Annotated[
        Literal["float64", "float32"] | None,
        typer.Option("--dtype", help="Of the n x n matrix: float64, or float32 refined in float64."),
    ] = None
    solver: Annotated[
        Literal["cholesky", "cg"] | None,
        typer.Option("--solver", help="What solves with the n x n matrix; decided if left out."),
    ] = None
    drop: Annotated[
        list[str] | None, typer.Option("--drop", metavar="COLUMN", help="A column not to use; may be repeated.")
    ] = None
    categorical: Annotated[
        list[str] | None,
        typer.Option("--categorical", metavar="COLUMN", help="A column of which each value is a category; repeatable."),
    ] = None
    missing: Annotated[
        Literal["error", "drop"],
        typer.Option("--missing", help="Rows with missing numbers: refuse them or leave them out."),
    ] = "error"
    dates: Annotated[
        Literal["dmy", "mdy"] | None,
        typer.Option("--dates", help="Order of day and month in 05/01/2000, where no day above 12 tells it."),
    ] = None
    header: Annotated[
        bool | None,
        typer.Option("--header/--no-header", help="Whether the first row names the columns; decided if left out."),
    ] = None
    inducing: Annotated[
        str | None,
        typer.Option(
            "--inducing", metavar="N", help="Inducing points of an approximation, or auto: what limits allow."
        ),
    ] = None
    neighbours: Annotated[
        str | None,
        typer.Option("--neighbours", metavar="N", help="Neighbours of a block of rows, of full_scale; or auto."),
    ] = None

    @property
    def sizes(self) -> tuple[int | str, int | str]:
        """Inducing points and neighbours of an approximation, each a number or "auto". Raises: BadParameter."""
        return _size(self.inducing, "--inducing"), _size(self.neighbours, "--neighbours")

    @property
    def codes(self) -> tuple[str, ...]:
        """Columns whose values are categories."""
        return tuple(self.categorical or ())

    def __post_init__(self) -> None:
        _check_memory(self.memory)
        _ = self.sizes
        try:
            if self.kernel not in (None, "auto"):
                parse_kernel(self.kernel, "--kernel")
        except DomainError as error:
            raise typer.BadParameter(str(error)) from None


@dataclass(frozen=True, kw_only=True)
class FitArguments(TableArguments):
    """Fit a Gaussian process to a table, score it, and write a model and a report.

    Columns of text become categories; inputs and target are standardised with the statistics of the rows fitted. A
    target of text, of true and false, or of two numbers is one of classes; --likelihood gaussian takes numbers as such.
    Without --split, --test-fraction or --test-last nothing is held out, and the scores are leave-one-out; where no
    factor fits there are none then.

    A pattern of Parquet files in quotes, such as 'part-*.parquet', is read in passes and not held: inducing points
    stand for the rows, and of many a random sample is scored.

    Started by torchrun --nproc-per-node N -m flashgp, several processes share the fit: the same words, the same answer.
    """

    table: Annotated[
        str,
        typer.Argument(
            metavar="TABLE",
            help="CSV, CSV.gz or Parquet; a pattern of Parquet files; or - for standard input.",
            show_default=False,
        ),
    ]
    target: Annotated[
        str, typer.Option("--target", "-t", metavar="COLUMN", help="What to predict: a name, or a position from 1.")
    ]
    target_transform: Annotated[
        Literal["auto", "none", "log", "yeo-johnson"],
        typer.Option(
            "--target-transform",
            help="Model the target on another scale: log, a Yeo-Johnson power, or the best if clearly better (auto).",
        ),
    ] = "auto"
    likelihood: Annotated[
        str | None,
        typer.Option(
            "--likelihood",
            metavar="NAME",
            help="By default classes of a target of text, true or false, or two numbers, else gaussian; auto: also "
            "counts; or bernoulli, categorical, student-t, poisson, negative-binomial, gamma, beta.",
        ),
    ] = None
    uncertainty: Annotated[
        Literal["laplace", "nuts", "auto"] | None,
        typer.Option(
            "--uncertainty",
            help="Average predictions over draws of the parameters: wider, honest intervals of small tables.",
        ),
    ] = None
    approximation: Annotated[
        Literal["none", "auto", "fourier", "full_scale", "sparse"],
        typer.Option(
            "--approximation",
            help="In place of exact inference: fourier (series), full_scale, sparse (inducing points), or auto. "
            "Patterns take sparse, or fourier.",
        ),
    ] = "none"
    split: Annotated[
        str | None, typer.Option("--split", help="Published split beside TABLE, from 0, or a mask file.")
    ] = None
    test_fraction: Annotated[
        float | None, typer.Option("--test-fraction", help="Share of rows to hold out at random.")
    ] = None
    test_last: Annotated[
        float | None,
        typer.Option("--test-last", help="Share of rows to hold out, the last ones: scores a forecast."),
    ] = None
    out: Annotated[str | None, typer.Option("--out", "-o", metavar="MODEL", help="Model file to write.")] = None
    report: Annotated[str | None, typer.Option("--report", metavar="FILE", help="HTML report to write.")] = None
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the random split and of random starts.")] = 0
    starts: Annotated[
        int | None, typer.Option("--starts", min=1, help="Runs from different starts; decided if left out.")
    ] = None
    time_limit: Annotated[
        float | None,
        typer.Option("--time-limit", metavar="SECONDS", help="Keep the best model after so long, reading included."),
    ] = None
    tolerance: Annotated[
        float, typer.Option("--tolerance", help="Of the mean, in standard deviations of an observation.")
    ] = 1e-3
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="The same bits whatever the number of threads; on one thread.")
    ] = False
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="Also say every parameter, every event, and how it was computed."),
    ] = False
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", metavar="FILE", help="Makes an interrupted fit resumable.")
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if sum(one is not None for one in (self.split, self.test_fraction, self.test_last)) > 1:
            raise typer.BadParameter("give one of --split, --test-fraction and --test-last")
        _check_between(self.test_fraction, 1.0, "--test-fraction")
        _check_between(self.test_last, 1.0, "--test-last")
        _check_between(self.time_limit, math.inf, "--time-limit")
        _check_between(self.tolerance, math.inf, "--tolerance")


@dataclass(frozen=True, kw_only=True)
class PredictArguments(TextArguments):
    """Predict every row of a table: columns mean, std, lower, upper, in the order of the table, behind those kept.

    Of a target of classes the columns are label, and the probability of each class.

    Where deviations come from samples, --std also adds std_error, the standard error of each; intervals leave it out.
    If the table also holds the target, the predictions are scored. Parquet files, one or a pattern of them, are read,
    predicted and written a part at a time: memory does not grow with their rows.
    """

    model: Model
    table: Table
    out: Annotated[
        str,
        typer.Option(
            "--out", "-o", metavar="FILE", help="Predictions: .csv, .csv.gz or .parquet; - for standard output."
        ),
    ]
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", metavar="COLUMN[,COLUMN]", help="Columns of TABLE to write beside them, such as a key."),
    ] = None
    std: Annotated[bool, typer.Option("--std", help="Add the standard deviation of a new observation.")] = False
    interval: Annotated[
        float | None, typer.Option("--interval", metavar="P", help="Add the central interval, such as 0.95.")
    ] = None
    variance: Annotated[
        Literal["auto", "exact", "sampled"],
        typer.Option(
            "--variance", help="How deviations come without a factor: exact, from samples, or by their price."
        ),
    ] = "auto"
    unseen: Annotated[
        Literal["error", "new"],
        typer.Option("--unseen", help="A category not seen in the fit: refuse it, or take it as a new one."),
    ] = "error"
    missing: Annotated[
        Literal["error", "drop"] | None,
        typer.Option("--missing", help="Rows with missing inputs: refuse, or predict nan; as in the fit if left out."),
    ] = None
    time_limit: Annotated[
        float | None,
        typer.Option(
            "--time-limit",
            metavar="SECONDS",
            help="Of deviations without a factor, of a table or a part: exact in so long, or sampled.",
        ),
    ] = None
    memory: Memory = None

    def __post_init__(self) -> None:
        _check_memory(self.memory)
        _check_between(self.interval, 1.0, "--interval")


@dataclass(frozen=True, kw_only=True)
class DemoArguments:
    """Try it: make a small table, fit it, predict new rows, and show the commands. Takes some seconds.

    FOLDER then has the tables, the model, a page to look at and the predictions. Nothing is downloaded.
    """

    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="Where to write; made if it is not there.")] = (
        "flashgp-demo"
    )


@dataclass(frozen=True, kw_only=True)
class UpdateArguments(TextArguments):
    """Learn the rows of a table without fitting again: O(n^2) for each, hyperparameters and scaling as they are.

    Every row is predicted before it is learned, and the scores of that are shown. The model file is replaced once the
    new one is complete; a command that does not end leaves the old one as it was.
    """

    model: Model
    rows: Annotated[
        str,
        typer.Argument(
            metavar="ROWS", help="New rows with the target: CSV, CSV.gz, Parquet, or -.", show_default=False
        ),
    ]
    out: Annotated[
        str | None, typer.Option("--out", "-o", metavar="MODEL", help="The new model file; MODEL itself if left out.")
    ] = None
    window: Annotated[
        int | None, typer.Option("--window", metavar="N", min=1, help="Keep the latest N rows; all if left out.")
    ] = None
    refine: Annotated[
        int | None,
        typer.Option("--refine", metavar="STEPS", min=1, help="Then improve the hyperparameters by so many steps."),
    ] = None
    missing: Annotated[
        Literal["error", "drop"] | None,
        typer.Option("--missing", help="Rows with missing values: refuse, or leave out; as in the fit if left out."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class PlanArguments(TableArguments):
    """Bytes and seconds that a fit of a TABLE, or of so many rows and columns, would take; nothing is allocated.

    Every route is priced: the table shows those not chosen and why. `flashgp tune` measures the rates.
    """

    table: Annotated[
        str | None, typer.Argument(metavar="TABLE", help="A table; or give --rows and --columns.", show_default=False)
    ] = None
    target: Annotated[
        str | None, typer.Option("--target", "-t", metavar="COLUMN", help="What to predict from TABLE.")
    ] = None
    rows: Annotated[int | None, typer.Option("--rows", min=0, help="Rows to fit, without a table.")] = None
    columns: Annotated[int | None, typer.Option("--columns", min=1, help="Numeric inputs, without a table.")] = None
    test_rows: Annotated[
        int | None, typer.Option("--test-rows", min=0, help="Also plan the prediction of so many rows.")
    ] = None
    time_limit: Annotated[
        float | None,
        typer.Option("--time-limit", metavar="SECONDS", help="Also say how many rows a fit would finish in this time."),
    ] = None
    approximation: Annotated[
        str | None,
        typer.Option(
            "--approximation", metavar="KIND",
            help="Plan fourier, full_scale or sparse instead of exact inference, or auto: what the limits allow.",
        ),
    ] = None  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_between(self.time_limit, math.inf, "--time-limit")
        if self.approximation is not None and self.test_rows is not None:
            raise typer.BadParameter("--test-rows is of exact inference; a plan of an approximation has 1,000 points")
        if self.table is None and (self.rows is None or self.columns is None):
            raise typer.BadParameter("give TABLE and --target, or --rows and --columns")
        if self.table is not None and (self.target is None or self.rows is not None or self.columns is not None):
            raise typer.BadParameter("with TABLE give --target, and neither --rows nor --columns")
        if self.table is None and self.kernel is not None:
            raise typer.BadParameter("--kernel names columns of a table; give TABLE and --target")


@dataclass(frozen=True, kw_only=True)
class TuneArguments:
    """Measure this machine in seconds, so that plans predict with its own rates.

    The profile is kept in your configuration folder, one file per machine, and used by every plan from then on.
    """

    profiles: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PROFILE]...", help="With --show: profile files, beside each other.", show_default=False
        ),
    ] = None
    show: Annotated[bool, typer.Option("--show", help="Print the profile in use; measure nothing.")] = False
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="NAMES", help=f"Measure these parts again, keep the rest: {', '.join(PARTS)}."),
    ] = None
    out: Annotated[str | None, typer.Option("--out", "-o", metavar="FILE", help="Draw the profile: .png or .html.")] = (
        None
    )

    def __post_init__(self) -> None:
        if self.profiles and not self.show:
            raise typer.BadParameter("profile files are shown, not measured; give --show before them")
        if self.show and self.only:
            raise typer.BadParameter("give --show or --only, not both")
        unknown = [name for text in self.only or () for name in text.split(",") if name.strip() not in PARTS]
        if unknown:
            raise typer.BadParameter(f"{', '.join(unknown)} is none of {', '.join(PARTS)}", param_hint="--only")


@dataclass(frozen=True, kw_only=True)
class DoctorArguments:
    """Look at this installation and this machine: what stands in the way of speed, and what to do about it.

    Versions, cores, threads, memory, accelerator, precision, missing packages with what they cost in seconds, machine
    profile, cache. Lines marked ! are warnings. Nothing is changed, and the exit code is 0
    whatever is found.
    """


@dataclass(frozen=True, kw_only=True)
class BenchArguments:
    """Compare FlashGP with plain torch and other installed libraries on this machine.

    Every timed run is checked against a float64 reference at inputs of its own; a candidate that is wrong, unfinished
    or remembers is refused, with the reason. kernel-matrix: a covariance matrix, beside the construction of a closure
    that is sometimes timed in its place. online: append one row, then predict one point. linalg: factorisations by
    device. About a minute each at the suite's own sizes.
    """

    name: Annotated[str, typer.Argument(metavar="SUITE", help="One of the names above.", show_default=False)]
    sizes: Annotated[
        str | None, typer.Option("--sizes", metavar="N,N,...", help="Rows; the suite's own if left out.")
    ] = None
    dtypes: Annotated[
        str | None,
        typer.Option("--dtypes", metavar="DTYPE,...", help="float32, float64; of kernel-matrix also bfloat16, stored."),
    ] = None
    device: Annotated[
        str, typer.Option("--device", help="cpu, cuda, or auto for every device there is; several with commas.")
    ] = "auto"
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Timed runs of each candidate.")] = 5
    peers: Annotated[bool, typer.Option("--peers/--no-peers", help="Whether peers that are installed take part.")] = (
        True
    )
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of data, order and variations.")] = 0
    out: Annotated[str | None, typer.Option("--out", "-o", metavar="FILE", help="Write a .json record.")] = None

    def __post_init__(self) -> None:
        from flashgp.bench.suites import SUITES

        if self.name not in SUITES:
            raise typer.BadParameter(f"must be one of {', '.join(SUITES)}, got {self.name!r}", param_hint="SUITE")
        try:
            _ = self.rows
        except ValueError:
            message = f"must be whole numbers with commas, got {self.sizes!r}"
            raise typer.BadParameter(message, param_hint="--sizes") from None

    @property
    def rows(self) -> tuple[int, ...]:
        return tuple(int(size) for size in listed(self.sizes))


def listed(text: str | None) -> tuple[str, ...]:
    """The parts of text with commas."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _check_between(value: float | None, top: float, name: str) -> None:
    if value is not None and not 0.0 < value < top:
        wanted = "must be positive" if top == math.inf else f"must lie strictly between 0 and {top:g}"
        raise typer.BadParameter(wanted, param_hint=name)


def _size(text: str | None, name: str) -> int | str:
    """A number or "auto". Raises: BadParameter."""
    if text is None or text == "auto":
        return "auto"
    if not (text.isascii() and text.isdigit()):
        raise typer.BadParameter(f"`{name}` must be a number, 0 or more, or auto, got {text!r}; leave it out for auto")
    return int(text)


def _check_memory(text: str | None) -> None:
    try:
        if text is not None:
            parse_bytes(text, "--memory")
    except DomainError as error:
        raise typer.BadParameter(str(error)) from None


def require_writable(path: str, argument: str) -> None:
    """Raises: DomainError unless a file of this name can be written: its folder exists and permits it."""
    folder = os.path.dirname(os.path.realpath(path))
    reason = None
    if path == "-":
        raise DomainError(f"`{argument}` must be a file, got '-', and is not written to standard output; name a file")
    if os.path.isdir(path):
        reason = "it is a folder"
    elif not os.path.isdir(folder):
        reason = f"the folder {folder!r} does not exist"
    elif not os.access(folder, os.W_OK | os.X_OK):
        reason = f"the folder {folder!r} may not be written to"
    if reason is not None:
        raise DomainError(
            f"`{argument}` must be a file that can be written, got {path!r} ({reason}); "
            "choose another, or make the folder"
        )


def require_distinct(paths: Mapping[str, str | None]) -> None:
    """Raises: DomainError if two arguments name the same file: a result must not replace the data."""
    seen: dict[str, str] = {}
    for argument, path in paths.items():
        if path in (None, "-"):  # standard input and output differ
            continue
        real = os.path.realpath(path)
        if real in seen:
            raise DomainError(
                f"`{argument}` must differ from `{seen[real]}`, got {path!r} for both; choose another name"
            )
        seen[real] = argument
