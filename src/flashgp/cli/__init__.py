"""The command line, `flashgp` or `python -m flashgp`: fit, predict, plan, tune. The only place that imports typer."""

from .application import main

__all__ = ["main"]
