"""How quick the collectives of a group are: measured by `flashgp tune` in one, or from published figures of links."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

__all__ = ["CollectiveRate", "collective_rate"]

# Of links between machines, cautious for ranks of one: seconds of a message, of a start, and bytes a second. gloo goes
# round a ring, over 10 Gbit/s Ethernet (IEEE 802.3ae; 41 us from host to host: Y.-T. Li, thesis, University College
# London, 2006, figure A.9); NCCL through a tree, over one 100 Gbit/s port, with what it reckons with itself
# (src/graph/tuning.cc, `hwLat` and `baseLat`, protocol LL).
_PUBLISHED = {"gloo": (41e-6, 0.0, 1.25e9), "nccl": (5.0e-6, 6.8e-6, 12.5e9)}


@dataclass(frozen=True)
class CollectiveRate:
    """Of one backend and number of ranks.

    Fields: backend, "gloo" or "nccl"; ranks; seconds of an all-reduce of one number, with the flag before it;
    bytes_per_second that a rank sends in one of many; machines, on which the ranks were, 0 for published figures.
    """

    backend: str
    ranks: int
    seconds: float
    bytes_per_second: float
    machines: int = 0

    @property
    def measured(self) -> bool:
        return self.machines > 0

    def wire_seconds(self, collectives: float, sent_bytes: float) -> float:
        """Seconds of so many collectives in which a rank sends so many bytes, eq. (M-225)."""
        return collectives * self.seconds + sent_bytes / self.bytes_per_second

    def of_ranks(self, ranks: int) -> "CollectiveRate":
        """The same of another number of ranks: as many times the seconds as there are hops, eq. (M-225)."""
        return replace(
            self, ranks=ranks, seconds=self.seconds * _hops(self.backend, ranks) / _hops(self.backend, self.ranks)
        )


def _hops(backend: str, ranks: int) -> float:
    """Messages one after the other in a small all-reduce: round a ring and back, or up and down a tree."""
    return 2.0 * (math.ceil(math.log2(max(2, ranks))) if backend == "nccl" else max(1, ranks - 1))


def collective_rate(known: Sequence[CollectiveRate], backend: str, ranks: int) -> CollectiveRate:
    """The measured rate of a backend at the nearest number of ranks, for so many; without one the published figures."""
    own = [rate for rate in known if rate.backend == backend]
    if own:
        near = min(own, key=lambda rate: abs(math.log(rate.ranks / ranks)))
        return near if near.ranks == ranks else near.of_ranks(ranks)
    message, start, bytes_per_second = _PUBLISHED["nccl" if backend == "nccl" else "gloo"]
    seconds = 2.0 * (start + _hops(backend, ranks) * message)  # a flag goes before each
    return CollectiveRate(backend, ranks, seconds, bytes_per_second)
