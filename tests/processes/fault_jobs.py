"""What ranks do in tests of faults: an error planted at a place of one rank, and a rank that kills itself."""

import signal
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import flashgp as fgp
from flashgp.processes.group import Group
from flashgp.processes.shares import Shares
from processes.condition_jobs import model, table


class PlantedGroup(Group):
    """A group that fails on one rank before one of its collectives, or counts them."""

    def __init__(self, process_group: Any, rank: int, at: int, kind: type[BaseException] = ZeroDivisionError) -> None:
        super().__init__(process_group)
        self.failing, self.at, self.count, self.kind = self.rank == rank, at, 0, kind

    def _flag(self, what: str, *shape: object, held: int = 0) -> list[int]:
        if self.failing and self.count == self.at:
            self.count += 1
            raise self.kind(f"planted before {what}")
        self.count += 1
        return super()._flag(what, *shape, held=held)


class SignalledGroup(Group):
    """A group whose rank 1 gets Ctrl-C in the midst of one of its collectives."""

    def __init__(self, process_group: Any, at: int) -> None:
        super().__init__(process_group)
        self.at, self.waits = at, 0

    def _wait(self, name: str, start: Callable[[], Any], *tensors: Tensor) -> None:
        def interrupted() -> Any:
            started = start()
            if self.rank == 1 and self.waits == self.at:
                signal.raise_signal(signal.SIGINT)
            self.waits += 1
            return started

        super()._wait(name, interrupted, *tensors)


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


def signalled(process_group: Any) -> list[str]:
    """What this rank is told where Ctrl-C comes to rank 1 in these collectives, or the flags before them."""
    counted = SignalledGroup(process_group, -1)
    work(counted, "fit")
    out = []
    for at in range(0, counted.waits - 1, max(1, counted.waits // 6)):
        group = SignalledGroup(process_group, at)
        try:
            work(group, "fit")
            out.append("no error")
        except BaseException as error:
            out.append("KeyboardInterrupt" if isinstance(error, KeyboardInterrupt) else type(error).__name__)
        assert int(group.sum(torch.ones(1))) == group.size  # in step
    return out


ENDS: dict[str, dict[str, Any]] = {
    "exact": {"max_iterations": 4},
    "full_scale": {"approximation": "full_scale", "inducing": 6, "neighbours": 8, "max_iterations": 4},
    "sparse": {"approximation": "sparse", "inducing": 6, "max_iterations": 4},
}


def interrupted_at_the_end(process_group: Any, kind: str) -> tuple[str, bool, int]:
    """What a fit raises where Ctrl-C comes to rank 1 in its last pass; whether that has the parameters of a whole fit,
    and how many rows they are conditioned on."""
    x, y, variance, _ = table(48)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fgp.FlashGPWarning)
        whole = PlantedGroup(process_group, -1, -1)
        part = Shares.even(48, whole.size).slice(whole.rank)
        gp = model("variances", variance[part])

        def fitted(group: Group) -> Any:
            return fgp.fit(gp, x[part], y[part], starts=1, group=group, progress=False, **ENDS[kind])

        wanted = fitted(whole)
        after = 4  # collectives after the last pass, whose end is one
        group = PlantedGroup(process_group, 1, whole.count - after - 1, KeyboardInterrupt)
        try:
            fitted(group)
        except KeyboardInterrupt as stop:
            found = getattr(stop, "gp", None)
            if found is None:
                return type(stop).__name__, False, 0
            pairs = zip(found.parameters(), wanted.gp.parameters(), strict=True)
            same = all(torch.equal(one, other) for one, other in pairs)
            asked = {name: value for name, value in ENDS[kind].items() if name != "max_iterations"}
            post = found.condition(x[part], y[part], group=group, **asked)
            return type(stop).__name__, same, post.count
    return "nothing", False, 0
