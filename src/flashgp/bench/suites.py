"""The three suites of `flashgp bench`, and the plain torch and GPyTorch that they compare with.

Every comparison is checked against a float64 reference that uses nothing of the library.

kernel-matrix: the famous comparison, taken at its word, of a covariance matrix by nested vmap, 10,000 times faster than
broadcasting. What was timed there was the construction of a closure. Here the closure, and what lazy libraries return
in its place, is built and timed too, beside why it is refused as an answer. bfloat16 is a storage format of the result:
the arithmetic is float32, and what arithmetic in bfloat16 would give is among the candidates.

online: one more row, and a prediction right after it. Each run appends to the same posterior, since a comparison must
be able to repeat its call.

linalg: factorisations of torch on each device beside `fgp.linalg`, which chooses the device by what it measured. They
are unique up to signs, so candidates return squares of the entries. Inputs stay on the CPU: what moving them takes is
in every candidate's time.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from flashgp import linalg
from flashgp.bench.suite import DTYPES, Options, Problem, Suite
from flashgp.inference.gp import GP
from flashgp.kernels import SquaredExponential
from flashgp.likelihoods import Gaussian
from flashgp.means import Zero

Answer = tuple[Tensor, Tensor]
OURS, GPYTORCH, BROADCASTING, VMAP = "FlashGP", "GPyTorch", "broadcasting", "nested vmap"
ROUNDED = "arithmetic in bfloat16"


# -- the covariance exp(-|x1_i - x2_j|^2 / (2 lengthscale^2)), (n, m), in plain torch ----------------------------------
def broadcasting(x1: Tensor, x2: Tensor, lengthscale: float) -> Tensor:
    """Through an (n, m, d) tensor of differences."""
    z1, z2 = x1 / lengthscale, x2 / lengthscale
    return torch.exp(-0.5 * (z1[:, None] - z2[None]).square().sum(-1))


def vmapped(x1: Tensor, x2: Tensor, lengthscale: float) -> Tensor:
    """Kernel as a function of two points, mapped over both."""
    return torch.func.vmap(row_function(x2, lengthscale))(x1)


def row_function(x2: Tensor, lengthscale: float) -> Callable[[Tensor], Tensor]:
    """The function of one point that `vmapped` maps: a row of the matrix."""

    def k(a: Tensor, b: Tensor) -> Tensor:
        return torch.exp(-0.5 * ((a - b) / lengthscale).square().sum())

    return lambda a: torch.func.vmap(lambda b: k(a, b))(x2)


def from_products(x1: Tensor, x2: Tensor, lengthscale: float) -> Tensor:
    """Kernel from |a|^2 + |b|^2 - 2 a.b, which loses digits where points are close or far from zero."""
    z1, z2 = x1 / lengthscale, x2 / lengthscale
    squares = z1.square().sum(-1)[:, None] + z2.square().sum(-1) - 2.0 * z1 @ z2.mT
    return squares.clamp_min_(0.0).mul_(-0.5).exp_()


def exact(x1: Tensor, x2: Tensor, lengthscale: float) -> Tensor:
    """The reference: float64 on the CPU, by direct differences."""
    z1, z2 = x1.double().cpu() / lengthscale, x2.double().cpu() / lengthscale
    distance = torch.cdist(z1, z2, compute_mode="donot_use_mm_for_euclid_dist")
    return distance.square_().mul_(-0.5).exp_()


PLAIN: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {BROADCASTING: broadcasting, VMAP: vmapped}


# -- kernel-matrix ----------------------------------------------------------------------------------------------------
MATRIX_D = 8
MATRIX_LENGTHSCALE = math.sqrt(MATRIX_D)
# Largest deviation over the largest entry, 1. float32: rounding, with a cancellation of |x|^2 allowed for. float64:
# sqrt(eps), which the square root of a cancelled distance leaves, but no float32 arithmetic. bfloat16: twice the half
# unit in the last place of its storage.
MATRIX_TOLERANCES = {"float32": 1e-5, "float64": 2e-8, "bfloat16": 2.0**-8}


def _matrix_problem(options: Options, gpytorch: Any, device: str, name: str, n: int) -> Problem:
    stored = DTYPES[name]
    computed = torch.float64 if stored == torch.float64 else torch.float32
    x = torch.randn(n, MATRIX_D, generator=torch.Generator().manual_seed(options.seed), dtype=torch.float64)
    kernel = SquaredExponential(MATRIX_LENGTHSCALE)
    candidates: dict[str, Callable[[Tensor], Any]] = {
        OURS: lambda x: kernel.operator(x).to_dense(dtype=stored),
        BROADCASTING: lambda x: broadcasting(x, x, MATRIX_LENGTHSCALE).to(stored),
        VMAP: lambda x: vmapped(x, x, MATRIX_LENGTHSCALE).to(stored),
        "torch from products": lambda x: from_products(x, x, MATRIX_LENGTHSCALE).to(stored),
    }
    if stored == torch.bfloat16:
        candidates[ROUNDED] = lambda x: broadcasting(x.bfloat16(), x.bfloat16(), MATRIX_LENGTHSCALE)
    lazy: dict[str, tuple[str, Callable[[Tensor], Any]]] = {
        "vmap, not called": (VMAP, lambda x: torch.func.vmap(row_function(x, MATRIX_LENGTHSCALE))),
        "FlashGP operator": (OURS, lambda x: kernel.operator(x)),
    }
    if gpytorch is not None:
        theirs = gpytorch.kernels.RBFKernel().to(device, computed)
        theirs.lengthscale = MATRIX_LENGTHSCALE
        candidates[GPYTORCH] = lambda x: theirs(x).to_dense().to(stored)
        lazy["GPyTorch, not evaluated"] = (GPYTORCH, lambda x: theirs(x))
    differences = 3 * n * n * MATRIX_D * computed.itemsize  # one (n, n, d) tensor, its square, and a margin
    return Problem(
        f"{name}, {device}",
        n,
        candidates,
        (x.to(device, computed),),
        lambda x: exact(x, x, MATRIX_LENGTHSCALE),
        MATRIX_TOLERANCES[name],
        dict.fromkeys((BROADCASTING, VMAP, ROUNDED), differences),
        _stretched if stored == torch.bfloat16 else True,
        lazy,
    )


def _stretched(inputs: Any, generator: torch.Generator) -> Any:
    """Points on another scale, and moved a little: steps of 5 % are lost in the rounding of bfloat16."""
    (x,) = inputs
    scale = 0.7 + 0.6 * torch.rand((), generator=generator)
    return ((x.cpu() * scale * (1.0 + 0.01 * torch.rand(x.shape, generator=generator))).to(x),)


# -- online -----------------------------------------------------------------------------------------------------------
ONLINE_D = 4
ONLINE_LENGTHSCALE, NOISE = 1.0, 0.01
ONLINE_TOLERANCE = 1e-6


def smooth_data(n: int, d: int, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor]:
    """x ~ N(0, 1)^d and a smooth function of three columns plus noise of standard deviation 0.1: (n, d), (n,)."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    y = torch.sin(x[:, 0] + 0.5 * x[:, 1 % d]) + 0.3 * x[:, 2 % d] + 0.1 * torch.randn(n, generator=generator).double()
    return x.to(dtype), y.to(dtype)


