"""The command line, `flashgp` or `python -m flashgp`: fit, predict, update, plan, tune, doctor.

The only place that imports typer.
"""

import gc
import time

from .application import main

__all__ = ["main", "process"]


def process() -> None:
    """`main` as all that a process does: its time limit counts from the start of the process, and its end does not look
    through what torch has loaded, which takes longest."""
    gc.freeze()
    main(time.perf_counter() - time.process_time())  # to here one thread has imported, and nothing waited
