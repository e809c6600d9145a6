"""What a model file holds of a posterior of inducing points: these, the sums over all rows, a sample of the rows, and
the rows themselves where the posterior keeps them."""

import math
from typing import Any

import torch
from torch import Tensor

from flashgp.files.container import Container
from flashgp.files.validation import check_memory, check_values, refusing
from flashgp.foundations.json_values import json_count, json_fields, json_number, refused
from flashgp.foundations.report import Report
from flashgp.inference.prior import Prior
from flashgp.inference.settings import SolveSettings
from flashgp.inference.streamed.bound import BoundSums
from flashgp.inference.streamed.restore import restore
from flashgp.inference.streamed.state import StreamedState
from flashgp.likelihoods import Gaussian
from flashgp.sources.source import Held
from flashgp.sources.survey import Block

KIND = "sparse"
_WHERE = "approximation"  # the field of a file's description
_NUMBERS = ("left", "logs", "noise_logs", "scale", "squares")
_TENSORS = ("inducing", "gram", "projected", "sample_x", "sample_y")
_OF_ROWS = ("x", "y")
_MAX = 2**53
ROOM = 1e-8  # of the trace, and of squares: what sums over many rows may be off by


def streamed_tensors(state: StreamedState) -> dict[str, Tensor]:
    """The numbers that predictions, bounds and paths are made of."""
    sums, sample = state.sums, state.sample
    tensors = dict(zip(_TENSORS, (state.inducing, sums.gram, sums.projected, sample.x, sample.y), strict=True))
    if sample.row_variance is not None:
        tensors["sample_row_variance"] = sample.row_variance
    if state.held is not None:
        tensors |= zip(_OF_ROWS, (state.held.x, state.held.y), strict=True)
    return tensors


def streamed_json(state: StreamedState) -> dict[str, Any]:
    """The number of rows, and sums that are numbers."""
    return {"kind": KIND, "count": state.count, **{name: getattr(state.sums, name) for name in _NUMBERS}}


def read_state(
    container: Container, value: Any, prior: Prior, report: Report, settings: SolveSettings, target: torch.device
) -> StreamedState:
    """The state of a file that nobody vouches for. Raises: ModelFileError."""
    fields = json_fields(value, _WHERE, ("kind", "count", *_NUMBERS))
    count = json_count(fields["count"], f"{_WHERE}.count", _MAX)
    numbers = {name: json_number(fields[name], f"{_WHERE}.{name}") for name in _NUMBERS}
    if not all(math.isfinite(number) for number in numbers.values()) or min(numbers["left"], numbers["squares"]) < 0:
        raise refused(_WHERE, "finite sums, of squares and variances not negative", str(numbers))
    check_memory(2 * container.nbytes, "the model")
    names = [*_TENSORS, *(n for n in ("sample_row_variance", *_OF_ROWS) if n in container)]
    tensors = {name: container.tensor(name) for name in names}
    container.require_all_read()
    check_values(tensors, None)
    _check_shapes(tensors, count, prior)
    tensors = {name: tensor.to(target) for name, tensor in tensors.items()}
    _check_positive(tensors["gram"])
    sums = BoundSums(count, tensors["gram"], tensors["projected"], **numbers)
    sample = Block(tensors["sample_x"], tensors["sample_y"], tensors.get("sample_row_variance"))
    prior, held = prior.to(target), None
    if "x" in tensors:
        likelihood, known = prior.likelihood, None
        if isinstance(likelihood, Gaussian) and "sample_row_variance" in tensors:
            known = likelihood.row_variance
        held = Held(tensors["x"], tensors["y"], known)
    with refusing("inducing"):
        state = restore(prior, tensors["inducing"], sums, sample, held, report, settings)
    explained = float((sums.projected * sums.weights).sum())  # of the squares, by the inducing points
    if not explained <= sums.squares * (1.0 + ROOM):
        raise refused("projected", f"what squares of {sums.squares:g} can be explained by", f"{explained:g}")
    return state


def _check_positive(gram: Tensor) -> None:
    """A^T S^-1 A is positive semidefinite up to the rounding of its sums. Raises: ModelFileError."""
    room = ROOM * float(gram.diagonal().clamp_min(0.0).sum())
    shifted = gram.clone()
    shifted.diagonal().add_(room)
    if bool(gram.any()) and int(torch.linalg.cholesky_ex(shifted).info):
        raise refused("gram", "a positive semidefinite matrix", "another")


def _check_shapes(tensors: dict[str, Tensor], count: int, prior: Prior) -> None:
    """Compare them with each other and with the model. Raises: ModelFileError."""
    inducing, sample = tensors["inducing"], tensors["sample_x"]
    if inducing.dim() != 2 or not inducing.numel() or sample.dim() != 2 or not 0 < len(sample) <= count:
        raise refused("inducing", f"of shape (m, d), with a sample of at most {count} rows", str(tuple(inducing.shape)))
    (m, d), size, outputs = inducing.shape, len(sample), prior.outputs
    tail = () if outputs is None else (outputs,)
    shapes = {"gram": (m, m), "projected": (m, outputs or 1), "sample_x": (size, d), "sample_y": (size, *tail),
              "sample_row_variance": (size,)}  # fmt: skip
    for name, shape in shapes.items():
        if name in tensors and (tuple(tensors[name].shape) != shape or tensors[name].dtype != torch.float64):
            raise refused(name, f"float64 of shape {shape}", f"{tensors[name].dtype} {tuple(tensors[name].shape)}")
    if not torch.equal(tensors["gram"], tensors["gram"].mT):
        raise refused("gram", "a symmetric matrix", "another")
    if "sample_row_variance" in tensors and bool((tensors["sample_row_variance"] < 0).any()):
        raise refused("sample_row_variance", "0 or more", "less")
    rows = {"x": (count, d), "y": (count, *tail)}
    if ("x" in tensors) != ("y" in tensors) or any(
        tuple(tensors[name].shape) != shape for name, shape in rows.items() if name in tensors
    ):
        raise refused("x", f"of shape {rows['x']} with y of {rows['y']}, or neither", "others")
    for name in ("inducing", *_OF_ROWS):
        if name in tensors and tensors[name].dtype not in (torch.float32, torch.float64):
            raise refused(name, "float32 or float64", str(tensors[name].dtype))
    known = getattr(prior.likelihood, "row_variance", None)
    if not prior.likelihood.rows_alike and ("x" not in tensors or (known is not None and known.shape != (count,))):
        raise refused("likelihood", f"numbers for each of {count} rows that are held, or none", "others")
    if known is None and "sample_row_variance" in tensors and "x" in tensors:
        raise refused("sample_row_variance", "there where the rows have variances", "another sample")
