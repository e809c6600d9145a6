"""Factorisations of torch on each device beside `fgp.linalg`, which chooses the device by what it measured.

Answers of factorisations are unique up to signs, so candidates return squares of the entries: the same for all, and
cheap beside the work. Inputs stay on the CPU: what moving them takes is in every candidate's time.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from flashgp import linalg
from flashgp.bench.suites.suite import DTYPES, Comparisons, Options, Problem, Suite, measure

__all__ = ["SUITE"]

TOLERANCES = {"float64": 1e-8, "float32": 1e-2}  # a relative gap of eigenvalues amplifies rounding by about n
SOLVE = "triangular solve"
Operation = Callable[..., Any]


def _operations(library: Any) -> dict[str, Operation]:
    """Of a matrix A, symmetric positive definite, and for solves of right-hand sides b."""

    def solve(A: Tensor, b: Tensor) -> Tensor:
        return library.solve_triangular(A.tril(), b, upper=False)

    return {
        "Cholesky": lambda A: library.cholesky(A),
        "QR": lambda A: tuple(part.square() for part in library.qr(A)),
        SOLVE: solve,
        "eigh": lambda A: _eigh(library, A),
    }


def _eigh(library: Any, A: Tensor) -> tuple[Tensor, Tensor]:
    values, vectors = library.eigh(A)
    return values, vectors.square()


def _on(device: str, operation: Operation) -> Operation:
    """On a device and back, as a caller would write it."""

    def moved(*inputs: Tensor) -> Any:
        answer = operation(*(tensor.to(device) for tensor in inputs))
        return tuple(part.cpu() for part in answer) if isinstance(answer, tuple) else answer.cpu()

    return moved


def _problem(n: int, dtype: torch.dtype, seed: int) -> tuple[Tensor, Tensor]:
    """A = R R^T / n + diag(1, ..., 2): well conditioned, its eigenvalues apart; b with 8 columns."""
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(n, n, generator=generator, dtype=torch.float64)
    matrix = root @ root.mT / n
    matrix = 0.5 * (matrix + matrix.mT) + torch.linspace(1.0, 2.0, n, dtype=torch.float64).diag()
    return matrix.to(dtype), torch.randn(n, 8, generator=generator, dtype=torch.float64).to(dtype)


def run(options: Options) -> Comparisons:
    """Every operation, size and dtype, on every device; see Suite."""
    findings = []
    ours, plain = _operations(linalg), _operations(torch.linalg)
    for name in options.dtypes:
        for n in options.sizes:
            A, b = _problem(n, DTYPES[name], options.seed)
            for title, operation in plain.items():
                candidates = {f"torch.linalg, {device}": _on(device, operation) for device in options.devices}
                candidates["fgp.linalg"] = ours[title]
                problem = Problem(
                    f"{title}, {name}",
                    n,
                    (A, b) if title == SOLVE else (A,),
                    lambda *inputs, operation=operation: operation(*(tensor.double() for tensor in inputs)),
                    TOLERANCES[name],
                )
                findings.append(measure(problem, candidates, options))
    return Comparisons(SUITE, sorted(findings, key=lambda finding: finding.group))


SUITE = Suite(
    "linalg",
    "Factorisations, and where they run",
    "Which device is quickest for a factorisation of this size, and does fgp.linalg choose it?",
    sizes=(10, 50, 200, 600),
    dtypes=("float64",),
    run=run,
)
