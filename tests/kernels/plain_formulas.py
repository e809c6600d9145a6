"""The covariance functions written a second time, straight from their definitions, in plain torch.

Nothing here comes from the library but the values of the parameters: no expression, no features, no tiles. Works in
the dtype of x and is differentiable at distinct points.
"""

import math

import torch
from torch import Tensor

from flashgp import kernels


def plain(kernel: kernels.Kernel, x: Tensor, z: Tensor) -> Tensor:
    """k(x_i, z_j), eqs. (M-2), (M-3), (M-5) to (M-17), (M-48), (M-52), shape (n, m)."""
    if isinstance(kernel, kernels.Sum):
        return sum((plain(part, x, z) for part in kernel.parts[1:]), plain(kernel.parts[0], x, z))
    if isinstance(kernel, kernels.Product):
        return math.prod((plain(part, x, z) for part in kernel.parts[1:]), start=plain(kernel.parts[0], x, z))
    if isinstance(kernel, kernels.Scaled):
        return value(kernel.variance, x) * plain(kernel.kernel, x, z)
    dims = kernel.active_dims
    if dims is not None:
        x, z = x[:, list(dims)], z[:, list(dims)]
    if isinstance(kernel, kernels.Warped):
        return plain(kernel.kernel, kernel.module(x), kernel.module(z))
    return leaf(kernel, x, z)


def value(parameter: object, like: Tensor) -> Tensor:
    return parameter.value.to(like.dtype)  # type: ignore[attr-defined]


def leaf(k: kernels.Kernel, x: Tensor, z: Tensor) -> Tensor:
    difference = x[:, None, :] - z[None, :, :]
    match k:
        case kernels.SquaredExponential():
            return torch.exp(-0.5 * ((difference / value(k.lengthscale, x)) ** 2).sum(-1))
        case kernels.Matern():
            r = ((difference / value(k.lengthscale, x)) ** 2).sum(-1)
            r = torch.where(r == 0, torch.zeros_like(r), torch.where(r == 0, 1.0, r).sqrt())
            if k.nu == 0.5:
                return torch.exp(-r)
            if k.nu == 1.5:
                return (1 + math.sqrt(3) * r) * torch.exp(-math.sqrt(3) * r)
            return (1 + math.sqrt(5) * r + 5 / 3 * r**2) * torch.exp(-math.sqrt(5) * r)
        case kernels.RationalQuadratic():
            q = ((difference / value(k.lengthscale, x)) ** 2).sum(-1)
            a = value(k.scale_mixture, x)
            return (1 + q / (2 * a)) ** -a
        case kernels.Periodic():
            wave = torch.sin(math.pi * difference / value(k.period, x)) / value(k.lengthscale, x)
            return torch.exp(-2 * (wave**2).sum(-1))
        case kernels.Cosine():
            return torch.cos(2 * math.pi * (difference * value(k.frequency, x)).sum(-1))
        case kernels.SpectralMixture():
            means, scales, weights = (value(p, x) for p in (k.means, k.scales, k.weights))
            total = torch.zeros(len(x), len(z), dtype=x.dtype)
            for mean, scale, weight in zip(means, scales, weights, strict=True):
                envelope = torch.exp(-2 * math.pi**2 * ((difference * scale) ** 2).sum(-1))
                total = total + weight * envelope * torch.cos(2 * math.pi * (difference * mean).sum(-1))
            return total
        case kernels.Custom():
            values = {name: value(getattr(k, name), x) for name in k.names}
            return torch.stack([torch.stack([k.function(a, b, **values).reshape(()) for b in z]) for a in x])
        case kernels.Polynomial():
            return (value(k.offset, x) + (x * value(k.variance, x)) @ z.mT) ** k.degree
        case kernels.Linear():
            return (x * value(k.variance, x)) @ z.mT
        case kernels.Constant():
            return value(k.variance, x).expand(len(x), len(z))
        case kernels.Categorical():
            return torch.exp(-((difference != 0) / value(k.lengthscale, x)).sum(-1))
        case kernels.Coregionalization():
            B = value(k.factor, x) @ value(k.factor, x).mT + torch.diag(value(k.diagonal, x))
            return B[x[:, 0].long()][:, z[:, 0].long()]
    raise AssertionError(f"no formula is written down for {type(k).__name__}")
