"""What ranks do in tests of groups: each function runs on every rank and returns plain values."""

import contextlib
import time
import warnings
from typing import Any

import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import DomainError, NotPositiveDefiniteError, ProcessGroupError, ShapeError, warn
from flashgp.processes import Group, GroupSettings
from flashgp.processes.shares import Shares


def own(shares: Shares, rank: int, *rest: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """This rank's rows of a table that is the same on every rank."""
    whole = torch.arange(shares.total * max(1, torch.Size(rest).numel())).reshape(shares.total, *rest)
    return whole[shares.slice(rank)].to(dtype)


def collectives(process_group: Any, counts: tuple[int, ...]) -> dict[str, Any]:
    """Every collective, on rows of these counts, against what one process computes from all of them."""
    group, shares = Group.of(process_group), Shares(counts)
    rank, size = group.rank, group.size
    assert group.shares(counts[rank]) == shares
    for dtype in (torch.float64, torch.float32, torch.int64, torch.bool):
        for rest in ((), (3,), (2, 5)):
            whole = torch.cat([own(shares, r, *rest, dtype=dtype) for r in range(size)])
            gathered = group.gather_rows(own(shares, rank, *rest, dtype=dtype), shares)
            assert gathered.dtype == dtype
            assert torch.equal(gathered, whole), (dtype, rest)
            if dtype == torch.bool:
                continue
            part = group.sum_rows(whole * (rank + 1), shares)
            assert torch.equal(part, whole[shares.slice(rank)] * (size * (size + 1) // 2)), (dtype, rest)
            assert torch.equal(group.sum(whole * rank), whole * (size * (size - 1) // 2))
            assert torch.equal(group.max(whole + rank), whole + (size - 1))
            assert torch.equal(group.from_first(whole + 7 * rank), whole)
            sent = [(r + rank) % 3 for r in range(size)]  # rank + 10 r in rows for rank r
            rows = torch.cat([torch.full((count, *rest), rank + 10 * r, dtype=dtype) for r, count in enumerate(sent)])
            got = group.exchange(rows, sent, sent)
            wanted = [torch.full((count, *rest), r + 10 * rank, dtype=dtype) for r, count in enumerate(sent)]
            assert torch.equal(got, torch.cat(wanted)), (dtype, rest)
    strided = torch.arange(20.0).reshape(4, 5).mT
    assert torch.equal(group.sum(strided), strided * size)
    assert torch.equal(group.from_first(strided), strided)
    asked = torch.ones(2, requires_grad=True)
    assert size == 1 or not group.sum(asked).requires_grad
    assert bool((asked == 1.0).all())
    said = group.gather_bytes(b"x" * rank)
    assert said == [b"x" * r for r in range(size)]
    before = group.bytes_sent
    group.sum(torch.zeros(1000, dtype=torch.float64))
    return {"rank": rank, "size": size, "sent": group.bytes_sent - before}


def mistakes(process_group: Any) -> list[Any]:
    """What one rank does wrong, as every rank is told; and that the group works afterwards."""
    group = Group.of(process_group)
    last = group.size - 1

    def shape() -> None:
        if group.rank == last:
            raise ShapeError("`x` is wrong")
        group.sum(torch.ones(1))

    def fields() -> None:
        if group.rank == last:
            raise NotPositiveDefiniteError("no", smallest_pivot=-1.0, jitters=(0.1, 0.2), indices=[(1, 2)])
        group.gather_rows(torch.ones(1), Shares((1,) * group.size))

    def of_python() -> None:
        if group.rank == last:
            raise OSError(28, "No space left on device")

    def of_key() -> None:
        if group.rank == last:
            raise KeyError("name")

    def foreign() -> None:
        class StrangeError(Exception): ...

        if group.rank == last:
            raise StrangeError("what is this")
        group.from_first(torch.ones(3))

    def out_of_memory() -> None:
        if group.rank == last:
            raise torch.OutOfMemoryError("no bytes left")

    def several() -> None:
        raise (DomainError if group.rank else ShapeError)(f"rank {group.rank}")

    def branches() -> None:
        group.sum(torch.ones(2)) if group.rank == last else group.max(torch.ones(2))

    def interrupt() -> None:
        if group.rank == last:
            raise KeyboardInterrupt

    def nested() -> None:
        try:
            with group.together():
                if group.rank == last:
                    raise MemoryError("inner")
        except MemoryError:  # the same on every rank, so every rank goes on
            group.sum(torch.ones(1))
            raise DomainError("handled") from None

    def different() -> None:
        group.compare(columns=3 if group.rank != last else 4, dtype="float64", seed=group.rank == 0)

    out = []
    for mistake in (
        shape, fields, of_python, of_key, foreign, out_of_memory, several, interrupt, nested, different
    ):  # fmt: skip
        try:
            with group.together():
                mistake()
        except BaseException as error:
            kept = {name: value for name, value in vars(error).items() if name != "__notes__"}
            out.append((type(error).__name__, str(error), kept, error.__notes__ if mistake is not different else []))
        assert int(group.sum(torch.ones(1))) == group.size  # in step
    group.compare(columns=3, kernel="same")
    try:
        with group.together():
            group.shares(int(group.rank == 0) if group.size > 1 else 1)
    except DomainError as error:
        out.append(str(error))
    try:
        with group.together():
            branches()
    except ProcessGroupError as error:
        out.append("the ranks do different things" in str(error))
    try:
        group.sum(torch.ones(1))
    except ProcessGroupError as error:
        out.append("earlier failure" in str(error))
    try:
        Group.of(group, GroupSettings(time_limit=60.0)).sum(torch.ones(1))
    except ProcessGroupError as error:
        out.append("earlier failure" in str(error))
    return out


def warned(process_group: Any) -> list[list[str]]:
    """What this rank shows: of warnings of all ranks, of its own and of ranks from 1 on; where a step ends in an error;
    and where a filter makes the common one an error of all."""
    group, out = Group.of(process_group), []

    def give() -> None:
        warn("now", at_once=True)
        warn("of all")
        warn(f"of rank {group.rank}")
        if group.rank:
            warn("of the others")
        warn("of all")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with group.together():
            give()
            assert [str(one.message) for one in caught] == ["now"]
        out.append([str(one.message) for one in caught[1:]])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with group.together():
                warn("before an error")
                if group.rank == 1:
                    raise DomainError("no")
        except DomainError:
            out.append([str(one.message) for one in caught])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            with group.together():
                warn("an error here")
        except Exception as error:
            out.append([f"{type(error).__name__}: {error}"])
    assert int(group.sum(torch.ones(1))) == group.size  # in step
    return out


def late(_: Any, seconds: float) -> tuple[str, str, bool]:
    """A rank that does not come; the group is of no use afterwards."""
    from torch import distributed as dist

    fresh = dist.new_group(list(range(dist.get_world_size())))
    group = Group.of(fresh, GroupSettings(time_limit=seconds))
    group.sum(torch.ones(1))
    if group.rank:
        time.sleep(4.0 * seconds)
        return "", "", False
    try:
        with group.together():
            group.sum(torch.ones(1))
    except ProcessGroupError as error:
        kind, text = type(error).__name__, str(error)
    try:
        group.sum(torch.ones(1))
    except ProcessGroupError as error:
        return kind, text, "earlier failure" in str(error)
    return kind, text, False


def asked_by_one_rank(_: Any, seconds: float) -> dict[str, Any]:
    """What rank 0 reads and calls alone, of posteriors with and without a factor; the last is left alone in vain."""
    from torch import distributed as dist

    group = Group.of(dist.new_group(list(range(dist.get_world_size()))))
    hurried = Group.of(group, GroupSettings(arrival_limit=seconds))
    x = torch.rand(61, 2, generator=torch.Generator().manual_seed(group.rank), dtype=torch.float64)
    gp = fgp.GP(1.0 * fgp.kernels.Matern(nu=1.5), mean=fgp.means.Zero())
    factor = gp.condition(x, torch.sin(4.0 * x[:, 0]), group=group)
    solved = gp.condition(x, torch.sin(4.0 * x[:, 0]), group=group, solver="cg")
    p = solved.predict(torch.rand(5, 2, generator=torch.Generator().manual_seed(9), dtype=torch.float64))
    out: dict[str, Any] = {}
    if group.rank == 0:
        before = group.bytes_sent
        q = factor.predict(p._x)
        out["factor"] = [q.mean, q.variance, q.covariance(), q.interval()[0], factor.leave_one_out().mean]
        out["solved"] = [p.mean, p.variance, p.observation_variance, p.interval()[0], p.quantile(0.3)]
        out["sent"] = group.bytes_sent - before
        try:
            with hurried.together(asked="covariance"):
                hurried.sum(torch.ones(1))
        except ProcessGroupError as error:
            out |= {"error": str(error), "ranks": error.ranks, "operation": error.operation}
    elif group.rank == 1:
        time.sleep(2.5 * seconds)
    else:  # which waits elsewhere, in vain too
        with contextlib.suppress(ProcessGroupError), hurried.together(asked="covariance"):
            hurried.sum(torch.ones(1))
    return {name: [one.numpy() for one in value] if isinstance(value, list) else value for name, value in out.items()}


def given(process_group: Any) -> list[str]:
    """What may be given as a group, and what is said about the rest."""
    from torch import distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

    size = dist.get_world_size(process_group)
    out = []
    mesh = DeviceMesh.from_group(process_group, "cpu")
    assert Group.of(mesh).size == size
    assert Group.of(Group.of(process_group)).rank == dist.get_rank(process_group)
    for wrong in (dist.GroupMember.NON_GROUP_MEMBER, "world", 3):
        try:
            Group.of(wrong)
        except DomainError as error:
            out.append(str(error))
    try:
        Group.of(process_group).check_device(torch.device("cuda"))
    except ImportError as error:
        out.append(str(error))
    return out
