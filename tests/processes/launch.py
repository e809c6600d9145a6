"""Ranks for tests: processes that live as long as the test run and take one job after another.

They are started once, four of them, and a job on fewer ranks takes a group of the first ones. A job is a function at
the top of a module under `tests/`, called on every rank with a ProcessGroup and its arguments; what it returns comes
back, one value for each rank. A job that takes too long ends all processes, and the next one starts others.

    def job(group, x): ...
    values = ranks.run(job, 3, x)
"""

import faulthandler
import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from forked import Forked

MAX_RANKS = 4
TIMEOUT = 1500.0  # seconds of one job; measurements may stop all processes meanwhile


class JobError(AssertionError):
    """A rank raised; the text has its traceback."""


class Ranks:
    """The processes. Close it at the end."""

    def __init__(self, size: int = MAX_RANKS) -> None:
        self.size = size
        self._processes: list[Forked] = []
        self._pipes: list[Connection] = []

    def run(self, job: Callable[..., Any], ranks: int, *arguments: Any, timeout: float = TIMEOUT) -> list[Any]:
        """The values of job(group, *arguments) on ranks 0, 1, ... Raises: JobError."""
        if not self._processes or any(process.poll() is not None for process in self._processes):
            self.close()
            self._start()
        name = job.__module__.split(".tests.")[-1].removeprefix("tests.")
        for pipe in self._pipes:
            pipe.send((name, job.__qualname__, ranks, arguments))
        answers = []
        for rank, pipe in enumerate(self._pipes):
            try:
                if not pipe.poll(timeout):
                    raise EOFError(f"no answer within {timeout:g} s")
                answers.append(pipe.recv())
            except (EOFError, OSError) as error:
                self.close()
                raise JobError(f"rank {rank} of {ranks} in {job.__qualname__}: {error!r}") from None
        failed = [f"rank {rank}:\n{value}" for rank, (done, value) in enumerate(answers) if not done]
        if failed:
            self.close()  # a group that is out of step would make the next job fail
            raise JobError("\n".join(failed))
        return [value for _, value in answers[:ranks]]

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.kill()
            process.wait()
        self._processes, self._pipes = [], []

    def _start(self) -> None:
        folder = Path(tempfile.mkdtemp())
        listener = Listener(str(folder / "socket"), "AF_UNIX")
        for rank in range(self.size):
            code = f"from processes.launch import work; work({rank}, {self.size}, {str(folder)!r})"
            self._processes.append(Forked(code))
        by_rank = {}
        for _ in range(self.size):
            pipe = listener.accept()
            by_rank[pipe.recv()] = pipe
        listener.close()
        self._pipes = [by_rank[rank] for rank in range(self.size)]


def work(rank: int, size: int, folder: str) -> None:
    """A rank: jobs until the pipe closes."""
    import importlib

    import torch
    from torch import distributed as dist

    faulthandler.enable()
    torch.set_num_threads(1)
    pipe = Client(str(Path(folder) / "socket"), "AF_UNIX")
    pipe.send(rank)
    groups = {}
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    while True:
        try:
            module, name, ranks, arguments = pipe.recv()
        except (EOFError, OSError):
            os._exit(0)
        try:
            if ranks not in groups:
                groups[ranks] = dist.new_group(list(range(ranks)), timeout=timedelta(seconds=TIMEOUT))
            value = None
            if rank < ranks:
                value = getattr(importlib.import_module(module), name)(groups[ranks], *arguments)
            answer = (True, value)
        except BaseException:
            answer = (False, traceback.format_exc())
        pipe.send(answer)
