"""Rows of a source in random order, a batch at a time: pieces of the source in random order, rows mixed in a buffer.

What a batch says of all rows is without bias only where its rows are random. A source that can jump (Parquet files by
their row groups, rows that are held) is read from random places; one that cannot, such as a list of batches, keeps its
order, and rows are random only within the buffer.
"""

from collections.abc import Callable, Iterator

import numpy
import torch

from flashgp.sources.survey import Block, SameRows, Survey, checked, joined

BUFFER_NUMBERS = 2**22  # 32 MiB
MAX_BUFFER = 2**17  # rows
MIN_BATCHES = 8  # in the buffer


def shuffled_blocks(
    survey: Survey,
    size: int,
    seeds: tuple[int, ...],
    *,
    check: Callable[[], None] | None = None,
    buffer: int | None = None,
) -> Iterator[Block]:
    """Every row of a survey once, in blocks of so many random rows; the last one may be smaller.

    The order follows from the seeds and the source (a loader that shuffles by itself aside).

    Args:
        survey: the rows.
        size: of a block.
        seeds: of the order, not negative.
        check: called before every batch that is read, which may end it all by an exception.
        buffer: rows that are mixed, None for `buffer_rows`.
    Raises: DomainError at the end where the rows are not those of the survey.
    Memory: the buffer three times, at most 2^22 numbers or 8 blocks, and a batch of the source.
    """
    size = min(size, survey.count)
    buffer = buffer or buffer_rows(size, sum(t[0].numel() for t in survey.sample.tensors))
    rows, held, draws = SameRows(survey), 0, numpy.random.default_rng(seeds)
    waiting: list[Block] = []
    for _, block in checked(survey.source, survey.outputs, survey.width, int(draws.integers(2**62))):
        if check is not None:
            check()
        if rows.add(block):
            break
        waiting.append(block)
        held += len(block.x)
        ready = held // (2 * size) * size  # half of them
        if held >= buffer and ready:
            whole = _mixed(waiting, draws)
            for start in range(0, ready, size):
                yield whole.part(start, start + size)
            waiting, held = [whole.part(ready, None)], held - ready
    rows.check()
    if held:
        whole = _mixed(waiting, draws)
        for start in range(0, held, size):
            yield whole.part(start, start + size)


def buffer_rows(size: int, numbers: int) -> int:
    """Rows that are mixed, for batches of a size and so many numbers a row."""
    return max(MIN_BATCHES * size, min(MAX_BUFFER, BUFFER_NUMBERS // max(1, numbers)))


def _mixed(parts: list[Block], draws: numpy.random.Generator) -> Block:
    whole = joined(parts)
    order = torch.from_numpy(draws.permutation(len(whole.x))).to(whole.x.device)
    return whole.of(t[order] for t in whole.tensors)
