"""What ranks do in tests of faults: an error planted at a place of one rank, and a rank that kills itself."""

import json
import os
import signal
import sys
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

import flashgp as fgp
from flashgp.processes.group import Group
from flashgp.processes.shares import Shares
from processes.condition_jobs import model, table


class PlantedGroup(Group):
    """A group that fails on one rank before one of its collectives, or counts them."""

    def __init__(self, process_group: Any, rank: int, at: int) -> None:
        super().__init__(process_group)
        self.failing, self.at, self.count = self.rank == rank, at, 0

    def _flag(self, what: str, *shape: object) -> None:
        if self.failing and self.count == self.at:
            self.count += 1
            raise ZeroDivisionError(f"planted before {what}")
        self.count += 1
        super()._flag(what, *shape)


def work(group: Group, kind: str) -> None:
    x, y, _, z = table(48)
    part = Shares.even(48, group.size).slice(group.rank)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fgp.FlashGPWarning)
        if kind == "fit":
            fgp.fit(model("plain"), x[part], y[part], starts=1, group=group, progress=False, max_iterations=8)
        else:
            post = model("plain").condition(x[part], y[part], solver="cg", group=group)
            assert post.predict(z[:2]).variance.shape == (2,)
            assert post.log_marginal_likelihood().shape == ()


def collectives(process_group: Any, kind: str) -> int:
    """How many collectives the work takes."""
    group = PlantedGroup(process_group, -1, -1)
    work(group, kind)
    return group.count


def planted(process_group: Any, kind: str, places: list[int]) -> list[str]:
    """What this rank is told where rank 1 fails at each of these collectives."""
    out = []
    for place in places:
        group = PlantedGroup(process_group, 1, place)
        try:
            work(group, kind)
            out.append("no error")
        except BaseException as error:
            out.append(f"{type(error).__name__}: {error}; {error.__notes__[0]}")
        assert int(group.sum(torch.ones(1))) == group.size  # in step
    return out


def run(rank: int, size: int, folder: str, kill_at: int) -> None:
    """A fit with a checkpoint in a process of its own; rank 1 kills itself at an evaluation."""
    from torch import distributed as dist

    torch.set_num_threads(1)
    store = f"file://{folder}/store-{size}-{kill_at}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size, timeout=timedelta(seconds=1500))
    x, y, _, _ = table(60)
    part = Shares.even(60, size).slice(rank)
    seen = 0

    def progress(_: Any) -> None:
        nonlocal seen
        seen += 1
        if rank == 1 and seen == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    path = Path(folder) / "fit.checkpoint"
    from flashgp.inference.training.options import FitSettings

    try:
        fit = fgp.fit(
            model("plain"), x[part], y[part], starts=1, group=dist.group.WORLD, checkpoint=path, progress=progress,
            settings=FitSettings(seconds_between_writes=0.0),
        )  # fmt: skip
    except fgp.FlashGPError as error:
        (Path(folder) / f"error{rank}-{kill_at}").write_text(f"{type(error).__name__}: {error}")
        os._exit(3)
    theta = [float(number) for p in fit.gp.parameters() for number in p.detach().reshape(-1)]
    (Path(folder) / f"theta{rank}-{kill_at}").write_text(json.dumps([theta, len(fit.history)]))
    sys.stdout.flush()
    os._exit(0)
