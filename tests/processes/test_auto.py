"""approximation="auto" over ranks takes what one process with all rows takes, on every rank, with the same answers."""

from typing import Any

import numpy
import pytest
import torch

import flashgp as fgp
from flashgp.inference.approximation import LADDER
from flashgp.inference.data import Data
from processes import auto_jobs
from processes.condition_jobs import model
from processes.launch import Ranks

ROWS = 601
COUNTS = [(300, 301), (301, 297, 3, 0)]
# Of sums of inducing points in another order, as test_streamed.py has it; of blocks and of factors.
TOLERANCE = {"sparse": 1e8 * torch.finfo(torch.float64).eps, "full_scale": 1e-9, "exact": 1e-10}
SEARCHED = {"sparse": 1e-4, "full_scale": 1e-6, "exact": 1e-9}  # where a search ends
SIZES = {"sparse": {"inducing": 12, "neighbours": 0}, "full_scale": {"inducing": 12, "neighbours": 20}}


def short_memory(n: int) -> dict[str, Any]:
    """A budget that leaves no room for the factor of so many rows."""
    exact = fgp.plan(model("plain"), n=n, d=3, dtype=torch.float64, memory="8GiB")
    return {"dtype": torch.float64, "memory": exact.peak_bytes - 1}


@pytest.mark.parametrize("kind", ["plain", "repeated", "variances", "outputs", "float32"])
def test_rows_of_all_ranks_are_counted(ranks: Ranks, kind: str) -> None:
    """Those that differ, too, as one process counts them that has all of them."""
    one = Data.of(model(kind, auto_jobs.rows_of(kind, ROWS)[2]), *auto_jobs.rows_of(kind, ROWS)[:2]).counts
    joined = {"plain": 0, "variances": 5}.get(kind, 7)
    assert (one.n, one.distinct or ROWS) == (ROWS, ROWS - joined)
    for counts in COUNTS:
        expected = (ROWS, 3, ROWS - joined, 1, True, one.extent)
        assert ranks.run(auto_jobs.counted, len(counts), kind, counts) == [expected] * len(counts)


@pytest.mark.parametrize("fitting", [False, True])
@pytest.mark.parametrize("kind", ["exact", "full_scale", "sparse"])
def test_all_ranks_take_what_one_process_takes(ranks: Ranks, kind: str, fitting: bool) -> None:
    options = {} if kind == "exact" else {**SIZES[kind], **short_memory(ROWS)}
    one = auto_jobs.chosen(None, (ROWS,), fitting, options)
    assert one["kind"] == kind
    rtol = (SEARCHED if fitting else TOLERANCE)[kind]
    for counts in COUNTS[fitting:]:
        found = ranks.run(auto_jobs.chosen, len(counts), counts, fitting, options)
        for part in found:
            assert (part["kind"], part["reason"], part["sizes"]) == (kind, one["reason"], one["sizes"])
            assert part["event"] == found[0]["event"]
            for name in ("mean", "variance"):
                scale = float(numpy.abs(one[name]).max())
                numpy.testing.assert_allclose(part[name], one[name], rtol=0.0, atol=rtol * scale, err_msg=name)


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize(
    ("counts", "fitting"), [((2500, 2501), False), ((3000, 0, 2001), False), ((20_000, 19_999), True)]
)
def test_series_are_taken_where_one_process_takes_them(
    ranks: Ranks, counts: tuple[int, ...], fitting: bool, read: bool
) -> None:
    pytest.importorskip("finufft")
    told = ranks.run(auto_jobs.series, len(counts), counts, fitting, read)
    assert all(one[1:] == told[0][1:] for one in told)
    apart, taken, _ = told[0]
    assert taken[0] == taken[1]
    assert taken[0].startswith("fourier")
    assert apart < (1e-3 if fitting else 1e-7)  # where a search ends; sums of parts


@pytest.mark.parametrize("read", [False, True])
def test_series_are_left_by_all_ranks(ranks: Ranks, read: bool) -> None:
    """For what one process leaves them, by the first rows."""
    pytest.importorskip("finufft")
    counts = (30_000, 20_000) if read else (40, 23)
    one = auto_jobs.left(None, (sum(counts),), read)
    told = ranks.run(auto_jobs.left, 2, counts, read)
    assert told[0] == told[1]
    assert told[0][0] == one[0]
    assert one[0][1] == ("sparse" if read else "")
    if not read:
        numpy.testing.assert_allclose(told[0][1], one[1], atol=1e-4)


def test_sizes_are_rank_0s_on_all(ranks: Ranks) -> None:
    """Of the ladder, as there is room on each rank."""
    first, *others = ranks.run(auto_jobs.chosen, 3, (300, 301, 0), False, short_memory(ROWS))
    assert first["kind"] == "full_scale"
    assert first["sizes"][:3] in LADDER
    for part in others:
        assert (part["sizes"], part["event"]) == (first["sizes"], first["event"])
        assert numpy.array_equal(part["mean"], first["mean"])


def test_every_rank_is_told_the_same(ranks: Ranks) -> None:
    told = ranks.run(auto_jobs.refusals, 3)
    assert told[0] == told[1] == told[2]
    said = told[0]
    differ = {
        "exact": "approximation is auto on ranks 0, 1, None on rank 2", "memory": "memory is", "sizes": "neighbours is",
        "full scale": "approximation is auto on ranks 0, 1, full_scale on rank 2", "points": "inducing is",
        "sparse": "approximation is auto on ranks 0, 1, sparse on rank 2", "time limit": "time_limit is",
        "dtype": "dtype is", "seed": "seed is 0 on ranks 0, 1, 1 on rank 2", "starts": "starts is",
        "fit sparse": "approximation is auto on ranks 0, 1, sparse on rank 2", "columns": "columns is",
    }  # fmt: skip
    for name, text in differ.items():
        assert said[name].startswith("RankMismatchError"), said[name]
        assert text in said[name]
    for name in ("nothing fits", "fit does not"):
        assert said[name].startswith("MemoryBudgetError"), said[name]
    for name in ("not finite", "too many ranks", "batch", "differentiable"):
        assert said[name].startswith("DomainError"), said[name]
    assert said["bad points"].startswith("ShapeError: `inducing` must have 3 columns")
