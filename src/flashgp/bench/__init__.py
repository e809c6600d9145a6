"""Benchmarks: compare candidates honestly, keep the record, and put tables of records into documents.

Tables have a module of their own, `flashgp.bench.tables`, which is also a command.
"""

from flashgp.bench.clock import Clock, WallClock
from flashgp.bench.comparison import compare
from flashgp.bench.event_clock import EventClock
from flashgp.bench.memory import measure_peak_bytes
from flashgp.bench.profiler_clock import ProfilerClock
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
