"""Group: the collectives of `torch.distributed` that the library uses, and errors that all ranks share.

Every collective is preceded by a flag: what each rank is about to do, or that it has failed. A rank that raises inside
`with group.together():` tells the others with the flag of the collective that they wait in, and every rank raises the
same error; the group can be used afterwards. Ranks that took different branches are told so, instead of waiting for
each other. A rank that has died, or does not answer within the time limit, is a ProcessGroupError on all others; after
it the group cannot be used. Which ranks have made a call is written into the group's store by those that wait in it, so
that one which waits alone can name those that did not come.

Ctrl-C leaves no collective half done: it is handled at its end. A warning that all ranks have is shown by rank 0.

Does not do: start processes, choose devices, differentiate.
"""

import functools
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch import distributed as dist

from flashgp.foundations.errors import (
    BackendUnavailableError,
    DomainError,
    FlashGPWarning,
    HeldWarning,
    ProcessGroupError,
    RankMismatchError,
    held_warnings,
    warn,
)
from flashgp.processes.interrupts import interrupt_deferred
from flashgp.processes.shared_errors import packed, unpacked
from flashgp.processes.shares import Shares, too_many_ranks

INIT = "flashgp.processes.init_process_group()"
ANNOUNCED_SECONDS = 1.0  # after which a rank that waits for the others says so in the group's store
MAX_SECONDS = 366 * 24 * 3600.0  # which torch's own clocks can count
LET_GO_SECONDS = 1.0  # at most; microseconds unless the thread waits for a processor


@dataclass(frozen=True)
class GroupSettings:
    """Time limits of a group of ranks.

    Args:
        time_limit: seconds that a rank waits for the others in one collective, beside the group's own `timeout`, if
            that is shorter: 30 minutes of gloo, which `init_process_group(timeout=...)` sets.
        arrival_limit: seconds that a rank which asks a posterior for something waits for the others to ask for it too.

    Raises:
        DomainError: for what is no positive number of seconds.

    Example:
        >>> from flashgp.processes import Group, GroupSettings
        >>> group = Group.of(None, GroupSettings(time_limit=3600.0))  # under torchrun torch.distributed.group.WORLD
        >>> x = torch.linspace(0, 5, 30, dtype=torch.float64)[:, None]
        >>> fgp.GP(fgp.kernels.Matern()).condition(x, torch.sin(x[:, 0]), group=group).count
        30
    """

    time_limit: float = 600.0
    arrival_limit: float = 30.0

    def __post_init__(self) -> None:
        for field in fields(self):
            seconds: Any = getattr(self, field.name)
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0.0 < seconds < MAX_SECONDS:
                raise DomainError(
                    f"`{field.name}` must be positive seconds, at most a year, got {seconds!r}; leave it out for "
                    f"{field.default:g}"
                )


E = TypeVar("E", bound=BaseException)
M = TypeVar("M", bound=Callable[..., Any])


def _uninterrupted(collective: M) -> M:
    """A method of `Group` that no Ctrl-C ends between its flag and its end, where the others would wait."""

    @functools.wraps(collective)
    def run(group: "Group", *arguments: Any, **options: Any) -> Any:
        if group.size == 1:
            return collective(group, *arguments, **options)
        with interrupt_deferred():
            return collective(group, *arguments, **options)

    return cast(M, run)


@dataclass
class _Step:
    """The step that the ranks of a process group are in. Fields: shared, the error that all of them
    raise; source, the first rank that has it; broken, what left the group out of step; call, the public one that they
    are in, and calls, how many there were; arrived, whether all ranks are known to have made it; of_posterior, whether
    it asks one for something."""

    shared: BaseException | None = None
    source: int = 0
    broken: str = ""
    call: str = ""
    calls: int = 0
    arrived: bool = True
    of_posterior: bool = False


