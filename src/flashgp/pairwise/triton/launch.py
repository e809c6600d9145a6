"""Launches: tile shapes, the two kernels of a route pair, and the grid. Nothing here waits for the device."""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from flashgp.foundations.form import Form
from flashgp.pairwise.program import program_of
from flashgp.pairwise.triton.gradient_source import gradient_source
from flashgp.pairwise.triton.kernel_source import block_source, product_source
from flashgp.pairwise.triton.packing import CAREFUL, FAST, Packed
from flashgp.pairwise.triton.source_files import source_module
from flashgp.pairwise.triton.tile_source import TileStatistic, tile_statistics

__all__ = ["SHAPES", "TileShape", "blocks_for", "columns_per_split", "launch", "routes", "splits_for"]


@dataclass(frozen=True)
class TileShape:
    """Rows and columns of a tile, warps of a program, loads in flight; span: columns summed in plain float32."""

    rows: int
    columns: int
    warps: int
    stages: int
    span: int = 2048


# Chosen by registers and spills of the compiled kernels; not yet measured on a GPU.
SHAPES: dict[str, TileShape] = {
    "few": TileShape(64, 64, 4, 2),
    "many": TileShape(64, 64, 4, 2),
    "block": TileShape(64, 64, 4, 2),
    "gradient": TileShape(64, 32, 4, 2),
}
PROGRAMS = 528  # programs wanted per launch, four per multiprocessor of an H100: fewer rows split their columns
LARGEST_SPLIT = 64


def routes(form: Form, columns: Sequence[int], careful: bool) -> tuple[TileStatistic, ...]:
    """How each statistic is formed, for features of that many columns."""
    return tile_statistics(form, columns, program_of(form).bounded_slope, careful)


def blocks_for(count: int, rows: int) -> int:
    """Blocks of that many rows."""
    return -(-count // rows)


def splits_for(blocks: int, members: int, columns: int, shape: TileShape) -> int:
    """Into how many parts the columns are shared out, so that a launch has PROGRAMS programs."""
    tiles = blocks_for(columns, shape.columns)
    return max(1, min(PROGRAMS // max(1, blocks * members), tiles, LARGEST_SPLIT))


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
    return getattr(source_module(source[name](form, statistics, careful, *options)), name)


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
    device = packed.route.device
    current = torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
    given = packed.arguments()
    with current:
        for careful in (False, True) if "distance" in form.statistics else (False,):
            statistics = routes(form, packed.columns, careful)
            kernel = _kernel(name, form, statistics, careful, options)
            kept = {k: v for k, v in given.items() if k in kernel.arg_names}
            kernel[(programs,)](
                **kept,
                **arguments,
                **constants,
                ROUTE=CAREFUL if careful else FAST,
                BM=shape.rows,
                BN=shape.columns,
                num_warps=shape.warps,
                num_stages=shape.stages,
            )
