"""The command line, `flashgp` or `python -m flashgp`: fit, predict, update, plan, tune, doctor.

The only place that imports typer.
"""

from .application import main

__all__ = ["main"]
