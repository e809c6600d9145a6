"""Rows in random order: every one once, by seed, and the rows of the first pass."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import DomainError
from flashgp.sources import shuffled
from flashgp.sources.shuffled import buffer_rows, shuffled_blocks
from flashgp.sources.source import Batches, Held, RowSource
from flashgp.sources.survey import Block, surveyed
from inference.plain_gp import data


def blocks_of(source: RowSource, size: int, seeds: tuple[int, ...] = (0,), **how: Any) -> Iterator[Block]:
    return shuffled_blocks(surveyed(source, None, 10, seed=0), size, seeds, **how)


def numbered(n: int) -> tuple[Tensor, Tensor]:
    y = torch.arange(n, dtype=torch.float64)
    return torch.stack([y, -y], dim=1), y


def parquet(folder: Path, n: int, group: int = 7) -> RowSource:
    x, y = numbered(n)
    for at, (part, target) in enumerate(zip(x.tensor_split(3), y.tensor_split(3), strict=True)):
        table = pyarrow.table({"a": part[:, 0].numpy(), "b": part[:, 1].numpy(), "y": target.numpy()})
        pyarrow.parquet.write_table(table, folder / f"part-{at}.parquet", row_group_size=group)
    return fgp.data.parquet(folder / "part-*.parquet", target="y")


def sources(folder: Path, n: int) -> dict[str, RowSource]:
    x, y = numbered(n)
    read = parquet(folder, n)
    return {"held": Held(x, y), "batches": Batches(list(zip(x.split(11), y.split(11), strict=True))), "parquet": read}


@pytest.mark.parametrize("kind", ["held", "batches", "parquet"])
@pytest.mark.parametrize("size", [1, 8, 100, 1000])
def test_every_row_comes_once(tmp_path: Path, kind: str, size: int) -> None:
    blocks = list(blocks_of(sources(tmp_path, 100)[kind], size, buffer=24))
    assert all(len(block.x) == min(size, 100) for block in blocks[:-1])
    y = torch.cat([block.y for block in blocks])
    assert torch.equal(y.sort().values, torch.arange(100.0, dtype=torch.float64))
    assert not torch.equal(y, y.sort().values)
    for block in blocks:
        assert torch.equal(block.x[:, 0], block.y)
        assert torch.equal(block.x[:, 1], -block.y)


@pytest.mark.parametrize("kind", ["held", "batches", "parquet"])
def test_the_order_is_that_of_the_seed(tmp_path: Path, kind: str) -> None:
    source = sources(tmp_path, 100)[kind]
    one, again, other = (
        torch.cat([block.y for block in blocks_of(source, 8, seeds, buffer=24)]) for seeds in ((0, 1), (0, 1), (0, 2))
    )
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_sources_that_can_jump_are_random_at_once(tmp_path: Path) -> None:
    """A tenth of the rows stands for all of them, where a list of batches in order stands for its first."""
    found = {}
    for kind, source in sources(tmp_path, 3000).items():
        y = torch.cat([block.y for block, _ in zip(blocks_of(source, 30, buffer=120), range(10), strict=False)])
        found[kind] = abs(float(y.mean()) - 1499.5) / (866.0 / 300**0.5)
    assert found["held"] < 4.0
    assert found["parquet"] < 12.0  # pieces of seven rows are alike: some 43 of them
    assert found["batches"] > 20.0


def test_files_in_standard_units_jump_too(tmp_path: Path) -> None:
    rows = surveyed(fgp.data.standardised(parquet(tmp_path, 100)), None, 10, seed=0)
    y = torch.cat([block.y for block in shuffled_blocks(rows, 8, (0,))])
    assert float(y.mean()) == pytest.approx(0.0, abs=1e-12)
    first = next(rows.source.shuffled(3))[2]
    assert not torch.equal(torch.as_tensor(first), torch.as_tensor(next(rows.source.batches())[2])[: len(first)])


class Once:
    """Batches that differ from the second pass on."""

    def __init__(self, *passes: list[tuple[Tensor, Tensor]]) -> None:
        self.passes, self.number = passes, -1

    def __iter__(self) -> object:
        self.number += 1
        return iter(self.passes[min(self.number, len(self.passes) - 1)])


@pytest.mark.parametrize("change", ["fewer", "more", "other"])
def test_rows_that_change_are_refused_at_the_end(change: str) -> None:
    x, y = data(40)
    first = list(zip(x.split(8), y.split(8), strict=True))
    later = {"fewer": first[:-1], "more": [*first, first[0]], "other": [*first[:-1], (x[32:], y[32:] + 1e-9)]}[change]
    blocks = blocks_of(Batches(Once(first, later)), 8)
    with pytest.raises(DomainError, match="same rows in every pass"):
        list(blocks)


def test_the_buffer_is_bounded() -> None:
    assert buffer_rows(1024, 9) == shuffled.MAX_BUFFER
    assert buffer_rows(1024, 10**6) == 8 * 1024
    assert buffer_rows(10, 1000) == shuffled.BUFFER_NUMBERS // 1000


def test_a_check_ends_it() -> None:
    x, y = data(40)

    def stop() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        next(blocks_of(Batches([(x, y)]), 8, check=stop))
