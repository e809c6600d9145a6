"""Several outputs, some of whose cells are missing, each with noise of its own.

Independent outputs under one kernel.
"""

import torch

import flashgp as fgp

x = torch.linspace(0.0, 6.0, 80, dtype=torch.float64)[:, None]
y = torch.stack([torch.sin(x[:, 0]), torch.cos(x[:, 0]), x[:, 0] / 3.0], dim=1)
y[10:30, 1] = torch.nan  # a sensor was off

likelihood = fgp.likelihoods.Gaussian(noise_variance=[0.01, 0.01, 0.01], outputs=3)
fit = fgp.fit(fgp.GP(1.0 * fgp.kernels.Matern(nu=2.5), likelihood=likelihood, outputs=3), x, y, starts=1)

mean = fit.posterior.predict([[1.5]]).mean
print(mean)  # (1, 3)
assert mean.shape == (1, 3)
