"""A covariance function of your own, in plain torch.

A custom kernel, compiled.
"""

import torch

import flashgp as fgp


def bumps(a: torch.Tensor, b: torch.Tensor, width: torch.Tensor) -> torch.Tensor:
    return torch.exp(-((a - b) ** 2).sum() / (2.0 * width**2)) * (1.0 + (a * b).sum())


kernel = fgp.kernels.Custom(bumps, width=fgp.Parameter(0.5, torch.distributions.constraints.positive))
x = torch.rand(80, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
y = torch.sin(5.0 * x[:, 0]) * x[:, 1]

fit = fgp.fit(fgp.GP(1.0 * kernel), x, y, starts=1)
print(fit.gp.kernel)
assert fit.verdict.explained.value > 0.9
