"""init_process_group: the group of a program that torchrun may start again after a rank has died."""

import os
from typing import Any

from torch import distributed as dist

from flashgp.foundations.errors import BackendUnavailableError, DomainError

ATTEMPT = "TORCHELASTIC_RESTART_COUNT"


def init_process_group(backend: str = "gloo", **options: Any) -> None:
    """`torch.distributed.init_process_group` with keys of its own for every attempt of torchrun on one machine.

    torchrun's restarts keep the store of the attempt before (torch 2.13): gloo finds the addresses of ranks that are
    gone, and the new ranks are refused or wait for minutes. With several machines, whose counts of attempts may differ,
    and without torchrun it is torch's own function.

    Args:
        backend: as there.
        options: as there; of a `store` rank and world_size are those of torchrun where they are left out.

    Raises:
        BackendUnavailableError: where torch was built without it; other errors as torch's function.
        DomainError: for a `store` that is none, or beside init_method.

    Example:
        >>> from flashgp.processes import init_process_group  # in each process of torchrun --max-restarts 3
    """
    if not dist.is_available():
        raise BackendUnavailableError("`init_process_group` needs torch.distributed, which this build of torch lacks")
    size = os.environ.get("WORLD_SIZE", "1")
    if ATTEMPT not in os.environ or os.environ.get("LOCAL_WORLD_SIZE") != size:
        dist.init_process_group(backend, **options)
        return
    from torch.distributed.distributed_c10d import PrefixStore, Store
    from torch.distributed.rendezvous import rendezvous

    store, url = options.pop("store", None), options.pop("init_method", None)
    rank, ranks = options.pop("rank", -1), options.pop("world_size", -1)
    if store is None:
        waits = {} if options.get("timeout") is None else {"timeout": options["timeout"]}  # of joining, too
        store, rank, ranks = next(iter(rendezvous(url or "env://", rank, ranks, **waits)))
    elif not isinstance(store, Store):
        raise DomainError(
            f"`store` must be a torch.distributed.Store, got {type(store).__name__}; leave it out for torchrun's own"
        )
    elif url is not None:
        raise DomainError(f"`store` and `init_method` name two meeting places, got {url!r} beside it; leave one out")
    rank, ranks = int(os.environ["RANK"]) if rank < 0 else rank, int(size) if ranks < 0 else ranks
    own = PrefixStore(f"attempt {os.environ[ATTEMPT]}", store)
    dist.init_process_group(backend, store=own, rank=rank, world_size=ranks, **options)
