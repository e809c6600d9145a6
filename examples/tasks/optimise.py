"""Bayesian optimisation by hand: expected improvement, and a posterior that learns each new row."""

import torch

import flashgp as fgp


def objective(x: torch.Tensor) -> torch.Tensor:
    return -((x - 0.7) ** 2).sum(-1) + 0.1 * torch.sin(12.0 * x).sum(-1)


x = torch.rand(8, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
gp = fgp.GP(1.0 * fgp.kernels.Matern(nu=2.5, lengthscale=torch.ones(2)))
posterior = fgp.fit(gp, x, objective(x)).posterior
candidates = torch.quasirandom.SobolEngine(2, seed=0).draw(512).double()
for _ in range(12):
    prediction, best = posterior.predict(candidates), posterior.y.max()
    z = (prediction.mean - best) / prediction.std
    density = torch.exp(-0.5 * z**2) / (2.0 * torch.pi) ** 0.5
    improvement = prediction.std * (z * torch.special.ndtr(z) + density)
    chosen = candidates[improvement.argmax()][None]
    posterior = posterior.append(chosen, objective(chosen))  # O(n^2)
print(posterior.x[posterior.y.argmax()], posterior.y.max())
assert posterior.y.max() > objective(x).max()
