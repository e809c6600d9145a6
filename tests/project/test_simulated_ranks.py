"""The simulation of many ranks: its schedule evaluates each pair once, its record is what the records give today."""

import itertools

import pytest
import simulate_ranks
from common import RECORDS

from flashgp.bench.records import read_record


@pytest.mark.parametrize("rows", [[201], [101, 97, 3], [101, 97, 0, 3], [50] * 8, [7] * 9])
def test_a_half_ring_evaluates_each_pair_once(rows: list[int]) -> None:
    n = sum(rows)
    assert sum(simulate_ranks.pairs_of(rows)) == n * (n + 1) / 2


def test_equal_shards_have_equal_work() -> None:
    for ranks in (2, 3, 8, 9):
        counts = simulate_ranks.pairs_of([100] * ranks)
        assert max(counts) == min(counts)


@pytest.mark.parametrize("link", simulate_ranks.LINKS, ids=lambda link: link.name)
def test_a_collective_takes_no_less_for_more(link: simulate_ranks.Link) -> None:
    for kind in (link.gather, link.reduce):
        assert kind(1, 1e6) == link.start_seconds
        for ranks, size in itertools.product((2, 8, 512), (8.0, 1e6)):
            assert kind(ranks, size) <= kind(2 * ranks, size)
            assert kind(ranks, size) < kind(ranks, 2 * size)
            # no rank sends less than its share of what all the others need
            assert kind(ranks, size) >= size * (ranks - 1) / ranks / link.bytes_per_second


def test_the_record_is_what_the_simulation_gives() -> None:
    stored, made = read_record(RECORDS / f"{simulate_ranks.NAME}.json"), simulate_ranks.simulation()
    assert {key: stored[key] for key in stored if key != "rows"} == {key: made[key] for key in made if key != "rows"}
    for old, new in zip(stored["rows"], made["rows"], strict=True):
        for key in old.keys() | new.keys():
            wanted = new[key] if isinstance(new[key], str) else pytest.approx(new[key], rel=1e-12)
            assert old[key] == wanted, "run python benchmark/simulate_ranks.py, then make tables"
