"""The command line, `flashgp` or `python -m flashgp`: fit, predict, update, plan, tune, doctor.

The only place that imports typer.
"""

import gc
import os
import sys
import time

from .application import main
from .ranks import TOGETHER_SECONDS, OneInterrupt, after_first, launched

__all__ = ["main", "process"]


def process(together_seconds: float = TOGETHER_SECONDS) -> None:
    """`main` as all that a process does: its time limit counts from the start of the process, and its end does not look
    through what torch has loaded, which takes longest.

    Args: together_seconds, that the ranks of torchrun have to end together after Ctrl-C.
    """
    gc.freeze()
    began = time.perf_counter() - time.process_time()  # to here one thread has imported, and nothing waited
    if not launched():
        main(began)
        return
    code = 1
    OneInterrupt(together_seconds).install()
    try:
        main(began)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        after_first(code)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        if sys.exc_info()[0] is None:
            # Threads of a process group that is taken apart as Python ends may abort it, with a code of their own.
            os._exit(code)
