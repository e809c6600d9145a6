"""Where one way takes over from another on a machine, from its profile: what `flashgp tune` shows of it.

Sizes here are for people; plans compare the seconds themselves.
"""

import math
from collections.abc import Callable

import torch

from flashgp.foundations.form import Form
from flashgp.foundations.profile import MachineProfile
from flashgp.kernels.matern import Matern
from flashgp.linalg.decision import ACCELERATOR, CPU, Speeds, crossover_order
from flashgp.pairwise.cpu.backend import PORTABLE_PAIRS
from flashgp.pairwise.program.program import program_of
from flashgp.planner.conditioning import plan_conditioning
from flashgp.planner.engines import ENGINES
from flashgp.planner.plan import Plan
from flashgp.planner.problem import ConditioningProblem, Features, ProductProblem, Resources
from flashgp.planner.products import plan_product
from flashgp.planner.variances import VarianceProblem, variance_price

__all__ = ["crossovers"]

DENSE = ("cholesky", "qr", "eigh", "triangular")
RIGHT_HAND_SIDES = 16  # of the triangular systems shown
MAX_ROWS, MAX_PRODUCTS = 10**7, 10**6
PRODUCT_ROWS, FEATURES = 20_000, 8  # of the problems that plans are asked for
_FEATURES = Features(FEATURES)
UNBOUNDED_BYTES = 2**62  # so that seconds decide


def crossovers(profile: MachineProfile) -> list[tuple[str, str]]:
    """(what, where it changes) of every dispatched operation and route that the profile knows."""
    return [*_dense(profile), *_loops(profile), *_factors(profile), *_products(profile), *_variances(profile)]


def _unbounded(profile: MachineProfile) -> Resources:
    return Resources(memory=UNBOUNDED_BYTES, profile=profile)


def _form() -> Form:
    """Of the problems that plans are asked for."""
    return Matern(nu=2.5, lengthscale=torch.ones(FEATURES, dtype=torch.float64)).form


def _dense(profile: MachineProfile) -> list[tuple[str, str]]:
    """From which order the accelerator is quicker, with data in host memory and with data of its own."""
    if profile.accelerator is None:
        return []
    speeds, lines = Speeds(profile.cpu, profile.accelerator), []
    for operation in DENSE:
        columns = RIGHT_HAND_SIDES if operation == "triangular" else 64
        for dtype in (torch.float64, torch.float32):
            if profile.accelerator.seconds(operation, dtype, 64) is None:
                continue
            found = [crossover_order(speeds, operation, dtype, 64, columns, home=home) for home in (CPU, ACCELERATOR)]
            orders = ["never" if order is None else f"from {order:,}" for order in found]
            name = str(dtype).removeprefix("torch.")
            lines.append((f"{operation}, {name}", f"GPU {orders[0]}; {orders[1]} with data on it"))
    return lines


def _loops(profile: MachineProfile) -> list[tuple[str, str]]:
    """From how many pairs on the compiled backend answers instead of the portable one."""
    if not next(engine for engine in ENGINES if engine.backend == "cpu").installed():
        return [("compiled backend", "never, numba is not installed")]
    form = _form()

    def tiled(n: int) -> bool:
        return plan_product(ProductProblem(form, n, None, _FEATURES), _unbounded(profile)).backend == "torch"

    least = math.isqrt(PORTABLE_PAIRS - 1) + 1  # smaller ones do not wait for a compiler
    rows = least if not tiled(least) else _largest(tiled) + 1
    if rows > MAX_ROWS:
        return [("compiled backend", "never quicker than the portable backend")]
    return [("compiled backend", f"from {rows**2 if rows > least else PORTABLE_PAIRS:,} pairs on, one right-hand side")]


def _factors(profile: MachineProfile) -> list[tuple[str, str]]:
    """Up to which n the plan takes a float64 factor, and exact gradients in `fit`, were there memory for all."""
    form = _form()

    def plan(n: int) -> Plan:
        return plan_conditioning(ConditioningProblem(form, n, FEATURES, _FEATURES), _unbounded(profile))

    direct = _largest(lambda n: plan(n).route == "direct")
    exact = _largest(lambda n: plan(n).training == "exact")
    return [
        ("factor, float64", f"up to {direct:,} rows on the CPU; float32 and corrections beyond"),
        ("fit, exact gradients", f"up to {exact:,} rows on the CPU; estimated ones beyond"),
    ]


def _products(profile: MachineProfile) -> list[tuple[str, str]]:
    """From how many products on the plan stores float32 tiles instead of computing them again."""
    form = _form()

    def recomputed(count: int) -> bool:
        problem = ProductProblem(form, PRODUCT_ROWS, None, _FEATURES, products=count, dtype=torch.float32)
        return plan_product(problem, _unbounded(profile)).route == "recomputed"

    count = _largest(recomputed, MAX_PRODUCTS)
    if count == MAX_PRODUCTS:
        return [("stored tiles", "never quicker than recomputed ones, one right-hand side")]
    return [("stored tiles", f"quicker than recomputed ones from {count + 1:,} products, one right-hand side")]


def _variances(profile: MachineProfile) -> list[tuple[str, str]]:
    """Up to how many points solves give variances where no float64 factor does."""
    form = _form()
    temporaries = program_of(form).value_temporaries

    def way(route: str, points: int) -> str:
        problem = VarianceProblem(
            form, PRODUCT_ROWS, points, 1, _FEATURES, temporaries, torch.device("cpu"), profile, True
        )
        return variance_price(problem, route).way

    lines = []
    for name, route, beyond in (
        ("variances, float32 factor", "refined", "the factor's own where its rounding does not matter"),
        ("variances without a factor", "recomputed", "samples with a standard error"),
    ):
        points = _largest(lambda points: way(route, points) == "solves")  # noqa: B023
        lines.append((name, f"by solves up to {points:,} points of {PRODUCT_ROWS:,} rows; {beyond} beyond"))
    return lines


def _largest(holds: Callable[[int], bool], most: int = MAX_ROWS) -> int:
    """The largest n up to `most` for which it holds, of something that grows; 0 where it holds for none."""
    least = 0
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if holds(middle) else (least, middle - 1)
    return least
