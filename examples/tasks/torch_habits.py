"""At home in torch: float32, gradients by inputs, second derivatives, a loss of your own.

Hessian, log marginal likelihood by theta, training loops.
"""

import torch

import flashgp as fgp

x = torch.rand(50, 2, generator=torch.Generator().manual_seed(0))  # float32, factored in float64
y = torch.sin(4.0 * x[:, 0])
gp = fgp.GP(1.0 * fgp.kernels.Matern(nu=2.5, lengthscale=torch.ones(2)))
posterior = gp.condition(x, y)

at = torch.tensor([0.5, 0.5])
gradient = torch.func.jacrev(lambda t: posterior.predict(t[None]).mean[0])(at)
hessian = torch.func.hessian(lambda t: posterior.predict(t[None]).mean[0])(at)
print(gradient, hessian)

optimiser = torch.optim.Adam(gp.parameters(), lr=0.05)
for _ in range(20):
    optimiser.zero_grad()
    (-gp.log_marginal_likelihood(x, y)).backward()  # in closed form
    optimiser.step()
print(gp)
