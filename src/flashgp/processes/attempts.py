"""init_process_group: the group of a program that torchrun may start again after a rank has died."""

import os
from typing import Any

from torch import distributed as dist

from flashgp.foundations.errors import BackendUnavailableError

__all__ = ["init_process_group"]

ATTEMPT = "TORCHELASTIC_RESTART_COUNT"


def init_process_group(backend: str = "gloo", **options: Any) -> None:
    """`torch.distributed.init_process_group` with keys of its own for every attempt of torchrun on one machine.

    torchrun's restarts keep the store of the attempt before (torch 2.13): gloo finds the addresses of ranks that are
    gone, and the new ranks are refused or wait for minutes. With several machines, whose counts of attempts may differ,
    and without torchrun it is torch's own function.

    Args: backend, options: as there; no store, rank or size.
    Raises: as `torch.distributed.init_process_group`; BackendUnavailableError where torch was built without it.
    Example:
        >>> from flashgp.processes import init_process_group  # in each process of torchrun --max-restarts 3
    """
    if not dist.is_available():
        raise BackendUnavailableError("`init_process_group` needs torch.distributed, which this build of torch lacks")
    size = os.environ.get("WORLD_SIZE", "1")
    if ATTEMPT not in os.environ or os.environ.get("LOCAL_WORLD_SIZE") != size:
        dist.init_process_group(backend, **options)
        return
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    waits = {} if options.get("timeout") is None else {"timeout": options["timeout"]}  # of joining, too
    store, rank, ranks = next(iter(rendezvous("env://", **waits)))
    own = PrefixStore(f"attempt {os.environ[ATTEMPT]}", store)
    dist.init_process_group(backend, store=own, rank=rank, world_size=ranks, **options)
