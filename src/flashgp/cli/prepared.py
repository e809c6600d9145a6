"""A table made ready to fit: read, encoded, divided, standardised, with a model and its plan."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from flashgp.foundations.deadline import NO_DEADLINE, Deadline
from flashgp.foundations.errors import BackendUnavailableError, DomainError
from flashgp.foundations.events import Event
from flashgp.foundations.quantities import readable_bytes
from flashgp.inference import plan as plans
from flashgp.inference.gp import GP
from flashgp.inference.replicates import equal_rows
from flashgp.inference.training.options import FitOptions as Settings
from flashgp.kernel_choice import choose_kernel
from flashgp.kernels.default import DEFAULT
from flashgp.likelihoods import Gaussian
from flashgp.means import Constant
from flashgp.planner.plan import FACTORED, Plan
from flashgp.standardise import Scaling
from flashgp.table import EncodedTable, Encoding, Table, read_split, read_table, split_rows
from flashgp.target_choice import choose_transform
from flashgp.target_transform import TargetTransform

from .console import Console
from .kernel_expression import BuiltKernel, KernelColumns, build_kernel
from .options import FitOptions

__all__ = ["DTYPES", "Prepared", "plan_summary", "prepare"]

DTYPES = {None: None, "float64": torch.float64, "float32": torch.float32}
_Numbers = npt.NDArray[np.float64]
_Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Prepared:
    """A table ready to fit.

    Fields:
        table, encoding, data: as read, and as numbers.
        train, test: positions in data; test is None where nothing is held out.
        scaling: of the training rows, with the transform of the target.
        tensors: standardised training rows, (n, d) and (n,), float64.
        gp, has_starts: the model, and whether it holds starting values of the user's.
        kernel_text: the expression, or the default kernel in words.
        plan: of the fit.
        choices: which transform the target got and which covariance function was chosen, and why.
    """

    table: Table
    encoding: Encoding
    data: EncodedTable
    train: _Rows
    test: _Rows | None
    scaling: Scaling
    tensors: tuple[torch.Tensor, torch.Tensor]
    gp: GP
    has_starts: bool
    kernel_text: str
    plan: Plan
    choices: tuple[Event, ...]

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.encoding.inputs]

    @property
    def y(self) -> _Numbers:
        assert self.data.y is not None
        return self.data.y


def prepare(options: FitOptions, console: Console, deadline: Deadline = NO_DEADLINE) -> Prepared:
    """Read, encode, split, standardise, build the model, plan. Notes are said as they arise.

    Raises: FlashGPError for anything in the table or the arguments that does not work; MemoryBudgetError.
    """
    _check_device(options.device)
    table = read_table(options.table, header=options.header, delimiter=options.delimiter, decimal=options.decimal)
    encoding = Encoding.learn(table, options.target, options.drop or (), options.missing)
    encoded = encoding.apply(table, need_target=True)
    for text in dict.fromkeys((*table.notes, *encoding.notes, *encoded.notes)):
        console.note(text)
    train, test = _split(options, table, encoded)
    assert encoded.y is not None
    codes = encoding.category_positions
    scaling = Scaling.learn(encoded.x[train], encoded.y[train], skip=codes)
    names = [column.name for column in encoding.inputs]
    if options.expression is None:
        built = BuiltKernel(DEFAULT.build(len(names), codes), has_starts=False)
        kernel_text = DEFAULT.words(len(names), codes)
    else:
        kernel_text = options.expression.text
        built = build_kernel(options.expression, KernelColumns(encoding.inputs, table.names, scaling))
        if unused := _unused(built, len(names)):
            console.note(f"the kernel does not use {', '.join(repr(names[j]) for j in unused)}.")
    gp = GP(built.kernel, Constant(), Gaussian(0.1))
    x = torch.from_numpy(np.ascontiguousarray(scaling.x(encoded.x[train])))
    if options.target_transform == "log":
        TargetTransform("log").check(encoded.y[train], encoded.rows[train] + 1)
    how = Settings(
        initial="given" if built.has_starts else "data", deadline=deadline, seed=options.seed,
        deterministic=options.deterministic,
    )  # fmt: skip
    choice = choose_transform(options.target_transform, gp, x, encoded.y[train], how)
    scaling = scaling if choice.transform.identity else scaling.with_target(encoded.y[train], choice.transform)
    y = torch.from_numpy(scaling.y(encoded.y[train]))
    choices: tuple[Event, ...] = () if choice.event is None else (choice.event,)
    if options.kernel == "auto":
        chosen = choose_kernel(lambda kernel: GP(kernel.build(len(names), codes), gp.mean, gp.likelihood), x, y, how)
        choices += (chosen.event,)
        gp.kernel, kernel_text = chosen.kernel.build(len(names), codes), chosen.kernel.words(len(names), codes)
    group = equal_rows(gp, x, y)
    plan = plans.plan(
        gp,
        len(train),
        len(names),
        distinct=None if group is None else int(group.max()) + 1,
        memory=options.memory,
        device=options.device,
        dtype=DTYPES[options.dtype],
        solver=options.solver,
        deterministic=options.deterministic,
        time_limit=options.time_limit,
        starts=1 if options.starts is None and built.has_starts else options.starts,
    )
    counts = "" if test is None else f": {len(train):,} to fit, {len(test):,} held out"
    console.pairs(
        f"{options.table}: {encoding.target} from {len(names)} input{'s' if len(names) > 1 else ''}",
        [
            ("rows", f"{len(encoded.rows):,} of {table.rows:,}{counts}" if counts or len(encoded.rows) < table.rows
             else f"{table.rows:,}"),
            ("inputs", _listed(names)),
            ("kernel", kernel_text),
        ],
    )  # fmt: skip
    return Prepared(
        table, encoding, encoded, train, test, scaling, (x, y), gp, built.has_starts, kernel_text, plan, choices
    )  # fmt: skip


def plan_summary(plan: Plan) -> list[tuple[str, str]]:
    """A plan for people who did not ask for it; `flashgp plan` has the rest."""
    if plan.route in FACTORED:
        how = f"Cholesky factor in {plan.dtype}" + (", corrected in float64" if plan.route == "refined" else "")
    else:
        matrix = "stored" if plan.route == "stored" else "computed again in every product"
        how = f"conjugate gradients, the covariance matrix {matrix}"
    rates = "" if plan.profile == "measured" else "; `flashgp tune` measures how fast this machine is"
    return [
        ("method", f"{how}, on {plan.device}"),
        ("memory", f"about {readable_bytes(plan.peak_bytes)} of {readable_bytes(plan.available_bytes)} available"),
        ("time", f"{plan.fit_text}{rates}"),
        *([("fits up to", str(plan.largest_fit))] if plan.largest_fit else []),
    ]


def _check_device(device: str) -> None:
    try:
        wanted = "cpu" if device == "auto" else torch.device(device).type
    except RuntimeError as error:
        raise DomainError(f"`--device` must be auto, cpu or cuda, got {device!r} ({str(error)[:100]})") from None
    if wanted not in ("cpu", "cuda"):
        raise DomainError(f"`--device` must be auto, cpu or cuda, got {device!r}; float64 is computed on these")
    if wanted == "cuda" and not torch.cuda.is_available():
        raise BackendUnavailableError(f"`--device` is {device!r}, but torch finds no CUDA device; use auto or cpu")


def _split(options: FitOptions, table: Table, data: EncodedTable) -> tuple[_Rows, _Rows | None]:
    """Positions in the encoded rows of what is fitted and what is held out."""
    if options.split is not None:
        is_test = read_split(options.split, table)[data.rows]  # rows of the file, of which some may have been dropped
        if is_test.all() or not is_test.any():
            raise DomainError(
                f"`--split` must leave rows on both sides, got {int(is_test.sum())} test rows among the "
                f"{len(is_test)} rows without missing values; choose another split"
            )
        return np.flatnonzero(~is_test), np.flatnonzero(is_test)
    if options.test_fraction is not None:
        return split_rows(len(data.rows), options.test_fraction, options.seed)
    return np.arange(len(data.rows)), None


def _unused(built: BuiltKernel, count: int) -> list[int]:
    used: set[int] = set()
    for leaf in built.kernel.leaves():
        dims: Any = getattr(leaf, "active_dims", None)
        if type(leaf).__name__ != "Constant":
            used.update(range(count) if dims is None else dims)
    return [j for j in range(count) if j not in used]


def _listed(names: list[str]) -> str:
    return ", ".join(names[:12]) + (f" and {len(names) - 12:,} more" if len(names) > 12 else "")
