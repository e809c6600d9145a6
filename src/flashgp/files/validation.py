"""Checks of a file's claims, against each other and the free memory, before and after its tensors are read."""

import contextlib
import copy
from collections.abc import Iterator, Mapping
from typing import Any

import numpy
import torch
from torch import Tensor

from flashgp.files.container import Container
from flashgp.foundations.checks import check_finite
from flashgp.foundations.errors import FlashGPError, MemoryBudgetError, ModelFileError
from flashgp.foundations.form import Rows
from flashgp.foundations.json_values import refused
from flashgp.foundations.machine import available_bytes
from flashgp.foundations.quantities import readable_bytes
from flashgp.inference.gp import GP
from flashgp.kernels import Custom, Warped
from flashgp.means import REGISTRY, evaluate_mean
from flashgp.solvers.direct.cholesky import Factor

SMALL_BYTES = 64 * 2**20  # below this the free memory is not asked for
# What our own constructors and checks raise when a file gives them nonsense: errors of the file, not of the caller.
REFUSED = (FlashGPError, ValueError, TypeError, RuntimeError, ArithmeticError, LookupError)


@contextlib.contextmanager
def refusing(where: str) -> Iterator[None]:
    """Errors of our own checks on what came from a file become errors of the file."""
    try:
        yield
    except (ModelFileError, MemoryBudgetError):
        raise
    except REFUSED as error:
        raise refused(where, f"what a model holds ({str(error)[:200]})", "something else") from error


def check_shapes(container: Container, outputs: Any, *, separate: bool) -> tuple[int, tuple[int, ...]]:
    """Compare the shapes in the header with each other; the number of distinct rows and the batch shape.

    Args: separate, whether each output has a factor.
    """
    if outputs is not None and (type(outputs) is not int or outputs < 1):
        raise refused("outputs", "null or a positive integer", outputs)
    x, y, weights = (container.shape(name) for name in ("x", "y", "representer_weights"))
    if len(x) < 2 or x[-1] < 1:
        raise refused("x", "of shape (*batch, n, d)", list(x))
    n = x[-2]
    tail = (n,) if outputs is None else (n, outputs)
    if y[-len(tail) :] != tail:
        raise refused("y", f"of shape (*batch, {', '.join(map(str, tail))})", str(y))
    u = n
    if "group" in container:
        if (
            container.shape("group") != (n,)
            or container.dtype("group") != torch.int64
            or len(x) + len(y) != 2 + len(tail)
        ):
            raise refused("group", f"{n} integers, of one table", str(container.shape("group")))
        u = weights[-2] if len(weights) > 1 else 0
    if not min(n, 1) <= u <= n or weights[-2:] != (u, outputs or 1) or container.shape("residual") != weights:
        raise refused("representer_weights", f"of shape (*batch, {u}, {outputs or 1}) like residual", str(weights))
    batch = weights[:-2]
    for name in ("x", "y", "representer_weights", "residual"):
        dtype = container.dtype(name)
        if dtype != torch.float64 and (dtype != torch.float32 or name not in ("x", "y")):
            raise refused(name, "float64, or float32 for x and y", str(dtype))
    # Without a factor: one model by iterative solves.
    if u and (container.version == 1 or batch or {"factor", "jitter"} & container.slots.keys()):
        lower, jitter, entries = container.shape("factor"), container.shape("jitter"), u * (u + 1) // 2
        each = (outputs,) if separate else ()
        of_batch = lower[len(each) : -1]
        fits = lower[-1:] == (entries,) and lower[: len(each)] == each and broadcasts(of_batch, batch)
        if not fits or jitter != lower[:-1]:
            raise refused("factor", f"of shape (*batch, {entries}), with one jitter for each", f"{lower}, {jitter}")
        dtypes = {container.dtype(name) for name in ("factor", "jitter")}
        if len(dtypes) > 1 or not dtypes < {torch.float32, torch.float64}:
            raise refused("factor", "float32 or float64, and its jitter the same", str(dtypes))
    for name in ("targets", "variance", "excess"):
        if (name := f"likelihood.{name}") in container and container.shape(name)[:1] != (n,):
            raise refused(name, f"one entry for each of {n} rows", str(container.shape(name)))
    for name in ("likelihood.row_variance", "likelihood.row_weight"):
        if name in container and container.shape(name)[-1:] != (n,):
            raise refused(name, f"one entry for each of {n} rows", str(container.shape(name)))
    return u, batch


