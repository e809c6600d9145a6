"""Outputs that tell of each other: one row for each value, and a column that says of which output.

Multitask regression: correlated outputs, the linear model of coregionalization.
"""

import torch

import flashgp as fgp

time = torch.linspace(0.0, 6.0, 60, dtype=torch.float64)
first = torch.stack([time, torch.zeros(60)], dim=1).double()
second = torch.stack([time[:20], torch.ones(20)], dim=1).double()  # known at the beginning only
x = torch.cat([first, second])
y = torch.cat([torch.sin(time), -0.8 * torch.sin(time[:20])])

kernel = fgp.kernels.Matern(nu=2.5, active_dims=[0]) * fgp.kernels.Coregionalization(2, rank=1, active_dims=[1])
fit = fgp.fit(fgp.GP(kernel), x, y)
later = fit.posterior.predict([[4.7, 1.0]])
print(later.mean, later.std)  # of the second output, where only the first was seen
assert later.mean.item() > 0.3
