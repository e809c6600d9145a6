"""Plan: what conditioning and fitting will allocate and how long they will take, decided before anything is allocated.

Exact routes are those of ROUTES, priced in planner/exact.py; approximations those of KINDS, priced in
planner/full_scale_price.py and sparse_price.py. The plan is a frozen value that prints, serialises, and can be handed
back (`plan=`) to run the same way again. Plans of products and predictions are in planner/products.py.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from flashgp.foundations.cells import html_table
from flashgp.foundations.errors import DomainError
from flashgp.foundations.events import NoSeries
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
    "full_scale": "those of full scale, by which the parameters are found; the posterior's sites are exact",
}
KINDS = {
    "full_scale": "inducing points and a block-Vecchia factor of the residual covariance",
    "fourier": "Fourier series of a stationary covariance function, after one pass over the rows",
    "sparse": "inducing points by their collapsed bound, in passes over the rows",
}
LOST_HINT = {
    "full_scale": "posterior.lost estimates it, nats a row, with a standard error",
    "fourier": "posterior.lost says what is left out",
    "sparse": "posterior.bound has a lower and an upper bound on log p(y)",
}
# Fields that came later, as JSON: plans of before have none.
LATER: dict[str, Any] = {
    "fit_seconds": 0.0, "fit_seconds_low": 0.0, "fit_seconds_high": 0.0, "largest_fit": None, "factors": 1,
    "conditionings": 1, "offers": [], "shared": None, "approximation": "", "inducing": 0, "block": 0,
    "neighbours": 0, "predicting": 0,
    "allocations": [], "predict_seconds": 0.0, "more_seconds": 0.0, "most_neighbours": 0, "sample_seconds": [0.0, 0.0],
    "no_series": None, "pairs_seconds": 0.0,
}  # fmt: skip
HELD, LAYOUT, PASS, GRADIENT, FEW = "all of it", "choosing points", "a pass", "a gradient", "few rows"
# One in so many inducing points is tried; so many neighbours a predicted point has at most, unless a block has more.
FEWER_POINTS, MOST_PREDICTING = 8, 1024
_SOLVERS = {"cholesky": "Cholesky", "cg": "block conjugate gradients, preconditioned"}
_DESCRIPTIONS = {
    "direct": "Cholesky of all rows, float64",
    "refined": "Cholesky of all rows, float32, weights corrected in float64",
    "stored": "iterative solves on stored float32 tiles, residuals in float64",
    "recomputed": "iterative solves, float32 tiles recomputed in every product, residuals in float64",
}


def allowed_bytes(predicted: int) -> int:
    """Bytes that a run may take, given those its plan predicted: the error that plans promise, and not more."""
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
    """Bytes that each of the ranks that share a plan sends, at most (rank 0).

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
class Sizes:
    """Fields: inducing points; rows of a block; neighbours of a block; neighbours of a point that is predicted."""

    inducing: int
    block: int
    neighbours: int
    predicting: int

    def doubled(self) -> "Sizes":
        """Twice the neighbours, of points too; without any twice the inducing points."""
        if self.neighbours:
            neighbours = 2 * self.neighbours
            predicting = max(neighbours, min(2 * self.predicting, MOST_PREDICTING))
            return replace(self, neighbours=neighbours, predicting=predicting)
        return replace(self, inducing=2 * self.inducing)

    def coarse(self) -> "Sizes":
        """Sizes that a search begins with, eq. (M-208): an eighth of the inducing points, half the neighbours."""
        return replace(self, inducing=-(-self.inducing // FEWER_POINTS), neighbours=-(-self.neighbours // 2))

    def within(self, rows: int) -> "Sizes":
        """Sizes capped by the number of rows."""
        return replace(
            self, inducing=min(self.inducing, rows), neighbours=min(self.neighbours, rows),
            predicting=min(self.predicting, rows),
        )  # fmt: skip


@dataclass(frozen=True)
class Allocation:
    """Buffers of one kind. Fields: during, what they are there for; name; bytes."""

    during: str
    name: str
    bytes: int


def peak_of(allocations: Iterable[Allocation], phases: Iterable[str]) -> int:
    """Peak bytes: those held all the while, and the largest of the phases, eq. (M-183)."""
    total: Counter[str] = Counter()
    for one in allocations:
        total[one.during] += one.bytes
    return total[HELD] + max((total[phase] for phase in phases), default=0)


@dataclass(frozen=True)
class Plan:
    """One way to compute, with its predicted price. Equal plans run the same way.

    Attributes:
        device: where it runs.
        n: rows.
        d: columns of x.
        outputs: columns of y.
        distinct: of the n rows, which are those that are computed with.
        peak_bytes: of conditioning once.
        seconds: of conditioning once.
        training_bytes: the peak of a fit.
        fit_step_seconds: of one objective with gradient.
        fit_seconds: of a whole fit with its posterior, eqs. (M-146) and (M-186); 0 where that was not planned.
        fit_seconds_low: with `fit_seconds_high`, between which most fits end.
        fit_seconds_high: see `fit_seconds_low`.
        available_bytes: of the budget.
        profile: whose rates were used.
        kernel: "fused" or what of it runs through Python, and why.
        notes: in words.
        conditionings: that finding sites by iteration is priced at, in `seconds` and `fit_seconds`; 1 where they need
            none. A step of a fit is priced at all its likelihoods.
        shared: what ranks send where several share the work: bytes and seconds are then those of each of them, without
            time on the network.
        route: of exact inference, one of ROUTES.
        solver: of exact inference, one of SOLVER_ROUTES.
        backend: of exact inference, evaluates the pairs.
        dtype: of exact inference, that of the factor, or of products.
        batch: of exact inference, members.
        factors: of exact inference, covariance matrices of each member: 1, or one for each output with noise of its
            own, of which conditioning keeps a factor each.
        rank: of exact inference, most columns of the preconditioner of an iteration, 0 with a factor.
        training: of exact inference, how `fit` gets its gradients, one of TRAININGS.
        training_factor_passes: of exact inference, after so many passes of a step a float32 factor takes over, 0 where
            it does not fit.
        training_rank: as rank, of the steps of a fit.
        alternatives: of exact inference, the routes not chosen, with their price and the reason.
        largest_fit: of exact inference, the largest table that a fit would finish within the limits that were named.
        offers: of exact inference, approximations where the fit takes long.
        approximation: one of KINDS, "" of exact inference.
        inducing: size of an approximation, 0 where there is none.
        block: likewise.
        neighbours: likewise.
        predicting: likewise, neighbours of a point that is predicted.
        allocations: of an approximation, all of them.
        predict_seconds: of an approximation, of a point.
        more_seconds: of an approximation, of a whole fit with twice the neighbours, or twice the inducing points where
            there are none.
        most_neighbours: of an approximation, neighbours that a fit takes where these add much, (M-209): bytes are for
            them, 0 where it takes no more.
        no_series: reason that it is not one of Fourier series, where that was left to the library.
        pairs_seconds: of exact inference, `seconds` if all pairs were met, where other products are expected to be
            quicker; 0 elsewhere.
        sample_seconds: of an approximation, of a fit whose hyperparameters are those of a sample, (M-244): the least,
            and with all rows learned.
    """

    device: str
    n: int
    distinct: int
    d: int
    outputs: int
    peak_bytes: int
    seconds: float
    training_bytes: int
    fit_step_seconds: float
    available_bytes: int
    profile: str
    kernel: str
    fit_seconds: float = 0.0
    fit_seconds_low: float = 0.0
    fit_seconds_high: float = 0.0
    notes: tuple[str, ...] = ()
    conditionings: int = 1
    shared: Shared | None = None
    route: str = ""
    solver: str = ""
    backend: str = ""
    dtype: str = "float64"
    batch: int = 1
    factors: int = 1
    rank: int = 0
    training: str = ""
    training_factor_passes: int = 0
    training_rank: int = 0
    alternatives: tuple[Alternative, ...] = ()
    largest_fit: LargestFit | None = field(default=None, compare=False)
    offers: tuple[Offer, ...] = field(default=(), compare=False)
    approximation: str = ""
    inducing: int = 0
    block: int = 0
    neighbours: int = 0
    predicting: int = 0
    allocations: tuple[Allocation, ...] = ()
    predict_seconds: float = 0.0
    more_seconds: float = 0.0
    most_neighbours: int = 0
    sample_seconds: tuple[float, float] = (0.0, 0.0)
    no_series: NoSeries | None = None
    pairs_seconds: float = 0.0

    @property
    def seconds_by_pairs(self) -> float:
        """Seconds of conditioning once if products are of all pairs."""
        return self.pairs_seconds or self.seconds

    def with_products(self, seconds: float) -> "Plan":
        """The plan with solves on other products than those of all pairs. Args: seconds, of conditioning."""
        note = (
            f"products by Fourier series are expected in place of these passes, about {self.seconds / seconds:.1f} "
            "times quicker; what is not chosen is priced, and compared, without"
        )
        fits = {name: getattr(self, name) for name in ("fit_seconds", "fit_seconds_low", "fit_seconds_high")}
        less = {name: max(seconds, one - self.seconds + seconds) for name, one in fits.items() if one}
        return replace(self, seconds=seconds, pairs_seconds=self.seconds, notes=(*self.notes, note), **less)

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    @property
    def sizes(self) -> Sizes:
        return Sizes(self.inducing, self.block, self.neighbours, self.predicting)

    def bytes_of(self, *, training: bool) -> int:
        """The peak of a fit, or of conditioning."""
        return self.training_bytes if training else self.peak_bytes

    def seconds_of(self, *, training: bool) -> float:
        """Seconds of a whole fit, or of conditioning."""
        return self.fit_seconds if training else self.seconds

    def fits(self, *, training: bool) -> bool:
        return self.bytes_of(training=training) <= self.available_bytes

    def repeated(self, conditionings: int, likelihoods: float) -> "Plan":
        """The plan where finding sites takes so many conditionings, and an evaluation of a fit as many likelihoods, all
        but the last of which have no gradient by parameters."""
        last, once = conditionings * self.seconds, self.fit_step_seconds
        times = 1.0 + (likelihoods - 1.0) * (min(1.0, self.seconds_by_pairs / once) if once else 1.0)

        def fit(seconds: float) -> float:
            return times * max(0.0, seconds - self.seconds) + last if seconds else 0.0

        return replace(
            self, seconds=last, pairs_seconds=conditionings * self.pairs_seconds, conditionings=conditionings,
            fit_step_seconds=times * once,
            fit_seconds=fit(self.fit_seconds), fit_seconds_low=fit(self.fit_seconds_low),
            fit_seconds_high=fit(self.fit_seconds_high), more_seconds=fit(self.more_seconds),
        )  # fmt: skip

    def to_json(self) -> str:
        return plan_json(self)

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Read a plan from text that `to_json` wrote.

        Args:
            text: JSON.

        Raises:
            DomainError: for text that is not a plan.
        """
        plan = plan_values(cls, text, LATER)
        if plan.approximation:
            if plan.approximation not in KINDS:
                raise DomainError(
                    f"`text` names the approximation {plan.approximation!r}; it must be one of {[*KINDS]}"
                )
            return plan
        if plan.solver == "alternating_projections":  # of files of version 0.1; conjugate gradients do the same
            plan = replace(plan, solver="cg")
        known = {
            "route": ROUTES.get(plan.route) == plan.dtype,
            "solver": plan.route in SOLVER_ROUTES.get(plan.solver, ()),
            "training": plan.training in TRAININGS,
            "backend": plan.backend in (engine.backend for engine in ENGINES),
        }
        for name, there in known.items():
            if not there:
                raise DomainError(
                    f"`text` names the {name} {getattr(plan, name)!r}, {plan.dtype}, which this version does not know"
                )
        if plan.factors not in (1, plan.outputs):
            raise DomainError(f"`text` names {plan.factors} factors of {plan.outputs} outputs; one, or one of each")
        if not min(plan.n, 1) <= plan.distinct <= plan.n:
            raise DomainError(f"`text` names {plan.distinct:,} distinct rows of n = {plan.n:,}; at most all differ")
        return plan

    @property
    def fit_text(self) -> str:
        """The seconds of a whole fit in words."""
        low, middle, high = map(readable_seconds, (self.fit_seconds_low, self.fit_seconds, self.fit_seconds_high))
        return f"about {middle}, most between {low} and {high}"

    @property
    def sizes_text(self) -> str:
        """The sizes of an approximation in words."""
        if self.approximation == "fourier":
            return "frequencies as the covariance function asks for"
        if self.approximation == "sparse":
            return f"{self.inducing:,} inducing points"
        more = f", or {self.most_neighbours:,} where these add much" if self.most_neighbours else ""
        sizes = f"{self.inducing:,} inducing points, blocks of {self.block:,} rows, {self.neighbours:,} neighbours"
        return sizes + more

    def lines(self) -> list[tuple[str, str]]:
        """(name, readable value); the alternatives are a table of their own."""
        size = f"n = {self.n:,}" + (f" rows, {self.distinct:,} distinct" if self.distinct < self.n else "")
        size += f", d = {self.d}"
        size += f", {self.outputs} outputs" if self.outputs > 1 else ""
        size += ", each with noise of its own" if self.factors > 1 else ""
        size += f", {self.batch} models" if self.batch > 1 else ""
        memory = f"{readable_bytes(self.peak_bytes)} of {readable_bytes(self.available_bytes)} available"
        training = f"{self.training}: {TRAININGS[self.training]}; " if self.training else ""
        if self.approximation:
            how = [("approximation", f"{self.approximation}: {KINDS[self.approximation]}"), ("sizes", self.sizes_text)]
            ordered = sorted(self.allocations, key=lambda one: -one.bytes)[:3]
            text = "; ".join(f"{a.name} ({a.during}): {readable_bytes(a.bytes)}" for a in ordered)
            largest = [("largest allocations", text)]
            each = f", each from {self.predicting:,} neighbours" if self.predicting else ""
            twice = "twice the neighbours" if self.neighbours else "twice the points"
            more = [
                ("predict", f"about {readable_seconds(1000 * self.predict_seconds)} for 1,000 points{each}"),
                (twice, f"about {readable_seconds(self.more_seconds)} for the whole fit"),
                ("accuracy lost", LOST_HINT[self.approximation]),
            ]
        else:
            route = f"{self.route}: {_DESCRIPTIONS[self.route]}, {self.backend} tiles on {self.device}"
            how, largest = [("route", route), ("solver", _SOLVERS[self.solver])], []
            more = [("fits up to", str(self.largest_fit))] if self.largest_fit else []
            more += [("approximate", offers_text(self.offers))] if self.offers else []
        steps = f", as {self.conditionings} conditionings that find sites" if self.conditionings > 1 else ""
        return [
            ("problem", size),
            ("kernel", kernel_line(self.kernel)),
            *how,
            ("peak memory", memory),
            *largest,
            ("condition", f"about {readable_seconds(self.seconds)} ({self.profile} rates){steps}"),
            *(self.shared.lines() if self.shared else []),
            ("training", f"{training}{readable_bytes(self.training_bytes)} at most"),
            ("one fit step", f"about {readable_seconds(self.fit_step_seconds)}"),
            *([("whole fit", self.fit_text)] if self.fit_seconds else []),
            *more,
            *([("Fourier series", f"none: {self.no_series}")] if self.no_series else []),
            *(("note", note) for note in self.notes),
        ]

    def __str__(self) -> str:
        return printed(self.lines(), self.alternatives)

    def _repr_html_(self) -> str:
        return printed_html(self.lines(), self.alternatives)


def offers_text(offers: Sequence[Offer]) -> str:
    """Approximations with their costs, and where to read what they lose."""
    return f"approximation={' or '.join(map(str, offers))}; posterior.lost and posterior.bound say what that loses"


def kernel_line(fusion: str) -> str:
    """A form's fusion for readers of a plan."""
    if fusion == "fused":
        return "fused: generated code evaluates all of it"
    return f"{fusion}; these pairs run through Python, on the portable backend only"


def printed(lines: Sequence[tuple[str, str]], alternatives: Sequence[Alternative]) -> str:
    """A plan as text: its lines, then the table of what was not chosen."""
    width = max(14, *(len(name) for name, _ in lines))
    shown = [f"{name:<{width}} {text}" for name, text in lines]
    if alternatives:
        table = table_of(alternatives)
        widths = [max(len(row[k]) for row in table) for k in range(len(table[0]))]
        shown += ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in table]
    return "\n".join(shown)


def printed_html(lines: Sequence[tuple[str, str]], alternatives: Sequence[Alternative]) -> str:
    """A plan as HTML for notebooks."""
    if not alternatives:
        return html_table(lines)
    head, *rows = table_of(alternatives)
    return html_table(lines) + html_table(rows, head)
