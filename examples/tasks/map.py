"""A map by Fourier series: rain at stations, its mean and deviation on a grid, drawn.

Spatial statistics: kriging.
"""

import torch
from matplotlib.figure import Figure

import flashgp as fgp

F64 = torch.float64
generator = torch.Generator().manual_seed(0)
place = torch.tensor([-120.0, 30.0]) + torch.tensor([40.0, 20.0]) * torch.rand(1_000, 2, generator=generator, dtype=F64)
rain = 3.0 + torch.sin(place[:, 0] / 4.0) * torch.cos(place[:, 1] / 3.0)
rain += 0.3 * torch.randn(1_000, generator=generator, dtype=F64)

gp = fgp.GP(1.0 * fgp.kernels.RBF(lengthscale=[8.0, 6.0]), fgp.means.Constant())
fit = fgp.fit(gp, place, rain, approximation="fourier", starts=1)
print(fit.verdict)
print(fit.posterior.lost)  # variance of the frequencies that are left out, which counts as noise

east, north = torch.linspace(-120.0, -80.0, 80, dtype=F64), torch.linspace(30.0, 50.0, 40, dtype=F64)
p = fit.posterior.predict(torch.cartesian_prod(east, north))
figure = Figure(figsize=(9, 3), layout="constrained")
for ax, name, values in zip(figure.subplots(1, 2), ("mean", "deviation"), (p.mean, p.std), strict=True):
    image = ax.pcolormesh(east, north, values.reshape(80, 40).mT)
    ax.set(title=name, xlabel="longitude", ylabel="latitude")
    figure.colorbar(image)
figure.savefig("map.png", dpi=120)
