"""A checksum of rows that does not depend on their order: two passes that differ in it did not read the same rows.

It is made of a hash of each row, by which equal rows are also found where no process has all of them.
"""

import numpy
import numpy.typing as npt

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
    """That of the rows of both."""
    return (one + other) & _MASK


def _mixed(value: npt.NDArray[numpy.uint64]) -> npt.NDArray[numpy.uint64]:
    value = (value ^ (value >> numpy.uint64(30))) * _FIRST
    value = (value ^ (value >> numpy.uint64(27))) * _SECOND
    return value ^ (value >> numpy.uint64(31))
