"""A step for Lightning: a module whose training_step returns the loss. It works without Lightning installed, too.

Run: python examples/lightning_step.py
"""

from typing import Any

import torch

import flashgp as fgp

try:
    from lightning import LightningModule as Base
except ImportError:
    Base = torch.nn.Module


class GPModule(Base):  # type: ignore[misc, valid-type]
    """Exact GP regression: a batch is the whole training table."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.gp = fgp.GP(1.0 * fgp.kernels.Matern(nu=2.5, lengthscale=torch.ones(columns)))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> torch.Tensor:
        x, y = batch
        return -self.gp.log_joint(x, y) / y.shape[-1]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.05)

    def predict(self, x: torch.Tensor, y: torch.Tensor, x_test: torch.Tensor) -> Any:
        """Condition once on the training table, then predict."""
        return self.gp.condition(x, y).predict(x_test)


def main(steps: int = 100) -> list[float]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(60, 2, generator=generator)  # float32 data: parameters and computation are float64 all the same
    y = torch.cos(5.0 * x[:, 0]) + x[:, 1]
    module = GPModule(columns=2)
    optimiser = module.configure_optimizers()
    losses = []
    for step in range(steps):  # what Trainer.fit does with one batch per epoch
        optimiser.zero_grad()
        loss = module.training_step((x, y), step)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    prediction = module.predict(x, y, x[:3])
    print(f"loss: {losses[0]:.3f} nats per row at first, {losses[-1]:.3f} after {steps} steps")
    print("mean", prediction.mean, "standard deviation", prediction.observation_variance.sqrt())
    return losses


if __name__ == "__main__":
    main()
