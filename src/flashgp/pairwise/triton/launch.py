"""Launches: tile shapes, the two kernels of a route pair, and the grid. Nothing here waits for the device."""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from flashgp.foundations.form import Form
from flashgp.pairwise.program.program import program_of
from flashgp.pairwise.program.source_cache import import_generated
from flashgp.pairwise.triton.gradient_source import gradient_source
from flashgp.pairwise.triton.kernel_source import block_source, product_source
from flashgp.pairwise.triton.packing import CAREFUL, FAST, Packed
from flashgp.pairwise.triton.tile_source import TileStatistic, tile_statistics


@dataclass(frozen=True)
class TileShape:
    """Rows and columns of a tile, warps of a program, loads in flight; span: columns summed in plain float32."""

    rows: int
    columns: int
    warps: int
    stages: int
    span: int = 2048


def shape_for(name: str, statistics: Sequence[TileStatistic]) -> TileShape:
    """The tile of a kernel, so that it keeps its registers (255 a thread): wider forms get fewer pairs per thread.

    Measured on an H200 (docs/decisions/0008); those of several statistics by registers and spills of code for sm_90.

    Args:
        name: few, many, block or gradient; statistics, the fast routes.
    """
    unrolled = sum(s.size for s in statistics if s.route == "unrolled")
    wide = any(s.route not in ("unrolled", "match") for s in statistics)
    several = sum(s.kind != "match" for s in statistics) > 1
    match name:
        case "few" if unrolled <= 4 and not wide:
            return TileShape(64, 32, 4, 2)
        case "few":
            return TileShape(32, 32, 4, 2)
        case "many":
            return TileShape(64, 32, 4, 2) if several else TileShape(128, 64, 8, 2)
        case "block":
            return TileShape(32, 32, 4, 2) if several else TileShape(64, 64, 4, 2)
        case _:
            return TileShape(64, 16, 4, 2) if several else TileShape(64, 32, 4, 2)


LARGEST_SPLIT = 64


@dataclass(frozen=True)
class LaunchSettings:
    """Sizes of launches.

    Fields:
        shapes: tiles by the names of `shape_for`, instead of its own.
        programs: wanted per launch, four per multiprocessor of an H100: fewer rows split their columns.
    """

    shapes: Mapping[str, TileShape] = field(default_factory=dict)
    programs: int = 528

    def shape(self, name: str, statistics: Sequence[TileStatistic]) -> TileShape:
        """The tile of a kernel; see `shape_for`."""
        return self.shapes[name] if name in self.shapes else shape_for(name, statistics)

    def splits(self, blocks: int, members: int, columns: int, shape: TileShape) -> int:
        """Into how many parts the columns are shared out, so that a launch has as many programs as are wanted."""
        tiles = blocks_for(columns, shape.columns)
        return max(1, min(self.programs // max(1, blocks * members), tiles, LARGEST_SPLIT))


def routes(form: Form, columns: Sequence[int], careful: bool) -> tuple[TileStatistic, ...]:
    """Routes by which each statistic is formed, for features of that many columns."""
    return tile_statistics(form, columns, program_of(form).bounded_slope, careful)


def blocks_for(count: int, rows: int) -> int:
    """Blocks of that many rows."""
    return -(-count // rows)


def columns_per_split(columns: int, splits: int, shape: TileShape) -> int:
    """Columns of one part: whole tiles."""
    return blocks_for(columns, splits * shape.columns) * shape.columns


@functools.lru_cache(maxsize=512)
def _kernel(
    name: str, form: Form, statistics: tuple[TileStatistic, ...], careful: bool, options: tuple[Any, ...]
) -> Any:
    source: Mapping[str, Callable[..., str]] = {
        "product": product_source,
        "block": block_source,
        "gradient": gradient_source,
    }
    return getattr(import_generated(source[name](form, statistics, careful, *options)), name)


def launch(
    name: str,
    form: Form,
    packed: Packed,
    options: tuple[Any, ...],
    arguments: Mapping[str, Any],
    shape: TileShape,
    programs: int,
    constants: Mapping[str, Any],
) -> None:
    """Start the fast kernel and, where distances have one, the careful kernel: each serves its members, eq. (M-61).

    Args:
        name: product, block or gradient; options, what its source generator takes beside form and routes.
        arguments: what the kernel takes beside the packed sides; programs, the size of the grid.
    """
    given = packed.arguments()
    with on_device(packed.route.device):
        for careful in (False, True) if "distance" in form.statistics else (False,):
            statistics = routes(form, packed.columns, careful)
            kernel = _kernel(name, form, statistics, careful, options)
            kept = {k: v for k, v in given.items() if k in kernel.arg_names}
            # Twice the loads per column: half the columns, where the tile need not be square.
            columns = max(16, shape.columns // 2) if careful and name != "block" else shape.columns
            _start(kernel, programs, {**kept, **arguments, **constants}, shape, columns, careful)


def on_device(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Make the tensors' device the current one: Triton launches on that."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def _start(
    kernel: Any, programs: int, arguments: dict[str, Any], shape: TileShape, columns: int, careful: bool
) -> None:
    """Start one kernel; a device with less shared memory than its loads in flight need gets one stage."""
    from triton.runtime.errors import OutOfResources

    for stages in (shape.stages, 1):
        try:
            kernel[(programs,)](
                **arguments,
                ROUTE=CAREFUL if careful else FAST,
                BM=shape.rows,
                BN=columns,
                num_warps=shape.warps,
                num_stages=stages,
                enable_fp_fusion=True,
            )
            return
        except OutOfResources:
            if stages == 1:
                raise