class GPyTorchModel:
    """GPyTorch's exact model at given hyperparameters, which factorises by Cholesky whatever the size.

    Args:
        base: its kernel without a scale.
        x, y: training rows, float64.
        point: predicted once, so that all is cached.
    """

    def __init__(self, gpytorch: Any, base: Any, x: Tensor, y: Tensor, noise: float, point: Tensor) -> None:
        class Model(gpytorch.models.ExactGP):
            def __init__(self) -> None:
                super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood())
                self.mean_module = gpytorch.means.ConstantMean()
                self.covar_module = gpytorch.kernels.ScaleKernel(base)

            def forward(self, points: Tensor) -> Any:
                return gpytorch.distributions.MultivariateNormal(self.mean_module(points), self.covar_module(points))

        self.settings = gpytorch.settings
        self.model = Model().to(x.device, torch.float64)
        self.model.covar_module.outputscale = 1.0
        self.model.likelihood.noise = noise
        self.model.eval()
        self.model.likelihood.eval()
        self.answer(self.model, point)

    def add(self, x: Tensor, y: Tensor) -> Any:
        """The model with more rows."""
        with torch.no_grad(), self.settings.max_cholesky_size(100_000):
            return self.model.get_fantasy_model(x, y)

    def answer(self, model: Any, point: Tensor) -> Answer:
        """Mean and variance there."""
        with torch.no_grad(), self.settings.max_cholesky_size(100_000):
            prediction = model(point)
            mean: Tensor = prediction.mean
            return mean, prediction.variance

    def predict(self, model: Any, point: Tensor) -> Tensor:
        """The mean there; the variance is computed too."""
        return self.answer(model, point)[0]


