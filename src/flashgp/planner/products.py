"""Plans of products: which way to compute K V, or K_sx V for a prediction, without a matrix that was not announced.

Three routes: "dense" stores the block and multiplies by it; "stored" keeps float32 tiles, half of them where K is
symmetric; "recomputed" evaluates every tile again in each product and holds one at a time, on one of the engines in
planner/engines.py. A missing package costs seconds, which the plan names; the memory class stays what it is.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch

from flashgp.foundations.contexts import entered
from flashgp.foundations.errors import DomainError, MemoryBudgetError
from flashgp.foundations.profile import MachineProfile
from flashgp.foundations.quantities import readable_bytes, readable_seconds
from flashgp.pairwise.cpu.backend import columns_together
from flashgp.pairwise.near.far import PANEL
from flashgp.pairwise.program.program import program_of
from flashgp.pairwise.torch.tiles import tile_pairs, tile_rows
from flashgp.planner.choice import (
    DTYPES,
    Alternative,
    Candidate,
    check_route,
    choose,
    plan_json,
    plan_values,
)
from flashgp.planner.engines import ENGINES, Engine
from flashgp.planner.plan import kernel_line, printed, printed_html
from flashgp.planner.problem import PlanSettings, ProductProblem

PRODUCT_ROUTES = ("dense", "stored", "recomputed")
STORED_ROWS = 256  # of a stored panel: enough for matrix products at their full rate
# Per row, column and halving: partitioning, gathering and bounds take about as long as copying so many bytes.
SORTED_BYTES = 256
PANEL_RATE = 0.9  # of an engine's pairs per second, in the small panels between which far tiles are skipped
FUSED_BYTES = 2**21  # what one thread of a fused engine keeps for its tile: it stays in the cache
COMPILES_FIRST = "loops are compiled, or read from the cache, at their first use: once, and not in these seconds"
_DESCRIPTIONS = {
    "dense": "the block is stored and multiplied by",
    "stored": "float32 tiles are stored",
    "recomputed": "one tile at a time, recomputed in every product",
}


@dataclass(frozen=True)
class ProductPlan:
    """One way to compute K V, with its predicted price. Equal plans run the same way.

    Fields: route, one of PRODUCT_ROUTES; backend, that evaluates the pairs; device and dtype (of V and the result) as
    text; n and m, rows and columns of K; symmetric, whether both are the same points; d, feature numbers per row; t,
    right-hand sides; batch (members); products, how many are made with the same K; kept, the share of the pairs that is
    evaluated where far tiles are skipped, else 1; peak_bytes above what the points and V take; seconds of all products;
    available_bytes; tile_pairs, of the torch tiles; profile, whose rates were used; kernel, "fused" or what of it runs
    through Python, and why; notes; alternatives.
    """

    route: str
    backend: str
    device: str
    dtype: str
    n: int
    m: int
    symmetric: bool
    d: int
    t: int
    batch: int
    products: int
    kept: float
    peak_bytes: int
    seconds: float
    available_bytes: int
    tile_pairs: int
    profile: str
    kernel: str
    notes: tuple[str, ...] = ()
    alternatives: tuple[Alternative, ...] = ()

    def __post_init__(self) -> None:
        # At hand as an attribute: torch.compile takes an attribute as a constant, and recompiles for another plan.
        object.__setattr__(self, "text", plan_json(self))

    if TYPE_CHECKING:
        text: ClassVar[str]  # the plan as JSON; of every plan its own, and no field

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    @property
    def in_torch_tiles(self) -> bool:
        """True if products go through torch tiles of `tile_pairs`; stored ones are made in the least tiles."""
        return self.route == "recomputed" and self.backend == "torch"

    def to_json(self) -> str:
        return self.text

    @classmethod
    def from_json(cls, text: str) -> "ProductPlan":
        """Raises: DomainError for text that is not a plan of a product."""
        plan = plan_values(cls, text)
        backends = [engine.backend for engine in ENGINES]
        if plan.dtype not in DTYPES or plan.route not in PRODUCT_ROUTES or plan.backend not in backends:
            raise DomainError(
                f"`text` names route {plan.route!r} by {plan.backend!r} in {plan.dtype!r}, which this version does not "
                "know; make the plan again"
            )
        return plan

    def lines(self) -> list[tuple[str, str]]:
        """(name, readable value); the alternatives are a table of their own."""
        kind = "symmetric" if self.symmetric else "rectangular"
        size = f"K of {self.n:,} x {self.m:,} ({kind}), {self.d} feature numbers, {self.t} right-hand sides"
        size += f", {self.batch} models" if self.batch > 1 else ""
        size += "" if self.kept == 1.0 else f", {100 * self.kept:.3g} % of the pairs kept"
        count = "one product" if self.products == 1 else f"{self.products:,} products"
        return [
            ("problem", size),
            ("kernel", kernel_line(self.kernel)),
            ("route", f"{self.route}: {_DESCRIPTIONS[self.route]}, {self.dtype}, {self.backend} on {self.device}"),
            *([("tiles", f"of {self.tile_pairs:,} pairs")] if self.in_torch_tiles else []),
            ("peak memory", f"{readable_bytes(self.peak_bytes)} of {readable_bytes(self.available_bytes)} available"),
            (count, f"about {readable_seconds(self.seconds)} ({self.profile} rates)"),
            *(("note", note) for note in self.notes),
        ]

    def __str__(self) -> str:
        return printed(self.lines(), self.alternatives)

    def _repr_html_(self) -> str:
        return printed_html(self.lines(), self.alternatives)


@entered(lambda problem, settings, **_: settings.deterministic)
def plan_product(
    problem: ProductProblem,
    settings: PlanSettings,
    *,
    kept_bytes: int = 0,
    other_bytes: int = 0,
    other_seconds: float = 0.0,
    room: float = math.inf,
) -> ProductPlan:
    """The quickest way to compute K V that fits, eqs. (M-55) to (M-58).

    Args:
        problem: the product; far tiles skipped make "recomputed" the only route. Float32 tiles serve float64 only when
            forced.
        settings: memory, devices, rates, engines; a route and a backend are taken whatever their seconds.
        kept_bytes: held all the while; other_bytes and other_seconds: of what comes before or after, as the variance
            of a prediction does, eq. (M-59).
        room: bytes that larger torch tiles than the least may take within the budget.

    Raises:
        MemoryBudgetError: if nothing fits, with the least bytes that any route needs.
        BackendUnavailableError: if what is forced needs a package that is missing.
        DomainError: for a problem that is none.
    """
    problem.check()
    check_route(settings.route, PRODUCT_ROUTES)
    profile, available = settings.rates, settings.available()
    size = _Size(problem, profile)
    candidates = [
        replace(
            one, peak_bytes=max(one.peak_bytes, other_bytes) + kept_bytes, seconds=one.seconds + other_seconds
        )
        for where in settings.devices
        for one in _candidates(size, where, settings.engines)
    ]  # fmt: skip

    def completed(chosen: Candidate, alternatives: tuple[Alternative, ...] = ()) -> ProductPlan:
        where = torch.device(chosen.device)
        plan = ProductPlan(
            route=chosen.route, backend=chosen.backend, device=chosen.device,
            dtype=str(problem.dtype).removeprefix("torch."), n=problem.n, m=problem.columns,
            symmetric=problem.symmetric, d=problem.features.width, t=problem.t, batch=problem.batch,
            products=problem.products, kept=float(problem.kept), peak_bytes=chosen.peak_bytes, seconds=chosen.seconds,
            available_bytes=available[chosen.device], tile_pairs=size.tile_pairs(where, 0.0),
            profile=profile.name, kernel=problem.form.fusion, notes=settings.notes(),
            alternatives=alternatives,
        )  # fmt: skip
        if not plan.in_torch_tiles:
            return plan
        # The least tiles have been priced: larger ones take what is left, and refuse nothing that fits.
        pairs = size.tile_pairs(where, min(room, plan.available_bytes - kept_bytes))
        with_tiles = size.tile_bytes(where, pairs) + size.operand_bytes() + kept_bytes
        return replace(plan, tile_pairs=pairs, peak_bytes=max(plan.peak_bytes, with_tiles))

    def too_large(smallest: Candidate, other: Candidate | None) -> MemoryBudgetError:
        limit = available[smallest.device]
        advice = "raise memory=, or take fewer rows or right-hand sides"
        if other is not None:
            advice = f"{other.route} by {other.backend} needs {readable_bytes(other.peak_bytes)} and fits"
        return MemoryBudgetError(
            f"`memory` allows {readable_bytes(limit)}, but {smallest.route} by {smallest.backend} for K of "
            f"{problem.n:,} x {problem.columns:,} needs {readable_bytes(smallest.peak_bytes)}; {advice}",
            needed_bytes=smallest.peak_bytes,
            available_bytes=limit,
            cheapest_plan=None if other is None else completed(other),
        )

    chosen, alternatives = choose(
        candidates, available, route=settings.route, backend=settings.backend, too_large=too_large
    )
    plan = completed(chosen, alternatives)
    engine = next(engine for engine in settings.engines if engine.backend == plan.backend)
    compiles = (COMPILES_FIRST,) if engine.compiles_first() else ()
    return replace(plan, notes=(*_prices(plan, candidates), *compiles, *plan.notes))


def stored_bytes(n: int, dtype: torch.dtype = torch.float32) -> int:
    """Bytes of the tiles of a symmetric K of n points, (M-56)."""
    return dtype.itemsize * ((n * n + n * min(n, STORED_ROWS)) // 2)


def product_prices(problem: ProductProblem, device: torch.device, profile: MachineProfile) -> list[Candidate]:
    """The prices of all ways to compute K V that can be taken here, as `plan_product` compares them."""
    candidates = _candidates(_Size(problem, profile), device, ENGINES)
    return [one for one in candidates if not one.missing and not one.reason]


class _Size:
    """The bytes that routes share."""

    def __init__(self, problem: ProductProblem, profile: MachineProfile) -> None:
        self.problem, self.profile = problem, profile
        self.form, self.features = problem.form, problem.features
        self.n, self.m, self.t, self.batch = problem.n, problem.columns, problem.t, problem.batch

    def sorting_bytes(self) -> float:
        """Cost of finding far tiles, as bytes copied: for each halving of both sides, (M-57)."""
        halvings = max(1.0, math.log2(max(self.n, self.m, 1) / PANEL))
        return (
            self.batch
            * (self.n + (0 if self.problem.symmetric else self.m))
            * SORTED_BYTES
            * (self.features.width + 2)
            * halvings
        )

    def tile_pairs(self, device: torch.device, room: float) -> int:
        """Pairs of a torch tile: as measured, but a small share of all pairs, and with room for so many bytes with all
        else that the product takes."""
        temporaries = max(1, 8 * program_of(self.form).value_temporaries)
        room -= self.operand_bytes() + self.features.function_bytes
        most = min(self.profile.rates(device).tile_pairs, max(0.0, room) // temporaries)
        return tile_pairs(self.problem.pairs, int(most), device)

    @property
    def feature_bytes(self) -> int:
        """Per row: features, float64, with two more copies, padded."""
        copied = (
            self.features.width
            - self.features.function_width
            + len(self.form.statistics)
            - len(self.form.pair_functions)
        )
        return 8 * (3 * copied + self.features.function_width)

    def operand_bytes(self) -> int:
        """Result and mirrored part; features with their centred and extended copies: the tiles' terms of (M-55)."""
        return self.batch * (self.n + self.m) * (self.t * self.problem.dtype.itemsize + self.feature_bytes)

    def tile_bytes(self, device: torch.device, pairs: int | None = None) -> int:
        """Bytes of torch tiles: T of R rows in float64, where T is what the generated code keeps alive, (M-55)."""
        rows = min(self.n, tile_rows(self.m, self.batch, device, pairs))
        return 8 * program_of(self.form).value_temporaries * rows * self.m * self.batch + self.features.function_bytes

    def fused_bytes(self, engine: Engine, device: torch.device) -> int:
        """Bytes of a fused engine, (M-55): operands, its compiler, and per thread a tile in its cache and sums in
        float64."""
        if device.type != "cpu":
            sums = 8 * self.batch * (self.n + self.m if self.problem.symmetric else self.n) * self.t
            return self.operand_bytes() + sums + FUSED_BYTES + engine.compiler_bytes()
        rows = self.n if self.problem.symmetric else self.n + self.m  # equal rows are packed once
        kept = self.batch * (self.n * self.t * self.problem.dtype.itemsize + rows * self.feature_bytes)
        t = min(self.t, columns_together(self.n))  # of one member at a time; float64 where float32 would cost digits
        return kept + 8 * self.m * t + self.profile.threads * (8 * self.n * t + FUSED_BYTES) + engine.compiler_bytes()

    def stored_pairs(self) -> int:
        """Numbers in stored tiles, (M-56): of a symmetric K the panels from the diagonal on."""
        return self.batch * stored_bytes(self.n) // 4 if self.problem.symmetric else self.problem.pairs


