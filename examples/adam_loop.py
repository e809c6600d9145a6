"""A training loop of your own: torch.optim.Adam on minus the log joint. Its gradient is closed form.

Run: python examples/adam_loop.py
"""

import torch

import flashgp as fgp


def train(
    gp: fgp.GP, x: torch.Tensor, y: torch.Tensor, *, steps: int = 150, learning_rate: float = 0.05
) -> list[float]:
    """Move gp's parameters in place; returns the log joint after every step, in nats."""
    optimiser = torch.optim.Adam(gp.parameters(), lr=learning_rate)
    history = []
    for _ in range(steps):
        optimiser.zero_grad()
        log_joint = gp.log_joint(x, y)
        (-log_joint).backward()
        optimiser.step()
        history.append(log_joint.item())
    return history


def main(steps: int = 150) -> list[float]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(60, 2, generator=generator, dtype=torch.float64)
    y = torch.sin(6.0 * x[:, 0]) + 0.1 * torch.randn(60, generator=generator, dtype=torch.float64)
    gp = fgp.GP(
        kernel=1.0 * fgp.kernels.Matern(nu=2.5, lengthscale=torch.ones(2)),
        likelihood=fgp.likelihoods.Gaussian(
            fgp.Parameter(0.1, prior=torch.distributions.LogNormal(-4.0, 2.0)),
        ),
    )
    history = train(gp, x, y, steps=steps)
    print(gp)
    print(f"log joint: {history[0]:.2f} nats at first, {history[-1]:.2f} after {steps} steps")
    return history


if __name__ == "__main__":
    main()
