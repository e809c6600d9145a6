"""Save a model and load it again: the same bits, and no code that runs."""

import pickle
from pathlib import Path

import torch

import flashgp as fgp

x = torch.linspace(0.0, 6.0, 40, dtype=torch.float64)[:, None]
fit = fgp.fit(fgp.GP(1.0 * fgp.kernels.Matern(nu=2.5)), x, torch.sin(x[:, 0]))

fgp.save(fit, "model.safetensors")
posterior = fgp.load("model.safetensors")
assert torch.equal(posterior.predict(x).mean, fit.posterior.predict(x).mean)

Path("fit.pickle").write_bytes(pickle.dumps(fit.posterior))  # pickle, joblib and deepcopy too
table = fgp.TableModel().fit({"x": x[:, 0].numpy(), "y": torch.sin(x[:, 0]).numpy()}, target="y")
table.save("table.safetensors")  # with its units; `flashgp predict` reads it
print(fgp.load("table.safetensors").predict({"x": [1.0, 2.0]}))
