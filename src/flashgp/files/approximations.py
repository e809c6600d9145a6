"""Posteriors by an approximation in a file: numbers and tensors of their state, and what these must be when read."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from flashgp.files.container import Container
from flashgp.files.validation import check_group, check_rows, check_values, refusing
from flashgp.foundations.json_values import json_count, json_fields, json_number, refused
from flashgp.foundations.report import Report
from flashgp.inference.base_state import BaseState, UpdateState
from flashgp.inference.fourier import state as fourier
from flashgp.inference.fourier.grid import Grid
from flashgp.inference.fourier.grids import Grids, coordinates_of
from flashgp.inference.fourier.spectrum import MOST_COLUMNS, column_sets, columns_of, obstacle
from flashgp.inference.full_scale import state as full_scale
from flashgp.inference.full_scale.factor import Sums
from flashgp.inference.full_scale.layout import Layout
from flashgp.inference.full_scale.output_states import of_outputs
from flashgp.inference.gp import GP
from flashgp.inference.run import Run
from flashgp.inference.streamed import state as streamed
from flashgp.inference.streamed.bound import BoundSums
from flashgp.planner.plan import Sizes
from flashgp.solvers.preconditioners.near_rows import Neighbourhoods
from flashgp.sources.survey import Block

FIELD = "approximation"  # of a file's description
_MAX = 2**53
ROOM = 1e-8  # of the trace, and of squares: what sums over many rows may be off by
# Numbers of a state, and its tensors: the dtype and the dimensions, equal where they have one name; t are those of y
# behind the rows, p is the number of outputs. An optional tensor ends in "?".
_KINDS: dict[str, tuple[Sequence[str], Sequence[str], dict[str, str]]] = {
    "full_scale": (
        ("block", "neighbours", "predicting", "reduced"), ("log_determinant", "squares"),
        {"x": "real n d", "y": "real n t", "group?": "whole n", "inducing": "x m d", "blocks": "whole b w",
         "neighbours": "whole b q", "inner": "double m m", "projected": "double m p"},
    ),
    "full_scale_outputs": (
        ("block", "neighbours", "predicting"), (),
        {"x": "real n d", "y": "real n t", "group?": "whole n", "inducing": "x m d", "blocks": "whole b w",
         "neighbours": "whole b q", "inner": "double p m m", "projected": "double p m 1", "sums": "double p 3"},
    ),
    "sparse": (
        ("count",), ("left", "logs", "noise_logs", "scale", "squares"),
        {"inducing": "real m d", "gram": "double m m", "projected": "double m p", "sample_x": "double s d",
         "sample_y": "double s t", "x?": "real count d", "y?": "real count t"},
    ),
    "sparse_given": (
        ("count",), ("left", "logs", "noise_logs", "scale", "squares"),
        {"inducing": "real m d", "gram": "double m m", "projected": "double m p", "sample_x": "double s d",
         "sample_y": "double s t"},
    ),
    "sparse_outputs": (
        ("count",), ("scale",),
        {"inducing": "real m d", "gram": "double p m m", "projected": "double p m 1", "sums": "double 4 p",
         "sample_x": "double s d", "sample_y": "double s t", "x?": "real count d", "y?": "real count t"},
    ),
    "fourier": (
        ("count",), ("logs", "tail"),
        {"sample_x": "double s d", "sample_y": "double s t", "columns": "whole q", "orders": "whole q",
         "grids?": "whole k",
         "box": "double 3 q", "corners": "double 2 d", "entries": "double e c", "projected": "double p f 2",
         "weights": "double p f 2", "errors": "double p", "squares": "double p", "drawn?": "double r f 2",
         "grid_errors?": "double 2",
         "x?": "real count d", "y?": "real count t"},
    ),
}  # fmt: skip
_DTYPES = {"real": (torch.float32, torch.float64), "double": (torch.float64,), "whole": (torch.int64,)}


def read_state(
    container: Container,
    value: Any,
    gp: GP,
    how: tuple[Report, Run, UpdateState],
    target: torch.device,
) -> BaseState:
    """The state of a file that nobody vouches for. Args: value, the field of the description; how it was made.

    Raises: ModelFileError.
    """
    kind = value.get("kind") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise refused(f"{FIELD}.kind", f"one of {', '.join(_KINDS)}", kind)
    of_counts, of_numbers, tensors_of_kind = _KINDS[kind]
    fields = json_fields(value, FIELD, ("kind", *of_counts, *of_numbers))
    counts = {name: json_count(fields[name], f"{FIELD}.{name}", _MAX) for name in of_counts}
    numbers = {name: json_number(fields[name], f"{FIELD}.{name}") for name in of_numbers}
    if not all(math.isfinite(number) for number in numbers.values()):
        raise refused(FIELD, "finite sums", str(numbers))
    likelihood = gp.likelihood.underlying
    numbers_of_rows = {*likelihood.of_read, *gp.likelihood.row_tensors} if "sample_x" in tensors_of_kind else set()
    tensors_of_kind = tensors_of_kind | {f"sample_{name}?": "double s" for name in sorted(numbers_of_rows)}
    wanted = {name.rstrip("?"): shape for name, shape in tensors_of_kind.items()}
    tensors = {
        name: container.tensor(name) for name in wanted if f"{name}?" not in tensors_of_kind or name in container
    }
    container.require_all_read()
    check_values({name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}, None)
    by_points = kind.startswith("sparse")
    if by_points and not tensors["inducing"].numel():
        raise refused("inducing", "one point at least", "none")
    sizes: dict[str, tuple[int, ...]] = {name: (count,) for name, count in counts.items()}
    sizes |= {"1": (1,), "2": (2,), "3": (3,), "4": (4,), "p": (gp.outputs or 1,)}
    sizes["t"] = () if gp.outputs is None else (gp.outputs,)
    _check_shapes(tensors, wanted, sizes)
    if kind.endswith("_outputs") != gp.separate:
        raise refused(f"{FIELD}.kind", "that of the outputs' noise", kind)
    sparse = partial(_sparse, given=kind == "sparse_given")
    read = sparse if by_points else _fourier if kind == "fourier" else _full_scale
    return read(gp, tensors, counts, numbers, how, target)


def _check_shapes(tensors: Mapping[str, Tensor], wanted: Mapping[str, str], sizes: dict[str, tuple[int, ...]]) -> None:
    """Compare dtypes and shapes with each other. Args: sizes, of the dimensions that are known; others get theirs from
    the first tensor that has them. Raises: ModelFileError.
    """
    for name, tensor in tensors.items():
        kind, *dims = wanted[name].split()
        dtypes = _DTYPES.get(kind) or (tensors[kind].dtype,)
        shape, expected = tuple(tensor.shape), [known for dim in dims for known in sizes.get(dim, (dim,))]
        fits = len(shape) == len(expected) and all(
            w == size or isinstance(w, str) for size, w in zip(shape, expected, strict=True)
        )
        if not fits or tensor.dtype not in dtypes:
            raise refused(name, f"{' or '.join(map(str, dtypes))} of shape {expected}", f"{tensor.dtype} {shape}")
        sizes.update((w, (size,)) for size, w in zip(shape, expected, strict=True) if isinstance(w, str))
    if sizes["d"] == (0,):
        raise refused("x", "of at least one column", "of none")


def _full_scale(
    gp: GP, tensors: Mapping[str, Tensor], counts: Mapping[str, int], numbers: Mapping[str, float],
    how: tuple[Report, Run, UpdateState], target: torch.device,
) -> BaseState:  # fmt: skip
    x, group = tensors["x"], tensors.get("group")
    u = len(x)
    if group is not None:
        if not len(group):
            raise refused("group", "the numbers of rows", "none")
        u = int(group.max()) + 1
        check_group(group, x, u)
    inner, blocks = tensors["inner"], tensors["blocks"]
    if not torch.equal(inner, inner.tril()) or not bool((inner.diagonal(dim1=-2, dim2=-1) > 0).all()):
        raise refused("inner", "a Cholesky factor", "another matrix")
    for name in ("blocks", "neighbours"):
        if not bool(((tensors[name] >= -1) & (tensors[name] < u)).all()):
            raise refused(name, f"positions below {u}, or -1", "others")
    if not torch.equal(blocks[blocks >= 0].sort().values, torch.arange(u)):
        raise refused("blocks", f"each of {u} rows once", "others")
    check_rows(gp, x)
    late = _appended_blocks(blocks, u, how[2].appended)
    at = {name: tensor.to(target) for name, tensor in tensors.items()}
    sizes = Sizes(len(at["inducing"]), counts["block"], counts["neighbours"], counts["predicting"])
    layout = Layout(at["inducing"], Neighbourhoods(at["blocks"], at["neighbours"]), sizes, late)
    table = at["x"], at["y"], at.get("group")
    if gp.separate:
        each = [Sums.of(*one) for one in zip(at["inner"], at["projected"], at["sums"], strict=True)]
    else:
        each = [Sums(at["inner"], at["projected"], **numbers, reduced=counts["reduced"])]
    with refusing("x"):
        state = full_scale.restore(gp.to(target), table, layout, each[0], how)
        return of_outputs(state, each, None) if gp.separate else state


def _appended_blocks(blocks: Tensor, u: int, appended: int) -> int:
    """Number of blocks, the last ones, with the last rows, `appended` of u. Raises: ModelFileError."""
    if appended > u:
        raise refused("learned.appended", f"at most the {u} rows", appended)
    late = (blocks >= u - appended).any(1)
    count = int(late.sum())
    inside = blocks[len(blocks) - count :]
    if not bool(late[len(blocks) - count :].all()) or bool(((inside >= 0) & (inside < u - appended)).any()):
        raise refused("blocks", "those of appended rows behind the others", "others")
    return count


def _sparse(
    gp: GP, tensors: Mapping[str, Tensor], counts: Mapping[str, int], numbers: Mapping[str, float],
    how: tuple[Report, Run, UpdateState], target: torch.device, given: bool,
) -> BaseState:  # fmt: skip
    """Args: given, whether its q(u) is of no rows: it may be wider than the prior, and the sample is of points."""
    count, known = counts["count"], gp.likelihood.row_tensors
    prefix = "sample_"
    of_sample = {name.removeprefix(prefix): name for name in tensors if name.startswith(prefix)}
    numbers_of_sample = {name: tensors[key] for name, key in of_sample.items() if name not in ("x", "y")}
    own = tensors.get("sums")
    if own is None:
        own = torch.tensor([numbers[name] for name in ("squares", "logs", "noise_logs", "left")], dtype=torch.float64)
    if bool((own[[0, 3]] < 0.0).any()):
        raise refused(FIELD, "squares and variances not negative", str(own.tolist()))
    if not len(tensors["sample_x"]) or (len(tensors["sample_x"]) > count and not given):
        raise refused("sample_x", f"one row at least, and at most {count}", len(tensors["sample_x"]))
    if not torch.equal(tensors["gram"], tensors["gram"].mT):
        raise refused("gram", "a symmetric matrix", "another")
    for name, each in numbers_of_sample.items():
        if bool((each < 0).any()):
            raise refused(f"sample_{name}", "0 or more", "less")
    if ("x" in tensors) != ("y" in tensors):
        raise refused("x", "there with y, or neither", "one of them")
    if known and ("x" not in tensors or any(each.shape[:1] != (count,) for each in known.values())):
        raise refused("likelihood", f"numbers for each of {count} rows that are held, or none", "others")
    if "x" in tensors and (wrong := sorted(numbers_of_sample.keys() - known.keys())):
        raise refused(f"sample_{wrong[0]}", "there where the rows have such numbers", "another sample")
    check_rows(gp, tensors["inducing"])
    at = {name: tensor.to(target) for name, tensor in tensors.items()}
    sums = BoundSums.of(count, at["gram"], at["projected"], own.to(target), numbers["scale"])
    for one in sums.each:
        if not given:
            _check_positive(one.gram)
    sample = Block(at["sample_x"], at["sample_y"], {name: at[of_sample[name]] for name in sorted(numbers_of_sample)})
    with refusing("inducing"):
        table = (at["x"], at["y"]) if "x" in at else None
        state = streamed.restore(gp.to(target), at["inducing"], sums, sample, table, how)
    for one in sums.each:
        explained = float((one.projected * one.weights).sum())  # of the squares, by the inducing points
        if not explained <= float(one.squares) * (1.0 + ROOM):
            raise refused("projected", f"what squares of {one.squares:g} can be explained by", f"{explained:g}")
    return replace(state, given=given)


def _fourier(
    gp: GP, tensors: Mapping[str, Tensor], counts: Mapping[str, int], numbers: Mapping[str, float],
    how: tuple[Report, Run, UpdateState], target: torch.device,
) -> BaseState:  # fmt: skip
    orders, columns, d = tensors["orders"].tolist(), tensors["columns"].tolist(), tensors["sample_x"].shape[-1]
    widths = tensors["grids"].tolist() if "grids" in tensors else [len(orders)]
    if sum(widths) != len(orders) or not widths or not 1 <= min(widths) <= max(widths) <= MOST_COLUMNS:
        raise refused("grids", f"of one to {MOST_COLUMNS} columns each, of {len(orders)} in all", widths)
    if min(orders) < 1:
        raise refused("orders", "1 or more each", orders)
    grid = fourier.restored_grid(tensors)
    sets = [part.columns for part in grid.parts]
    if obstacle(gp.kernel, d) or sets not in ([columns_of(gp.kernel, d)], column_sets(gp.kernel, d)):
        raise refused("columns", "those of a stationary covariance function", columns)
    if not bool((tensors["box"][1:] > 0.0).all()) or numbers["tail"] < 0.0 or bool((tensors["squares"] < 0.0).any()):
        raise refused("box", "lengths above 0, squares and a tail not below", "others")
    if "grid_errors" in tensors and bool((tensors["grid_errors"] < 0.0).any()):
        raise refused("grid_errors", "0 or more", tensors["grid_errors"].tolist())
    if tensors["projected"].shape[-2] != (size := math.prod(grid.shape)):
        raise refused("projected", f"{size:,} numbers of frequencies", tensors["projected"].shape[-2])
    if isinstance(grid, Grids) and not coordinates_of(grid, size):
        raise refused("orders", "such that there is a factor", orders)
    wanted = (math.prod(grid.doubled.shape), 2) if isinstance(grid, Grid) else (grid.domains.size,) * 2
    if tensors["entries"].shape != wanted:
        raise refused("entries", f"of shape {wanted}", tuple(tensors["entries"].shape))
    if not 0 < len(tensors["sample_x"]) <= counts["count"]:
        raise refused("sample_x", f"one row at least, and at most {counts['count']}", len(tensors["sample_x"]))
    if ("x" in tensors) != ("y" in tensors):
        raise refused("x", "there with y, or neither", "one of them")
    with refusing("entries"):
        return fourier.restore(gp.to(target), tensors, {**numbers, **counts}, how)


def _check_positive(gram: Tensor) -> None:
    """A^T S^-1 A is positive semidefinite up to the rounding of its sums. Raises: ModelFileError."""
    room = ROOM * float(gram.diagonal().clamp_min(0.0).sum())
    shifted = gram.clone()
    shifted.diagonal().add_(room)
    if bool(gram.any()) and int(torch.linalg.cholesky_ex(shifted).info):
        raise refused("gram", "a positive semidefinite matrix", "another")
