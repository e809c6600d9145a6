"""Hamiltonian Monte Carlo over the hyperparameters: a dictionary of unconstrained values with a chain dimension.

log_joint(theta=..., jacobian=True) is the log density of those values, one number per chain, so that all chains move
in one tensor program. Run: python examples/hmc_step.py
"""

import torch
from torch import Tensor

import flashgp as fgp

Theta = dict[str, Tensor]


def log_density(gp: fgp.GP, x: Tensor, y: Tensor, theta: Theta) -> tuple[Tensor, Theta]:
    """(log density, gradient) of unconstrained values; every entry has a leading chain dimension."""
    leaves = {name: value.detach().requires_grad_() for name, value in theta.items()}
    value = gp.log_joint(x, y, theta=leaves, jacobian=True)
    gradients = torch.autograd.grad(value.sum(), list(leaves.values()))
    return value.detach(), dict(zip(leaves, gradients, strict=True))


def leapfrog(
    gp: fgp.GP, x: Tensor, y: Tensor, theta: Theta, momentum: Theta, *, step_size: float, steps: int
) -> tuple[Theta, Theta, Tensor]:
    """Integrate Hamilton's equations; returns where theta and momentum end, and the log density there."""
    _, gradient = log_density(gp, x, y, theta)
    value = torch.zeros(())
    for _ in range(steps):
        momentum = {name: p + 0.5 * step_size * gradient[name] for name, p in momentum.items()}
        theta = {name: value + step_size * momentum[name] for name, value in theta.items()}
        value, gradient = log_density(gp, x, y, theta)
        momentum = {name: p + 0.5 * step_size * gradient[name] for name, p in momentum.items()}
    return theta, momentum, value


def kinetic(momentum: Theta) -> Tensor:
    """Half the squared momentum, per chain."""
    return 0.5 * sum(p.square().reshape(p.shape[0], -1).sum(-1) for p in momentum.values())  # type: ignore[return-value]


def hmc_step(
    gp: fgp.GP,
    x: Tensor,
    y: Tensor,
    theta: Theta,
    generator: torch.Generator,
    *,
    step_size: float = 0.1,
    steps: int = 8,
) -> tuple[Theta, Tensor]:
    """One Metropolis-corrected transition of every chain; returns theta and which chains moved."""
    momentum = {name: torch.randn(v.shape, generator=generator, dtype=v.dtype) for name, v in theta.items()}
    before = log_density(gp, x, y, theta)[0] - kinetic(momentum)
    proposal, end, value = leapfrog(gp, x, y, theta, momentum, step_size=step_size, steps=steps)
    after = value - kinetic(end)
    accepted = torch.rand(before.shape, generator=generator, dtype=before.dtype).log() < after - before
    pick = {name: torch.where(accepted.view(-1, *(1,) * (v.dim() - 1)), proposal[name], v) for name, v in theta.items()}
    return pick, accepted


def problem() -> tuple[fgp.GP, Tensor, Tensor]:
    """A small regression with a prior on every parameter."""
    generator = torch.Generator().manual_seed(0)
    x = torch.linspace(0.0, 1.0, 20, dtype=torch.float64)[:, None]
    y = torch.sin(6.0 * x[:, 0]) + 0.1 * torch.randn(20, generator=generator, dtype=torch.float64)

    def log_normal(value: float, mean: float, sd: float) -> fgp.Parameter:
        return fgp.Parameter(value, prior=torch.distributions.LogNormal(mean, sd))

    gp = fgp.GP(
        kernel=log_normal(1.0, 0.0, 1.0) * fgp.kernels.RBF(log_normal(0.3, -1.0, 1.0)),
        mean=fgp.means.Zero(),
        likelihood=fgp.likelihoods.Gaussian(log_normal(0.02, -4.0, 1.0)),
    )
    return gp, x, y


def main(transitions: int = 60, chains: int = 4) -> tuple[dict[str, Tensor], float]:
    gp, x, y = problem()
    generator = torch.Generator().manual_seed(1)
    theta = {name: p.detach().expand(chains, *p.shape).clone() for name, p in gp.named_parameters()}
    kept: list[Theta] = []
    moved = torch.zeros(())
    for _ in range(transitions):
        theta, accepted = hmc_step(gp, x, y, theta, generator)
        kept.append(theta)
        moved = moved + accepted.double().mean()
    acceptance = float(moved) / transitions
    samples = {name: torch.stack([t[name] for t in kept]) for name in theta}  # (transitions, chains, ...)
    print(f"{chains} chains, {transitions} transitions each, {acceptance:.0%} accepted")
    for name, values in samples.items():
        half = values[transitions // 2 :].exp()
        print(f"{name.removesuffix('.raw')}: {half.mean():.3g} +- {half.std():.2g}")
    return samples, acceptance


if __name__ == "__main__":
    main()
