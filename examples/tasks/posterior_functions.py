"""Draw posterior functions, and follow their slopes.

Samples of f that can be evaluated and differentiated anywhere, as Thompson sampling needs them.
"""

import torch

import flashgp as fgp

x = torch.linspace(0.0, 6.0, 30, dtype=torch.float64)[:, None]
posterior = fgp.fit(fgp.GP(1.0 * fgp.kernels.Matern(nu=2.5)), x, torch.sin(x[:, 0])).posterior

functions = posterior.paths(16, seed=0)
at = torch.linspace(0.0, 6.0, 5, dtype=torch.float64)[:, None].requires_grad_()
values = functions(at)  # (16, 5)
(slopes,) = torch.autograd.grad(values.mean(0).sum(), at)
print(values.std(0), slopes[:, 0] - torch.cos(at[:, 0]))

joint = posterior.predict(at.detach()).sample(4, seed=0)  # values at these points, drawn together
assert joint.shape == (4, 5)
