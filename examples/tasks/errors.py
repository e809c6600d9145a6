"""Errors say what arrived, and what to do."""

import torch

import flashgp as fgp

x, y = torch.rand(20, 2, dtype=torch.float64), torch.rand(20, dtype=torch.float64)
posterior = fgp.GP(fgp.kernels.Matern()).condition(x, y)
for wrong in (
    lambda: posterior.predict(x[:, :1]),
    lambda: posterior.append(x[0], y[0]),
    lambda: fgp.fit(fgp.GP(fgp.kernels.Matern()), x, torch.full_like(y, torch.nan)),
    lambda: fgp.plan(fgp.GP(fgp.kernels.Matern()), n=10**7, d=2, memory="1GiB", solver="cholesky"),
):
    try:
        wrong()
    except fgp.FlashGPError as error:
        print(f"{type(error).__name__}: {error}\n")
    else:
        raise AssertionError
