"""Terrain from a flight: 12,000 heights, a slope, errors known of each, and contours with what is uncertain."""

import torch
from matplotlib.figure import Figure

import flashgp as fgp

F64 = torch.float64
generator = torch.Generator().manual_seed(0)
place = 10.0 * torch.rand(12_000, 2, generator=generator, dtype=F64)  # km
place = place[(place - torch.tensor([6.0, 4.0])).norm(dim=1) > 1.5]  # a lake, of which there are no heights
ridge = torch.exp(-((place[:, 1] - 5.0 - torch.sin(place[:, 0])) ** 2)) + 0.3 * torch.cos(2.0 * place.sum(1))
error = 0.02 + 0.2 * torch.rand(len(place), generator=generator, dtype=F64)  # of each height
height = ridge + 0.1 * place[:, 0] + error * torch.randn(len(place), generator=generator, dtype=F64)

likelihood = fgp.likelihoods.Gaussian(0.001, row_variance=error**2)
gp = fgp.GP(1.0 * fgp.kernels.RBF(lengthscale=[1.0, 1.0]), fgp.means.Linear(torch.zeros(2)), likelihood)
fit = fgp.fit(gp, place, height, approximation="auto", starts=1)  # Fourier series, by their price
print(fit.report.plan.approximation, fit.report.events[0])

east = torch.linspace(0.0, 10.0, 60, dtype=F64)
p = fit.posterior.predict(torch.cartesian_prod(east, east))
mean, deviation = (values.detach().reshape(60, 60).mT for values in (p.mean, p.std))
ax = Figure(figsize=(5, 4)).subplots()
ax.figure.colorbar(ax.contourf(east, east, deviation, cmap="Greys"), label="deviation")
ax.contour(east, east, mean, levels=12)
ax.figure.savefig("terrain.png", dpi=120)
