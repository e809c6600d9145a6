"""--threads, --cores and --numa, the same for every command that computes: `flashgp.runtime` around its work."""

from contextlib import AbstractContextManager, nullcontext
from typing import Annotated

import typer

from flashgp.foundations.errors import DomainError
from flashgp.foundations.placement import Placement, runtime
from flashgp.foundations.processors import parse_cores

__all__ = ["Cores", "Numa", "Threads", "placed"]

Threads = Annotated[
    int | None,
    typer.Option(
        "--threads", metavar="N", min=1, help="Threads of torch, BLAS and compiled loops; torch's choice if left out."
    ),
]
Cores = Annotated[
    str | None,
    typer.Option(
        "--cores", metavar="LIST", help="Run on these cores only, such as 0-3,8, with no more threads. Linux only."
    ),
]
Numa = Annotated[
    int | None,
    typer.Option("--numa", metavar="NODE", min=0, help="Run on the cores of this NUMA node only. Linux only."),
]


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
