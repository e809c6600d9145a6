"""Plots of fits, predictions, streams and machines.

Each takes `ax=None`, draws, and returns the matplotlib Axes; nothing is shown. Without `ax` a figure of its own is made
that no global state knows (`ax.figure.savefig(...)` writes it). Needs matplotlib: pip install 'flashgp[plot]'.
"""

from .importance import importance
from .machine import machine_bandwidths, machine_rates
from .posterior import posterior_1d
from .predictive import calibration, pit_histogram, predicted_observed
from .stream import latency, prequential_error
from .training import training_trace

__all__ = [
    "calibration",
    "importance",
    "latency",
    "machine_bandwidths",
    "machine_rates",
    "pit_histogram",
    "posterior_1d",
    "predicted_observed",
    "prequential_error",
    "training_trace",
]
