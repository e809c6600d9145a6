"""Ratings in an order: from 0 to 3 stars.

Ordinal regression.
"""

import torch

import flashgp as fgp

generator = torch.Generator().manual_seed(0)
x = 4.0 * torch.rand(100, 1, generator=generator, dtype=torch.float64)
taste = 2.0 * torch.sin(2.0 * x[:, 0]) + 0.5 * torch.randn(100, generator=generator, dtype=torch.float64)
stars = torch.bucketize(taste, torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)).double()

fit = fgp.fit(fgp.GP(1.0 * fgp.kernels.Matern(nu=2.5), likelihood=fgp.likelihoods.Ordinal(4)), x, stars)
print(fit.verdict)
print(fit.posterior.predict([[0.8], [2.4]]).probability)  # of each number of stars
