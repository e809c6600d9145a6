"""Compare implementations: a wrong, lazy or remembered answer is refused."""

import torch

import flashgp as fgp

x = torch.rand(400, 3, dtype=torch.float64)
kernel, v = fgp.kernels.RBF(), torch.rand(400, 1, dtype=torch.float64)


def reference(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(-0.5 * torch.cdist(x, x) ** 2) @ v


found = fgp.bench.compare({"torch": reference, "flashgp": lambda x: kernel.operator(x, x) @ v}, x, reference=reference)
print(found)
