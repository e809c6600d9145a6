"""The first pass over rows that are read, and every pass after it, which has to see the same rows.

The first pass counts the rows, takes a checksum that does not depend on their order, mean and spread of every column,
eq. (M-164), and keeps a random sample. Later passes give
blocks of a size of their own, however the rows are cut into batches, and compare count and checksum at their end:
the order may change, the rows may not.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy
import numpy.typing as npt
import torch
from torch import Tensor

from flashgp.foundations.checks import as_float_tensor, check_finite, check_points, check_targets
from flashgp.foundations.deadline import NO_DEADLINE, Deadline
from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.processes.group import ALONE, Group
from flashgp.sources.source import NONE, Held, RowSource

CONSTANT_ROUNDINGS = 1e3  # of the mean, below which a spread is none


@dataclass(frozen=True, eq=False)
class Moments:
    """Moments of columns of a table. Fields: count of its rows; mean (columns,); squares, sums of squared deviations;
    low and high, the least and the largest numbers.

    Source: Chan, Golub & LeVeque (1983), Algorithms for computing the sample variance, eq. 2.1.
    """

    count: int
    mean: Tensor
    squares: Tensor
    low: Tensor
    high: Tensor

    @classmethod
    def of(cls, table: Tensor) -> "Moments":
        """Moments of some rows, (n, columns), n at least 1."""
        mean = table.mean(0)
        return cls(len(table), mean, (table - mean).square().sum(0), table.amin(0), table.amax(0))

    def joined(self, other: "Moments") -> "Moments":
        """Moments of the rows of both, (M-164)."""
        count, apart = self.count + other.count, other.mean - self.mean
        mean = self.mean + apart * (other.count / count)
        squares = self.squares + other.squares + apart.square() * (self.count * other.count / count)
        low, high = torch.minimum(self.low, other.low), torch.maximum(self.high, other.high)
        return Moments(count, mean, squares, low, high)

    @property
    def scale(self) -> Tensor:
        """Standard deviations, with n in the denominator; 1 for a column that is constant up to rounding."""
        found = (self.squares / max(self.count, 1)).sqrt()
        rounding = CONSTANT_ROUNDINGS * torch.finfo(torch.float64).eps * self.mean.abs()
        return torch.where(found > rounding, found, torch.ones_like(found))


class Sampler:
    """Keeps the rows with the smallest of as many uniform random numbers as there are rows: each set of rows is as
    likely as any other, however the rows are cut into batches.

    Args: size, of the sample; seed; first, number of the first row: rows of a part of a table get the keys that they
        have in all of it.
    Source: Vitter (1985), Random sampling with a reservoir; by random keys as in Efraimidis & Spirakis (2006).
    """

    def __init__(self, size: int, seed: int, first: int = 0) -> None:
        generator = numpy.random.PCG64(abs(seed))
        generator.advance(first)  # a number for each row
        self.size, self._draws, self._seen = size, numpy.random.Generator(generator), first
        self._keys, self._places = torch.empty(0, dtype=torch.float64), torch.empty(0, dtype=torch.int64)
        self._rows: list[Tensor] | None = None

    def add(self, *columns: Tensor) -> None:
        """The next rows: as many tensors each time, (n, ...) each."""
        count = len(columns[0])
        keys = torch.from_numpy(self._draws.random(count))
        places = torch.arange(self._seen, self._seen + count)
        self._seen += count
        rows = list(columns)
        if len(self._keys) == self.size and self.size:
            near = (keys < self._keys.max()).nonzero()[:, 0]
            keys, places, rows = keys[near], places[near], _taken(rows, near)
        if self._rows is not None:
            rows = [torch.cat(pair) for pair in zip(self._rows, rows, strict=True)]
        keys, places = torch.cat([self._keys, keys]), torch.cat([self._places, places])
        if len(keys) > self.size:
            kept = keys.topk(self.size, largest=False).indices.sort().values
            keys, places, rows = keys[kept], places[kept], _taken(rows, kept)
        self._keys, self._places, self._rows = keys, places, [column.clone() for column in rows]

    @property
    def candidates(self) -> tuple[Tensor, Tensor, list[Tensor] | None]:
        """Keys and numbers of the rows that are kept so far, and these; None before any row."""
        return self._keys, self._places, self._rows

    @property
    def rows(self) -> list[Tensor]:
        """Rows of the sample, in the order in which they were read. Raises: AssertionError before any row."""
        assert self._rows is not None
        return _taken(self._rows, self._places.argsort())

    @property
    def places(self) -> Tensor:
        """Numbers of the rows of the sample among all, in the same order."""
        return self._places.sort().values


def _taken(columns: list[Tensor], index: Tensor) -> list[Tensor]:
    return [column[index.to(column.device)] for column in columns]


# Odd constants of SplitMix64 (Steele, Lea & Flood 2014): multiplications and shifts that mix all 64 bits.
_GAMMA = numpy.uint64(0x9E3779B97F4A7C15)
_FIRST = numpy.uint64(0xBF58476D1CE4E5B9)
_SECOND = numpy.uint64(0x94D049BB133111EB)
_MASK = 2**64 - 1


def checksum(table: npt.NDArray[numpy.float64]) -> int:
    """The sum modulo 2^64 of the hashes of all rows, (n, columns)."""
    return int(hashes(table).sum(dtype=numpy.uint64))


def hashes(table: npt.NDArray[numpy.float64]) -> npt.NDArray[numpy.uint64]:
    """A 64-bit hash of each row, (n, columns): (n,). Cost: 10 operations on each number."""
    bits = numpy.ascontiguousarray(table + 0.0).view(numpy.uint64)  # -0.0 counts as 0.0
    found = numpy.zeros(len(bits), numpy.uint64)
    for column in bits.T:
        found = _mixed((found ^ column) + _GAMMA)
    return found


def combined(one: int, other: int) -> int:
    """Checksum of the rows of both."""
    return (one + other) & _MASK


def _mixed(value: npt.NDArray[numpy.uint64]) -> npt.NDArray[numpy.uint64]:
    value = (value ^ (value >> numpy.uint64(30))) * _FIRST
    value = (value ^ (value >> numpy.uint64(27))) * _SECOND
    return value ^ (value >> numpy.uint64(31))


F64 = torch.float64


class Block(NamedTuple):
    """Some rows, float64: x (b, d), y (b,) or (b, outputs), numbers that a likelihood knows of each by name, (b, ...),
    such as row_variance, row_weight or exposure."""

    x: Tensor
    y: Tensor
    numbers: Mapping[str, Tensor] = NONE

    def part(self, start: int, end: int | None) -> "Block":
        return self.of(t[start:end] for t in self.tensors)

    def to(self, device: torch.device) -> "Block":
        return self.of(t.to(device) for t in self.tensors)

    @property
    def tensors(self) -> list[Tensor]:
        return [self.x, self.y, *self.numbers.values()]

    def of(self, tensors: Iterable[Tensor]) -> "Block":
        """Other rows with numbers of the same names. Args: tensors, as its own."""
        x, y, *rest = tensors
        return Block(x, y, dict(zip(self.numbers, rest, strict=True)))


@dataclass(frozen=True, eq=False)
class Survey:
    """Result of the first pass over rows.

    Fields: source; outputs, columns of y, None for one without an axis; count of rows; width, columns of x; dtype and
    device of x; checksum; x_moments and y_moments, of the columns; sample, some of the rows; places, (size,), their
    numbers among all; cut, whether time ended the pass before its end; seconds that it took, where these were counted.
    """

    source: RowSource
    outputs: int | None
    count: int
    width: int
    dtype: torch.dtype
    device: torch.device
    checksum: int
    x_moments: Moments
    y_moments: Moments
    sample: Block
    places: Tensor
    cut: bool = False
    seconds: float = 0.0
    group: ClassVar[Group] = ALONE  # whose ranks have read rows of their own

    @property
    def held(self) -> Held | None:
        """The rows, where one process holds all of them."""
        return self.source if isinstance(self.source, Held) and self.group.size == 1 else None

    @property
    def of_sample(self) -> "Survey":
        """The sample as all rows of a source."""
        return surveyed(Held(*self.sample), self.outputs, len(self.x), 0)

    def of_fewer(self, rows: int, seed: int) -> "Survey":
        """The same with so many random rows of the sample."""
        kept = torch.randperm(len(self.x), generator=torch.Generator().manual_seed(abs(seed)))[:rows].sort().values
        sample = self.sample.of(t[kept.to(t.device)] for t in self.sample.tensors)
        return replace(self, sample=sample, places=self.places[kept])

    @property
    def x(self) -> Tensor:
        """x of the sample, (size, d)."""
        return self.sample.x

    @property
    def y(self) -> Tensor:
        """y of the sample, (size,) or (size, outputs)."""
        return self.sample.y

    def blocks(self, size: int, check: Callable[[], None] | None = None) -> Iterator[Block]:
        """One more pass: so many rows at a time, in the order in which they come.

        Args: check, called before every batch and block, which may end the pass by an exception.
        Raises: DomainError at its end where it did not see the rows of the first pass; as the first pass.
        """
        rows, held = SameRows(self), 0
        waiting: list[Block] = []
        for _, block in checked(self.source, self.outputs, self.width):
            if rows.add(block):
                break
            if check is not None:
                check()
            waiting.append(block)
            held += len(block.x)
            while held >= size:
                if check is not None:
                    check()
                whole = joined(waiting)
                yield whole.part(0, size)
                waiting, held = [whole.part(size, None)], held - size
        rows.check()
        if held:
            yield joined(waiting)


class SameRows:
    """Count and checksum of a later pass, which has to see the rows of the first. Args: survey, of the first."""

    def __init__(self, survey: Survey) -> None:
        self.survey, self.count, self.checksum = survey, 0, 0

    def add(self, block: Block) -> bool:
        """The next rows; whether there are too many, so that the pass need not go on."""
        self.count, self.checksum = self.count + len(block.x), combined(self.checksum, _checksum(block))
        return self.count > self.survey.count

    def check(self) -> None:
        """Check at the end of the pass. Raises: DomainError for other rows."""
        first = self.survey.count
        if self.count != first or self.checksum != self.survey.checksum:
            seen = f"{self.count:,} rows" if self.count != first else "other values"
            raise DomainError(
                f"`rows` must have the same rows in every pass, got {first:,} rows in the first and {seen} in a "
                "later one; leave out random changes, and do not write to files that are read"
            )


def surveyed(
    source: RowSource, outputs: int | None, sample: int, seed: int, deadline: Deadline = NO_DEADLINE
) -> Survey:
    """The first pass.

    Args: outputs: columns of y, None for y of shape (n,); sample, rows that are kept; seed, of the sample; deadline,
        after which no batch is read but the first.
    Raises: ShapeError, DomainError for batches that do not fit each other or are not finite, and for no rows.
    """
    survey = read_once(source, outputs, Sampler(sample, seed), deadline)
    if survey is None and isinstance(source, Held):
        raise ShapeError(
            f"`x` must have at least one row, got shape {tuple(source.x.shape)}; condition on no rows instead"
        )
    if survey is None:
        raise ShapeError(
            "`rows` must have at least one row, got none; check that the source can be read more than once"
        )
    return survey


def read_once(source: RowSource, outputs: int | None, sampler: Sampler, deadline: Deadline) -> Survey | None:
    """Read rows once with a sampler of one's own; None of no rows. Raises: ShapeError, DomainError."""
    count, total, width, dtype, device = 0, 0, 0, F64, torch.device("cpu")
    moments: tuple[Moments, Moments] | None = None
    like: Block | None = None
    cut = False
    for first, block in checked(source, outputs, None):
        if moments is not None and deadline.passed():
            cut = True
            break
        x, y = block.x, block.y
        if like is None:
            width, dtype, device = x.shape[-1], first, x.device
        count, total = count + len(x), combined(total, _checksum(block))
        here = Moments.of(x), Moments.of(y.reshape(len(y), -1))
        moments = here if moments is None else (moments[0].joined(here[0]), moments[1].joined(here[1]))
        sampler.add(*block.tensors)
        like = block
    if moments is None or like is None:
        return None
    sample = like.of(sampler.rows)
    return Survey(source, outputs, count, width, dtype, device, total, *moments, sample, sampler.places, cut)