class Group:
    """The ranks that share one problem; all of them call the same methods in the same order.

    Args:
        process_group: of `torch.distributed`; None for this process alone, where every collective is the identity.
        settings: time limits.

    Attributes:
        rank: of this process.
        size: number of ranks.
        bytes_sent: by this rank, at least: those of the usual ring algorithms.

    Example:
        >>> group = Group.of(None)
        >>> group.rank, group.size, group.sum(torch.ones(2)).tolist()
        (0, 1, [1.0, 1.0])
    """

    def __init__(self, process_group: Any = None, settings: GroupSettings | None = None) -> None:
        self._process_group, self._settings = process_group, settings or GroupSettings()
        self.rank, self.size = 0, 1
        self.bytes_sent = 0
        self._step = _Step()
        self._threads_let_go = True
        if process_group is not None:
            self.rank, self.size = dist.get_rank(process_group), dist.get_world_size(process_group)
            self._devices = _devices_of(process_group)

    @classmethod
    def of(cls, group: Any, settings: GroupSettings | None = None) -> "Group":
        """Group of what a caller gave: None, a ProcessGroup, a DeviceMesh of one dimension, or a Group.

        `group=` of the library takes what comes back, where ranks may wait for each other longer than others.

        Raises:
            DomainError: for anything else, and where this process is no member.
            ProcessGroupError: where torch.distributed is not initialised.
        """
        if isinstance(group, Group):
            if settings is None:
                return group
            other = cls(group._process_group, settings)
            other._step = group._step  # one that cannot be used cannot be used with other settings
            return other
        if group is None:
            _warn_if_launched()
            return ALONE if settings is None else cls(None, settings)
        if not dist.is_available():
            raise BackendUnavailableError("`group` needs torch.distributed, which this build of torch lacks")
        from torch.distributed.device_mesh import DeviceMesh

        if isinstance(group, DeviceMesh):
            if group.ndim != 1:
                raise DomainError(
                    f"`group` must be a DeviceMesh of one dimension, got {group.ndim}; name the dimension that rows "
                    'are split over, mesh["rows"]'
                )
            group = group.get_group()
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            raise DomainError("`group` must have this process as a member; call from its members alone")
        if not isinstance(group, dist.ProcessGroup):
            raise DomainError(
                "`group` must be None, a ProcessGroup or a DeviceMesh of one dimension, got "
                f"{type(group).__name__}; pass torch.distributed.group.WORLD"
            )
        if not dist.is_initialized():
            raise ProcessGroupError(
                f"`group` belongs to torch.distributed, which is not initialised; call {INIT} first"
            )
        try:
            return cls(group, settings)
        except ValueError as error:
            raise ProcessGroupError(f"`group` is not in use any more ({error}); pass one that is initialised") from None

    def __deepcopy__(self, memo: Any) -> "Group":
        return self  # the same ranks

    def __reduce__(self) -> Any:
        return _alone, ()  # another process is no member

    @property
    def backends(self) -> dict[str, str]:
        """The backend for each kind of device that this machine has; nothing for this process alone."""
        if self._process_group is None:
            return {}
        pairs = [pair.split(":") for pair in str(dist.get_backend_config(self._process_group)).split(",")]
        return {device: backend for device, backend in pairs if device in {d.type for d in self._devices}}

    # -- errors ------------------------------------------------------------------------------------------------------
    @contextmanager
    def together(self, *, hold_warnings: bool = True, asked: str = "") -> Iterator["Group"]:
        """A block of work of all ranks; an error of one is raised by all, at its end or in a collective before that.

        A warning of this library within is shown at the end, by the first rank that has it; where an error is the end,
        by each.

        Args:
            hold_warnings: else each rank shows its own at once.
            asked: the method of a posterior that this is; others have `arrival_limit` seconds to call it too.
        """
        if self.size == 1:
            yield self
            return
        with self._called(asked):
            yield from self._together(hold_warnings)

    @contextmanager
    def _called(self, asked: str) -> Iterator[None]:
        """The outermost call, in which others may not have arrived yet."""
        step = self._step
        if step.call:
            yield
            return
        step.call = asked or "call"
        step.of_posterior, step.arrived, step.calls = bool(asked), False, step.calls + 1
        try:
            yield
        finally:
            step.call, step.arrived = "", True

    def _together(self, hold_warnings: bool) -> Iterator["Group"]:
        held: list[HeldWarning] = []
        ended = False
        try:
            with held_warnings(held if hold_warnings else None):
                yield self
            while not ended:
                with interrupt_deferred():  # which, once all have ended the step, is of this rank alone
                    ended = not self._flag("the end of a step", held=len(held))[3]
                if not ended:
                    self._show_once(held)
        except BaseException as error:
            with suppress(FlashGPWarning):  # a filter may raise what is not this error
                for warning in held:
                    warning.show()
            if ended or error is self._step.shared or self._step.broken:
                raise
            shared = self._share_error(error)
            if shared is error:
                raise
            raise shared from error

    def _show_once(self, held: list[HeldWarning]) -> None:
        """Each warning by the first rank that has it."""
        texts = json.dumps([warning.message for warning in held]).encode(errors="surrogatepass")
        every = [json.loads(told.decode(errors="surrogatepass")) for told in self.gather_bytes(texts)]
        before = {text for told in every[: self.rank] for text in told}
        own, held[:] = [warning for warning in held if warning.message not in before], []
        for warning in own:
            warning.show()

    def _share_error(self, error: BaseException) -> BaseException:
        """Join the others' next flag with an error; what all of them raise, theirs if several ranks have one."""
        with interrupt_deferred(past_error=True):
            data = packed(error, self.rank)
            return self._raised_by(self._exchange_flag(self.size - self.rank, 0), data, error)

    def _flag(self, what: str, *shape: object, held: int = 0) -> list[int]:
        """Before a collective: that all ranks are about to do the same, none with an error. Args: held, warnings."""
        if self._step.broken:
            raise ProcessGroupError(f"the group cannot be used after an earlier failure: {self._step.broken}")
        digest = hashlib.sha256(json.dumps([what, *map(str, shape)]).encode()).digest()
        mark = int.from_bytes(digest[:7], "big")
        flag = self._exchange_flag(0, mark, held)
        if flag[0]:
            raise self._raised_by(flag)
        if flag[1] != -flag[2]:
            self._step.broken = "ranks took different branches"
            raise ProcessGroupError(
                f"the ranks do different things: rank {self.rank} is at {what!r}, others are not; every rank must "
                "make the same calls in the same order, with equal arguments",
                operation=what,
            )
        return flag

    def _exchange_flag(self, failed: int, mark: int, held: int = 0) -> list[int]:
        flag = torch.tensor([failed, mark, -mark, held], dtype=torch.int64, device=self._devices[0])
        self._wait(
            "a flag", lambda: dist.all_reduce(flag, dist.ReduceOp.MAX, group=self._process_group, async_op=True), flag
        )
        return flag.tolist()

    def _raised_by(self, flag: list[int], data: bytes = b"", error: BaseException | None = None) -> BaseException:
        """The error of the first rank that has one, on every rank; this rank's own object where it says the same."""
        source = self.size - flag[0]
        data = self._broadcast_bytes(data, source)
        shared = unpacked(data)
        if error is not None and type(error) is type(shared) and (source == self.rank or str(error) == str(shared)):
            shared = error
        shared.add_note(f"raised on rank {source} of {self.size}")
        self._step.shared, self._step.source = shared, source
        return shared

    def _broadcast_bytes(self, data: bytes, source: int) -> bytes:
        device = self._devices[0]
        length = torch.tensor([len(data)], dtype=torch.int64, device=device)
        self._broadcast(length, source)
        text = torch.zeros(int(length), dtype=torch.uint8, device=device)
        if source == self.rank:
            text.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        self._broadcast(text, source)
        return bytes(text.tolist())

    # -- what must be equal --------------------------------------------------------------------------------------
    @_uninterrupted
    def compare(self, **parts: object) -> None:
        """Check that every rank was given the same, by its text. Cost: one gather of these texts.

        Raises:
            RankMismatchError: the same on every rank, with what differs, on which ranks.
        """
        if self.size == 1:
            return
        texts = {name: str(value) for name, value in parts.items()}
        every = [json.loads(data) for data in self.gather_bytes(json.dumps(texts).encode(errors="surrogatepass"))]
        lines, names, ranks = [], [], set()
        given = {name for one in every for name in one}
        common = {name for name in given if all(name in one for one in every)}
        # Of different calls what both are given says enough, if it differs.
        shown = common if any(one[name] != every[0][name] for one in every for name in common) else given
        for name in sorted(shown):
            values = [one.get(name, "nothing") for one in every]
            if len(set(values)) > 1:
                usual = max(values, key=lambda v: (values.count(v), -values.index(v)))
                ranks |= {rank for rank, value in enumerate(values) if value != usual}
                names.append(name)
                lines.append(f"{name} is " + ", ".join(_by_rank(values)))
        if names:
            raise self.share_error(
                RankMismatchError(
                    f"ranks of `group` were given different arguments: {'; '.join(lines)}. Pass the same on every rank",
                    names=names,
                    ranks=sorted(ranks),
                )
            )

    def share_error(self, error: E) -> E:
        """Mark an error as raised by every rank, from the same numbers or in place of a shared one; returns it."""
        if self.size > 1:
            self._step.shared, self._step.source = error, 0
        return error

    def source_of(self, error: BaseException) -> int | None:
        """The first rank that has an error which all of them raise; None for one of this rank alone."""
        return self._step.source if self.size > 1 and error is self._step.shared else None

    @_uninterrupted
    def shares(self, rows: int) -> Shares:
        """Number of rows of each rank. Raises: DomainError, on every rank, where there are fewer rows than ranks."""
        counts = self.gather_rows(torch.tensor([rows]), Shares((1,) * self.size)).tolist()
        if error := too_many_ranks("group", self.size, sum(counts)):
            raise self.share_error(error)
        return Shares(tuple(counts))

    def check_device(self, device: torch.device) -> None:
        """Check that the group has a backend for tensors of a device.

        Raises:
            BackendUnavailableError: where it has none.
        """
        if self.size > 1 and device.type not in {d.type for d in self._devices}:
            known = ", ".join(sorted({d.type for d in self._devices}))
            raise BackendUnavailableError(
                f"`group` has no backend for tensors on {device.type}, only for {known}; initialise it with one, "
                'init_process_group("cpu:gloo,cuda:nccl"), or move x and y'
            )

    # -- collectives -------------------------------------------------------------------------------------------------
    @_uninterrupted
    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over ranks, entry by entry, of tensors of one shape."""
        return self._reduced(tensor, "sum")

    @_uninterrupted
    def max(self, tensor: Tensor) -> Tensor:
        """The largest over ranks, entry by entry, of tensors of one shape."""
        return self._reduced(tensor, "max")

    @_uninterrupted
    def from_first(self, tensor: Tensor) -> Tensor:
        """Rank 0's tensor, of the same shape and dtype on every rank."""
        if self.size == 1:
            return tensor
        self._flag("broadcast", tensor.shape, tensor.dtype)
        out = _plain(tensor, copy=True).to(self._near(tensor))
        self._broadcast(out, 0)
        return out.to(tensor).reshape(tensor.shape)

    def number_of_first(self, number: float) -> float:
        """Rank 0's number: what a branch depends on, and a last bit could decide."""
        return number if self.size == 1 else float(self.from_first(torch.tensor(float(number), dtype=torch.float64)))

    @_uninterrupted
    def text_of_first(self, text: str) -> str:
        """Rank 0's text."""
        if self.size == 1:
            return text
        self._flag("broadcast of text")
        return self._broadcast_bytes(text.encode(errors="surrogatepass"), 0).decode(errors="surrogatepass")

    @_uninterrupted
    def gather_rows(self, tensor: Tensor, shares: Shares) -> Tensor:
        """All rows, (total, ...), from (counts[rank], ...) on each rank. Cost: (size - 1) copies of the largest."""
        if self.size == 1:
            return tensor
        assert len(tensor) == shares.counts[self.rank]
        self._flag("gather", tensor.shape[1:], tensor.dtype, shares.counts)
        longest, rest = max(shares.counts), tensor.shape[1:]
        own = _padded(tensor, longest).to(self._near(tensor))
        out = own.new_empty(self.size * longest, *rest)
        if out.numel():
            self._wait("gather", lambda: _all_gather_single(out, own, self._process_group), out, own)
        self._count(own, self.size - 1)
        if len(set(shares.counts)) > 1:
            parts = out.reshape(self.size, longest, *rest)
            out = torch.cat([part[:count] for part, count in zip(parts, shares.counts, strict=True)])
        return out.to(tensor)

    @_uninterrupted
    def sum_rows(self, tensor: Tensor, shares: Shares) -> Tensor:
        """Rows of this rank, (counts[rank], ...), of the sum over ranks of tensors (total, ...)."""
        if self.size == 1:
            return tensor
        assert len(tensor) == shares.total
        self._flag("reduce-scatter", tensor.shape, tensor.dtype, shares.counts)
        longest, rest = max(shares.counts), tensor.shape[1:]
        if len(set(shares.counts)) == 1:
            whole = tensor.contiguous()
        else:
            whole = tensor.new_zeros(self.size * longest, *rest)
            for rank, count in enumerate(shares.counts):
                whole[rank * longest : rank * longest + count] = tensor[shares.slice(rank)]
        out = tensor.new_empty(longest, *rest)
        if out.numel():
            self._wait("reduce-scatter", lambda: _reduce_scatter_single(out, whole, self._process_group), out, whole)
        self._count(out, self.size - 1)
        return out[: shares.counts[self.rank]]

    @_uninterrupted
    def exchange(self, tensor: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """Some rows to each rank for some from each, (sum(received), ...), in the order of the ranks.

        Args:
            tensor: (sum(sent), ...), those for rank 0 first.
            sent: rows to each rank.
            received: rows from each rank.
        """
        if self.size == 1:
            return tensor
        assert len(tensor) == sum(sent)
        rest = tensor.shape[1:]
        self._flag("exchange", rest, tensor.dtype)
        own = _plain(tensor).to(self._near(tensor))
        out = own.new_empty(sum(received), *rest)
        if math.prod(rest):
            self._wait(
                "exchange",
                lambda: dist.all_to_all_single(
                    out, own, list(received), list(sent), group=self._process_group, async_op=True
                ),
                out,
                own,
            )
        self._count(own, (len(own) - sent[self.rank]) / max(1, len(own)))
        return out.to(tensor)

    @_uninterrupted
    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Bytes of each rank, on all ranks."""
        if self.size == 1:
            return [data]
        one = Shares((1,) * self.size)
        device = self._devices[0]
        lengths = self.gather_rows(torch.tensor([len(data)], device=device), one)
        shares = Shares(tuple(lengths.tolist()))
        text = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.zeros(0, dtype=torch.uint8)
        whole = self.gather_rows(text.to(device), shares)
        return [bytes(whole[shares.slice(rank)].tolist()) for rank in range(self.size)]

    # -- running them ------------------------------------------------------------------------------------------------
    def _reduced(self, tensor: Tensor, name: str) -> Tensor:
        if self.size == 1:  # also in a torch without torch.distributed
            return tensor
        operation = dist.ReduceOp.SUM if name == "sum" else dist.ReduceOp.MAX
        self._flag(name, tensor.shape, tensor.dtype)
        out = _plain(tensor, copy=True).to(self._near(tensor))
        if out.numel():
            self._wait(name, lambda: dist.all_reduce(out, operation, group=self._process_group, async_op=True), out)
        self._count(out, 2.0 * (self.size - 1) / self.size)
        return out.to(tensor)

    def _broadcast(self, tensor: Tensor, source: int) -> None:
        if tensor.numel():
            self._wait(
                "broadcast",
                lambda: dist.broadcast(tensor, group=self._process_group, async_op=True, group_src=source),
                tensor,
            )
        if source == self.rank:
            self._count(tensor, self.size - 1)

    def _wait(self, name: str, start: Callable[[], Any], *tensors: Tensor) -> None:
        """Run one collective of these tensors to its end within the time limit."""
        self._step.broken = f"{name} did not end"  # whatever ends it
        owners = [_owners(tensor) for tensor in tensors]
        try:
            running = start()
            if not self._step.arrived:
                self._await_arrival(running)
                self._step.arrived = True
            running.wait(timedelta(seconds=self._settings.time_limit))
        except ProcessGroupError:
            raise
        except RuntimeError as error:
            self._step.broken = f"{name}: {error}"
            raise ProcessGroupError(
                f"a collective ({name}) over the {self.size} ranks of `group` failed on rank {self.rank}: a "
                f"rank has died, or did not answer within {self._settings.time_limit:g} s. See its own error, or let "
                "ranks wait longer, group=flashgp.processes.Group.of(group, GroupSettings(time_limit=...)). "
                f"torch says: {error}",
                operation=name,
            ) from error
        self._step.broken = ""
        del running  # which holds what it has gathered
        if self._threads_let_go:  # where those of this torch keep tensors longer, waiting is of no use
            self._threads_let_go = _let_go(tensors, owners)

    def _await_arrival(self, running: Any) -> None:
        """Wait for the others to make the call that this rank is in.

        Args: running, its first collective. Raises: ProcessGroupError that names those who did not come.
        """
        step, began, pause = self._step, time.monotonic(), 2e-5
        name = "arrival_limit" if step.of_posterior else "time_limit"
        called = f"the call of `{step.call}`" if step.of_posterior else "this call"
        limit, announced = getattr(self._settings, name), False
        store = self._process_group.get_group_store()
        while not running.is_completed():
            waited = time.monotonic() - began
            if not announced and waited >= min(ANNOUNCED_SECONDS, 0.5 * limit):
                store.set(f"flashgp/{step.calls}/{self.rank}", step.call)
                announced = True
            if waited >= limit:
                others = [rank for rank in range(self.size) if rank != self.rank]
                absent = [rank for rank in others if not store.check([f"flashgp/{step.calls}/{rank}"])]
                raise ProcessGroupError(
                    f"{called} must be made on all {self.size} ranks of `group`, but {_ranks_text(absent or others)} "
                    f"did not come within {limit:g} s; make it on every rank, not on one alone, or let ranks wait "
                    f"longer, group=flashgp.processes.Group.of(group, GroupSettings({name}=...))",
                    ranks=absent,
                    operation=step.call,
                )
            time.sleep(pause)
            pause = min(2.0 * pause, 0.02)

    def _near(self, tensor: Tensor) -> torch.device:
        """Device that a tensor is sent from: its own, or one that the group has a backend for."""
        known = any(device.type == tensor.device.type for device in self._devices)
        return tensor.device if known else self._devices[0]

    def _count(self, tensor: Tensor, times: float) -> None:
        self.bytes_sent += int(times * tensor.numel() * tensor.element_size())


ALONE = Group()


def _alone() -> Group:
    return ALONE


def _plain(tensor: Tensor, *, copy: bool = False) -> Tensor:
    """Contiguous, without a graph, of a dtype that every backend knows."""
    out = tensor.detach()
    out = out.to(torch.uint8) if out.dtype == torch.bool else out
    return out.clone(memory_format=torch.contiguous_format) if copy else out.contiguous()


def _padded(tensor: Tensor, rows: int) -> Tensor:
    plain = _plain(tensor)
    if len(plain) == rows:
        return plain
    out = plain.new_zeros(rows, *plain.shape[1:])
    out[: len(plain)] = plain
    return out


def _all_gather_single(out: Tensor, own: Tensor, group: Any) -> Any:
    """The name since torch 2.13, or the one before."""
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return gather(out, own, group=group, async_op=True)


def _reduce_scatter_single(out: Tensor, whole: Tensor, group: Any) -> Any:
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return scatter(out, whole, group=group, async_op=True)


def _devices_of(process_group: Any) -> list[torch.device]:
    """The devices whose tensors a group can send, the CPU first: "cpu:gloo,cuda:nccl"."""
    pairs = [pair.split(":") for pair in str(dist.get_backend_config(process_group)).split(",")]
    # gloo names an accelerator that this build of torch may lack
    here = {"cpu"} | ({str(torch.accelerator.current_accelerator())} if torch.accelerator.is_available() else set())
    names = [pair[0] for pair in pairs if pair[0] in here]
    if not names:
        raise BackendUnavailableError(
            f"`group` has backends for {', '.join(pair[0] for pair in pairs)}, which this machine lacks; initialise it "
            'with "gloo"'
        )
    return [torch.device(name) for name in sorted(names, key=lambda name: name != "cpu")]


def _warn_if_launched() -> None:
    """`torch.distributed.group.WORLD` is None until it is initialised: a program that meant it would work alone."""
    ranks = os.environ.get("WORLD_SIZE", "1")
    if "TORCHELASTIC_RUN_ID" in os.environ and ranks not in ("", "1") and not dist.is_initialized():
        warn(
            f"`group` is None in one of {ranks} processes of torchrun, and torch.distributed is not initialised: this "
            f"process works alone, with its own rows. Call {INIT} first for torch.distributed.group.WORLD"
        )


def _let_go(tensors: Sequence[Tensor], owners: Sequence[int]) -> bool:
    """Wait, most often not at all, until a thread of gloo has let go of the tensors of a collective that has ended;
    whether it has within LET_GO_SECONDS.

    A thread that is the last to let go of one needs Python for it, and aborts the process where Python is about to end
    (torch 2.13, pytorch/pytorch#190489): a fit that was done would count as failed, and torchrun start it again.
    """
    until = time.monotonic() + LET_GO_SECONDS
    for tensor, before in zip(tensors, owners, strict=True):
        if tensor.device.type == "cpu":
            while _owners(tensor) > before:
                if time.monotonic() >= until:
                    return False
                time.sleep(0.0)
    return True


def _owners(tensor: Any) -> int:
    """Number of owners of a tensor in C++, Python among them."""
    return int(tensor._use_count())


def _ranks_text(ranks: Sequence[int]) -> str:
    """'rank 0', 'ranks 1, 2'."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _by_rank(values: Sequence[str]) -> list[str]:
    """'3 on rank 0, 4 on ranks 1 and 2'."""
    by_value: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        by_value.setdefault(value, []).append(rank)
    out = []
    for value, ranks in by_value.items():
        shown = value if len(value) <= 60 else f"{value[:57]}..."
        out.append(f"{shown} on {_ranks_text(ranks)}")
    return out
