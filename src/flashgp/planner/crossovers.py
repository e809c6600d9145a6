"""Where one way takes over from another on a machine, from its profile: what `flashgp tune` shows of it.

Sizes here are for people; plans compare the seconds themselves.
"""

from collections.abc import Callable

import torch

from flashgp.foundations.profile import MachineProfile
from flashgp.linalg.decision import ACCELERATOR, CPU, Speeds, crossover_order
from flashgp.planner.conditioning import PATIENCE_SECONDS, TRAINING_EVALUATIONS, TRAINING_SECONDS

__all__ = ["crossovers"]

DENSE = ("cholesky", "qr", "eigh", "triangular")
RIGHT_HAND_SIDES = 16  # of the triangular systems shown
MOST_ROWS = 10**7
PRODUCT_ROWS, PRODUCT_FEATURES = 20_000, 8  # of the products whose tiles are stored or not


def crossovers(profile: MachineProfile) -> list[tuple[str, str]]:
    """(what, where it changes) of every dispatched operation and route that the profile knows."""
    return [*_dense(profile), *_factors(profile), *_products(profile)]


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


def _factors(profile: MachineProfile) -> list[tuple[str, str]]:
    """Up to which n a float64 factor is taken, and gradients come from one."""
    rates = profile.cpu

    def factor(n: int) -> float:
        return n**3 / 3 / rates.cholesky(torch.float64, n) + 1.5 * n * n / rates.block_pairs

    direct = _largest(lambda n: factor(n) <= PATIENCE_SECONDS)
    exact = _largest(
        lambda n: TRAINING_EVALUATIONS * (3 * factor(n) - 2.5 * n * n / rates.block_pairs) < TRAINING_SECONDS
    )
    return [
        ("factor, float64", f"up to {direct:,} rows on the CPU; float32 and corrections beyond"),
        ("fit, exact gradients", f"up to {exact:,} rows on the CPU; estimated ones beyond"),
    ]


def _products(profile: MachineProfile) -> list[tuple[str, str]]:
    """From how many products on storing float32 tiles is quicker than recomputing them."""
    rates, pairs = profile.cpu, PRODUCT_ROWS**2
    known = [
        rate
        for backend in ("cpu", "torch")
        if (rate := profile.product_rate(backend, "cpu", torch.float32, True, PRODUCT_FEATURES, 1))
    ]
    recomputed = pairs / max(known)
    stored = max(2 * pairs / rates.gemm_float32, 2 * pairs / rates.copy_bytes)
    if stored >= recomputed:
        return [("stored tiles", "never quicker than recomputed ones, one right-hand side")]
    count = int(pairs / rates.block_pairs / (recomputed - stored)) + 1
    return [("stored tiles", f"quicker than recomputed ones from {count:,} products, one right-hand side")]


def _largest(holds: Callable[[int], bool]) -> int:
    """The largest n up to MOST_ROWS for which it holds, of something that grows."""
    least, most = 0, MOST_ROWS
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if holds(middle) else (least, middle - 1)
    return least
