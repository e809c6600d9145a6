"""A network inside a kernel, trained by several processes with DistributedDataParallel.

Each process has rows of its own. DistributedDataParallel averages gradients over processes; the bound is a sum over
all rows, and its gradient comes out as that sum: a step is the step that one process with all rows would take.

Run: torchrun --nproc-per-node 2 examples/ddp_deep_kernel.py
"""

import gzip
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch import distributed as dist

import flashgp as fgp
from flashgp.processes import init_process_group

TABLE = Path(__file__).parents[1] / "data" / "kin40k_6000.csv.gz"  # 8 columns, the target last


def table(rows: int) -> tuple[Tensor, Tensor]:
    """Standardised columns (rows, 8) and target (rows,), float64."""
    with gzip.open(TABLE, "rt") as file:
        numbers = torch.from_numpy(numpy.loadtxt(file, delimiter=",", skiprows=1, max_rows=rows))
    numbers = (numbers - numbers.mean(0)) / numbers.std(0)
    return numbers[:, :-1], numbers[:, -1]


def main(rows: int = 6000, epochs: int = 30, batch: int = 250, group: Any = None) -> float:
    """RMSE of held-out rows, the same on every rank. Args: batch, rows of all ranks in a step."""
    group = group or dist.group.WORLD
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    x, y = table(rows)
    x_test, y_test, x, y = x[: rows // 6], y[: rows // 6], x[rows // 6 :], y[rows // 6 :]
    count = len(x)
    x, y = x[rank::size], y[rank::size]  # a real program reads its part alone

    torch.manual_seed(0)  # the same network on every rank
    network = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8)).double()
    network = nn.parallel.DistributedDataParallel(network, process_group=group, broadcast_buffers=False)
    kernel = 1.0 * fgp.kernels.Warped(network, fgp.kernels.Matern(nu=2.5, lengthscale=torch.ones(8)))
    gp = fgp.GP(kernel, likelihood=fgp.likelihoods.Gaussian(0.1))
    z = gp.inducing_points(x, 128, group=group)
    optimiser = torch.optim.Adam(gp.parameters(), lr=0.005)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs)
    generator, q = torch.Generator().manual_seed(rank), None
    steps = count // batch  # the same number on every rank
    for epoch in range(epochs):
        for index in torch.randperm(len(x), generator=generator).tensor_split(steps):
            step = gp.minibatch_bound(x[index], y[index], count=count, inducing=z, q=q, group=group)
            optimiser.zero_grad()
            (-step.value).backward()
            optimiser.step()
            q = step.q
        schedule.step()
        if rank == 0 and epoch % 10 == 9:
            print(f"epoch {epoch + 1}: bound {step.value.item() / count:.3f} nats a row")
    post = gp.condition(q)
    error = float((post.predict(x_test).mean - y_test).square().mean().sqrt())
    if rank == 0:
        print(f"RMSE {error:.3f} of {len(x_test):,} held-out rows, in standard deviations of the target")
    return error


if __name__ == "__main__":
    init_process_group("gloo")
    main()
    dist.destroy_process_group()
