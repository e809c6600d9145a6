"""An answer is read when the clock has stopped: what must still be computed then was not in the time.

This reading is timed and judged, and compared with reading the same numbers once they exist: what is computed on
synchronisation takes its work on top. When the reference has run, the answer is read once more: a result that somebody
went on writing to has changed. Both are reasons to refuse.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from flashgp.bench.clocks import synchronise
from flashgp.bench.formats import format_seconds
from flashgp.bench.verification import Path, same_values

__all__ = ["Reading", "late_reason", "read"]

# A first reading also faults pages in and fills caches: three times a second one is no work yet.
_TIMES = 3.0
_MIN_SECONDS = 2e-4  # small answers in cold caches take up to 60 µs longer at first
_MIN_SHARE = 0.1  # of the timed call


@dataclass(frozen=True)
class Reading:
    """An answer as it was when the clock stopped.

    Fields: tensors, copies on the CPU; late_seconds, what reading it took beyond what reading takes.
    """

    tensors: Mapping[Path, torch.Tensor]
    late_seconds: float

    def changed(self, answer: Mapping[Path, torch.Tensor]) -> bool:
        """Whether the answer's tensors have other values now than when they were read."""
        synchronise()
        return any(not same_values(_copy(answer[path]), tensor) for path, tensor in self.tensors.items())


def read(answer: Mapping[Path, torch.Tensor]) -> Reading:
    """Copy every tensor to the CPU, and then as many numbers that exist for certain; the first is not waited for.

    Nothing is synchronised before the first reading: that is the answer's matter.
    """
    began = time.perf_counter()
    tensors = {path: _copy(tensor) for path, tensor in answer.items()}
    first = time.perf_counter() - began
    # Not the answer once more: a lazy device may compute it again for every reading.
    existing = [tensors[path].to(tensor.device) for path, tensor in answer.items()]
    synchronise()
    began = time.perf_counter()
    # Kept until all are there: memory that one gave back would be quicker than what the first had to ask for.
    again = [_copy(tensor) for tensor in existing]
    second = time.perf_counter() - began
    del again
    return Reading(tensors, max(0.0, first - _TIMES * second))


def late_reason(calls: Sequence[float], late: Sequence[float]) -> str | None:
    """Why a candidate is refused whose answers were computed on reading, by seconds of its calls and of late work.

    The medians count, the lower where there are two: a run that the system interrupted proves nothing.
    """
    if not calls:
        return None
    call, work = statistics.median_low(calls), statistics.median_low(late)
    if work <= max(_MIN_SECONDS, _MIN_SHARE * call):
        return None
    return (
        f"computed its answer after the clock had stopped: the call took {format_seconds(call)}, reading its result "
        f"{format_seconds(work)} more; synchronise, or compute the numbers, inside the call"
    )


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True)
