"""Benchmarks: compare candidates honestly, keep the record, and put tables of records into documents.

Tables have a module of their own, `flashgp.bench.tables`, which is also a command.
"""

from flashgp.bench.clock import Clock, WallClock
from flashgp.bench.comparison import Candidate, Comparison, Run, compare
from flashgp.bench.memory import measure_peak_bytes
from flashgp.bench.records import environment, hardware, read_record, versions, write_record

__all__ = [
    "Candidate",
    "Clock",
    "Comparison",
    "Run",
    "WallClock",
    "compare",
    "environment",
    "hardware",
    "measure_peak_bytes",
    "read_record",
    "versions",
    "write_record",
]
