"""q(u) from random rows, each once, until the time is up, at parameters that stay, eq. (M-241).

After one epoch it is the optimum, as a pass over all rows gives it; before, batches that it has not yet learned
estimate the bound where it is. The inducing points are given.
"""

import math
import statistics
from typing import NamedTuple

import torch
from torch import Tensor

from flashgp.foundations.deadline import Deadline, TimeUp
from flashgp.inference.prior import Prior
from flashgp.inference.streamed.minibatch import InducingValues, minibatch_bound
from flashgp.inference.streamed.objective import block_rows
from flashgp.sources.shuffled import shuffled_blocks
from flashgp.sources.survey import Moments, Survey

STREAM = 2  # of random orders


class LearnedValues(NamedTuple):
    """q(u) of the rows seen. Fields: bound and error, an estimate of the bound there, nats a row, None where nothing
    says; gap, nats a row to the best q(u), at most; shift, standard errors by which the column of the largest one is
    off, and its number, those of y after those of x."""

    q: InducingValues
    bound: float | None
    error: float | None
    gap: float | None
    shift: tuple[float, int]

    @property
    def whole(self) -> bool:
        """True if it has learned every row once."""
        return self.q.seen == self.q.count


@torch.no_grad()
def learned_values(
    prior: Prior, survey: Survey, points: Tensor, seed: int, deadline: Deadline, smallest: int
) -> LearnedValues:
    """q(u) at the prior's parameters, from as many random rows as time allows, each once, eq. (M-241).

    Args: smallest, rows of a batch at least. Where there is no time for a batch, the sample of the survey is learned.
    Cost: for each batch of b rows b m evaluations and 3.25 b m^2 + 1.7 m^3 flops.
    """
    n, m = survey.count, len(points)
    size = max(smallest, min(block_rows(m), n // 16))
    q: InducingValues | None = None
    values: list[float] = []
    seen: tuple[Moments, Moments] | None = None

    def check() -> None:
        if deadline.passed():
            raise TimeUp

    try:
        for block in shuffled_blocks(survey, size, (abs(seed), STREAM, 0), check=check):
            check()
            here = Moments.of(block.x), Moments.of(block.y.reshape(len(block.y), -1))
            block = block.to(points.device)
            found = minibatch_bound(prior, block.x, block.y, n, points, q)
            if q is not None:
                values.append(found.value.item() / n)
            q = found.q
            seen = here if seen is None else (seen[0].joined(here[0]), seen[1].joined(here[1]))
    except TimeUp:
        pass
    if q is None or seen is None:
        sample = survey.sample.to(points.device)
        q = minibatch_bound(prior, sample.x, sample.y, n, points, None).q
        return LearnedValues(q, None, None, None, (0.0, 0))
    if q.seen == n:
        return LearnedValues(q, q.sums.lower / n, 0.0, 0.0, (0.0, 0))
    shift = _shift(survey, seen, q.seen)
    later = values[len(values) // 2 :]
    if len(later) < 2:
        return LearnedValues(q, None, None, None, shift)
    bound, error = statistics.fmean(later), statistics.stdev(later) / math.sqrt(len(later))
    return LearnedValues(q, bound, error, max(0.0, q.sums.lower / n - bound), shift)


def _shift(survey: Survey, seen: tuple[Moments, Moments], count: int) -> tuple[float, int]:
    """The largest distance of a column's mean from that of all rows, in standard errors of a random part."""
    of_mean = math.sqrt(1.0 / count - 1.0 / survey.count)
    both = zip((survey.x_moments, survey.y_moments), seen, strict=True)
    errors = torch.cat([(part.mean - whole.mean).abs() / (whole.scale * of_mean) for whole, part in both])
    worst = int(errors.argmax())
    return float(errors[worst]), worst