def _from_nothing(k: Callable[[Tensor, Tensor, float], Tensor], x: Tensor, y: Tensor) -> Callable[..., Answer]:
    """Plain torch has nothing to update: the factor of all rows again."""

    def step(x_new: Tensor, y_new: Tensor, point: Tensor) -> Answer:
        rows, targets = torch.cat([x.to(x_new), x_new]), torch.cat([y.to(y_new), y_new])
        full = k(rows, rows, ONLINE_LENGTHSCALE)
        full.diagonal().add_(NOISE)
        lower = torch.linalg.cholesky(full)
        cross = k(point, rows, ONLINE_LENGTHSCALE)
        half = torch.linalg.solve_triangular(lower, torch.cat([targets[:, None], cross.mT], 1), upper=False)
        return half[:, 1:].mT @ half[:, 0], 1.0 - half[:, 1:].square().sum(0)

    return step


def _online_problem(options: Options, gpytorch: Any, device: str, name: str, n: int) -> Problem:
    kernel = SquaredExponential(torch.full((ONLINE_D,), ONLINE_LENGTHSCALE, dtype=torch.float64))
    gp = GP(1.0 * kernel, Zero(), Gaussian(NOISE))
    x, y = (tensor.to(device) for tensor in smooth_data(n + 2, ONLINE_D, DTYPES[name]))
    given, row, point = (x[:n], y[:n]), (x[n : n + 1], y[n : n + 1]), x[n + 1 :]
    post = gp.condition(*given)

    def ours(x_new: Tensor, y_new: Tensor, point: Tensor) -> Answer:
        prediction = post.append(x_new, y_new).predict(point)
        return prediction.mean, prediction.variance

    def again(x_new: Tensor, y_new: Tensor, point: Tensor) -> Answer:
        rows, targets = (torch.cat(pair) for pair in zip(given, (x_new, y_new), strict=True))
        prediction = gp.condition(rows, targets).predict(point)
        return prediction.mean, prediction.variance

    candidates: dict[str, Callable[..., Answer]] = {
        "FlashGP, append": ours,
        "FlashGP, conditioned again": again,
        **{plain: _from_nothing(k, *given) for plain, k in PLAIN.items()},
    }
    if gpytorch is not None:
        base = gpytorch.kernels.RBFKernel(ard_num_dims=ONLINE_D)
        base.lengthscale = ONLINE_LENGTHSCALE
        model = GPyTorchModel(gpytorch, base, *given, NOISE, point)
        candidates["GPyTorch, fantasy model"] = lambda x_new, y_new, point: model.answer(model.add(x_new, y_new), point)
    truth = _from_nothing(exact, *(tensor.cpu() for tensor in given))
    return Problem(
        f"one row, then one point, d={ONLINE_D}, {name}, {device}",
        n,
        candidates,
        (*row, point),
        lambda *inputs: truth(*(tensor.cpu() for tensor in inputs)),
        ONLINE_TOLERANCE,
        dict.fromkeys(PLAIN, 3 * n * n * ONLINE_D * 8),
    )


