"""Input of a kernel: features in float32 around a common centre, their lost digits, codes, theta, and the route.

Split features, eq. (M-60): with u the float64 feature minus the centre, high = fl32(u) and low = fl32(u - high). The
difference (high - high') + (low - low') has a rounding error relative to itself, where high - high' alone is off by
eps max|u|: an offset costs nothing, a short lengthscale little.

The fast route, eq. (M-61), is open to a member of the batch while, with R the largest |u|,

    eps R s       <= 1e-6    for differences of `high` alone
    4 eps R^2 s'  <= 2e-5    for |u|^2 + |v|^2 - 2 u.v (values below 4 eps R^2 are 0)

where s and s', at least 1, say what an error of a coordinate, and of a squared distance, does to the covariance at the
values of theta, eq. (M-75).

Which route serves is decided on the device, per member of the batch: a number there, never read by the host.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flashgp.foundations.form import Form, Rows, broadcast_batch
from flashgp.pairwise.program.slopes import rounding_slopes
from flashgp.pairwise.program.source_cache import import_generated
from flashgp.pairwise.triton.profile_source import DEVICE_FUNCTIONS
from flashgp.pairwise.triton.tile_source import TileStatistic

PADDING = 128  # rows to which a side is padded: no tile has more, so that loads of features need no mask
FAST, CAREFUL = 0, 1
EPS = torch.finfo(torch.float32).eps
DIFFERENCE_BUDGET = 1e-6  # largest admitted eps R: the error of a coordinate's difference
DOT_BUDGET = 2e-5  # largest admitted 4 eps R^2, which bounds the error of q


@dataclass
class Side:
    """One set of rows: channels (members or 1, C, padded) float32, codes (members or 1, matches, padded) int64."""

    channels: Tensor
    codes: Tensor
    count: int

    def arguments(self, side: str, codes: str) -> dict[str, object]:
        return {
            side: self.channels,
            f"{side}_stride": self.channels.stride(1),
            f"{side}_member": member_stride(self.channels),
            codes: self.codes,
            f"{codes}_stride": self.codes.stride(1),
            f"{codes}_member": member_stride(self.codes),
        }


@dataclass
class Packed:
    """Both sides, theta and the route, ready for launches; `swapped` exchanges the sides.

    Fields: batch, the shape of the batch; members, how many; columns, the width of each statistic's features (0 for a
    match); theta (members or 1, max(1, P)) float64; limits (members or 1, max(1, statistics)) float32; route (members
    or 1,) int32: FAST or CAREFUL.
    """

    rows: Side
    cols: Side
    batch: torch.Size
    columns: tuple[int, ...]
    first_channels: tuple[int, ...]
    scalars_at: int
    theta: Tensor
    limits: Tensor
    route: Tensor

    @property
    def members(self) -> int:
        return self.batch.numel()

    def swapped(self) -> "Packed":
        return Packed(
            self.cols, self.rows, self.batch, self.columns, self.first_channels, self.scalars_at, self.theta,
            self.limits, self.route,
        )  # fmt: skip

    def arguments(self) -> dict[str, object]:
        """Arguments by the names of PairText.arguments."""
        found: dict[str, object] = {
            **self.rows.arguments("rows", "row_codes"),
            **self.cols.arguments("cols", "col_codes"),
            "n": self.rows.count,
            "m": self.cols.count,
            "scalars_at": self.scalars_at,
        }
        for name in ("theta", "limits", "route"):
            found[name] = getattr(self, name)
            found[f"{name}_member"] = member_stride(getattr(self, name))
        for k, (first, width) in enumerate(zip(self.first_channels, self.columns, strict=True)):
            found[f"c{k}"], found[f"d{k}"] = first, width
        return found


def member_stride(tensor: Tensor) -> int:
    """Elements from one member of the batch to the next; 0 where all members share one."""
    return 0 if tensor.shape[0] == 1 else tensor.stride(0)


def packed_bytes(rows: Rows, cols: Rows | None) -> int:
    """Bytes at most while packing, in units of the features' own: the packed sides, and float64 copies of one side."""
    sides = [rows] if cols is None else [rows, cols]
    return sum(side.nbytes for side in sides) + 4 * max(side.nbytes for side in sides)


def packed(
    form: Form,
    theta: Sequence[Tensor],
    rows: Rows,
    cols: Rows | None,
    fast: Sequence[TileStatistic],
    batch: torch.Size,
    kinked: bool = False,
) -> Packed:
    """Pack both sides; cost O((n + m) d), on the device of the rows, without waiting for it.

    Args:
        fast: the routes of the fast kernels, which say what each distance's features must satisfy.
        batch: the broadcast batch shape of the whole job, to which what has a batch is expanded.
        kinked: take the careful route in any case: derivatives of a profile with a kink at 0 weigh close pairs by 1/r.
    """
    sides = [rows] if cols is None else [rows, cols]
    feature_batch = broadcast_batch(*(side.batch_shape for side in sides))
    shape = batch if feature_batch.numel() > 1 else torch.Size(())
    members = shape.numel()
    columns = tuple(f.shape[-1] if f.is_floating_point() else 0 for f in rows.features)
    first, at = [], 0
    for s, width in zip(fast, columns, strict=True):
        first.append(at)
        at += 2 * width + 1 if s.kind == "distance" else width
    made = [_empty_side(side, members, at + form.scalar_count, form) for side in sides]
    limits = torch.zeros((members, max(1, len(fast))), dtype=torch.float32, device=rows.device)
    careful = torch.full((members,), kinked, dtype=torch.bool, device=rows.device)
    values = _theta(theta, batch, rows.device)
    slopes = rounding_slopes(form, values)
    matches = 0
    for s in fast:
        tables = [_members(side.features[s.index], shape, 2 if s.kind != "match" else 1) for side in sides]
        if s.kind == "match":
            for side, table in zip(made, tables, strict=True):
                side.codes[:, matches, : side.count] = table
            matches += 1
        elif s.kind == "product":
            for side, table in zip(made, tables, strict=True):
                _fill(side, first[s.index], table)
        else:
            reach = _pack_distance(made, tables, first[s.index])
            if s.route.startswith("dot"):
                limits[:, s.index] = 4.0 * EPS * reach
                careful = careful | ~(4.0 * EPS * reach * slopes[s.index][1] <= DOT_BUDGET)
            else:
                careful = careful | ~(EPS * reach.sqrt() * slopes[s.index][0] <= DIFFERENCE_BUDGET)
    for side, given in zip(made, sides, strict=True):
        for k, scalar in enumerate(given.scalars):
            side.channels[:, at + k, : side.count] = _members(scalar, shape, 1)
        for table in (side.channels, side.codes):
            table[..., side.count :] = table[..., side.count - 1 : side.count]  # real rows: whatever g is, it is finite
    return Packed(
        made[0], made[-1], batch, columns, tuple(first), at, values, limits, careful.to(torch.int32),
    )  # fmt: skip


