"""Save and load a posterior: what it predicts with, bit by bit, and what learning goes on from.

The file holds x, y, the factor's lower triangle and jitter where there is a factor (one of each output with noise of
its own), representer weights, residual, the
unconstrained parameters and the buffers as tensors, where rows repeat the number of the distinct row that each joined
(`group`), and a JSON description (description.py). Loading factorises nothing: row features and
parameter values are computed again from x, everything else is as it was.

Foreign modules (Warped's module, a mean that is no flashgp mean) are stored as numbers only. Each has a key, its first
dotted path from the GP: "kernel.module", "kernel.kernels.1.module", "mean". `load` takes them by that key, and the
functions of Custom by "kernel.function".
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from flashgp import __version__
from flashgp.files.approximations import FIELD, read_state
from flashgp.files.container import (
    Container,
    file_path,
    lower_triangle,
    open_container,
    stacked,
    stored,
    write_container,
)
from flashgp.files.description import DESCRIPTION_FIELDS, describe, rebuild, with_noise_of_outputs
from flashgp.files.modules import code_marks, warn_of_other_code
from flashgp.files.report_fields import json_report, report_json
from flashgp.files.validation import (
    check_batch,
    check_group,
    check_memory,
    check_rows,
    check_shapes,
    check_values,
    refusing,
)
from flashgp.foundations.errors import DomainError, warn
from flashgp.foundations.json_values import (
    json_count,
    json_fields,
    json_flag,
    json_list,
    json_text,
    refused,
    strict_json,
)
from flashgp.foundations.parameters import named_parameter_objects
from flashgp.foundations.report import Report
from flashgp.inference.base_state import UpdateState
from flashgp.inference.exact.mixture import MixtureState, batch_of
from flashgp.inference.exact.restore import STORED, restore
from flashgp.inference.gp import GP
from flashgp.inference.output_states import AnyState
from flashgp.inference.posterior import Posterior
from flashgp.inference.run import Run
from flashgp.planner.problem import chosen_device
from flashgp.solvers.direct.cholesky import Factor, TriangularFactor

if TYPE_CHECKING:
    from flashgp.inference.fit import Fit

NO_MODULES: Mapping[str, "nn.Module | Callable[..., torch.Tensor]"] = MappingProxyType({})
_CONFIG = (*DESCRIPTION_FIELDS, "attempts", "flashgp", "layouts", "report", "torch")
_SOLVES = ("deterministic", "seed", "tolerance")
_LEARNED = ("appended", "dropped", "refactorised", "refined")
_MAX_COUNT = 2**53  # of a count


def save(
    model: "Posterior | Fit", path: str | os.PathLike[str], *, metadata: Mapping[str, Any] = MappingProxyType({})
) -> None:
    """Write a posterior (or a fit: its posterior) to one safetensors file, whole or not at all.

    Args:
        model: what `gp.condition` or `fgp.fit` returned. A differentiable posterior is saved without its graph; an
            approximate one that rows were appended to predicts the same to rounding.
        path: the file; an existing one is replaced once the new one is complete.
        metadata: JSON values of the caller's own, for `load_metadata`.

    Raises:
        DomainError: for a model that a file cannot hold (a kernel outside the registry, a prior outside the list, a
            module whose state is not all tensors), metadata that is not JSON, or a path that cannot be written.

    Warns:
        FlashGPWarning: naming the keys of foreign modules, whose code is not stored.
    Cost: O(n^2) bytes written and checksummed, n (n + 1) / 2 numbers of the factor; no copy of it on the CPU.

    Example:
        >>> import torch
        >>> import flashgp as fgp
        >>> x = torch.linspace(0.0, 1.0, 10, dtype=torch.float64).unsqueeze(-1)
        >>> posterior = fgp.GP(fgp.kernels.RBF()).condition(x, x[:, 0].sin())
        >>> fgp.save(posterior, "model.safetensors")
        >>> again = fgp.load("model.safetensors")
        >>> bool(torch.equal(again.predict(x).mean, posterior.predict(x).mean))
        True
    """
    posterior = model if isinstance(model, Posterior) else getattr(model, "posterior", None)
    if not isinstance(posterior, Posterior):
        raise DomainError(
            f"`model` must be a Posterior, a Fit, a TableModel or a GPRegressor, got {type(model).__name__}; pass what "
            "gp.condition(x, y) or a fit returned"
        )
    state, prior = posterior.state.stored, posterior.state.prior
    if state.run.group.rank:
        raise DomainError(
            f"`model` of a group must be saved by rank 0, got rank {state.run.group.rank} of "
            f"{state.run.group.size}, which has the same one; save where group.rank() == 0"
        )
    trains = set(prior.trainable_names())
    description, tensors = describe(prior, {name: name in trains for name, _ in prior.named_parameters()})
    tensors |= posterior.state.tensors()
    factors, each = _factors([part.factor for part in state.parts]), prior.separate
    attempts = [float(value) for factor in factors for value in factor.attempts]
    if factors:
        tensors["jitter"] = torch.stack([factor.jitter for factor in factors]) if each else factors[0].jitter
    packed = {name: stored(tensor) for name, tensor in tensors.items()}
    layouts = {name: order for name, (_, order) in packed.items() if order is not None}
    entries = {name: entry for name, (entry, _) in packed.items()}
    if factors:
        triangles = [lower_triangle(factor.lower) for factor in factors]
        entries["factor"] = stacked(triangles) if each else triangles[0]
    run, online = state.run, state.online
    config = {
        **description,
        "attempts": attempts,
        "layouts": layouts,
        "report": report_json(posterior.report),
        "flashgp": __version__,
        "torch": torch.__version__,
        "solves": {name: getattr(run, name) for name in _SOLVES},
        "learned": {name: getattr(online, name) for name in _LEARNED},
    }
    if numbers := state.numbers():
        config[FIELD] = numbers
    keys = list(description["modules"])
    if keys:
        config["code"] = code_marks(prior, keys)
    if not isinstance(metadata, Mapping):
        raise DomainError(f"`metadata` must be a mapping of JSON values, got {type(metadata).__name__}; pass a dict")
    write_container(file_path(path), entries, strict_json(config, "model"), strict_json(dict(metadata), "metadata"))
    if keys:
        warn(
            f"the code of {', '.join(map(repr, keys))} is not stored in a model file, only its parameters and buffers: "
            f"load it with modules={{{', '.join(f'{key!r}: ...' for key in keys)}}}"
        )


def _factors(found: Sequence[TriangularFactor | None]) -> list[TriangularFactor]:
    """Factors present in the file. Raises: DomainError where some outputs have others."""
    kinds = {None if factor is None else factor.dtype for factor in found}
    if len(kinds) > 1:
        raise DomainError(
            "`model` must have factors of one kind for all outputs to be saved, got "
            f'{", ".join(sorted(str(kind) for kind in kinds))}; condition with dtype=torch.float64, or solver="cg"'
        )
    return [factor for factor in found if factor is not None]


def load(
    path: str | os.PathLike[str],
    modules: "Mapping[str, nn.Module | Callable[..., torch.Tensor]]" = NO_MODULES,
    *,
    device: str | torch.device | None = None,
) -> Posterior:
    """Read a posterior that `save` wrote; it predicts what the saved one did, bit by bit on the same machine.

    Args:
        path: the file.
        modules: foreign modules by key, built as they were when saved; copies of them receive the stored numbers.
            Functions of Custom by key, as they are. A warning names those whose code is not what was saved.
        device: None for the CPU, "auto" for an accelerator when there is one.

    Returns:
        The posterior.

    Raises:
        ModelFileError: for a file that cannot be read, is truncated, damaged, foreign, hostile or of another version.
        DomainError: for modules that are missing or do not fit.
        ShapeError: for modules whose tensors have other shapes.
        MemoryBudgetError: when the model is larger than the free memory, before anything large is allocated.
    Cost: one pass over the file; no factorisation.

    Example:
        >>> import torch
        >>> import flashgp as fgp
        >>> posterior = fgp.GP(fgp.kernels.RBF()).condition(torch.zeros(1, 2), torch.ones(1))
        >>> fgp.save(posterior, "model.safetensors")
        >>> fgp.load("model.safetensors").count
        1
    """
    target = chosen_device(device, torch.zeros(0))
    with open_container(file_path(path)) as container:
        version, described = container.version, container.config
        since = ("solves",) * (version > 1) + ("learned",) * (version > 2)
        if isinstance(described, dict):  # of foreign modules, and of approximations
            since += tuple(name for name in ("code", FIELD) if name in described)
        config = json_fields(described, "config", (*_CONFIG, *since))
        for name in ("flashgp", "torch"):
            json_text(config[name], name)
        config, separate = with_noise_of_outputs(config, version)
        sizes = None if FIELD in config else check_shapes(container, config["outputs"], separate=separate)
        check_memory(2 * container.nbytes, "the model")
        gp = rebuild(config, container.tensor, modules).held()
        if "log_weights" in container:
            gp = _drawn(gp, container)
        if "code" in config:
            warn_of_other_code(config["code"], config["modules"], modules)
        how = (
            json_report(config["report"], version),
            _settings(config["solves"], version) if version > 1 else Run(),
            _update_state(config["learned"]) if version > 2 else UpdateState(),
        )
        if sizes is None:
            return Posterior(read_state(container, config[FIELD], gp, how, target))
        return Posterior(_read_exact(container, gp, config["attempts"], sizes, how, target))


def _read_exact(
    container: Container,
    gp: GP,
    attempts: Any,
    sizes: tuple[int, tuple[int, ...]],
    how: tuple[Report, Run, UpdateState],
    target: torch.device,
) -> AnyState | MixtureState:
    """An exact state, or a mixture of such. Args: sizes, the number of distinct rows and the batch shape.

    Raises: ModelFileError.
    """
    n, batch = sizes
    data = {name: container.tensor(name) for name in STORED}
    factor = None
    if "factor" in container:
        if not all(isinstance(value, float) for value in json_list(attempts, "attempts")):
            raise refused("attempts", "numbers", attempts)
        factor = Factor(container.lower_triangle("factor", n), container.tensor("jitter"), attempts)
    group = container.tensor("group") if "group" in container else None
    log_weights = container.tensor("log_weights") if "log_weights" in container else None
    container.require_all_read()
    check_values(data, factor)
    check_rows(gp, data["x"])
    if group is not None:
        check_group(group, data["x"], n)
        group = group.to(target)
    if target.type != "cpu":
        gp = gp.to(target)
        data = {name: value.to(target) for name, value in data.items()}
        factor = factor and Factor(factor.lower.to(target), factor.jitter.to(target), factor.attempts)
    with refusing("x"):
        factors = None if factor is None else _each(factor) if gp.separate else [factor]
        report, run, online = how
        state = restore(gp, data, factors, report, group=group, run=run, online=online)
        check_batch(gp, state.rows, state.theta, batch, data)
    if log_weights is None:
        return state
    if log_weights.shape != batch or log_weights.dtype != torch.float64 or log_weights.isnan().any():
        raise refused("log_weights", f"float64 of shape {batch}", f"{log_weights.dtype} {tuple(log_weights.shape)}")
    return MixtureState(state, log_weights.to(target), report)


def _drawn(gp: GP, container: Container) -> GP:
    """The batch of draws of a mixture over hyperparameters. Raises: ModelFileError."""
    draws = {}
    for name, parameter in named_parameter_objects(gp):
        if f"draws.{name}" not in container:
            continue
        raw = container.tensor(f"draws.{name}")
        if raw.dtype != torch.float64 or raw.shape[1:] != parameter.raw.shape or not bool(raw.isfinite().all()):
            raise refused(f"draws.{name[:60]}", f"finite, of shape (draws, {tuple(parameter.raw.shape)})", raw.shape)
        draws[f"{name}.raw"] = raw
    return batch_of(gp, draws)


def _each(factor: Factor) -> list[Factor]:
    """The factors of outputs that one has in front."""
    pairs = zip(factor.lower, factor.jitter, strict=True)
    return [Factor(lower, jitter, factor.attempts) for lower, jitter in pairs]


def _settings(value: Any, version: int) -> Run:
    """Settings of later solves; before version 4 the default tolerance. Raises: ModelFileError."""
    fields = json_fields(value, "solves", _SOLVES if version > 3 else _SOLVES[:2])
    if type(fields["seed"]) is not int or abs(fields["seed"]) >= 2**62:
        raise refused("solves.seed", "a whole number", fields["seed"])
    json_flag(fields["deterministic"], "solves.deterministic")
    tolerance = fields.get("tolerance", 1.0)
    if not isinstance(tolerance, float) or not 0.0 < tolerance < math.inf:
        raise refused("solves.tolerance", "a positive number", tolerance)
    return Run(**fields)


def _update_state(value: Any) -> UpdateState:
    """Record of online updates. Raises: ModelFileError."""
    fields = json_fields(value, "learned", _LEARNED)
    for name, count in fields.items():
        json_count(count, f"learned.{name}", _MAX_COUNT)
    return UpdateState(**fields)


def load_metadata(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The `metadata` that `save` was given; reads the header only.

    Raises:
        ModelFileError: as `load`, for all that the header shows.
    """
    with open_container(file_path(path)) as container:
        metadata: dict[str, Any] = container.metadata
        return metadata
