"""What ranks do in tests of networks inside kernels, plain or wrapped, against one process with all rows."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import flashgp as fgp
from flashgp.foundations.errors import DomainError
from flashgp.processes.shares import Shares

D, FEATURES, POINTS = 3, 2, 7


def table(rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """x, y and inducing points."""
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(rows, D, generator=generator, dtype=torch.float64)
    return x, torch.sin(4.0 * x[:, 0]) + x[:, 1], x[:: max(1, rows // POINTS)][:POINTS].clone()


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(D, 8), nn.Tanh(), nn.Linear(8, FEATURES)).double()


def model(net: nn.Module) -> fgp.GP:
    lengthscale = torch.ones(FEATURES, dtype=torch.float64)
    kernel = 1.5 * fgp.kernels.Warped(net, fgp.kernels.Matern(nu=2.5, lengthscale=lengthscale)) + fgp.kernels.Linear()
    return fgp.GP(kernel, fgp.means.Constant(0.3), fgp.likelihoods.Gaussian(0.05))


def wrapped(net: nn.Module, how: str, group: Any) -> nn.Module:
    if how == "ddp":
        return nn.parallel.DistributedDataParallel(net, process_group=group)
    if how.startswith("fsdp"):
        mesh = DeviceMesh.from_group(group, "cpu")
        low = torch.bfloat16
        policy = MixedPrecisionPolicy(low, torch.float32, low) if how == "fsdp, bfloat16" else MixedPrecisionPolicy()
        for layer in net:
            if any(True for _ in layer.parameters()):
                fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(net, mesh=mesh, mp_policy=policy)
    return net


def gradients(gp: fgp.GP) -> dict[str, Tensor]:
    found = {}
    for name, parameter in gp.named_parameters():
        gradient = parameter.grad
        assert gradient is not None, name
        whole = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
        found[name.replace("module.module.", "module.")] = whole.detach().clone()
    return found


def evaluated(gp: fgp.GP, what: str, rows: slice, total: int, group: Any = None) -> tuple[float, Tensor]:
    """The value, after a backward pass, and the gradient by the inducing points."""
    x, y, z = table(total)
    z.requires_grad_()
    gp.zero_grad()
    if what == "exact":
        value = gp.log_marginal_likelihood(x[rows], y[rows], group=group) + 0.0 * z.sum()
    elif what == "collapsed":
        value = gp.collapsed_bound(x[rows], y[rows], inducing=z, group=group)
    else:
        q = None
        for _ in range(2):  # the second at the q of the first
            step = gp.minibatch_bound(x[rows], y[rows], count=3 * total, inducing=z, q=q, group=group)
            q = step.q
        value = step.value
    (value + gp.log_prior()).backward()
    assert z.grad is not None
    return value.item(), z.grad


def equal(group: Any, how: str, what: str, counts: tuple[int, ...]) -> float:
    """The largest difference from one process, of value and gradients, relative to the gradient's largest entry."""
    shares, rank = Shares(counts), torch.distributed.get_rank(group)
    alone, ours = model(network()), model(wrapped(network(), how, group))
    value, by_points = evaluated(alone, what, slice(None), shares.total)
    found, by_points_found = evaluated(ours, what, shares.slice(rank), shares.total, group)
    wanted, got = gradients(alone), gradients(ours)
    assert wanted.keys() == got.keys()
    pairs = [*((wanted[name], got[name]) for name in wanted), (by_points, by_points_found)]
    return max(abs(found / value - 1.0), apart(pairs))


def apart(pairs: list[tuple[Tensor, Tensor]]) -> float:
    """The largest difference beside the largest entry of all."""
    return max(float((one - other).abs().max()) for one, other in pairs) / max(
        float(one.abs().max()) for one, _ in pairs
    )


def points(group: Any, counts: tuple[int, ...]) -> bool:
    """Whether inducing points are those of one process with the joined rows."""
    shares, rank, gp = Shares(counts), torch.distributed.get_rank(group), model(network())
    x = table(shares.total)[0]
    found = [gp.inducing_points(x[shares.slice(rank)], m, seed=3, group=group) for m in (1, 4, 9)]
    return all(torch.equal(one, gp.inducing_points(x, len(one), seed=3)) for one in found)


def trained(group: Any, how: str) -> list[float]:
    """Bounds of a few Adam steps on minibatches: what one process would have, and what the ranks have."""
    rank, size = torch.distributed.get_rank(group), torch.distributed.get_world_size(group)
    x, y, z = table(120)
    out = []
    for gp, part, ranks in (
        (model(network()), slice(None), None),
        (model(wrapped(network(), how, group)), None, group),
    ):
        optimiser, q = torch.optim.Adam(gp.parameters(), lr=0.01), None
        for index in torch.randperm(120, generator=torch.Generator().manual_seed(0)).split(30):
            own = index if part is not None else index[rank::size]
            step = gp.minibatch_bound(x[own], y[own], count=120, inducing=z, q=q, group=ranks)
            optimiser.zero_grad()
            (-step.value).backward()
            optimiser.step()
            q = step.q
        out.append(step.value.item())
    return out


def mixed(group: Any) -> tuple[bool, float, list[str]]:
    """bfloat16 inside the network alone: dtypes of activations that it saw, and how far gradients are off."""
    seen: list[torch.dtype] = []
    net = network()
    net[1].register_forward_hook(lambda _, inputs, output: seen.append(output.dtype))
    shares, rank = Shares((60, 41)), torch.distributed.get_rank(group)
    ours, alone = model(wrapped(net, "fsdp, bfloat16", group)), model(network())
    evaluated(ours, "collapsed", shares.slice(rank), 101, group)
    evaluated(alone, "collapsed", slice(None), 101)
    wanted, got = gradients(alone), gradients(ours)
    worst = apart([(wanted[name], got[name]) for name in wanted])
    return set(seen) == {torch.bfloat16}, worst, sorted({str(p.dtype) for p in ours.parameters()})


def refused(group: Any) -> list[str]:
    """What is said of networks that are wrapped in part, over other ranks, or differ; and of copies of sharded ones."""
    from torch import distributed as dist

    rank, size = dist.get_rank(group), dist.get_world_size(group)
    x, y, z = table(20)
    out = []

    def say(gp: fgp.GP, points: Tensor = z, y: Tensor = y) -> None:
        try:
            gp.collapsed_bound(x, y, inducing=points, group=group)
        except ValueError as error:
            out.append(f"{type(error).__name__}: {error}")

    part = network()
    fully_shard(part[0], mesh=DeviceMesh.from_group(group, "cpu"))
    say(model(part))
    alone = dist.new_group([rank], use_local_synchronization=True) if size > 1 else group
    say(model(nn.parallel.DistributedDataParallel(network(), process_group=alone)))
    say(model(network(seed=rank)))
    say(model(network()), z + rank)
    say(model(network()), y=y[1:] if rank else y)
    whole = model(wrapped(network(), "fsdp", group))
    try:
        whole.condition(x, y)
    except DomainError as error:
        out.append(str(error))
    copied = model(wrapped(network(), "ddp", group)).condition(x, y).gp
    out.append(type(copied.kernel.parts[0].parts[0].module).__name__)
    return out


def example(group: Any, path: str, settings: dict[str, int]) -> Any:
    """What the main function of an example gives."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("example", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main(group=group, **settings)
