"""Several processes that work on one problem, each with rows of its own, on `torch.distributed`.

    group.py     Group: the collectives that the library uses, each with a time limit, and errors that all ranks share
    shared_errors.py  an exception as bytes, and back
    interrupts.py  Ctrl-C that waits for the end of a collective
    shares.py    Shares: which rows each rank has
    attempts.py  init_process_group: a group of a program that torchrun may start again
    gradient_shares.py  gradients of sums over ranks, also of networks that wrappers reduce

A group is what the caller made: by torchrun, SLURM, Ray or Lightning. Nothing here starts or ends a process.

from flashgp.processes import Group, GroupSettings
group = Group.of(torch.distributed.group.WORLD, GroupSettings(time_limit=3600.0))  # what `group=` takes
"""

from flashgp.processes.attempts import init_process_group
from flashgp.processes.group import Group, GroupSettings

__all__ = ["Group", "GroupSettings", "init_process_group"]
