"""Plots of fits, predictions, streams and machines.

Each takes `ax=None`, draws, and returns the matplotlib Axes; nothing is shown. Without `ax` a figure of its own is made
that no global state knows (`ax.figure.savefig(...)` writes it). Needs matplotlib: pip install 'flashgp[plot]'.
"""

from .classes import confusion, precision_recall, reliability, roc, rootogram
from .components import components
from .expected import by_category, expected_1d, probability_2d
from .importance import importance
from .interaction import interaction
from .machine import machine_bandwidths, machine_rates
from .posterior import posterior_1d
from .predictive import calibration, pit_histogram, predicted_observed
from .residuals import residuals
from .stream import latency, prequential_error
from .training import training_trace

__all__ = [
    "by_category",
    "calibration",
    "components",
    "confusion",
    "expected_1d",
    "importance",
    "interaction",
    "latency",
    "machine_bandwidths",
    "machine_rates",
    "pit_histogram",
    "posterior_1d",
    "precision_recall",
    "predicted_observed",
    "prequential_error",
    "probability_2d",
    "reliability",
    "residuals",
    "roc",
    "rootogram",
    "training_trace",
]
