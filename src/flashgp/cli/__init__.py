"""The command line, `flashgp` or `python -m flashgp`: demo, fit, predict, update, plan, tune, doctor.

The only place that imports typer.
"""

import gc
import os
import signal
import sys
import time

from .interruption import TOGETHER_SECONDS, OneInterrupt, before_work, launched

__all__ = ["process"]


def process(together_seconds: float = TOGETHER_SECONDS) -> None:
    """`application.main` as all that a process does: Ctrl-C is answered from here on, its time limit counts from the
    start of the process, and its end does not look through what torch has loaded, which takes longest.

    Args: together_seconds, that the ranks of torchrun have to end together after Ctrl-C.
    """
    gc.disable()  # until the work begins: imports take a sixth less
    if launched():
        OneInterrupt(together_seconds).install()
    elif signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell may ignore it
        signal.signal(signal.SIGINT, before_work)
    try:
        from .application import main
        from .ranks import after_first
    except KeyboardInterrupt:
        before_work()
    gc.freeze()
    began = time.perf_counter() - time.process_time()  # to here one thread has imported, and nothing waited
    if not launched():
        main(began)
        return
    code = 1
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
