"""What it costs to condition on n rows by each route, eqs. (M-35), (M-36) and (M-98): bytes and seconds from sizes.

The choice among the routes is planner/conditioning.py, what training costs beside them planner/training.py.
"""

from dataclasses import dataclass, replace

import torch

from flashgp.foundations.profile import MachineProfile
from flashgp.pairwise.cpu.backend import PORTABLE_PAIRS
from flashgp.pairwise.torch.tiles import tile_rows
from flashgp.planner.choice import DTYPES, Candidate
from flashgp.planner.plan import FACTORED, ROUTES, Plan
from flashgp.planner.problem import ConditioningProblem
from flashgp.planner.products import product_prices, stored_bytes

PASSES = 100  # over the pairs: assumed of an iterative solve, since the spectrum is not known beforehand
VECTORS = 6  # n x t in float64: right-hand sides, values, residuals, directions and two products
# Columns of the preconditioner: at most MAX_RANK and one for ROWS_PER_RANK rows; fewer where memory is short, down to
# MIN_RANK. So many n x rank buffers in float64 are alive at once while it is made. From WIDE_RANK columns on, more
# neighbours in the full-scale preconditioner, n WIDTH numbers in float32 at most beside two buffers, come first.
# A rank also has the rows of F that its blocks need, at most NEEDED times its own.
MAX_RANK, ROWS_PER_RANK, MIN_RANK, RANK_BUFFERS = 512, 4, 32, 3
WIDE_RANK, WIDTH, NEEDED = 128, 640, 8


@dataclass(frozen=True)
class Priced:
    """A problem of its distinct rows at the rates of a machine."""

    problem: ConditioningProblem
    profile: MachineProfile

    @property
    def n(self) -> int:
        return self.problem.u


def _plan(priced: Priced, device: torch.device, route: str, backend: str, peak_bytes: int, seconds: float) -> Plan:
    problem = priced.problem
    return Plan(
        route=route, solver="cholesky" if route in FACTORED else "cg", backend=backend, device=str(device),
        dtype=ROUTES[route], n=priced.n, distinct=priced.n, d=problem.d, outputs=problem.outputs, batch=problem.batch,
        rank=0, peak_bytes=peak_bytes, seconds=seconds, training="exact", training_bytes=peak_bytes,
        fit_step_seconds=0.0, training_factor_passes=0, training_rank=0, fit_seconds=0.0, fit_seconds_low=0.0,
        fit_seconds_high=0.0, available_bytes=0, profile=priced.profile.name, kernel=problem.form.fusion,
        factors=problem.factors,
    )  # fmt: skip


def factored_plan(priced: Priced, device: torch.device, route: str) -> Plan:
    """A factor, eqs. (M-35) and (M-36): one n x n buffer, the features, one tile's temporaries.

    Outputs with noise of their own take such a buffer each, one after the other, and keep it; a step of training needs
    one at a time.
    """
    dtype = DTYPES[ROUTES[route]]
    problem, n, rates = priced.problem, priced.n, priced.profile.rates(device)
    batch = problem.batch
    rows = min(n, tile_rows(n, batch, device))
    # A tile's temporaries: float64 statistics before the cast, and what the generated code keeps.
    tiles = problem.temporaries * rows * n * 8 * batch + problem.features.function_bytes
    vectors = 4 * n * problem.numbers * 8 * batch + 6 * n * problem.outputs * 8 * batch
    pairs = n * n * batch / rates.block_pairs
    flops = n**3 * batch / rates.cholesky(dtype, n)
    calls, matrix = 40 * rates.call_seconds, n * n * dtype.itemsize * batch
    seconds = problem.factors * (flops / 3 + pairs * 1.5 + calls)
    plan = _plan(priced, device, route, "torch", problem.factors * matrix + tiles + vectors, seconds)
    step = problem.factors * (flops + pairs * 2 + calls)
    return replace(plan, training_bytes=matrix + tiles + vectors, fit_step_seconds=step)


def iterative_plans(priced: Priced, device: torch.device, available: int) -> list[Plan]:
    """Preconditioned conjugate gradients, eq. (M-98), stored or recomputed, on every backend there is.

    Outputs with noise of their own are solved for one after the other, on the same tiles; the preconditioners stay.
    """
    n, rates, plans, problem = priced.n, priced.profile.rates(device), [], priced.problem
    for price in products_of(priced, device, problem.columns, PASSES):
        kept = 8 * n * (problem.outputs - problem.columns)
        rank, peak = preconditioned(
            priced, price.peak_bytes + kept, problem.columns, available, RANK_BUFFERS + problem.factors - 1
        )
        making = n * rank / rates.block_pairs + 2 * n * rank**2 / rates.gemm_float64
        preparing = making / problem.ranks + 40 * rates.call_seconds
        seconds = problem.factors * (price.seconds + preparing)
        plans.append(replace(_plan(priced, device, price.route, price.backend, peak, seconds), rank=rank))
    return plans


def preconditioned(
    priced: Priced, products: int, t: int, available: int, buffers: int = RANK_BUFFERS
) -> tuple[int, int]:
    """(rank, peak bytes) beside the bytes of products with t right-hand sides, (M-98); buffers, of n x rank numbers."""
    n, ranks = priced.n, priced.problem.ranks
    beside = products + 8 * n * (VECTORS * t + 4 * priced.problem.numbers)
    column = -(-8 * n // ranks)
    less, full, room = (buffers - 1) * column, min(MAX_RANK, n // ROWS_PER_RANK), available - beside
    wide = -(-4 * n * WIDTH * (buffers - 2) // ranks) if full == MAX_RANK else 0
    less += min(8 * n, NEEDED * column) * (buffers - 2) if wide and ranks > 1 else 0
    rank = min(full, room // max(1, buffers * column), max(WIDE_RANK, (room - wide) // max(1, less)))
    rank = max(min(full, MIN_RANK), rank)
    making = buffers * column * rank
    return rank, beside + max(making, min(room, less * rank + wide))


def products_of(priced: Priced, device: torch.device, t: int, passes: int) -> list[Candidate]:
    """Float32 products with t right-hand sides, (M-55) to (M-58), on what answers so many pairs.

    A rank of a group evaluates its share of the pairs, (M-201), and keeps no more tiles.
    """
    n = priced.n
    prices = product_prices(priced.problem.products(t, passes), device, priced.profile)
    # Small problems do not wait for a compiler: portable tiles answer them.
    small = device.type == "cpu" and n * n < PORTABLE_PAIRS
    found = [p for p in prices if p.route != "dense" and not (small and p.backend != "torch")]
    return found if priced.problem.ranks == 1 else [_of_rank(p, n, priced.problem.ranks) for p in found]


def _of_rank(price: Candidate, n: int, ranks: int) -> Candidate:
    tiles = stored_bytes(n) if price.route == "stored" else 0
    return replace(price, peak_bytes=price.peak_bytes - tiles + tiles // ranks, seconds=price.seconds / ranks)
