"""The first pass over rows of several ranks, each of which reads its own: what it says of all of them together.

Count, checksum and moments add up, (M-164). The sample is that of one process with the rows of all ranks, one rank
after the other, where every rank knows before it reads how many rows it has; else it depends on the number of ranks.
"""

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from flashgp.foundations.deadline import NO_DEADLINE, Deadline
from flashgp.foundations.errors import ShapeError
from flashgp.processes.group import Group
from flashgp.processes.shares import Shares
from flashgp.sources.source import RowSource
from flashgp.sources.survey import Block, Moments, Sampler, Survey, combined, read_once, surveyed

F64 = torch.float64
HALF = 2**32
SEED_APART = 2**20  # between the seeds of ranks that do not know where their rows begin


@dataclass(frozen=True, eq=False)
class GroupSurvey(Survey):
    """A survey of all ranks' rows. Fields: group; own, the survey of this rank's rows, None where it has none."""

    group: Group = None  # type: ignore[assignment, misc]
    own: Survey | None = None

    def blocks(self, size: int, check: Callable[[], None] | None = None) -> Iterator[Block]:
        """Blocks of this rank's rows, as `Survey.blocks`."""
        return iter(()) if self.own is None else self.own.blocks(size, check)


def surveyed_over(
    group: Group, source: RowSource, outputs: int | None, sample: int, seed: int, deadline: Deadline = NO_DEADLINE
) -> Survey:
    """`surveyed` of the rows of all ranks; with a group of one that of this process.

    Raises: as `surveyed`, on every rank; RankMismatchError where rows of ranks do not fit each other.
    Cost: a pass over this rank's rows, and gathers of `sample` rows at most from each rank.
    """
    if group.size == 1:
        return surveyed(source, outputs, sample, seed, deadline)
    counts = _of_each(group, -1 if source.length is None else source.length)
    known = min(counts) >= 0
    sampler = Sampler(sample, seed if known else abs(seed) + SEED_APART * group.rank, sum(counts[: group.rank]) * known)
    own = read_once(source, outputs, sampler, deadline)
    found = Shares(tuple(_of_each(group, 0 if own is None else own.count)))
    if not found.total:
        raise ShapeError("`rows` must have at least one row, got none on any rank; check what the ranks read")
    like = _like(group, own)
    keys, places, rows = sampler.candidates
    if not known:
        places = places + found.starts[group.rank]
    rows = rows or [torch.empty(0, *shape, dtype=F64, device=like.device) for shape in like.shapes(outputs)]
    columns, places = _gathered(group, keys, places, rows, sample)
    kept = Block(columns[0], columns[1], dict(zip(like.numbers, columns[2:], strict=True)))
    totals = [0 if own is None else own.checksum, int(own is not None and own.cut)]
    high, low, cut = (_of_each(group, part) for part in (totals[0] // HALF, totals[0] % HALF, totals[1]))
    checksum = reduce(combined, (a * HALF + b for a, b in zip(high, low, strict=True)))
    x_moments, y_moments = (
        _moments(group, found, None if own is None else getattr(own, name), width, like.device)
        for name, width in (("x_moments", like.width), ("y_moments", outputs or 1))
    )
    return GroupSurvey(
        source, outputs, found.total, like.width, like.dtype, like.device, checksum, x_moments, y_moments, kept,
        places, any(cut), group=group, own=own,
    )  # fmt: skip


@dataclass(frozen=True)
class _Like:
    """Layout of rows on the ranks that have some. Fields: width; dtype and device of x; numbers, the shapes of each
    row's by name."""

    width: int
    dtype: torch.dtype
    device: torch.device
    numbers: dict[str, list[int]]

    def shapes(self, outputs: int | None) -> list[tuple[int, ...]]:
        """Shapes of x, y and variances, but for the rows."""
        return [(self.width,), () if outputs is None else (outputs,), *map(tuple, self.numbers.values())]


def _like(group: Group, own: Survey | None) -> _Like:
    names = ("columns", "dtype", "device", "numbers")
    told = None
    if own is not None:
        told = [
            own.width,
            str(own.dtype),
            own.device.type,
            {name: list(each.shape[1:]) for name, each in own.sample.numbers.items()},
        ]
    every = [json.loads(text) for text in group.gather_bytes(json.dumps(told).encode())]
    usual = next(one for one in every if one is not None)
    group.compare(**dict(zip(names, told or usual, strict=True)))
    width, dtype, device, numbers = usual
    device = torch.device(device) if own is None else own.device
    return _Like(width, getattr(torch, dtype.split(".")[1]), device, numbers)


def _of_each(group: Group, number: int) -> list[int]:
    """A whole number of each rank."""
    numbers: list[int] = group.gather_rows(torch.tensor([number]), Shares((1,) * group.size)).tolist()
    return numbers


def _gathered(group: Group, keys: Tensor, places: Tensor, rows: list[Tensor], size: int) -> tuple[list[Tensor], Tensor]:
    """The rows with the smallest keys on all ranks, in the order of their places, and these."""
    shares = Shares(tuple(_of_each(group, len(keys))))
    keys, places = group.gather_rows(keys, shares), group.gather_rows(places, shares)
    rows = [group.gather_rows(column, shares) for column in rows]
    kept = keys.topk(min(size, len(keys)), largest=False).indices
    kept = kept[places[kept].argsort()]
    return [column[kept.to(column.device)] for column in rows], places[kept]


def _moments(group: Group, found: Shares, own: Moments | None, width: int, device: torch.device) -> Moments:
    """Moments of the rows of all ranks, (M-164). Args: found, rows of each."""
    here = torch.empty(0, 4, width, dtype=F64, device=device)
    if own is not None:
        here = torch.stack([own.mean, own.squares, own.low, own.high]).unsqueeze(0)
    counts = [count for count in found.counts if count]
    every = group.gather_rows(here, Shares(tuple(min(1, count) for count in found.counts)))
    parts = [Moments(count, *columns) for count, columns in zip(counts, every, strict=True)]
    return reduce(Moments.joined, itertools.islice(parts, 1, None), parts[0])
