"""Groups of ranks: collectives equal what one process computes, and one rank's error is every rank's."""

import inspect
import threading
import time
import warnings
from datetime import timedelta

import pytest
import torch

from flashgp.foundations import errors
from flashgp.foundations.errors import DomainError, FlashGPWarning, ProcessGroupError
from flashgp.processes import Group, GroupSettings
from flashgp.processes.group import ALONE
from flashgp.processes.shared_errors import packed, unpacked
from flashgp.processes.shares import Shares
from processes import group_jobs
from processes.launch import Ranks


def test_a_collective_waits_until_its_thread_lets_go() -> None:
    tensor = torch.ones(3)
    let_go = threading.Event()

    class Work:
        def wait(self, _: timedelta) -> None:
            view = tensor.view(3)  # which holds the tensor in C++
            threading.Thread(target=self.release, args=([view],)).start()

        def release(self, held: list[torch.Tensor]) -> None:
            time.sleep(0.2)
            let_go.set()
            held.clear()

    Group()._wait("a test", Work, tensor)
    assert let_go.is_set()


@pytest.mark.parametrize("counts", [(5,), (4, 4), (101, 97, 3), (101, 97, 3, 0), (0, 1, 0, 9)])
def test_collectives_equal_one_process(ranks: Ranks, counts: tuple[int, ...]) -> None:
    size = len(counts)
    for rank, one in enumerate(ranks.run(group_jobs.collectives, size, counts)):
        assert (one["rank"], one["size"]) == (rank, size)
        assert one["sent"] == int(2 * (size - 1) / size * 8000)


def test_one_rank_s_error_is_every_rank_s(ranks: Ranks) -> None:
    told = ranks.run(group_jobs.mistakes, 3)
    assert told[0] == told[1] == told[2]
    shape, fields, of_python, key, foreign, memory, several, interrupt, nested, different, *ends = told[0]
    note = ["raised on rank 2 of 3"]
    assert shape == ("ShapeError", "`x` is wrong", {}, note)
    assert fields[2] == {"smallest_pivot": -1.0, "jitters": (0.1, 0.2), "indices": ((1, 2),)}
    assert of_python[:2] == ("OSError", "[Errno 28] No space left on device")
    assert key[:2] == ("KeyError", "'name'")
    assert foreign[0] == "ProcessGroupError"
    assert "what is this" in foreign[1]
    assert foreign[2]["ranks"] == (2,)
    assert memory[:2] == ("OutOfMemoryError", "no bytes left")
    assert several == ("ShapeError", "rank 0", {}, ["raised on rank 0 of 3"])
    assert interrupt[0] == "KeyboardInterrupt"
    assert nested[:2] == ("DomainError", "handled")
    assert different[0] == "RankMismatchError"
    assert different[2]["names"] == ("columns", "seed")
    assert "columns is 3 on ranks 0, 1, 4 on rank 2" in different[1]
    assert different[2]["ranks"] == (0, 2)
    assert "dtype" not in different[1]
    assert "3 ranks and 1 row;" in ends[0]
    assert ends[1:] == [True, True, True]


def test_a_warning_is_shown_by_the_first_rank_that_has_it(ranks: Ranks) -> None:
    told = ranks.run(group_jobs.warned, 3)
    common = "FlashGPWarning: an error here"
    for rank, own in enumerate((["of all", "of rank 0", "of all"], ["of rank 1", "of the others"], ["of rank 2"])):
        assert told[rank] == [own, ["before an error"], [common]]


def test_a_rank_that_does_not_come_is_an_error_within_the_limit(ranks: Ranks) -> None:
    first, *_ = ranks.run(group_jobs.late, 4, 0.5, timeout=60.0)
    assert first[0] == "ProcessGroupError"
    assert "ranks 1, 2, 3 did not come within 0.5 s" in first[1]
    assert "GroupSettings(time_limit=...)" in first[1]
    assert first[2]


def test_one_rank_alone_reads_what_it_has_and_is_told_who_did_not_come(ranks: Ranks) -> None:
    """`if rank == 0: print(p.mean)` sends nothing; a call that needs the others ends soon, and names the absent."""
    first, *_ = ranks.run(group_jobs.asked_by_one_rank, 4, 0.7, timeout=90.0)
    assert first["sent"] == 0
    for one, other in zip(first["factor"][:2], first["solved"][:2], strict=True):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-3)
    assert "`covariance` must be made on all 4 ranks of `group`, but rank 1 did not come within 0.7 s" in first["error"]
    assert "GroupSettings(arrival_limit=...)" in first["error"]
    assert (first["ranks"], first["operation"]) == ((1,), "covariance")


def test_a_limit_of_the_caller_s_own_is_kept() -> None:
    group = Group.of(Group.of(None), GroupSettings(time_limit=5.0))
    assert Group.of(group) is group
    assert group is not ALONE
    for bad in (0.0, -1.0, float("nan"), float("inf"), True, "10"):
        with pytest.raises(DomainError, match="time_limit"):
            GroupSettings(time_limit=bad)  # type: ignore[arg-type]


def test_what_may_be_given(ranks: Ranks) -> None:
    member, text, number, device = ranks.run(group_jobs.given, 2)[0]
    assert "as a member" in member
    assert "got str" in text
    assert "got int" in number
    assert "no backend for tensors on cuda" in device
    with pytest.raises(DomainError, match="got object"):
        Group.of(object())
    alone = Group.of(None)
    assert (alone.rank, alone.size) == (0, 1)
    assert ALONE.size == 1
    x = torch.rand(3)
    assert alone.sum(x) is x
    assert alone.gather_rows(x, Shares((3,))) is x
    assert alone.gather_bytes(b"a") == [b"a"]
    with pytest.raises(ZeroDivisionError), alone.together():
        alone.compare(seed=0)
        raise ZeroDivisionError


def test_a_group_that_has_ended_is_refused(ranks: Ranks) -> None:
    from torch import distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        world = dist.group.WORLD
        assert Group.of(world).size == 1
    finally:
        dist.destroy_process_group()
    with pytest.raises(ProcessGroupError, match="not initialised"):
        Group.of(world)


def test_shares() -> None:
    assert Shares.even(10, 4).counts == (3, 3, 2, 2)
    assert Shares((2, 0, 3)).slice(2) == slice(2, 5)
    assert Shares((2, 0, 3)).total == 5


OWN_ERRORS = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.FlashGPError)]


@pytest.mark.parametrize("kind", OWN_ERRORS)
def test_every_error_of_this_package_is_the_same_on_another_rank(kind: type) -> None:
    fields = {
        "needed_bytes": 5, "available_bytes": 3, "order": 2, "rows": None, "iterations": 3, "residual": 0.5,
        "tolerance": 0.1, "gp": object(), "history": [object()], "names": ("a", "b"), "ranks": (1, 2),
        "others_cores": 1.5, "cores": 2, "threads": 2,
    }  # fmt: skip
    wanted = inspect.signature(kind.__init__).parameters if inspect.isfunction(kind.__init__) else {}
    error = kind("text", **{name: fields[name] for name in wanted if name in fields})
    again = unpacked(packed(error, 3))
    assert (type(again), str(again)) == (kind, "text")
    plain = {name: value for name, value in vars(error).items() if name not in ("gp", "history")}
    assert {name: value for name, value in vars(again).items() if name in plain} == plain


def test_a_launched_process_without_a_group_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.warns(FlashGPWarning, match="one of 2 processes of torchrun"):
        assert Group.of(None).size == 1
    monkeypatch.setenv("WORLD_SIZE", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Group.of(None).size == 1