def _empty_side(side: Rows, members: int, channels: int, form: Form) -> Side:
    padded = -(-side.count // PADDING) * PADDING
    matches = sum(kind == "match" for kind in form.statistics)
    return Side(
        torch.empty((members, max(1, channels), padded), dtype=torch.float32, device=side.device),
        torch.empty((members, max(1, matches), padded), dtype=torch.int64, device=side.device),
        side.count,
    )


def _members(tensor: Tensor, shape: torch.Size, own: int) -> Tensor:
    """The tensor with one flat batch dimension in front, (members, ...), its last `own` dimensions kept."""
    tail = tensor.shape[tensor.dim() - own :]
    return tensor.detach().expand(*shape, *tail).reshape(shape.numel(), *tail)


def _fill(side: Side, first: int, table: Tensor) -> None:
    side.channels[:, first : first + table.shape[-1], : side.count] = table.mT


def _pack_distance(made: Sequence[Side], tables: Sequence[Tensor], first: int) -> Tensor:
    """Channels high and low of both sides, eq. (M-60); norms come later. Returns: R^2, shape (members,), float64."""
    centre = tables[0].double().mean(dim=-2, keepdim=True)
    reach = []
    for side, table in zip(made, tables, strict=True):
        width = table.shape[-1]
        u = table.double() - centre
        high = u.float()
        squared = high.double().square().sum(-1)
        _fill(side, first, high)
        _fill(side, first + width, (u - high.double()).float())
        reach.append(squared.amax(-1))
    return torch.stack(reach).amax(0)


def _theta(theta: Sequence[Tensor], batch: torch.Size, device: torch.device) -> Tensor:
    shape = batch if any(t.dim() for t in theta) else torch.Size(())
    values = [
        t.detach().to(device=device, dtype=torch.float64, non_blocking=True).expand(shape).reshape(-1) for t in theta
    ]
    if not values:
        return torch.zeros((1, 1), dtype=torch.float64, device=device)
    return torch.stack(values, dim=-1).contiguous()


NORMS_ROWS = 64

NORMS_SOURCE = f'''"""Generated by FlashGP: squared norms of packed features."""

import triton
import triton.language as tl

{DEVICE_FUNCTIONS}

@triton.jit(do_not_specialize=["first", "d", "blocks"])
def norms(channels, stride, member_stride, first, d, blocks, BM: tl.constexpr, SIZE: tl.constexpr):
    program = tl.program_id(0)
    block = program % blocks
    channels += (program // blocks).to(tl.int64) * member_stride
    i = block * BM + tl.arange(0, BM)
    f = tl.arange(0, SIZE)
    total = tl.zeros((BM, BM), tl.float32)
    for column in range(0, d, SIZE):
        place = (first + column + f).to(tl.int64) * stride
        x = tl.load(channels + place[None, :] + i[:, None], mask=(column + f < d)[None, :], other=0.0)
        y = tl.load(channels + place[:, None] + i[None, :], mask=(column + f < d)[:, None], other=0.0)
        x_high, x_low = _split(x)
        y_high, y_low = _split(y)
        total += _dot(x_high, x_low, y_high, y_low)
    own = tl.arange(0, BM)
    norm = tl.sum(tl.where(own[:, None] == own[None, :], total, 0.0), 1)
    tl.store(channels + (first + 2 * d).to(tl.int64) * stride + i, norm)
'''


def store_norms(packed: Packed, statistics: tuple[TileStatistic, ...], symmetric: bool) -> None:
    """Fill the norm channels of every distance that is formed by a product; one short launch per side and distance."""
    for s in statistics:
        if s.kind != "distance" or not s.route.startswith("dot"):
            continue
        kernel = import_generated(NORMS_SOURCE).norms
        for side in [packed.rows] if symmetric else [packed.rows, packed.cols]:
            members, _, padded = side.channels.shape
            blocks = padded // NORMS_ROWS
            kernel[(blocks * members,)](
                side.channels,
                side.channels.stride(1),
                side.channels.stride(0),
                packed.first_channels[s.index],
                packed.columns[s.index],
                blocks,
                BM=NORMS_ROWS,
                SIZE=s.size,
                num_warps=4,
                num_stages=1,
                enable_fp_fusion=True,
            )
