"""A simulation, not a measurement: seconds and bytes of 8 to 512 ranks, from records of one rank and published links.

    python benchmark/simulate_ranks.py

One rank is the machine of the records: two cores. What it does a second comes from `products.json`, `ratios.json`,
`million.json` and `collapsed_bound.json`; what a link carries is published (`LINKS`). Nothing overlaps: a rank
computes, or it waits for the network. Each collective ends with its slowest rank. With n rows on P ranks and t
right-hand sides:

- exact: a product gathers V (n x t), evaluates each unordered pair of shards once (the schedule of `pairs_of`), and
  reduces the contributions to their owners. A solve takes the passes and iterations that the record of 200,000 rows
  needed; each iteration adds `DOTS` all-reduces of t numbers. What is linear in the rows (preconditioner, vectors)
  takes its share of the record's seconds and bytes.
- sparse: two passes over the rows, the first ended by an all-reduce of m x m + m numbers, the second by one of
  m x m + m d, all float64. Rows come from files, which must deliver `read_rate`.

What it leaves out: ranks of unequal speed, contention in the network, faults, the flags that go before collectives, and
more iterations at more rows. The
record holds no machine and no date: the same records give the same figures, and a test compares.
"""

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import RECORDS

from flashgp.bench.records import SCHEMA, dumps, read_record
from flashgp.foundations.atomic import write_whole
from flashgp.foundations.quantities import readable_bytes, readable_seconds

__all__ = ["LINKS", "Link", "main", "pairs_of", "simulation"]

NAME = "simulated_ranks"
RANKS = (8, 64, 512)
SOURCES = ("products", "ratios", "million", "collapsed_bound")
F32, F64 = 4, 8  # bytes of a number
DOTS = 3  # all-reduces of an iteration: two dot products and the residual's norm
STEP_SIDES = 16  # right-hand sides of a step of a fit: targets and probes
SOLVER_VECTORS = 6  # of t numbers a row, float64


@dataclass(frozen=True)
class Link:
    """Fields: name; bytes_per_second of a rank's port; hop_seconds, one message; start_seconds, one collective; tree,
    whether small all-reduces go through a tree (2 log2 P hops) or a ring (2 (P - 1)).
    """

    name: str
    bytes_per_second: float
    hop_seconds: float
    start_seconds: float
    tree: bool

    def gather(self, ranks: int, total: float) -> float:
        """Seconds of an all-gather or a reduce-scatter of `total` bytes over all ranks, by a ring."""
        return self.start_seconds + (ranks - 1) * (self.hop_seconds + total / ranks / self.bytes_per_second)

    def reduce(self, ranks: int, size: float) -> float:
        """Seconds of an all-reduce of `size` bytes: by a ring, or by the tree where that is there and quicker."""
        ring = self.start_seconds + 2 * (ranks - 1) * (self.hop_seconds + size / ranks / self.bytes_per_second)
        if not self.tree:
            return ring
        hops = 2 * math.ceil(math.log2(ranks)) if ranks > 1 else 0
        return min(ring, self.start_seconds + hops * (self.hop_seconds + size / self.bytes_per_second))


# 10 Gbit/s: IEEE 802.3ae; 41 us from one host to another: Y.-T. Li, "An investigation into transport protocols and data
# transport applications over high performance networks" (thesis, University College London, 2006), figure A.9. gloo
# all-reduces by a ring (gloo/allreduce.cc). 400 Gbit/s: InfiniBand NDR, four lanes (InfiniBand Trade Association's
# roadmap); 5.0 us a hop of a tree and 6.8 us a start over a network: what NCCL reckons with (src/graph/tuning.cc,
# `hwLat` and `baseLat`, protocol LL).
LINKS = (
    Link("10 Gbit/s Ethernet, gloo", 1.25e9, 41e-6, 0.0, tree=False),
    Link("400 Gbit/s InfiniBand, NCCL", 50e9, 5.0e-6, 6.8e-6, tree=True),
)


@dataclass(frozen=True)
class Work:
    """Fields: name; arithmetic, seconds of the slowest rank at P ranks; collectives, (kind, bytes, how often); sent,
    bytes that a rank sends; bytes, that it holds; read, bytes of files that all ranks together read.
    """

    name: str
    ranks: int
    arithmetic: float
    collectives: tuple[tuple[str, float, int], ...]
    held: float
    read: float = 0.0

    def wire(self, link: Link) -> float:
        return sum(times * getattr(link, kind)(self.ranks, size) for kind, size, times in self.collectives)

    @property
    def sent(self) -> float:
        share = (self.ranks - 1) / self.ranks
        return sum(times * size * share * (1 if kind == "gather" else 2) for kind, size, times in self.collectives)


