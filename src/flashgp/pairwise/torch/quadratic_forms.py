"""Gradients of many quadratic forms a^T K a at once, eq. (M-308): the pairs' derivatives are evaluated once for all.

The weight a_i a_j of a pair has rank one, so that what it says about a feature is a product of the tile of derivatives
with the vectors, and with the vectors times the feature.
"""

from torch import Tensor

from flashgp.foundations.workspace import Workspace
from flashgp.pairwise.backend import PairGradient
from flashgp.pairwise.problem import PairProblem
from flashgp.pairwise.torch.tile_job import TileJob, visit_panels


def quadratic_form_gradients(problem: PairProblem, vectors: Tensor, workspace: Workspace) -> PairGradient | None:
    """Gradients of sum_o a_o^T K a_o, of one table, for each of some sets of vectors (sets, n, p); None for a Python
    function of the points, or a batch.

    Returns: by rows (sets, n, d') and (sets, n), by theta (sets,).
    Cost: n^2 evaluations of the derivatives, 2 n^2 (1 + d') flops for each vector.
    """
    form, (sets, n, p) = problem.form, vectors.shape
    if problem.batch_shape or "opaque" in form.statistics:
        return None
    job = TileJob(PairProblem(form, problem.theta, problem.rows, problem.rows), vectors.dtype)
    a = vectors.movedim(0, 1).reshape(n, sets * p)
    count = len(form.statistics)
    rows: list[Tensor | None] = [None] * (count + form.scalar_count)
    theta: list[Tensor | None] = [None] * form.parameter_count

    def of_sets(values: Tensor) -> Tensor:
        """Sums over the vectors of each set: (..., sets p) to (sets, ...)."""
        return values.unflatten(-1, (sets, p)).sum(-1).movedim(-1, 0)

    def add(i: slice, j: slice) -> None:
        own, other = a[i], a[j]
        for partial in job.partials(i, j)[1]:
            symbol, tile = partial.symbol, partial.tile
            scalar = partial.scalar if isinstance(partial.scalar, float) else float(partial.scalar)

            def times(values: Tensor, tile: Tensor | None = tile) -> Tensor:
                return values.sum(0, keepdim=True) if tile is None else tile.expand(len(own), len(other)) @ values

            if symbol.kind == "parameter":
                found, before = scalar * of_sets((own * times(other)).sum(0)), theta[symbol.index]
                theta[symbol.index] = found if before is None else before + found
                continue
            if symbol.kind == "right":  # as "left", since every pair is visited in both orders
                continue
            place = symbol.index
            if symbol.kind == "left":
                place, found = count + place, of_sets(own * times(other))
            else:
                u, v = (side[part] for side, part in zip(job.sides(symbol.kind, place), (i, j), strict=True))
                across = times((other.unsqueeze(1) * v.unsqueeze(2)).flatten(1)).unflatten(-1, (v.shape[1], -1))
                if symbol.kind == "distance":  # of |u - v|^2 by u: 2 (u - v)
                    across = 2.0 * (u.unsqueeze(2) * times(other).unsqueeze(1) - across)
                found = of_sets(own.unsqueeze(1) * across)
            if (whole := rows[place]) is None:
                whole = rows[place] = found.new_zeros(sets, n, *found.shape[2:])
            whole[:, i] += 2.0 * scalar * found

    visit_panels(job, workspace, job.program.partial_temporaries, add)
    return PairGradient(rows, [], theta)
