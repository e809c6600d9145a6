"""Blocks of near rows, and the earlier rows that are nearest to each: what block Vecchia conditions on, (M-121).

Source: Katzfuss, Guinness, Gong & Zilber (2020), Vecchia approximations of Gaussian-process predictions.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from flashgp.solvers.settings import FullScaleSettings
from flashgp.solvers.space import LOCAL_SPACE, Space

CANDIDATES = 2**15  # rows that are looked at for a point
EVERY = 8  # times as many rows are all looked at: fewer would take as long, since they are gathered
TOGETHER = 64  # near points whose candidates' rows are gathered once


@dataclass(frozen=True, eq=False)
class Neighbourhoods:
    """Rows in blocks, each with rows of earlier blocks beside it; -1 where a set has no more.

    Fields: blocks, (s, b); neighbours, (s, q), the nearest first.
    """

    blocks: Tensor
    neighbours: Tensor

    @property
    def index(self) -> Tensor:
        """Neighbours, then the block, (s, q + b), with -1."""
        return torch.cat([self.neighbours, self.blocks], 1)

    @property
    def block(self) -> int:
        """Rows of a block, at most."""
        return self.blocks.shape[1]


def neighbourhoods(
    points: Tensor, settings: FullScaleSettings, seed: int, space: Space = LOCAL_SPACE
) -> Neighbourhoods:
    """Blocks of near points (n, d) in a random order, with the nearest rows of earlier blocks.

    Every place of a space has all points and gets all blocks; each looks for the neighbours of some, in the batches of
    one process, so that what is found does not depend on how many there are.
    """
    blocks = space.agreed(blocks_of_near_rows(points, settings.block, seed))
    count = len(blocks)
    at_once = _blocks_at_once(count, blocks.shape[1], points.shape[1], settings)
    part = space.share(-(-count // at_once))
    asked = torch.arange(count, device=points.device)[part.start * at_once : part.stop * at_once]
    return Neighbourhoods(blocks, space.joined(nearest_earlier_rows(points, blocks, settings, of=asked)))


@dataclass(frozen=True, eq=False)
class BlockShard:
    """The blocks of one place, and the rows that these need. Fields: rows, positions among all, those of the blocks
    first, both parts in their order; own, how many these are; near, blocks and neighbours by their places in rows."""

    rows: Tensor
    own: int
    near: Neighbourhoods


def shard_blocks(near: Neighbourhoods, n: int, seed: int, space: Space) -> BlockShard:
    """The blocks that are this place's, of n rows: near ones, so that few of the rows that they need are elsewhere."""
    here = space.share(len(near.blocks))
    order = _order_of_blocks(len(near.blocks), seed).to(near.blocks.device)
    mine = ((order >= here.start) & (order < here.stop)).nonzero()[:, 0]
    blocks, neighbours = near.blocks[mine], near.neighbours[mine]
    kind = torch.zeros(n, dtype=torch.int8, device=blocks.device)
    kind[neighbours[neighbours >= 0]] = 1
    kind[blocks[blocks >= 0]] = 2
    parts = [(kind == 2).nonzero()[:, 0], (kind == 1).nonzero()[:, 0]]
    rows = torch.cat(parts)
    places = torch.zeros_like(kind, dtype=torch.int64)
    places[rows] = torch.arange(len(rows), device=rows.device)
    by_place = Neighbourhoods(*(torch.where(t >= 0, places[t.clamp(min=0)], -1) for t in (blocks, neighbours)))
    return BlockShard(rows, len(parts[0]), by_place)


