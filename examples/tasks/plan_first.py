"""Know bytes and seconds before they are paid, and keep a fit to a time limit."""

import torch

import flashgp as fgp

generator = torch.Generator().manual_seed(0)
x = torch.rand(1_500, 3, generator=generator, dtype=torch.float64)
y = torch.sin(5.0 * x).sum(1) + 0.1 * torch.randn(1_500, generator=generator, dtype=torch.float64)
gp = fgp.GP(1.0 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.ones(3)))

print(fgp.plan(gp, n=100_000, d=3, memory="8GiB"))  # every route, with the reason why it is taken or not
fit = fgp.fit(gp, x, y, time_limit=5.0)
print(fit.report)
prediction = fit.posterior.predict(x[:100], time_limit=2.0)
assert prediction.variance.shape == (100,)
