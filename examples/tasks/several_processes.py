"""Several processes: the same call on every rank. Run: torchrun --nproc-per-node 2 several_processes.py

Distributed inference.
"""

import os

import torch

import flashgp as fgp

group = None
if "RANK" in os.environ:
    torch.distributed.init_process_group("gloo")
    group = torch.distributed.group.WORLD
rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))

x = torch.rand(200, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
y = torch.sin(5.0 * x[:, 0])
mine = slice(rank, None, size)  # this rank's rows
gp = fgp.GP(1.0 * fgp.kernels.Matern(nu=2.5, lengthscale=torch.ones(2)))
fit = fgp.fit(gp, x[mine], y[mine], group=group, starts=1)
print(rank, fit.posterior.predict(x[:2]).mean)  # the same on every rank
