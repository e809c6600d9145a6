"""Counts, with an exposure for each row.

Poisson regression.
"""

import torch

import flashgp as fgp

generator = torch.Generator().manual_seed(0)
x = torch.linspace(0.0, 6.0, 80, dtype=torch.float64)[:, None]
hours = 1.0 + 9.0 * torch.rand(80, generator=generator, dtype=torch.float64)
counts = torch.poisson(hours * torch.exp(1.0 + torch.sin(x[:, 0])), generator=generator)

likelihood = fgp.likelihoods.Poisson(exposure=hours)
fit = fgp.fit(fgp.GP(1.0 * fgp.kernels.Matern(nu=2.5), likelihood=likelihood), x, counts)
print(fit.verdict)
day = fit.posterior.predict([[1.5]]).given(exposure=[24.0])
print(day.observation_mean, day.interval(0.95))