def _candidates(size: _Size, device: torch.device, engines: Sequence[Engine]) -> list[Candidate]:
    problem, rates = size.problem, size.profile.rates(device)
    name, item, where = str(problem.dtype).removeprefix("torch."), problem.dtype.itemsize, str(device)
    base = size.operand_bytes()
    tiles = size.tile_bytes(device)
    build = problem.pairs / rates.block_pairs + rates.call_seconds
    flops = 2 * problem.pairs * size.t
    cube = (size.n * size.m * max(1, size.t)) ** (1 / 3)  # of a square product with as many flops

    def multiply(dtype: torch.dtype, stored_bytes: int) -> float:
        """Seconds of all products with what is stored: arithmetic or reading, whichever is slower, (M-57)."""
        return problem.products * (
            max(flops / rates.gemm(dtype, cube), stored_bytes / rates.copy_bytes) + rates.call_seconds
        )

    stored = 4 * size.stored_pairs()
    panel = 4 * size.batch * min(size.n, STORED_ROWS) * size.m  # the one that is made
    # One product asks for a result, not for a matrix: storing K is another memory class (docs/decisions/0006).
    keeps = "keeps K, for one product: only on request" if problem.products == 1 else ""
    candidates = [
        Candidate(
            "dense", "torch", where, name, item * problem.pairs + tiles + base,
            build + multiply(problem.dtype, item * problem.pairs), reason=keeps,
        ),
        Candidate(
            "stored", "torch", where, "float32", stored + panel + tiles + base, build + multiply(torch.float32, stored),
            reason="rounds K to float32: only on request" if problem.dtype == torch.float64 else keeps,
        ),
    ]  # fmt: skip
    for engine in engines:
        if not engine.runs_on(device) or name not in engine.dtypes or not engine.supported():
            continue
        if engine.fused and not (problem.form.fusable and problem.form.statistics):
            continue  # a Python function of two points runs on torch tiles, and so does a constant
        if problem.kept < 1.0 and not engine.skips:
            continue
        rate = size.profile.product_rate(
            engine.backend, device, problem.dtype, problem.symmetric, problem.features.width, size.t
        )
        if rate is None:
            continue
        seconds = problem.products * (problem.pairs / rate + rates.call_seconds)
        if problem.kept < 1.0:
            panels = problem.products * (problem.kept * problem.pairs / (PANEL_RATE * rate) + rates.call_seconds)
            seconds = panels + size.sorting_bytes() / rates.copy_bytes
        needed = size.fused_bytes(engine, device) if engine.fused else tiles + base
        missing = "" if engine.installed() else engine.package
        candidates.append(Candidate("recomputed", engine.backend, where, name, needed, seconds, missing=missing))
    return candidates if problem.kept == 1.0 else [one for one in candidates if one.route == "recomputed"]


def _prices(plan: ProductPlan, candidates: Sequence[Candidate]) -> tuple[str, ...]:
    """Seconds with each missing package, where it would save some."""
    count = "one product takes" if plan.products == 1 else f"{plan.products:,} products take"
    return tuple(
        f"{one.missing} is not installed: {count} about {readable_seconds(plan.seconds)} instead of "
        f"{readable_seconds(one.seconds)}"
        for one in candidates
        if one.missing and one.seconds < plan.seconds and one.peak_bytes <= plan.available_bytes
    )
