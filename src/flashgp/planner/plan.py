"""Plan: what conditioning and fitting will allocate and how long they will take, decided before anything is allocated.

The routes are those of ROUTES; planner/conditioning.py prices them and chooses. The plan is a frozen value that
prints, serialises, and can be handed back (`plan=`) to run the same way again. Plans of products and predictions are
in planner/products.py.
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from flashgp.foundations.errors import DomainError
from flashgp.foundations.quantities import counted, readable_bytes, readable_seconds
from flashgp.planner.choice import DTYPES, Alternative, plan_json, plan_values, table_of
from flashgp.planner.engines import ENGINES

SMALL_BYTES = 64 * 2**20  # what a prediction may be off by, small problems included (docs/design.md, memory)
# And the dtype of the factor, or of the products of an iteration.
ROUTES = {"direct": "float64", "refined": "float32", "stored": "float32", "recomputed": "float32"}
FACTORED = ("direct", "refined")
SOLVER_ROUTES = {"cholesky": FACTORED, "cg": ("stored", "recomputed")}  # the routes that a solver works on
TRAININGS = {
    "exact": "a factor and its closed-form gradient in every step",
    "stored": "iterative solves on stored float32 tiles, gradients estimated",
    "recomputed": "iterative solves, tiles recomputed in every product, gradients estimated",
}
_SOLVERS = {"cholesky": "Cholesky", "cg": "block conjugate gradients, preconditioned"}
_DESCRIPTIONS = {
    "direct": "Cholesky of all rows, float64",
    "refined": "Cholesky of all rows, float32, weights corrected in float64",
    "stored": "iterative solves on stored float32 tiles, residuals in float64",
    "recomputed": "iterative solves, float32 tiles recomputed in every product, residuals in float64",
}


def allowed_bytes(predicted: int) -> int:
    """What a run may take of the bytes its plan predicted: the error that plans promise, and not more."""
    return max(int(1.1 * predicted), predicted + SMALL_BYTES)


@dataclass(frozen=True)
class LargestFit:
    """The largest table that a fit is expected to finish within limits. Fields: rows, 0 where one row takes longer;
    seconds of that fit; time_limit in seconds, None for none; memory_bytes, of the budget."""

    rows: int
    seconds: float
    time_limit: float | None
    memory_bytes: int

    def __str__(self) -> str:
        limit = "" if self.time_limit is None else f"{readable_seconds(self.time_limit)} and "
        return f"{counted(self.rows, 'row')} like these in {limit}{readable_bytes(self.memory_bytes)}"


@dataclass(frozen=True)
class Offer:
    """An approximation that would do the same in less time or memory, and lose something.

    Fields: approximation, "full_scale" or "sparse"; inducing and neighbours, its sizes; bytes, the peak, and seconds,
    of the whole fit.
    """

    approximation: str
    inducing: int
    neighbours: int
    bytes: int
    seconds: float

    def __str__(self) -> str:
        return f'"{self.approximation}" about {readable_seconds(self.seconds)} and {readable_bytes(self.bytes)}'


@dataclass(frozen=True)
class Shared:
    """What each of the ranks that share a plan sends, at most (rank 0).

    Fields: ranks; sent_bytes of conditioning once; fit_sent_bytes of a whole fit.
    """

    ranks: int
    sent_bytes: int
    fit_sent_bytes: int

    def lines(self) -> list[tuple[str, str]]:
        """(name, readable value)."""
        one, fit = readable_bytes(self.sent_bytes), readable_bytes(self.fit_sent_bytes)
        return [
            ("ranks", f"{self.ranks}: bytes and seconds are those of each of them; time on the network not counted"),
            ("sent", f"{one} to condition, {fit} in a whole fit"),
        ]


@dataclass(frozen=True)
class Plan:
    """One way to compute, with its predicted price. Equal plans run the same way.

    Fields: route, one of ROUTES; solver, one of SOLVER_ROUTES; backend, that evaluates the pairs; device and
    dtype (of the factor, or of products) as text; n, d, outputs, batch (members); factors, covariance matrices of each
    member: 1, or one for each output with noise of its own, of which conditioning keeps a factor each;
    distinct, of the n rows, which are those that are computed with; rank, most columns of the preconditioner of an
    iteration, 0 with a factor; peak_bytes and seconds of conditioning once; training, how `fit` gets its gradients, one
    of TRAININGS; training_bytes, the peak of it; fit_step_seconds of one objective with gradient;
    training_factor_passes, after so many passes of a step a float32 factor takes over, 0 where it does not fit;
    training_rank, as rank, of its steps; fit_seconds of a whole fit with its posterior, eq. (M-146), and
    fit_seconds_low and fit_seconds_high, between which most fits end, 0 where that was not planned;
    available_bytes; profile, whose rates were used; kernel, "fused" or what of it runs through Python, and why; notes;
    alternatives, the routes not chosen, with their price and the reason; largest_fit, the largest table that a fit
    would finish within the limits that were named; offers, approximations where the fit takes long; shared, what ranks
    send where several share the work: bytes and seconds are then those of each of them, without time on the network.
    """

    route: str
    solver: str
    backend: str
    device: str
    dtype: str
    n: int
    distinct: int
    d: int
    outputs: int
    batch: int
    rank: int
    peak_bytes: int
    seconds: float
    training: str
    training_bytes: int
    fit_step_seconds: float
    training_factor_passes: int
    training_rank: int
    fit_seconds: float
    fit_seconds_low: float
    fit_seconds_high: float
    available_bytes: int
    profile: str
    kernel: str
    notes: tuple[str, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    largest_fit: LargestFit | None = field(default=None, compare=False)
    factors: int = 1
    offers: tuple[Offer, ...] = field(default=(), compare=False)
    shared: Shared | None = None

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    def to_json(self) -> str:
        return plan_json(self)

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Raises: DomainError for text that is not a plan."""
        plan = plan_values(cls, text)
        if plan.solver == "alternating_projections":  # of files of version 0.1; conjugate gradients do the same
            plan = replace(plan, solver="cg")
        if ROUTES.get(plan.route) != plan.dtype:
            raise DomainError(f"`text` names route {plan.route!r} in {plan.dtype!r}, which this version does not know")
        if plan.route not in SOLVER_ROUTES.get(plan.solver, ()):
            raise DomainError(f"`text` names solver {plan.solver!r}, which this version does not know for its route")
        if plan.training not in TRAININGS:
            raise DomainError(f"`text` names the training {plan.training!r}, which this version does not know")
        if plan.backend not in (engine.backend for engine in ENGINES):
            raise DomainError(f"`text` names the backend {plan.backend!r}, which this version does not know")
        if plan.factors not in (1, plan.outputs):
            raise DomainError(f"`text` names {plan.factors} factors of {plan.outputs} outputs; one, or one of each")
        if not min(plan.n, 1) <= plan.distinct <= plan.n:
            raise DomainError(f"`text` names {plan.distinct:,} distinct rows of n = {plan.n:,}; at most all differ")
        return plan

    @property
    def fit_text(self) -> str:
        """The seconds of a whole fit in words."""
        return seconds_text(self.fit_seconds_low, self.fit_seconds, self.fit_seconds_high)

    def lines(self) -> list[tuple[str, str]]:
        """(name, readable value); the alternatives are a table of their own."""
        size = f"n = {self.n:,}" + (f" rows, {self.distinct:,} distinct" if self.distinct < self.n else "")
        size += f", d = {self.d}"
        size += f", {self.outputs} outputs" if self.outputs > 1 else ""
        size += ", each with noise of its own" if self.factors > 1 else ""
        size += f", {self.batch} models" if self.batch > 1 else ""
        return [
            ("problem", size),
            ("kernel", kernel_line(self.kernel)),
            ("route", f"{self.route}: {_DESCRIPTIONS[self.route]}, {self.backend} tiles on {self.device}"),
            ("solver", _SOLVERS[self.solver]),
            ("peak memory", f"{readable_bytes(self.peak_bytes)} of {readable_bytes(self.available_bytes)} available"),
            ("condition", f"about {readable_seconds(self.seconds)} ({self.profile} rates)"),
            *(self.shared.lines() if self.shared else []),
            ("training", f"{self.training}: {TRAININGS[self.training]}; {readable_bytes(self.training_bytes)} at most"),
            ("one fit step", f"about {readable_seconds(self.fit_step_seconds)}"),
            *([("whole fit", self.fit_text)] if self.fit_seconds else []),
            *([("fits up to", str(self.largest_fit))] if self.largest_fit else []),
            *([("approximate", offers_text(self.offers))] if self.offers else []),
            *(("note", note) for note in self.notes),
        ]

    def __str__(self) -> str:
        return printed(self.lines(), self.alternatives)

    def _repr_html_(self) -> str:
        return printed_html(self.lines(), self.alternatives)


