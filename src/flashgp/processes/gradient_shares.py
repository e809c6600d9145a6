"""Gradients of a sum over ranks, where each rank knows the share of its own rows, eq. (M-220).

What a rank backpropagates is its share. Parameters of kernels, means and likelihoods get the sum of all shares, by one
all-reduce of them together. A network that the user has wrapped in DistributedDataParallel or `fully_shard` is reduced
by its wrapper, which takes a mean: what enters it is multiplied by the number of ranks first, so that the mean is the
sum. Mixed precision, buckets and accumulation stay the wrapper's.

Does not do: second derivatives; wrappers over other ranks than those of the group.
"""

import copy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from flashgp.foundations.contexts import evaluation_mode
from flashgp.foundations.errors import DomainError
from flashgp.processes.group import Group

_GROUP: ContextVar[Group | None] = ContextVar("flashgp_gradient_shares", default=None)
Model = TypeVar("Model", bound=nn.Module)


def sum_together(group: Group, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The sums over ranks of float64 tensors of one device, by one all-reduce."""
    if group.size == 1:
        return list(tensors)
    total = group.sum(torch.cat([t.detach().reshape(-1) for t in tensors]))
    parts = total.split([t.numel() for t in tensors])
    return [part.reshape(t.shape) for part, t in zip(parts, tensors, strict=True)]


@contextmanager
def summed_gradients(group: Group) -> Iterator[None]:
    """Within it `called` knows the group."""
    token = _GROUP.set(group if group.size > 1 else None)
    try:
        yield
    finally:
        _GROUP.reset(token)


def called(module: nn.Module, x: Tensor) -> Any:
    """module(x) in evaluation mode; its parameters get a gradient that the wrapper's mean makes a sum, (M-220).

    Raises: DomainError for a module that is wrapped in part, or over other ranks.
    """
    group = _GROUP.get()
    divisor = 1.0 if group is None else _divisor(module, group)
    with evaluation_mode(module):
        if divisor == 1.0:
            return module(x)
        value = module(_Times.apply(x, 1.0 / divisor))
    return _Times.apply(value, divisor) if isinstance(value, Tensor) else value


def summed_parameters(group: Group, tensors: Sequence[Tensor], device: torch.device) -> tuple[Tensor, ...]:
    """The tensors, whose gradients are summed over ranks before they reach them. Args: device, of the sum."""
    found: tuple[Tensor, ...] = _Summed.apply(group, device, *tensors)
    return found


def unwrapped(model: nn.Module) -> dict[str, Tensor]:
    """The parameters that are in no wrapper, by name: nobody else keeps them equal on all ranks."""
    inside = {id(p) for wrapper in _wrappers(model) for p in wrapper.parameters()}
    return {name: p for name, p in model.named_parameters() if id(p) not in inside}


def copied(model: Model) -> Model:
    """A deep copy, in which networks are without DistributedDataParallel, whose collectives no copy may start.

    Raises: DomainError for networks that `fully_shard` splits over ranks.
    """
    memo: dict[int, Any] = {}
    for wrapper in _wrappers(model):
        if not isinstance(wrapper, nn.parallel.DistributedDataParallel):
            raise DomainError(
                "`kernel` has a network that fully_shard splits over ranks, which a posterior cannot keep; load "
                "torch.distributed.checkpoint.state_dict.get_model_state_dict(gp, "
                "options=StateDictOptions(full_state_dict=True)) into a GP whose network is whole, and condition that"
            )
        memo[id(wrapper)] = copy.deepcopy(wrapper.module, memo)
    return copy.deepcopy(model, memo)


class _Times(torch.autograd.Function):
    """The identity, whose gradient is multiplied."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None


class _Summed(torch.autograd.Function):
    """The identity, whose gradients are summed over ranks, by one all-reduce of all of them."""

    @staticmethod
    def forward(ctx: Any, group: Group, device: torch.device, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.group, ctx.device = group, device
        return tuple(t.view_as(t) for t in tensors)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        sums = sum_together(ctx.group, [g.to(ctx.device, torch.float64) for g in gradients])
        return None, None, *(total.to(g) for total, g in zip(sums, gradients, strict=True))


def _wrappers(model: nn.Module) -> list[nn.Module]:
    """The outermost modules that reduce the gradients of what is in them."""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # without it no module is of its types
    kinds = (nn.parallel.DistributedDataParallel, *([fsdp.FSDPModule] if fsdp else []))
    found: list[nn.Module] = []
    within: set[int] = set()
    for module in model.modules():  # outer ones first
        if fsdp and isinstance(module, fsdp.FullyShardedDataParallel):
            raise DomainError("`kernel` has a network in FullyShardedDataParallel; wrap it by fully_shard instead")
        if isinstance(module, kinds) and id(module) not in within:
            found.append(module)
            within |= {id(part) for part in module.modules()}
    return found


def _divisor(module: nn.Module, group: Group) -> float:
    """Divisor of the sum over ranks by the wrappers of a module; 1 without one."""
    wrappers = _wrappers(module)
    if not wrappers:
        return 1
    trained = {id(p) for p in module.parameters() if p.requires_grad}
    reduced, divisors, sizes = set(), set(), set()
    for wrapper in wrappers:
        parts = _of_ddp(wrapper) if isinstance(wrapper, nn.parallel.DistributedDataParallel) else _of_fsdp(wrapper)
        for size, divisor, parameters in parts:
            sizes.add(size)
            divisors.add(divisor)
            reduced |= parameters
    if trained - reduced:
        raise DomainError(
            f"`module` of Warped must be wrapped as a whole, got {len(trained - reduced)} parameters whose gradients "
            "its wrappers leave out; wrap the network itself, without ignored parameters"
        )
    if sizes != {group.size} or len(divisors) > 1:
        got, by = (", ".join(f"{one:g}" for one in sorted(found)) for found in (sizes, divisors))
        raise DomainError(
            f"`module` of Warped must be wrapped over the {group.size} ranks of `group`, got {got} ranks and division "
            f"by {by}; give its wrapper the same group"
        )
    return divisors.pop()


Reduced = tuple[int, float, set[int]]  # ranks, divisor, ids of parameters


def _of_ddp(wrapper: Any) -> list[Reduced]:
    size, ignored = wrapper.process_group.size(), wrapper.parameters_to_ignore
    return [(size, size, {id(p) for name, p in wrapper.module.named_parameters() if name not in ignored})]


def _of_fsdp(wrapper: Any) -> list[Reduced]:
    """State of every group of parameters that `fully_shard` has made in a module. Its divisor has no public getter."""
    from torch.distributed.fsdp import FSDPModule

    found: list[Reduced] = []
    for module in wrapper.modules():
        if not isinstance(module, FSDPModule):
            continue
        for part in _parameter_groups(module._get_fsdp_state()):
            mesh, size = part.mesh_info, 1
            for name in ("shard_mesh_size", "replicate_mesh_size"):
                size *= getattr(mesh, name, 1)
            divisor = part.gradient_divide_factor or size
            held = {
                id(p) for one in part.fsdp_params for p in (one.sharded_param, getattr(one, "_unsharded_param", None))
            }
            found.append((size, divisor, held))
    return found


def _parameter_groups(state: Any) -> list[Any]:
    groups = getattr(state, "_fsdp_param_groups", None)  # since torch 2.12; one before
    one = None if groups is not None else state._fsdp_param_group
    return list(groups) if groups is not None else [] if one is None else [one]
