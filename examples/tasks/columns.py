"""One lengthscale per column, priors of your own, and which columns matter.

A lengthscale per column: ARD, automatic relevance determination, and the importance of columns.
"""

import torch
from torch.distributions import LogNormal

import flashgp as fgp

x = torch.rand(120, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
y = torch.sin(6.0 * x[:, 0]) + x[:, 2]

long_or_short = fgp.Parameter(torch.ones(4), prior=LogNormal(0.0, 1.0))
kernel = 1.0 * fgp.kernels.Matern(nu=2.5, lengthscale=long_or_short)
noise = fgp.Parameter(0.01, trainable=False)  # a value that stays as it is
fit = fgp.fit(fgp.GP(kernel, likelihood=fgp.likelihoods.Gaussian(noise)), x, y)
print(fit.gp)

importance = fit.posterior.importance()
assert set(importance.order[:2]) == {0, 2}
print(importance)
