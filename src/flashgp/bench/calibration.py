"""How large the steps between runs must be for a remembered answer to show.

For each floating input on its own, the step grows until one level of it moves every output tensor that depends on it
by `MARGIN` tolerances. What cannot be reached is said in a note; if no input moves any output so far, a comparison
would not notice a remembered answer, and is refused.
"""

from collections.abc import Callable
from typing import Any

import torch

from flashgp.bench.perturbation import LARGEST_STEP, InputSource
from flashgp.bench.verification import Path, distances, reference_tensors
from flashgp.foundations.errors import DomainError

__all__ = ["APART", "calibrate"]

MARGIN = 8.0
# Two answers within one tolerance of truths this many tolerances apart cannot be taken for each other.
APART = 2.0
_ROUNDING = 64 * torch.finfo(torch.float64).eps
_TRIES = 12


def calibrate(source: InputSource, reference: Callable[..., Any], tolerance: float) -> list[str]:
    """Set the step of every floating input of `source`; returns notes on what a remembered answer could hide behind.

    Raises: DomainError if no input can move the reference by enough within the largest step.
    Cost: one call of the reference, and for each floating input one to a few more.
    """
    truth = reference_tensors(source.call(reference, source.draw(0)))
    needed = max(MARGIN * tolerance, _ROUNDING)
    notes: list[str] = []
    any_moved = False
    for index, leaf in enumerate(source.leaves):
        if not leaf.floating or leaf.base.numel() == 0:
            continue
        moved, complete = _grow(source, reference, truth, index, needed)
        any_moved = any_moved or moved
        if not moved:
            notes.append(f"{leaf.name} moves no output by {needed:.1e}: reuse across its values would not be noticed")
        elif not complete:
            notes.append(f"{leaf.name} moves some outputs, but not all, by {needed:.1e}")
    if not any_moved:
        raise DomainError(
            "`inputs` must move the reference when they are varied, so that a remembered answer shows, but no floating "
            f"input moved it by {needed:.1e} ({int(MARGIN)} tolerances) within {LARGEST_STEP:.0%}; "
            "pass a smaller `tolerance`, a function as `perturb`, or `perturb=False` to do without"
        )
    return notes


def _grow(
    source: InputSource,
    reference: Callable[..., Any],
    truth: dict[Path, torch.Tensor],
    index: int,
    needed: float,
) -> tuple[bool, bool]:
    """Grow one step; returns whether some output moved enough, and whether every output that moved did."""
    leaf = source.leaves[index]
    smallest = leaf.step
    largest = max(LARGEST_STEP, smallest)
    first_sufficient: float | None = None
    for _ in range(_TRIES):
        moved_to = reference_tensors(source.call(reference, source.draw(1, only=index)))
        moved = [distance for distance in distances(moved_to, truth) if distance > _ROUNDING]
        if moved and max(moved) >= needed and first_sufficient is None:
            first_sufficient = leaf.step
        if moved and min(moved) >= needed:
            return True, True
        if leaf.step >= largest:
            break
        # To first order the change is proportional to the step; a factor 1.5 on top for what is not.
        growth = 1.5 * needed / min(moved) if moved else 10.0
        leaf.step = min(largest, leaf.step * max(2.0, growth))
    leaf.step = smallest if first_sufficient is None else first_sufficient
    return first_sufficient is not None, False