def _order_of_blocks(count: int, seed: int) -> Tensor:
    """The blocks of near rows in a random order, (count,): numbers of blocks that are near each other are near."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def blocks_of_near_rows(points: Tensor, size: int, seed: int) -> Tensor:
    """Rows cut into blocks at quantiles of the coordinate that varies most, in a random order: (blocks, rows), -1 where
    there is none. Cost: n log n for each of log2(n / size) levels."""
    n = len(points)
    count = -(-n // size)
    parts = [(torch.arange(n, device=points.device), count)] if n else []
    blocks: list[Tensor] = []
    while parts:
        rows, pieces = parts.pop()
        if pieces == 1:
            blocks.append(rows)
            continue
        here = points[rows]
        rows = rows[here[:, int((here.amax(0) - here.amin(0)).argmax())].argsort(stable=True)]
        first = pieces // 2
        cut = len(rows) * first // pieces
        parts += [(rows[cut:], pieces - first), (rows[:cut], first)]
    shape = (count, max((len(rows) for rows in blocks), default=0))
    members = torch.full(shape, -1, dtype=torch.int64, device=points.device)
    for place, i in enumerate(_order_of_blocks(count, seed).tolist()):
        members[place, : len(blocks[i])] = blocks[i]
    return members


def nearest_earlier_rows(
    points: Tensor, blocks: Tensor, settings: FullScaleSettings, of: Tensor | None = None, *, later: bool = False
) -> Tensor:
    """Rows of earlier blocks, or of all others with `later`, that are nearest to any row of a block, nearest first:
    (blocks, q), -1 where there are no more.

    Looked at are those of the blocks whose centres are nearest, about `candidates` rows, so that no step takes
    all pairs of rows.

    Args: of: the blocks that are asked about, in their order; None for all.
    Cost: a distance of centres for each pair of blocks, n `candidates` distances of rows.
    """
    (count, size), d = blocks.shape, points.shape[1]
    asked = torch.arange(count, device=points.device) if of is None else of
    near = _blocks_looked_at(count, size, settings)
    wanted = min(settings.neighbours, near * size)
    found = torch.full((len(asked), wanted), -1, dtype=torch.int64, device=points.device)
    if not found.numel():
        return found
    inside = blocks >= 0
    members = torch.where(inside.unsqueeze(-1), points[blocks.clamp(min=0)], 0.0)
    centres = members.sum(1) / inside.sum(1, keepdim=True)
    place = 0
    for part in asked.split(_blocks_at_once(count, size, d, settings)):
        stop = count if later else int(part.max()) + 1
        between, place_of = torch.cdist(centres[part], centres[:stop]), torch.arange(stop, device=points.device)
        apart = place_of == part.unsqueeze(-1) if later else place_of >= part.unsqueeze(-1)
        few = min(near, stop)
        distance, nearest = between.masked_fill_(apart, math.inf).topk(few, largest=False)
        usable = distance.isfinite().unsqueeze(-1) & inside[nearest]
        # From the block's own centre: nothing cancels.
        own = (members[part] - centres[part].unsqueeze(1)).masked_fill(~inside[part].unsqueeze(-1), 0.0)
        others = (members[nearest] - centres[part].unsqueeze(1).unsqueeze(1)).flatten(1, 2)
        squares = own.square().sum(-1).masked_fill(~inside[part], math.inf)
        least = torch.baddbmm(squares.unsqueeze(-1), own, others.mT, alpha=-2.0).amin(1).add_(others.square().sum(-1))
        least.masked_fill_(~usable.flatten(1), math.inf)
        taken = min(wanted, few * size)
        distance, chosen = least.topk(taken, largest=False)
        rows = blocks[nearest].flatten(1).gather(1, chosen)
        found[place : place + len(part), :taken] = torch.where(distance.isfinite(), rows, -1)
        place += len(part)
    return found


def _blocks_looked_at(count: int, size: int, settings: FullScaleSettings) -> int:
    """Number of blocks whose rows may be neighbours of a block, of so many blocks."""
    return min(max(0, count - 1), max(1, -(-settings.candidates // max(1, size))))


def _blocks_at_once(count: int, size: int, d: int, settings: FullScaleSettings) -> int:
    """Number of blocks whose neighbours are looked for in one batch."""
    near = _blocks_looked_at(count, size, settings)
    return max(1, settings.batch_bytes // max(1, 8 * size * near * (size + d)))


def nearest_of_all_earlier_rows(
    points: Tensor, blocks: Tensor, asked: Tensor, count: int, first: int = 0, numbers: int = 2**22
) -> Tensor:
    """As `nearest_earlier_rows`, looking at every earlier row: for a few blocks, also where blocks differ in size.

    Args: points (n, d); blocks, all of them; asked, which; count, of neighbours; first, a row from which on rows may be
        in asked or later blocks: those before are in earlier ones.
    Cost: a distance of each row of the asked blocks to each row; `numbers` are alive at once.
    """
    n, (s, size) = len(points), (len(asked), blocks.shape[1])
    wanted = min(count, n)
    found = torch.full((s, wanted), -1, dtype=torch.int64, device=points.device)
    if not wanted or not s:
        return found
    place = torch.full((n - first,), len(blocks), dtype=torch.int64, device=points.device)
    start = 0 if not first else int(asked.min())
    late = blocks[start:]
    of_block = torch.arange(start, len(blocks), device=points.device).unsqueeze(1).expand_as(late)
    inside = late >= first
    place[late[inside] - first] = of_block[inside]
    step = max(1, numbers // (n * size))
    for begin in range(0, s, step):
        part = asked[begin : begin + step]
        members = blocks[part]
        distance = torch.cdist(points[members.clamp(min=0)].flatten(0, 1), points).view(len(part), size, n)
        least = distance.masked_fill_((members < 0).unsqueeze(-1), math.inf).amin(1)
        least[:, first:].masked_fill_(place >= part.unsqueeze(-1), math.inf)
        nearest, rows = least.topk(wanted, largest=False)
        found[begin : begin + step] = torch.where(nearest.isfinite(), rows, -1)
    return found


def nearest_rows(
    points: Tensor, rows: Tensor, blocks: Tensor, count: int, candidates: int = CANDIDATES, numbers: int = 2**22
) -> Tensor:
    """The rows (n, d) that are nearest to each point, (s, d), the nearest first: positions (s, count).

    Where rows are more than EVERY times `candidates`, those of the blocks whose centres are nearest are looked at, and
    all that are behind the rows in blocks: what a point gets does not depend on other points, but near ones share a
    table. Cost: for each point a distance of every centre, of `candidates` rows or more and of every row behind;
    `numbers` are alive at once.
    """
    n = len(rows)
    if not len(points) or not count:
        return torch.zeros(len(points), count, dtype=torch.int64, device=rows.device)
    centre = rows.mean(0)
    points = points - centre
    if n <= EVERY * candidates:
        return _nearest(points, rows - centre, count, numbers)
    inside, size = blocks >= 0, blocks.shape[1]
    centres = torch.where(inside.unsqueeze(-1), rows[blocks.clamp(min=0)], 0.0).sum(1) / inside.sum(1, keepdim=True)
    centres -= centre
    near = min(len(blocks), max(-(-candidates // size), -(-2 * count // size)))
    behind = torch.arange(int(inside.sum()), n, device=rows.device)
    found = torch.empty(len(points), count, dtype=torch.int64, device=rows.device)
    for group in blocks_of_near_rows(points, TOGETHER, 0):
        group = group[group >= 0]
        chosen = _nearest(points[group], centres, near, numbers)
        used, place = chosen.unique(return_inverse=True)
        members = blocks[used].flatten()
        known = torch.cat([members.clamp(min=0), behind])
        table = rows[known] - centre
        for part, own in zip(*(t.split(max(1, numbers // len(known))) for t in (group, place)), strict=True):
            asked = torch.zeros(len(part), len(used), dtype=torch.bool, device=rows.device).scatter_(1, own, True)
            asked = asked.repeat_interleave(size, 1) & (members >= 0)
            left_out = torch.nn.functional.pad(~asked, (0, len(behind)))
            found[part] = known[_nearest(points[part], table, count, numbers, left_out)]
    return found


def _nearest(points: Tensor, rows: Tensor, count: int, numbers: int, left_out: Tensor | None = None) -> Tensor:
    """The nearest of all rows but those left out, (s, n): positions (s, count). The mean of all is near the origin."""
    squares, found = rows.square().sum(-1), []
    step = max(1, numbers // len(rows))
    for start in range(0, len(points), step):
        part = slice(start, start + step)
        distance = torch.addmm(
            squares, points[part], rows.mT, alpha=-2.0
        )  # less |x|^2, which is one number for a point
        if left_out is not None:
            distance.masked_fill_(left_out[part], math.inf)
        found.append(distance.topk(count, largest=False)[1])
    return torch.cat(found)
