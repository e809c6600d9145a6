"""Gradients of many quadratic forms a^T K a at once, eq. (M-308): the pairs' derivatives are evaluated once for all.

The weight a_i a_j of a pair has rank one, so that what it says about a feature is a product of the tile of derivatives
with the vectors, and with the vectors times the feature.
"""

from torch import Tensor

from flashgp.foundations.workspace import Workspace
from flashgp.pairwise.backend import PairGradient
from flashgp.pairwise.problem import PairProblem
from flashgp.pairwise.torch.tile_job import TileJob, TileSettings, visit_panels

BYTES = 2**25  # of vectors times features that are alive at once


def has_shared_gradients(problem: PairProblem) -> bool:
    """True but for a batch, and Python functions of the points."""
    return not problem.batch_shape and "opaque" not in problem.form.statistics


def quadratic_form_gradients(
    problem: PairProblem, vectors: Tensor, workspace: Workspace, settings: TileSettings | None = None
) -> PairGradient:
    """Gradients of sum_o a_o^T K a_o for each of some sets of vectors (sets, n, p), where `has_shared_gradients`.

    Returns: by rows (sets, n, d') and (sets, n), by theta (sets,).
    Cost: n^2 evaluations of the derivatives, 2 n^2 (1 + d') flops for each vector; 8 n (1 + d') bytes for each, three
        times, so that sets come in parts of `sets_at_once`.
    """
    form, (sets, n, p) = problem.form, vectors.shape
    job = TileJob(
        PairProblem(form, problem.theta, problem.rows, problem.rows), vectors.dtype, settings or TileSettings()
    )
    a = vectors.movedim(0, 1).reshape(n, sets * p)
    count = len(form.statistics)
    rows: list[Tensor | None] = [None] * (count + form.scalar_count)
    theta: list[Tensor | None] = [None] * form.parameter_count

    def of_sets(values: Tensor) -> Tensor:
        """Sums over the vectors of each set: (..., sets p) to (sets, ...)."""
        return values.unflatten(-1, (sets, p)).sum(-1).movedim(-1, 0)

    def add(i: slice, j: slice) -> None:
        own, other = a[i], a[j]
        found: list[tuple[list[Tensor | None], int, Tensor]] = []
        for partial in job.partials(i, j)[1]:
            symbol, tile = partial.symbol, partial.tile
            scalar = partial.scalar if isinstance(partial.scalar, float) else float(partial.scalar)

            def times(values: Tensor, tile: Tensor | None = tile) -> Tensor:
                return values.sum(0, keepdim=True) if tile is None else tile.expand(len(own), len(other)) @ values

            if symbol.kind == "parameter":
                found.append((theta, symbol.index, scalar * of_sets((own * times(other)).sum(0))))
            elif symbol.kind == "left":
                found.append((rows, count + symbol.index, 2.0 * scalar * of_sets(own * times(other))))
            elif symbol.kind != "right":  # which is as "left", since every pair is visited in both orders
                u, v = (side[part] for side, part in zip(job.sides(symbol.kind, symbol.index), (i, j), strict=True))
                across = times((other.unsqueeze(1) * v.unsqueeze(2)).flatten(1)).unflatten(-1, (v.shape[1], -1))
                if symbol.kind == "distance":  # of |u - v|^2 by u: 2 (u - v)
                    across = 2.0 * (u.unsqueeze(2) * times(other).unsqueeze(1) - across)
                found.append((rows, symbol.index, 2.0 * scalar * of_sets(own.unsqueeze(1) * across)))
        for side, place, part in found:  # a panel that failed has left nothing
            if side[place] is None:
                side[place] = part.new_zeros(part.shape if side is theta else (sets, n, *part.shape[2:]))
        for side, place, part in found:
            whole = side[place]
            assert whole is not None
            (whole if side is theta else whole[:, i]).add_(part)

    visit_panels(job, workspace, job.program.partial_temporaries, add)
    return PairGradient(rows, [], theta)


def sets_at_once(problem: PairProblem, p: int) -> int:
    """Number of sets of p vectors whose products with features take no more than BYTES."""
    columns = sum(1 if f.dim() == 1 else f.shape[-1] for f in problem.rows.features) + 1
    return max(1, BYTES // (8 * max(1, problem.rows.count) * columns * p))
