"""A Hessian of the log marginal likelihood by all parameters, in gradients of the same.

n rows, a squared exponential or Matern-5/2 with a lengthscale for each of d columns, a variance, a mean and a noise
variance: d + 3 parameters. The gradient is autograd's, the Hessian that of torch.autograd.functional.hessian and of
torch.func.hessian. The error is the largest difference from central differences of the gradient, of fourth order, as a
share of the largest entry.
"""

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from common import RECORDS, arguments, interleaved, smooth_data

import flashgp as fgp
from flashgp.bench import write_record

COLUMNS = [
    {"key": "work", "title": "parameters"},
    {"key": "gradient_seconds", "title": "gradient"},
    {"key": "autograd_seconds", "title": "Hessian, autograd"},
    {"key": "autograd_ratio", "title": "in gradients", "format": "ratio"},
    {"key": "func_seconds", "title": "torch.func.hessian"},
    {"key": "func_ratio", "title": "in gradients", "format": "ratio"},
    {"key": "target", "title": "at most"},
    {"key": "error", "title": "error"},
]
SIZES = [(200, 6, None), (500, 6, 20.0)]
KERNELS = {"squared exponential": fgp.kernels.SquaredExponential, "Matern-5/2": fgp.kernels.Matern}
STEP = 2e-4


def likelihood(kernel: Callable[..., Any], x: torch.Tensor, y: torch.Tensor) -> tuple[Any, torch.Tensor]:
    """The likelihood as a function of one vector of unconstrained values, and their values."""
    gp = fgp.GP(1.3 * kernel(lengthscale=torch.full((x.shape[-1],), 1.7)), likelihood=fgp.likelihoods.Gaussian(0.05))
    shapes = {name: p.shape for name, p in gp.named_parameters()}

    def value(flat: torch.Tensor) -> torch.Tensor:
        parts = flat.split([shape.numel() for shape in shapes.values()])
        theta = {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
        return gp.log_marginal_likelihood(x, y, theta=theta)

    return value, torch.cat([p.detach().reshape(-1) for p in gp.parameters()])


def gradient(value: Callable[[torch.Tensor], torch.Tensor], at: torch.Tensor) -> torch.Tensor:
    at = at.detach().requires_grad_()
    return torch.autograd.grad(value(at), at)[0]


def differences(value: Callable[[torch.Tensor], torch.Tensor], at: torch.Tensor) -> torch.Tensor:
    """The Hessian by central differences of the gradient."""
    slope = functools.partial(gradient, value)
    rows = []
    for unit in STEP * torch.eye(len(at), dtype=torch.float64):
        near, far = slope(at + unit) - slope(at - unit), slope(at + 2 * unit) - slope(at - 2 * unit)
        rows.append((8.0 * near - far) / (12.0 * STEP))
    return torch.stack(rows)


def measured(name: str, n: int, d: int, target: float | None, repeats: int) -> dict[str, Any]:
    x, y = smooth_data(n, d, torch.float64)
    value, at = likelihood(KERNELS[name], x, y)
    timed = interleaved(
        {
            "gradient": lambda: gradient(value, at),
            "autograd": lambda: torch.autograd.functional.hessian(value, at),
            "func": lambda: torch.func.hessian(value)(at),
        },
        repeats, 1,
    )  # fmt: skip
    wanted = differences(value, at)
    seconds = {f"{key}_seconds": result.seconds for key, result in timed.items()}
    ratios = {f"{key}_ratio": timed[key].seconds / timed["gradient"].seconds for key in ("autograd", "func")}
    error = max(float((timed[key].result - wanted).abs().max() / wanted.abs().max()) for key in ("autograd", "func"))
    return {
        "work": f"{len(at)}, {name}, n={n}, d={d}", **seconds, **ratios, "target": target, "error": error,
        "met": None if target is None else max(ratios.values()) <= target,
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv, __doc__ or "")
    rows = []
    for n, d, target in [(12, 2, None)] if options.toy else SIZES:
        for name in KERNELS:
            if options.only in name:
                rows.append(measured(name, n, d, target, 2 if options.toy else 5))
                print(rows[-1])
    if rows and not options.toy and not options.only:
        title = "A Hessian of the log marginal likelihood, in gradients"
        write_record(RECORDS / "second_order.json", {"title": title, "columns": COLUMNS, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
