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


class ShuffledRows:
    """Random batches of the rows of a survey, epoch after epoch; each epoch has every row once.

    The order follows from the seeds, the number of the epoch and the source, so that reading may go on from any batch
    (a loader that shuffles by itself aside).

    Args:
        survey: the rows.
        size: of a batch, at most all rows.
        seeds: of the order.
    Memory: the buffer three times, at most 2^22 numbers or 8 batches, and a batch of the source.
    """

    def __init__(self, survey: Survey, size: int, seeds: tuple[int, ...]) -> None:
        self.survey, self.size, self.seeds = survey, min(size, survey.count), tuple(map(abs, seeds))
        self.buffer = buffer_rows(self.size, sum(t[0].numel() for t in survey.sample.tensors))

    @property
    def per_epoch(self) -> int:
        """Whole batches of an epoch."""
        return self.survey.count // self.size

    def batches(self, first: int = 0, check: Callable[[], None] | None = None) -> Iterator[Block]:
        """Whole batches without end, from the given one on. Raises: as `epoch`."""
        while True:
            number, skipped = divmod(first, self.per_epoch)
            for at, block in enumerate(self.epoch(number, check)):
                if skipped <= at < self.per_epoch:
                    yield block
            first = (number + 1) * self.per_epoch

    def epoch(self, number: int, check: Callable[[], None] | None = None) -> Iterator[Block]:
        """Every row once; the last batch may be smaller.

        Args: check, called before every batch that is read, which may end the epoch by an exception.
        Raises: DomainError at its end where the rows are not those of the survey.
        """
        survey, size, rows, held = self.survey, self.size, SameRows(self.survey), 0
        draws = numpy.random.default_rng((*self.seeds, number))
        waiting: list[Block] = []
        for _, block in checked(survey.source, survey.outputs, survey.width, int(draws.integers(2**62))):
            if check is not None:
                check()
            if rows.add(block):
                break
            waiting.append(block)
            held += len(block.x)
            ready = held // (2 * size) * size  # half of them
            if held >= self.buffer and ready:
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
    return Block(*(t[order] for t in whole.tensors))
