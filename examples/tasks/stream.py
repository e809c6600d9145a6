"""Learn rows one by one, each predicted before it is learned.

Streaming, or online, learning with its metrics.
"""

import torch

import flashgp as fgp

generator = torch.Generator().manual_seed(0)
x = 6.0 * torch.rand(300, 1, generator=generator, dtype=torch.float64)
y = torch.sin(x[:, 0]) + 0.1 * torch.randn(300, generator=generator, dtype=torch.float64)

fit = fgp.fit(fgp.GP(1.0 * fgp.kernels.Matern(nu=2.5)), x[:100], y[:100])
stream = fgp.Stream(fit.posterior, window=150)
for _step in stream.consume(zip(x[100:], y[100:], strict=True)):
    pass  # step.mean and step.variance are of the row before it was learned
print(stream.metrics)
assert stream.drift is None