def checked(
    source: RowSource, outputs: int | None, width: int | None, seed: int | None = None
) -> Iterator[tuple[torch.dtype, Block]]:
    """The batches of one pass that have rows: the dtype of x as it came, and the rows in float64.

    Args: seed, of the order, as far as the source can jump; None for its own.
    """
    device: torch.device | None = None
    known: set[str] | None = None
    for place, x, y, numbers in source.batches() if seed is None else source.shuffled(seed):
        x_name, y_name = (f"{name} of {place}" if place else name for name in ("x", "y"))
        x = check_points(x, x_name).detach()
        if x.dim() != 2:
            raise ShapeError(f"`{x_name}` must have shape (n, d), got {tuple(x.shape)}; pass one table of rows")
        y = check_targets(y, y_name, x, outputs).detach()
        if y.dim() != (1 if outputs is None else 2):
            raise ShapeError(f"`{y_name}` must be of one table, got shape {tuple(y.shape)}; leave out the batch")
        width, device = x.shape[-1] if width is None else width, x.device if device is None else device
        if x.shape[-1] != width:
            raise ShapeError(
                f"`{x_name}` must have {width} columns like the batches before, got shape {tuple(x.shape)}; give every "
                "batch the same columns"
            )
        if x.device != device:
            raise DomainError(f"`{x_name}` must be on {device} like the batches before, got {x.device}; move it")
        known = set(numbers) if known is None else known
        if known != numbers.keys():
            name = min(known ^ numbers.keys())
            got, before = ("some", "none") if name in numbers else ("none", "some")
            raise DomainError(
                f"`{_of(place, name)}` must be given with every batch or with none, got {got} after {before}; pass "
                f"{'zeros' if name == 'row_variance' else 'ones'} for none"
            )
        of_rows = {name: row_numbers(numbers[name], _of(place, name), x) for name in sorted(known)}
        if len(x):
            # Whose buffers may be used again.
            yield x.dtype, Block(x.to(F64, copy=True), y.to(F64, copy=True), of_rows)


def _of(place: str, name: str) -> str:
    return f"{name or 'row_variance'} of {place}" if place else name


def row_numbers(values: Any, name: str, x: Tensor) -> Tensor:
    """Numbers of rows, (n, ...), a copy. Raises: ShapeError, DomainError."""
    numbers = as_float_tensor(values, name).detach()
    if numbers.shape[:1] != x.shape[:1]:
        raise ShapeError(f"`{name}` must have shape ({len(x)},) like the rows, got {tuple(numbers.shape)}")
    check_finite(numbers, name)
    return numbers.to(x.device, F64, copy=True)


def joined(parts: list[Block]) -> Block:
    """Blocks one after the other."""
    if len(parts) == 1:
        return parts[0]
    return parts[0].of(map(torch.cat, zip(*(part.tensors for part in parts), strict=True)))


def _checksum(block: Block) -> int:
    table = torch.cat([column.reshape(len(column), -1) for column in block.tensors], dim=1)
    return checksum(table.numpy(force=True))
