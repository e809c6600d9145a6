"""Compare implementations by time, peak memory and error of the same runs; wrong and lazy answers are refused."""

from flashgp.bench.clocks import Clock
from flashgp.bench.comparison import compare
from flashgp.bench.memory import measure_peak_bytes
from flashgp.bench.records import environment, read_record, write_record
from flashgp.bench.results import Candidate, Comparison, Run

__all__ = [
    "Candidate",
    "Clock",
    "Comparison",
    "Run",
    "compare",
    "environment",
    "measure_peak_bytes",
    "read_record",
    "write_record",
]
