"""Add and multiply covariance functions: a trend and a season, together and each alone.

A sum of kernels and its components, as for CO2 at Mauna Loa.
"""

import torch

import flashgp as fgp

month = torch.arange(96.0, dtype=torch.float64)[:, None]
generator = torch.Generator().manual_seed(0)
sales = 0.05 * month[:, 0] + torch.sin(2.0 * torch.pi * month[:, 0] / 12.0)
sales += 0.1 * torch.randn(96, generator=generator, dtype=torch.float64)

trend = 1.0 * fgp.kernels.SquaredExponential(lengthscale=60.0)
season = 1.0 * fgp.kernels.Periodic(period=12.0, lengthscale=1.0)  # times another kernel it may change slowly
fit = fgp.fit(fgp.GP(trend + season), month, sales, starts=1)

year = fit.posterior.predict(torch.arange(96.0, 108.0, dtype=torch.float64)[:, None])
print(year.mean, year.interval(0.95))
parts = {"trend": fit.posterior.component(trend), "season": fit.posterior.component(season)}
print({name: (float(part.share), part.predict(month).mean) for name, part in parts.items()})
assert fit.verdict.word in ("good", "excellent")
