"""A network inside a kernel whose parameters are split over processes by `fully_shard`, in mixed precision.

Each process has rows of its own and a part of the network; activations are bfloat16, covariances float64. The gradient
of the bound is the sum over all rows, as in one process. In the end the network is put together, and the posterior is
that of all rows.

Run: torchrun --nproc-per-node 2 examples/fsdp_deep_kernel.py
"""

from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import flashgp as fgp
from flashgp.processes import init_process_group


def model() -> fgp.GP:
    network = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))
    kernel = 1.0 * fgp.kernels.Warped(network, fgp.kernels.Matern(nu=2.5, lengthscale=torch.ones(4)))
    return fgp.GP(kernel, likelihood=fgp.likelihoods.Gaussian(0.1))


def main(rows: int = 4000, steps: int = 150, group: Any = None) -> tuple[float, float]:
    """RMSE of the posterior and of the mean of y at new points, the same on every rank."""
    group = group or dist.group.WORLD
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(rows + 500, 4, generator=generator, dtype=torch.float64)
    f = torch.sin(6.0 * x[:, 0] * x[:, 1]) + (x[:, 2] - 0.5).abs()
    y = f + 0.1 * torch.randn(len(f), generator=generator, dtype=torch.float64)
    x_test, f_test, x, y = x[rows:], f[rows:], x[rank:rows:size], y[rank:rows:size]

    torch.manual_seed(0)  # the same network on every rank, before it is split
    gp = model()
    network = gp.kernel.kernel.module
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    mesh = DeviceMesh.from_group(group, "cpu")
    for layer in (network[0], network[2], network[4], network):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    z = gp.inducing_points(x, 100, group=group)
    optimiser = torch.optim.Adam(gp.parameters(), lr=0.01)
    for step in range(steps):
        value = gp.collapsed_bound(x, y, inducing=z, group=group)
        optimiser.zero_grad()
        (-value).backward()
        optimiser.step()
        if rank == 0 and step % 50 == 49:
            print(f"step {step + 1}: bound {value.item() / rows:.3f} nats a row")

    whole = model()  # a posterior keeps the whole network
    whole.load_state_dict(get_model_state_dict(gp, options=StateDictOptions(full_state_dict=True)))
    q = whole.minibatch_bound(x, y, count=rows, inducing=z, group=group).q  # a batch of all rows: the best q(u)
    error = float((whole.condition(q).predict(x_test).mean - f_test).square().mean().sqrt())
    plain = float((f.mean() - f_test).square().mean().sqrt())
    if rank == 0:
        print(f"RMSE {error:.3f} at new points; that of the mean of y {plain:.3f}")
    return error, plain


if __name__ == "__main__":
    init_process_group("gloo")
    main()
    dist.destroy_process_group()
