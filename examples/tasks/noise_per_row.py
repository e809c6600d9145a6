"""Measurements with known errors, and rows that count more than others.

Heteroscedastic noise: a variance per row, or weights.
"""

import torch

import flashgp as fgp

generator = torch.Generator().manual_seed(0)
x = torch.linspace(0.0, 6.0, 60, dtype=torch.float64)[:, None]
error = torch.where(x[:, 0] < 3.0, 0.05, 0.5).double()  # a standard deviation for each row
y = torch.sin(x[:, 0]) + error * torch.randn(60, generator=generator, dtype=torch.float64)

known = fgp.likelihoods.Gaussian(noise_variance=1e-4, row_variance=error**2)
fit = fgp.fit(fgp.GP(1.0 * fgp.kernels.Matern(nu=2.5), likelihood=known), x, y)
print(fit.posterior.predict([[1.0], [5.0]]).std)

model = fgp.GPRegressor().fit(x.numpy(), y.numpy(), sample_weight=1.0 / error.numpy() ** 2)  # precisions, any scale
print(model.predict([[1.0], [5.0]], return_std=True))
