"""What the ranks of a group send each other, eqs. (M-226) to (M-229), (M-231): bytes, and seconds of waiting.

Counted for rank 0, which sends the most: its triangles are everyone's. A low rank that is decomposed by a QR, where its
columns are hardly independent, sends more. Rates are those that `flashgp tune` has measured in a group, or published
ones. Nothing overlaps: a rank computes, or it waits.
"""

from dataclasses import dataclass

import torch

from flashgp.foundations.collectives import CollectiveRate, collective_rate
from flashgp.foundations.profile import MachineProfile
from flashgp.planner.problem import ConditioningProblem

__all__ = [
    "Wire",
    "evaluation_wire",
    "neighbours_wire",
    "points_wire",
    "rate_of",
    "solve_wire",
    "step_wire",
    "summed_wire",
    "survey_wire",
    "table_wire",
]

F32, F64 = 4, 8  # bytes of a number
# Collectives of a table that is joined, of a preconditioner for 128 of its columns, of a pass of a solve, of a step
# beside its passes: as counted (tests/processes/test_group_plan.py).
TABLE, BLOCK, PASS, STEP = 12, 12, 15, 20
EIGENVECTORS = 3  # of the low rank: a flag, values and vectors
EVALUATION = 3  # of an exact evaluation
SURVEY = 25  # of a first pass over rows that stay on their ranks
BLOCK_COLUMNS = 128


@dataclass(frozen=True)
class Wire:
    """Fields: collectives; sent, bytes by rank 0."""

    collectives: float = 0.0
    sent: float = 0.0

    def plus(self, other: "Wire") -> "Wire":
        return Wire(self.collectives + other.collectives, self.sent + other.sent)

    def times(self, factor: float) -> "Wire":
        return Wire(self.collectives * factor, self.sent * factor)

    def seconds(self, rate: CollectiveRate) -> float:
        """Eq. (M-225)."""
        return rate.wire_seconds(self.collectives, self.sent)


def rate_of(profile: MachineProfile, device: torch.device, ranks: int) -> CollectiveRate:
    """The rate of the backend that tensors of a device go by."""
    return collective_rate(profile.collectives, "gloo" if device.type == "cpu" else "nccl", ranks)


def _gather(ranks: int, rows: int, width: float) -> float:
    """Bytes of an all-gather of so many rows, or of a reduce-scatter to them, eq. (M-226); width, bytes of a row."""
    return (ranks - 1) * -(-rows // ranks) * width


def _reduce(ranks: int, size: float) -> float:
    """Bytes of an all-reduce, eq. (M-226)."""
    return 2.0 * (ranks - 1) / ranks * size


def _qr(ranks: int, columns: int) -> float:
    """Bytes of (M-200): triangles gathered, and rank 0's sent to all."""
    return (ranks - 1) * (ranks + 2) * F64 * columns**2


def table_wire(problem: ConditioningProblem) -> Wire:
    """x and y of all rows to every rank, (M-228). Nothing of one process."""
    if problem.ranks == 1:
        return Wire()
    return Wire(TABLE, _gather(problem.ranks, problem.n, F64 * (problem.d + problem.outputs)))


def _preconditioner_wire(problem: ConditioningProblem, rank: int) -> Wire:
    """A low rank of so many columns, (M-228): what pivots have of each other and of those before, and F^T D^-1 F, whose
    eigenvectors are rank 0's."""
    numbers, ranks = rank * (2 * rank + BLOCK_COLUMNS), problem.ranks
    sent = _reduce(ranks, F64 * numbers) + (ranks - 1) * F64 * rank * (rank + 1)
    return Wire(BLOCK * -(-rank // BLOCK_COLUMNS) + EIGENVECTORS, sent)


def _passes_wire(problem: ConditioningProblem, t: int, rank: int, passes: float) -> Wire:
    """Iterations with t right-hand sides, (M-227)."""
    ranks = problem.ranks
    products = 2 * _gather(ranks, problem.u, F32 * t)
    small = _reduce(ranks, F64 * t * (2 * rank + 5 * t)) + _qr(ranks, t)
    return Wire(PASS, products + small).times(passes)


def solve_wire(problem: ConditioningProblem, t: int, rank: int, passes: float) -> Wire:
    """A solve with t right-hand sides and its preconditioner, (M-227) and (M-228). Nothing of one process."""
    if problem.ranks == 1:
        return Wire()
    answer = Wire(1, _gather(problem.ranks, problem.u, F64 * t))
    return _preconditioner_wire(problem, rank).plus(_passes_wire(problem, t, rank, passes)).plus(answer)


def step_wire(problem: ConditioningProblem, t: int, rank: int, passes: float) -> Wire:
    """An estimated gradient by a solve with t right-hand sides, (M-229). Nothing of one process."""
    if problem.ranks == 1:
        return Wire()
    probes = _gather(problem.ranks, problem.u, F64 * t)
    gradient = _reduce(problem.ranks, F32 * problem.u * problem.features.width)
    return solve_wire(problem, t, rank, passes).plus(Wire(STEP, probes + gradient))


def evaluation_wire(problem: ConditioningProblem) -> Wire:
    """An exact evaluation, which every rank makes: rank 0's vector and value with gradient, (M-229)."""
    if problem.ranks == 1:
        return Wire()
    return Wire(EVALUATION, (problem.ranks - 1) * F64 * (2 * problem.parameters + 1))


def survey_wire(problem: ConditioningProblem, sample: int) -> Wire:
    """A first pass over rows that stay on their ranks, whose sample is gathered, (M-231). Nothing of one process."""
    if problem.ranks == 1:
        return Wire()
    kept = min(sample, -(-problem.n // problem.ranks))
    return Wire(SURVEY, (problem.ranks - 1) * kept * F64 * (problem.d + problem.outputs + 2))


def points_wire(problem: ConditioningProblem, inducing: int) -> Wire:
    """Rank 0's inducing points to all, (M-231). Nothing of one process."""
    if problem.ranks == 1:
        return Wire()
    return Wire(2, (problem.ranks - 1) * F64 * inducing * problem.d)


def neighbours_wire(problem: ConditioningProblem, rows: int, block: int, neighbours: int) -> Wire:
    """Rank 0's blocks of so many rows to all, and everyone's neighbours of some of them, (M-231). Nothing of one
    process."""
    if problem.ranks == 1:
        return Wire()
    sets = -(-rows // block)
    return Wire(3, (problem.ranks - 1) * F64 * sets * block + _gather(problem.ranks, sets, F64 * neighbours))


def summed_wire(problem: ConditioningProblem, numbers: float, collectives: int = 1) -> Wire:
    """So many float64 numbers added up over ranks, (M-226). Nothing of one process."""
    return Wire() if problem.ranks == 1 else Wire(collectives, _reduce(problem.ranks, F64 * numbers))
