"""Many rows, approximately: full scale, and what it loses.

Large n: inducing points and neighbours, for a million rows too.
"""

import torch

import flashgp as fgp

generator = torch.Generator().manual_seed(0)
x = torch.rand(1_200, 2, generator=generator, dtype=torch.float64)
y = torch.sin(9.0 * x[:, 0]) * x[:, 1] + 0.1 * torch.randn(1_200, generator=generator, dtype=torch.float64)
gp = fgp.GP(1.0 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.ones(2)))

fit = fgp.fit(gp, x, y, approximation="full_scale", inducing=64, neighbours=32)  # or "auto", with a time_limit
print(fit.verdict)
print(fit.posterior.lost)  # nats a row against exact inference, with its standard error