# -- linalg -----------------------------------------------------------------------------------------------------------
LINALG_TOLERANCES = {"float64": 1e-8, "float32": 1e-2}  # a relative gap of eigenvalues amplifies rounding by about n


def _squares(parts: Any) -> Answer:
    """Squares of the entries: factors are unique up to signs."""
    return parts[0].square(), parts[1].square()


SOLVE = "triangular solve"
OPERATIONS: dict[str, Callable[..., Any]] = {  # of torch.linalg or ours, a matrix, and for solves right-hand sides
    "Cholesky": lambda library, A: library.cholesky(A),
    "QR": lambda library, A: _squares(library.qr(A)),
    "eigh": lambda library, A: _squares(library.eigh(A)),
    SOLVE: lambda library, A, b: library.solve_triangular(A.tril(), b, upper=False),
}


def _linalg_problems(options: Options, gpytorch: Any) -> Iterator[Problem]:
    def on(device: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        """Call on a device and back, as a caller would write it."""

        def moved(*inputs: Tensor) -> Any:
            answer = operation(torch.linalg, *(tensor.to(device) for tensor in inputs))
            return tuple(part.cpu() for part in answer) if isinstance(answer, tuple) else answer.cpu()

        return moved

    for title, operation in OPERATIONS.items():
        for name, n in itertools.product(sorted(options.dtypes), options.sizes):
            A, b = _system(n, DTYPES[name], options.seed)
            yield Problem(
                f"{title}, {name}",
                n,
                {
                    **{f"torch.linalg, {device}": on(device, operation) for device in options.devices},
                    "fgp.linalg": functools.partial(operation, linalg),
                },
                (A, b) if title == SOLVE else (A,),
                lambda *inputs, run=operation: run(torch.linalg, *(tensor.double() for tensor in inputs)),
                LINALG_TOLERANCES[name],
            )


def _system(n: int, dtype: torch.dtype, seed: int) -> tuple[Tensor, Tensor]:
    """A = R R^T / n + diag(1, ..., 2): well conditioned, its eigenvalues apart; b with 8 columns."""
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(n, n, generator=generator, dtype=torch.float64)
    matrix = root @ root.mT / n
    matrix = 0.5 * (matrix + matrix.mT) + torch.linspace(1.0, 2.0, n, dtype=torch.float64).diag()
    return matrix.to(dtype), torch.randn(n, 8, generator=generator, dtype=torch.float64).to(dtype)


def _each(problem: Callable[..., Problem]) -> Callable[[Options, Any], Iterator[Problem]]:
    """The problem at every device, dtype and size."""
    return lambda options, gpytorch: (problem(options, gpytorch, *place) for place in options.grid)


# -- all --------------------------------------------------------------------------------------------------------------
_ALL = (
    Suite(
        "kernel-matrix",
        "The covariance matrix, and the time of a closure",
        "Is nested vmap thousands of times faster than broadcasting, or was something timed that is no matrix?",
        sizes=(100, 400, 1200),
        dtypes=("float32", "bfloat16", "float64"),
        problems=_each(_matrix_problem),
        allowed=tuple(DTYPES),
    ),
    Suite(
        "online",
        "Learning one more row",
        "How long does one more row take, with a prediction right after it?",
        sizes=(300, 1000),
        dtypes=("float64",),
        problems=_each(_online_problem),
        allowed=("float64",),
    ),
    Suite(
        "linalg",
        "Factorisations, and where they run",
        "Which device is quickest for a factorisation of this size, and does fgp.linalg choose it?",
        sizes=(10, 50, 200, 600),
        dtypes=("float64",),
        problems=_linalg_problems,
        peer=False,
    ),
)
SUITES = {suite.name: suite for suite in _ALL}