def offers_text(offers: Sequence[Offer]) -> str:
    """Approximations with their costs, and where to read what they lose."""
    return f"approximation={' or '.join(map(str, offers))}; posterior.lost and posterior.bound say what that loses"


def seconds_text(low: float, middle: float, high: float) -> str:
    """The seconds of a whole fit in words."""
    return f"about {readable_seconds(middle)}, most between {readable_seconds(low)} and {readable_seconds(high)}"


def kernel_line(fusion: str) -> str:
    """A form's fusion for readers of a plan."""
    if fusion == "fused":
        return "fused: generated code evaluates all of it"
    return f"{fusion}; these pairs run through Python, on the portable backend only"


def printed(lines: Sequence[tuple[str, str]], alternatives: Sequence[Alternative]) -> str:
    """A plan as text: its lines, then the table of what was not chosen."""
    shown = [f"{name:<14} {text}" for name, text in lines]
    if alternatives:
        table = table_of(alternatives)
        widths = [max(len(row[k]) for row in table) for k in range(len(table[0]))]
        shown += ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in table]
    return "\n".join(shown)


def printed_html(lines: Sequence[tuple[str, str]], alternatives: Sequence[Alternative]) -> str:
    """The same for notebooks."""
    body = "".join(f"<tr><th>{html.escape(n)}</th><td>{html.escape(t)}</td></tr>" for n, t in lines)
    text = f"<table>{body}</table>"
    if alternatives:
        head, *rows = table_of(alternatives)
        cells = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        text += f"<table><tr>{cells}</tr>{body}</table>"
    return text
