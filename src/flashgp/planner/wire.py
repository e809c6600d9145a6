"""Bytes that the ranks of a group send each other, eqs. (M-226) to (M-229), (M-231); none in one process.

Counted for rank 0, which sends the most: its triangles are everyone's. A low rank that is decomposed by a QR, where its
columns are hardly independent, sends more.
"""

from flashgp.planner.problem import ConditioningProblem

F32, F64 = 4, 8  # bytes of a number
BLOCK_COLUMNS = 128


def _gather(ranks: int, rows: int, width: float) -> float:
    """An all-gather of so many rows, or a reduce-scatter to them, eq. (M-226); width, bytes of a row."""
    return (ranks - 1) * -(-rows // ranks) * width


def _reduce(ranks: int, size: float) -> float:
    """An all-reduce, eq. (M-226)."""
    return 2.0 * (ranks - 1) / ranks * size


def _qr(ranks: int, columns: int) -> float:
    """(M-200): triangles gathered, and rank 0's sent to all."""
    return (ranks - 1) * (ranks + 2) * F64 * columns**2


def table_wire(problem: ConditioningProblem) -> float:
    """x and y of all rows to every rank, (M-228)."""
    return _gather(problem.ranks, problem.n, F64 * (problem.d + problem.outputs))


def solve_wire(problem: ConditioningProblem, t: int, rank: int, passes: float) -> float:
    """A solve with t right-hand sides, (M-227), its preconditioner and its solution, (M-228)."""
    return _preconditioner_wire(problem, rank) + passes * _pass_wire(problem, t, rank) + _solution_wire(problem, t)


def _preconditioner_wire(problem: ConditioningProblem, rank: int) -> float:
    """A low rank of so many columns: what pivots have of each other and of those before, and F^T D^-1 F, whose
    eigenvectors are rank 0's."""
    numbers, ranks = rank * (2 * rank + BLOCK_COLUMNS), problem.ranks
    return _reduce(ranks, F64 * numbers) + (ranks - 1) * F64 * rank * (rank + 1)


def _pass_wire(problem: ConditioningProblem, t: int, rank: int) -> float:
    ranks = problem.ranks
    products = 2 * _gather(ranks, problem.u, F32 * t)
    return products + _reduce(ranks, F64 * t * (2 * rank + 5 * t)) + _qr(ranks, t)


def _solution_wire(problem: ConditioningProblem, t: int) -> float:
    return _gather(problem.ranks, problem.u, F64 * t)


def step_wire(problem: ConditioningProblem, t: int, rank: int, passes: float) -> float:
    """An estimated gradient by a solve with t right-hand sides, (M-229)."""
    gradient = _reduce(problem.ranks, F32 * problem.u * problem.features.width)
    return solve_wire(problem, t, rank, passes) + _solution_wire(problem, t) + gradient


def evaluation_wire(problem: ConditioningProblem) -> float:
    """An exact evaluation, which every rank makes: rank 0's vector and value with gradient, (M-229)."""
    return (problem.ranks - 1) * F64 * (2 * problem.parameters + 1)


def survey_wire(problem: ConditioningProblem, sample: int) -> float:
    """A first pass over rows that stay on their ranks, whose sample is gathered, (M-231)."""
    kept = min(sample, -(-problem.n // problem.ranks))
    return (problem.ranks - 1) * kept * F64 * (problem.d + problem.outputs + 2)


def points_wire(problem: ConditioningProblem, inducing: int) -> float:
    """Rank 0's inducing points to all, (M-231)."""
    return (problem.ranks - 1) * F64 * inducing * problem.d


def neighbours_wire(problem: ConditioningProblem, rows: int, block: int, neighbours: int) -> float:
    """Rank 0's blocks of so many rows to all, and everyone's neighbours of some of them, (M-231)."""
    sets = -(-rows // block)
    return (problem.ranks - 1) * F64 * sets * block + _gather(problem.ranks, sets, F64 * neighbours)


def summed_wire(problem: ConditioningProblem, numbers: float) -> float:
    """Bytes sent for so many float64 numbers added up over ranks, (M-226)."""
    return _reduce(problem.ranks, F64 * numbers)
