"""A neural network inside a covariance function, trained by the same fit.

Deep kernel learning.
"""

import torch

import flashgp as fgp

generator = torch.Generator().manual_seed(0)
x = torch.rand(150, 3, generator=generator, dtype=torch.float64)
y = ((x[:, 0] + x[:, 1]) % 0.7 > 0.35).double() + 0.05 * torch.randn(150, generator=generator, dtype=torch.float64)

torch.manual_seed(0)
network = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2)).double()
kernel = 1.0 * fgp.kernels.Warped(network, fgp.kernels.Matern(nu=2.5))
fit = fgp.fit(fgp.GP(kernel), x, y, max_iterations=40)
print(fit.verdict)
