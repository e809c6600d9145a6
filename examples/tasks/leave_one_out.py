"""Is my model good? The verdict, leave-one-out, and rows held out."""

import torch

import flashgp as fgp

generator = torch.Generator().manual_seed(0)
x = torch.rand(200, 2, generator=generator, dtype=torch.float64)
y = torch.sin(6.0 * x[:, 0]) + 0.1 * torch.randn(200, generator=generator, dtype=torch.float64)

fit = fgp.fit(fgp.GP(1.0 * fgp.kernels.Matern(lengthscale=torch.ones(2))), x[:150], y[:150])
print(fit.verdict)  # the share explained, whether intervals hold what they promise, and what to check
print(fit.posterior.judge(x[150:], y[150:]))  # the same of rows held out

left_out = fit.posterior.leave_one_out()
error = (y[:150] - left_out.mean) / left_out.variance.sqrt()
print("worst row:", int(error.abs().argmax()))
assert fit.verdict.word == "excellent"
