"""Fit a curve, and draw its mean and intervals.

The plot of a regression in one column.
"""

import torch

import flashgp as fgp

x = torch.linspace(0.0, 10.0, 60, dtype=torch.float64)[:, None]
y = torch.sin(x[:, 0]) + 0.2 * torch.randn(60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

fit = fgp.fit(fgp.GP(1.0 * fgp.kernels.Matern(nu=2.5)), x, y)
print(fit.verdict)

prediction = fit.posterior.predict([[2.5], [11.0]])
print(prediction.mean, prediction.interval(0.95))
fgp.plots.posterior_1d(fit.posterior).figure.savefig("curve.png")
