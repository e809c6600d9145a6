"""Rows that are read in passes: what the first one says, and that every later one has to see the same rows."""

from collections.abc import Iterator

import numpy
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.sources.source import Batches, Held, source_of
from flashgp.sources.survey import Sampler, Survey, checksum, combined, surveyed
from inference.plain_gp import F64, data


def batches(x: Tensor, y: Tensor, size: int) -> list[tuple[Tensor, Tensor]]:
    return list(zip(x.split(size), y.split(size), strict=True))


def whole(survey: Survey, size: int) -> tuple[Tensor, Tensor]:
    blocks = list(survey.blocks(size))
    assert all(len(block.x) == size for block in blocks[:-1])
    return torch.cat([block.x for block in blocks]), torch.cat([block.y for block in blocks])


@pytest.mark.parametrize("size", [1, 7, 50, 90])
@pytest.mark.parametrize("block", [1, 16, 50, 200])
def test_blocks_are_the_rows_however_they_are_cut(size: int, block: int) -> None:
    x, y = data(50)
    survey = surveyed(Batches(batches(x, y, size)), None, 10, seed=0)
    assert (survey.count, survey.width, survey.dtype) == (50, 2, F64)
    found = whole(survey, block)
    assert torch.equal(found[0], x)
    assert torch.equal(found[1], y)


def test_mean_and_spread_are_those_of_all_rows() -> None:
    """(M-164), also where the mean is large beside the spread, and of a column of constants."""
    x, y = data(200, 3)
    x[:, 1] = 1e8 + x[:, 1]
    x[:, 2] = 0.1
    survey = surveyed(Batches(batches(x, y, 17)), None, 10, seed=0)
    assert survey.x_moments.mean == pytest.approx(x.mean(0), rel=1e-14)
    assert survey.x_moments.scale[:2] == pytest.approx(x.std(0, correction=0)[:2], rel=1e-7)
    assert survey.x_moments.scale[2] == 1.0
    assert survey.y_moments.scale == pytest.approx(y.std(0, correction=0, keepdim=True), rel=1e-12)


def test_the_sample_is_uniform_and_independent_of_the_batches() -> None:
    x = torch.arange(60, dtype=F64)[:, None]
    counts = torch.zeros(60)
    for seed in range(400):
        one, other = Sampler(15, seed), Sampler(15, seed)
        one.add(x, x[:, 0])
        for part in x.split(7):
            other.add(part, part[:, 0])
        assert torch.equal(one.rows[0], other.rows[0])
        assert torch.equal(one.rows[0][:, 0], one.rows[1])
        assert torch.equal(one.places.double(), one.rows[1])
        assert torch.equal(other.places, one.places)
        counts[one.rows[0][:, 0].long()] += 1
    # Each row is in a quarter of the samples: binomial, standard deviation 8.7.
    assert bool(((counts - 100).abs() < 4.0 * 8.7).all())
    few = Sampler(100, 0)
    few.add(x, x)
    assert torch.equal(few.rows[0], x)


def test_a_checksum_is_of_rows_and_not_of_their_order() -> None:
    table = numpy.random.default_rng(0).normal(size=(30, 4))
    whole = checksum(table)
    assert whole == checksum(table[::-1])
    assert whole == combined(checksum(table[:7]), checksum(table[7:]))
    for changed in (table + numpy.eye(30, 4) * 1e-12, table[:, ::-1], table[:-1], table[[*range(30), 0]]):
        assert checksum(changed) != whole
    swapped = table.copy()
    swapped[:2, 1] = table[[1, 0], 1]  # the same numbers in other rows
    assert checksum(swapped) != whole
    assert checksum(numpy.zeros((3, 2))) == checksum(-numpy.zeros((3, 2)))


class Changing:
    """An iterable that does something else in its second pass."""

    def __init__(self, first: list[tuple[Tensor, Tensor]], later: list[tuple[Tensor, Tensor]]) -> None:
        self.passes, self.lists = 0, (first, later)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.passes += 1
        return iter(self.lists[min(self.passes, 2) - 1])


@pytest.mark.parametrize("change", ["fewer", "more", "other", "none"])
def test_rows_that_change_between_passes_are_refused(change: str) -> None:
    x, y = data(30)
    first, other = batches(x, y, 8), y.clone()
    other[17] += 1e-9
    later = {"fewer": first[:-1], "more": first * 2, "other": batches(x, other, 8), "none": []}[change]
    survey = surveyed(Batches(Changing(first, later)), None, 5, seed=0)
    with pytest.raises(DomainError, match=r"same rows in every pass"):
        list(survey.blocks(10))


def test_another_order_is_no_change_and_a_buffer_may_be_used_again() -> None:
    x, y = data(40)
    survey = surveyed(Batches(Changing(batches(x, y, 9), batches(x.flip(0), y.flip(0), 11))), None, 5, seed=0)
    assert torch.equal(whole(survey, 13)[0], x.flip(0))

    class OneBuffer:
        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            buffer = torch.empty(8, 2, dtype=F64)
            for part, target in batches(x, y, 8):
                buffer.copy_(part)
                yield buffer, target

    assert torch.equal(whole(surveyed(Batches(OneBuffer()), None, 5, seed=0), 17)[0], x)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_is_read(workers: int) -> None:
    x, y = data(50)
    loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True, num_workers=workers)
    survey = surveyed(source_of(loader), None, 20, seed=0)
    found = whole(survey, 25)
    assert torch.equal(found[1].sort().values, y.sort().values)


def test_what_is_no_source_is_refused() -> None:
    x, y = data(10)
    for wrong, text in (
        (iter([(x, y)]), "read only once"),
        ((part for part in [(x, y)]), "read only once"),
        (3, "rows that can be read"),
        (x, "`y` must be given"),
        (x.numpy(), "`y` must be given"),
    ):
        with pytest.raises(DomainError, match=text):
            source_of(wrong)


def test_batches_that_do_not_fit_are_refused_by_their_place() -> None:
    x, y = data(10)
    for wrong, error, text in (
        ([(x, y), (x[:, :1], y)], ShapeError, "x of batch 1"),
        ([(x, y), (x, y[:-1])], ShapeError, "y of batch 1"),
        ([(x, torch.full((10,), torch.nan))], DomainError, "y of batch 0"),
        ([(x[0], y[0])], ShapeError, "x of batch 0"),
        ([x], DomainError, "batches .x, y."),
        ([(x, y, y.abs(), y)], DomainError, "batches .x, y."),
        ([(x, y, y.abs()), (x, y)], DomainError, "row_variance of batch 1"),
        ([(x, y), (x, y, y.abs())], DomainError, "row_variance of batch 1"),
        ([(x, y, y[:-1].abs())], ShapeError, "row_variance of batch 0"),
        ([], ShapeError, "at least one row"),
        ([(x[:0], y[:0])], ShapeError, "at least one row"),
        ([(x[None], y[None])], ShapeError, "one table"),
    ):
        with pytest.raises(error, match=text):
            surveyed(Batches(wrong), None, 5, seed=0)
    assert surveyed(Held(x, torch.stack([y, y], 1)), 2, 5, seed=0).y.shape == (5, 2)
