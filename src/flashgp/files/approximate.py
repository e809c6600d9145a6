"""What a model file holds of a full-scale posterior in place of a factor, and what it must be when it is read."""

import math
from typing import Any

import torch
from torch import Tensor

from flashgp.files.container import Container
from flashgp.files.validation import check_group, check_memory, check_values, refusing
from flashgp.foundations.json_values import json_count, json_fields, json_number, refused
from flashgp.foundations.report import Report
from flashgp.inference.full_scale.factor import Sums
from flashgp.inference.full_scale.layout import Layout
from flashgp.inference.full_scale.restore import restore
from flashgp.inference.full_scale.state import FullScaleState
from flashgp.inference.prior import Prior
from flashgp.inference.settings import SolveSettings
from flashgp.inference.state import UpdateState
from flashgp.planner.approximate_prices import Sizes
from flashgp.solvers.preconditioners.near_rows import Neighbourhoods

APPROXIMATION = "approximation"  # the field of a file's description
_KIND = "full_scale"
_COUNTS = ("block", "neighbours", "predicting", "reduced")
_FIELDS = ("block", "kind", "log_determinant", "neighbours", "predicting", "reduced", "squares")
_TENSORS = ("x", "y", "inducing", "blocks", "neighbours", "inner", "projected")
_MAX = 2**31


def approximation_tensors(state: FullScaleState) -> dict[str, Tensor]:
    """The numbers that predictions, leave-one-out and likelihood are made of."""
    near, sums = state.layout.near, state.sums
    held = (state.x, state.y, state.layout.inducing, near.blocks, near.neighbours, sums.inner, sums.projected)
    return dict(zip(_TENSORS, held, strict=True))


def approximation_json(state: FullScaleState) -> dict[str, Any]:
    """Sizes and sums."""
    sizes, sums = state.sizes, state.sums
    return {
        "kind": _KIND, "block": sizes.block, "neighbours": sizes.neighbours, "predicting": sizes.predicting,
        "log_determinant": sums.log_determinant, "squares": sums.squares, "reduced": sums.reduced,
    }  # fmt: skip


def read_state(
    container: Container, value: Any, prior: Prior, report: Report, how: tuple[SolveSettings, UpdateState],
    target: torch.device,
) -> FullScaleState:  # fmt: skip
    """The state of a file that nobody vouches for. Args: how, settings and what happened online.

    Raises: ModelFileError.
    """
    settings, online = how
    fields = json_fields(value, APPROXIMATION, _FIELDS)
    if fields["kind"] != _KIND:
        raise refused(f"{APPROXIMATION}.kind", _KIND, fields["kind"])
    counts = {name: json_count(fields[name], f"{APPROXIMATION}.{name}", _MAX) for name in _COUNTS}
    numbers = {name: json_number(fields[name], f"{APPROXIMATION}.{name}") for name in ("log_determinant", "squares")}
    if not all(math.isfinite(number) for number in numbers.values()):
        raise refused(APPROXIMATION, "finite sums", str(numbers))
    check_memory(2 * container.nbytes, "the model")
    tensors = {name: container.tensor(name) for name in _TENSORS}
    group = container.tensor("group") if "group" in container else None
    container.require_all_read()
    check_values({name: t for name, t in tensors.items() if t.is_floating_point()}, None)
    x, y = tensors["x"], tensors["y"]
    if x.dim() != 2 or x.shape[1] < 1 or y.shape[:1] != x.shape[:1] or y.dim() != (1 if prior.outputs is None else 2):
        raise refused("x", "of shape (n, d), with y of as many rows", f"{tuple(x.shape)}, {tuple(y.shape)}")
    u = len(x)
    if group is not None:
        if group.dtype != torch.int64 or group.shape != x.shape[:1] or not len(group):
            raise refused("group", f"{len(x)} integers", str(tuple(group.shape)))
        u = int(group.max()) + 1
        check_group(group, x, u)
    _check_shapes(tensors, u, prior.outputs or 1)
    near = Neighbourhoods(tensors["blocks"].to(target), tensors["neighbours"].to(target))
    sizes = Sizes(len(tensors["inducing"]), counts["block"], counts["neighbours"], counts["predicting"])
    late = _appended_blocks(near.blocks, u, online.appended)
    layout = Layout(tensors["inducing"].to(target), near, sizes, late)
    sums = Sums(tensors["inner"].to(target), tensors["projected"].to(target), **numbers, reduced=counts["reduced"])
    with refusing("x"):
        group = None if group is None else group.to(target)
        return restore(prior.to(target), (x.to(target), y.to(target), group), layout, sums, report, settings, online)


def _appended_blocks(blocks: Tensor, u: int, appended: int) -> int:
    """How many blocks, the last ones, have the last rows, `appended` of u. Raises: ModelFileError."""
    if appended > u:
        raise refused("learned.appended", f"at most the {u} rows", appended)
    late = (blocks >= u - appended).any(1)
    count = int(late.sum())
    inside = blocks[len(blocks) - count :]
    if not bool(late[len(blocks) - count :].all()) or bool(((inside >= 0) & (inside < u - appended)).any()):
        raise refused("blocks", "those of appended rows behind the others", "others")
    return count


def _check_shapes(tensors: dict[str, Tensor], u: int, outputs: int) -> None:
    """Compare them with each other, and positions with the rows. Raises: ModelFileError."""
    inducing, blocks, neighbours = (tensors[name] for name in ("inducing", "blocks", "neighbours"))
    m = len(inducing)
    shapes = {"inducing": (m, tensors["x"].shape[1]), "inner": (m, m), "projected": (m, outputs)}
    for name, shape in shapes.items():
        if tuple(tensors[name].shape) != shape or (name != "inducing" and tensors[name].dtype != torch.float64):
            raise refused(name, f"float64 of shape {shape}", f"{tensors[name].dtype} {tuple(tensors[name].shape)}")
    if inducing.dtype != tensors["x"].dtype:
        raise refused("inducing", f"{tensors['x'].dtype} as x", str(inducing.dtype))
    lower = tensors["inner"]
    if not torch.equal(lower, lower.tril()) or not bool((lower.diagonal() > 0).all()):
        raise refused("inner", "a Cholesky factor", "another matrix")
    for name, index in (("blocks", blocks), ("neighbours", neighbours)):
        if index.dtype != torch.int64 or index.dim() != 2 or len(index) != len(blocks):
            raise refused(name, "rows of positions, one for each block", f"{index.dtype} {tuple(index.shape)}")
        if index.numel() and not bool(((index >= -1) & (index < u)).all()):
            raise refused(name, f"positions below {u}, or -1", "others")
    found = blocks[blocks >= 0].sort().values
    if not torch.equal(found, torch.arange(u)):
        raise refused("blocks", f"each of {u} rows once", "others")
