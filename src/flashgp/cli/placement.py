"""--threads, --cores and --numa, the same for every command that computes: `flashgp.runtime` around its work."""

from contextlib import AbstractContextManager, nullcontext

import typer

from flashgp.foundations.errors import DomainError
from flashgp.foundations.placement import Placement, runtime
from flashgp.foundations.processors import parse_cores

__all__ = ["placed"]


def placed(threads: int | None, cores: str | None, numa: int | None) -> AbstractContextManager[Placement | None]:
    """The runtime that a command's options ask for, if any, not yet entered.

    Raises: BadParameter for what names no cores.
    """
    if threads is None and cores is None and numa is None:
        return nullcontext()
    if cores is not None and numa is not None:
        raise typer.BadParameter("give --cores or --numa, not both")
    try:
        chosen = None if cores is None else parse_cores(cores, "--cores")
    except DomainError as error:
        raise typer.BadParameter(str(error)) from None
    return runtime(threads=threads, cores=chosen, numa_node=numa)
