"""Compare implementations by time, peak memory and error of the same runs; wrong and lazy answers are refused."""

from flashgp.bench.clocks import Clock, EventClock, ProfilerClock, WallClock
from flashgp.bench.comparison import compare
from flashgp.bench.memory import measure_peak_bytes
from flashgp.bench.records import environment, hardware, read_record, versions, write_record
from flashgp.bench.results import Candidate, Comparison, Run

__all__ = [
    "Candidate",
    "Clock",
    "Comparison",
    "EventClock",
    "ProfilerClock",
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
