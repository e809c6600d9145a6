"""The command line: `flashgp fit | predict | plan`, also as `python -m flashgp`. The only place that imports typer."""

from .application import main

__all__ = ["main"]