def broadcasts(shape: tuple[int, ...], batch: tuple[int, ...]) -> bool:
    """True if a shape broadcasts to the other one as it is."""
    try:
        return numpy.broadcast_shapes(shape, batch) == batch  # torch's imports SymPy, which takes a second
    except ValueError:
        return False


def check_memory(needed: int, what: str) -> None:
    """Raises: MemoryBudgetError when more bytes are needed than the CPU has free."""
    if needed <= SMALL_BYTES:
        return
    available = available_bytes(torch.device("cpu"))
    if needed > available:
        raise MemoryBudgetError(
            f"{what} needs {readable_bytes(needed)}, and {readable_bytes(available)} of memory are free; load it on a "
            "machine that has it",
            needed_bytes=needed,
            available_bytes=available,
        )


def check_values(data: Mapping[str, Tensor], factor: Factor | None) -> None:
    """Raises: ModelFileError for NaN, an infinity, a pivot that is not positive or a negative jitter."""
    with refusing("a tensor"):
        for name, value in data.items():
            check_finite(value, name)
        if factor is not None:
            check_finite(factor.lower, "factor")
            check_finite(factor.jitter, "jitter")
            if not bool((factor.lower.diagonal(dim1=-2, dim2=-1) > 0).all() & (factor.jitter >= 0).all()):
                raise refused("factor", "a Cholesky factor", "a diagonal that is not positive")


def check_group(group: Tensor, x: Tensor, u: int) -> None:
    """Raises: ModelFileError unless each of u rows is joined by rows of x, all of them equal."""
    if not bool(((group >= 0) & (group < u)).all()) or len(group.unique()) != u:
        raise refused("group", f"the numbers below {u}, all of them", "others")
    one = x.new_empty(u, x.shape[-1]).index_copy_(0, group, x)
    if not torch.equal(one[group], x):
        raise refused("group", "rows of equal x together", "rows that differ")


def check_rows(gp: GP, x: Tensor) -> None:
    """The row features of one point tell what those of all points take: a small file must not ask for terabytes."""
    kernel, foreign = gp.kernel, any(isinstance(part, Warped | Custom) for part in gp.kernel.modules())
    point = torch.zeros(1, x.shape[-1], dtype=x.dtype)
    try:
        # A foreign module is asked in evaluation mode, as a copy: one point must not enter its running statistics.
        one = (copy.deepcopy(kernel).eval() if foreign else kernel).rows(point)
    except REFUSED as error:
        if foreign and not isinstance(error, FlashGPError):
            return  # a module that does not take one point is the caller's own
        expected = f"a covariance function of {x.shape[-1]} columns ({str(error)[:200]})"
        raise refused("kernel", expected, "another") from error
    check_memory(one.nbytes * x.shape[:-1].numel(), "the row features of the model")


def check_batch(
    gp: GP, rows: Rows, theta: tuple[Tensor, ...], batch: tuple[int, ...], data: Mapping[str, Tensor]
) -> None:
    """Every part of the model must broadcast to the batch shape of its representer weights."""
    y, outputs = data["y"], gp.outputs
    noise = gp.sites(y).variance
    shapes = {
        "kernel": numpy.broadcast_shapes(rows.batch_shape, *(value.shape for value in theta)),
        "likelihood": noise.shape[: -2 if gp.separate else -1],
        "y": y.shape[: y.dim() - (1 if outputs is None else 2)],
    }
    if type(gp.mean) in REGISTRY.values():
        prior = evaluate_mean(gp.mean, data["x"], outputs)
        shapes["mean"] = prior.shape[: prior.dim() - (1 if outputs is None else 2)]
    for name, shape in shapes.items():
        if not broadcasts(tuple(shape), batch):
            raise refused(name, f"of a batch shape that broadcasts to {batch}", str(tuple(shape)))
