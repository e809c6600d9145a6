"""A few wrong targets: a Student t likelihood hardly sees them.

Robust regression.
"""

import torch

import flashgp as fgp

generator = torch.Generator().manual_seed(0)
x = torch.linspace(0.0, 6.0, 80, dtype=torch.float64)[:, None]
truth = torch.sin(x[:, 0])
y = truth + 0.1 * torch.randn(80, generator=generator, dtype=torch.float64)
y[::16] += 5.0

errors = {}
for likelihood in (fgp.likelihoods.Gaussian(), fgp.likelihoods.StudentT()):
    fit = fgp.fit(fgp.GP(1.0 * fgp.kernels.Matern(nu=2.5), likelihood=likelihood), x, y)
    errors[likelihood.name] = (fit.posterior.predict(x).mean - truth).abs().mean().item()
    print(fit.verdict)
print(errors)
assert errors["StudentT"] < 0.3 * errors["Gaussian"]