def shards(n: int, ranks: int) -> list[int]:
    """Rows of each rank, equal but for one."""
    return [n // ranks + (rank < n % ranks) for rank in range(ranks)]


def pairs_of(rows: Sequence[int]) -> list[float]:
    """Pairs that each rank evaluates in a product that uses each unordered pair of shards once: the half-ring.

    Its own triangle, then a strip with each of the next ranks, half of the ring; at an even count the last strip is
    shared by its two ranks. They sum to n (n + 1) / 2.
    """
    ranks = len(rows)
    counts = []
    for rank, own in enumerate(rows):
        count = own * (own + 1) / 2
        for step in range(1, ranks // 2 + 1):
            strip = own * rows[(rank + step) % ranks]
            count += strip / 2 if 2 * step == ranks else strip
        counts.append(count)
    return counts


def _row(records: Mapping[str, Any], name: str, **match: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next(
        row for row in records[name]["rows"] if all(row.get(key) == value for key, value in match.items())
    )
    return found


def _exact(records: Mapping[str, Any], name: str, n: int, ranks: int, t: int) -> Work:
    """A solve of the record's iterations with t right-hand sides; with more than one also a gradient's pass."""
    solved = records["million"]["cells"]["n=200000/d=3/mean"]
    told = next(event for event in solved["events"] if "passes over the pairs" in str(event))
    passes = int(str(told).split(", ")[1].split(" ")[0])
    matern = _row(records, "ratios", work="Matern-3/2")["share"]
    work = "RBF, n=100,000, d=3, t=1" if t == 1 else "RBF, n=100,000, d=8, t=16"
    rate = matern * _row(records, "products", work=f"{work}, lengthscale 1 sqrt(d)")["rate"] * 1e9  # ordered pairs
    d = 3 if t == 1 else 8
    # The record's solve had one right-hand side; what it took beside its passes is linear in the rows.
    one = matern * _row(records, "products", work="RBF, n=100,000, d=3, t=1, lengthscale 1 sqrt(d)")["rate"] * 1e9
    of_row = (solved["total_seconds"] - passes * solved["n"] ** 2 / one) / solved["n"]
    bytes_of_row = solved["peak_bytes"] / solved["n"] + (t - 1) * SOLVER_VECTORS * F64
    passes += t > 1
    rows = shards(n, ranks)
    seconds = passes * 2 * max(pairs_of(rows)) / rate + max(rows) * of_row
    vector = n * t * F32
    collectives = (("gather", vector, 2 * passes), ("reduce", t * F64, DOTS * solved["iterations"]))
    return Work(name, ranks, seconds, collectives, max(rows) * bytes_of_row + n * d * F32 + 2 * vector)


def _sparse(records: Mapping[str, Any], name: str, n: int, ranks: int) -> Work:
    cell = records["collapsed_bound"]["cells"]["read/n=10000000"]
    m, d = cell["m"], cell["d"]
    seconds = max(shards(n, ranks)) * cell["seconds"] / cell["n"]
    collectives = (("reduce", (m * m + m) * F64, 1), ("reduce", (m * m + m * d) * F64, 1))
    return Work(name, ranks, seconds, collectives, cell["peak_bytes"], 2.0 * n * (d + 1) * F64)


COLUMNS = [
    {"key": "work", "title": "work"},
    {"key": "ranks", "title": "ranks", "format": "integer"},
    {"key": "arithmetic_seconds", "title": "arithmetic"},
    {"key": "ethernet_seconds", "title": "with 10 Gbit/s Ethernet, gloo"},
    {"key": "ethernet_efficiency", "title": "of the ranks' speed", "format": "percent"},
    {"key": "infiniband_seconds", "title": "with 400 Gbit/s InfiniBand, NCCL"},
    {"key": "infiniband_efficiency", "title": "of the ranks' speed", "format": "percent"},
    {"key": "sent_bytes", "title": "sent by a rank"},
    {"key": "held_bytes", "title": "memory of a rank"},
    {"key": "read_rate_bytes", "title": "files must deliver, a second"},
    {"key": "ethernet_faster", "title": "ranks so much faster: half the time on Ethernet", "format": "ratio"},
    {"key": "infiniband_faster", "title": "on InfiniBand", "format": "ratio"},
]


def simulation(records: Path = RECORDS) -> dict[str, Any]:
    """The record: one row for each work and number of ranks."""
    read = {name: read_record(records / f"{name}.json") for name in SOURCES}
    rows = []
    for size, text in ((1_000_000, "1e6"), (10_000_000, "1e7")):
        for t, what in ((1, f"mean given {text} rows"), (STEP_SIDES, f"step of a fit to {text} rows")):
            rows += [_told(_exact(read, f"exact {what}", size, ranks, t)) for ranks in RANKS]
    rows += [_told(_sparse(read, "sparse statistics and gradient of 1e9 rows", 10**9, ranks)) for ranks in RANKS]
    sources = [f"{name}.json" for name in SOURCES]
    return {"schema": SCHEMA, "title": "Simulated ranks", "simulated_from": sources, "columns": COLUMNS, "rows": rows}


def _told(work: Work) -> dict[str, Any]:
    row: dict[str, Any] = {
        "work": work.name, "ranks": work.ranks, "arithmetic_seconds": work.arithmetic, "sent_bytes": work.sent,
        "held_bytes": work.held,
    }  # fmt: skip
    for key, link in zip(("ethernet", "infiniband"), LINKS, strict=True):
        wire = work.wire(link)
        row[f"{key}_seconds"] = work.arithmetic + wire
        row[f"{key}_efficiency"] = work.arithmetic / (work.arithmetic + wire)
        row[f"{key}_faster"] = work.arithmetic / wire
    if work.read:
        row["read_rate_bytes"] = work.read / row["infiniband_seconds"]
    return row


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RECORDS / f"{NAME}.json")
    options = parser.parse_args(argv)
    record = simulation()
    write_whole(options.out, (dumps(record) + "\n").encode())
    for row in record["rows"]:
        print(
            f"{row['work']}, {row['ranks']} ranks: {readable_seconds(row['arithmetic_seconds'])} of arithmetic, "
            f"{readable_seconds(row['ethernet_seconds'])} / {readable_seconds(row['infiniband_seconds'])} in all, "
            f"{readable_bytes(row['sent_bytes'])} sent, {readable_bytes(row['held_bytes'])} held"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
