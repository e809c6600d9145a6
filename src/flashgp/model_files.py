"""`flashgp.save` and `flashgp.load`: a file gives back what was saved, a posterior or the model of a table.

The format is that of `flashgp.files`; what turns columns into numbers and back is in the file's metadata, which are
read without executing anything, field by field. Of an estimator X_train_, y_train_ and the history of the fit are not
kept, nor class weights of a dict, nor the starting values of a kernel, mean or likelihood of the user's, which come
back with fitted parameters.
"""

import copy
import inspect
import os
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from flashgp import files
from flashgp.foundations.errors import DomainError
from flashgp.foundations.json_values import (
    json_count,
    json_fields,
    json_flag,
    json_list,
    json_number,
    json_text,
    refused,
)
from flashgp.inference.gp import GP
from flashgp.likelihoods import Gaussian
from flashgp.targets import MAX_SCALE, MIN_SCALE, Classes
from flashgp.units import Scaling

if TYPE_CHECKING:
    from torch import nn

    from flashgp.classifier import GPClassifier
    from flashgp.estimator import GPRegressor
    from flashgp.estimator_base import TableEstimator
    from flashgp.inference.fit import Fit
    from flashgp.inference.posterior import Posterior
    from flashgp.table_model import TableModel

_TABLE, _ESTIMATOR = "flashgp.table", "flashgp.estimator"  # keys of a file's metadata
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_VERSION = 2  # of an estimator, since it says whether weights were given to `fit`
_FIELDS = ("version", "settings", "own", "units", "features", "names", "encoding", "evidence", "repeated")
_PARTS = ("kernel", "mean", "likelihood")  # of a model; all other arguments are numbers, texts and flags
_MAX_COLUMNS = 1_000_000


def save(
    model: "Posterior | Fit | TableModel | GPClassifier | GPRegressor",
    path: str | os.PathLike[str],
    *,
    metadata: Mapping[str, Any] = _NOTHING,
) -> None:
    """Write a model to one safetensors file, whole or not at all.

    Args:
        model: a posterior, a fit (its posterior), a TableModel, or a fitted GPRegressor or GPClassifier, the latter
            with their columns, units and labels. A differentiable posterior is saved without its graph.
        path: the file; an existing one is replaced once the new one is complete.
        metadata: JSON values of the caller's own, for `flashgp.files.load_metadata`.

    Raises:
        DomainError: for a model that a file cannot hold (a kernel outside the registry, a prior outside the list, a
            module whose state is not all tensors), metadata that is not JSON, or a path that cannot be written.

    Warns:
        FlashGPWarning: naming the keys of foreign modules, whose code is not stored.
    Cost: O(n^2) bytes written and checksummed, n (n + 1) / 2 numbers of the factor; no copy of it on the CPU.

    Example:
        >>> x = torch.linspace(0.0, 1.0, 10, dtype=torch.float64).unsqueeze(-1)
        >>> posterior = fgp.GP(fgp.kernels.RBF()).condition(x, x[:, 0].sin())
        >>> fgp.save(posterior, "model.safetensors")
        >>> again = fgp.load("model.safetensors")
        >>> bool(torch.equal(again.predict(x).mean, posterior.predict(x).mean))
        True
    """
    kinds = {kind.__module__ for kind in type(model).__mro__}  # nothing is imported for what it is not
    if "flashgp.table_model.model" in kinds:
        cast("TableModel", model).save(path, metadata=metadata)
    elif "flashgp.estimator_base" in kinds:
        _save_estimator(cast("TableEstimator", model), path, metadata)
    else:
        files.save(cast("Posterior | Fit", model), path, metadata=metadata)


def load(
    path: str | os.PathLike[str],
    modules: "Mapping[str, nn.Module | Callable[..., torch.Tensor]]" = _NOTHING,
    *,
    device: "str | torch.device | None" = None,
) -> Any:
    """Read what `save` or `flashgp fit` wrote; it predicts what the saved one did, bit by bit on the same machine.

    Args:
        path: the file.
        modules: foreign modules by key, built as they were when saved; copies of them receive the stored numbers.
            Functions of Custom by key, as they are.
        device: None for the CPU, "auto" for an accelerator when there is one.

    Returns:
        What was saved: a Posterior; a TableModel, also for files that `flashgp fit` wrote, which takes columns as they
        are and answers in units of the table (its `.posterior` is the standardised one); or a GPRegressor or
        GPClassifier, without X_train_, y_train_ and history_, its own kernel, mean and likelihood with the fitted
        parameters.

    Raises:
        ModelFileError: for a file that cannot be read, is truncated, damaged, foreign, hostile or of another version.
        DomainError: for modules that are missing or do not fit.
        ShapeError: for modules whose tensors have other shapes.
        MemoryBudgetError: when the model is larger than the free memory, before anything large is allocated.
    Cost: one pass over the file; no factorisation.

    Example:
        >>> posterior = fgp.GP(fgp.kernels.RBF()).condition(torch.zeros(1, 2), torch.ones(1))
        >>> fgp.save(posterior, "model.safetensors")
        >>> fgp.load("model.safetensors").count
        1
    """
    metadata = files.load_metadata(path)
    if _TABLE in metadata:
        from flashgp.table_model import TableModel

        return TableModel.load(path, modules, device=device)
    if _ESTIMATOR in metadata:
        return _load_estimator(path, modules, device)
    return files.load(path, modules, device=device)


# -- estimators -------------------------------------------------------------------------------------------------------
def _save_estimator(model: "TableEstimator", path: str | os.PathLike[str], metadata: Mapping[str, Any]) -> None:
    """Write a fitted estimator. Raises: DomainError before `fit`, for units that no file holds, and as `files.save`."""
    if not hasattr(model, "posterior_"):
        raise DomainError(
            f"`model` must be a fitted {type(model).__name__}, got one without data; call fit(X, y) first"
        )
    scalings = model._fitted.scalings
    for scaling in scalings:
        shift, scale = scaling.target.sizes
        numbers = (*scaling.x_scale, scale, *map(abs, scaling.x_shift), abs(shift))
        if max(numbers) >= MAX_SCALE or min(*scaling.x_scale, scale) <= MIN_SCALE:
            raise DomainError(
                f"`model` must have columns of a size between {MIN_SCALE:g} and {MAX_SCALE:g}, got {max(numbers):g}; "
                "fit it in other units"
            )
    settings = model.get_params(deep=False)
    own = [name for name in _PARTS if settings[name] is not None and not isinstance(settings[name], str)]
    kept = {name: _plain(value) for name, value in settings.items() if name not in own}
    evidence = model.log_marginal_likelihood_value_ if model._repeated else model._evidence
    names = getattr(model, "feature_names_in_", None)
    data = {
        "version": _VERSION,
        "settings": kept,
        "own": own,
        "units": [scaling.to_json() for scaling in scalings],
        "features": model.n_features_in_,
        "names": None if names is None else [str(name) for name in names],
        "encoding": None if model.encoding_ is None else model.encoding_.to_json(),
        "evidence": evidence,
        "repeated": model._repeated,
        "weighted": model._weighted,
    }
    files.save(model.posterior_, path, metadata={**metadata, _ESTIMATOR: data})


def _load_estimator(path: str | os.PathLike[str], modules: Any, device: Any) -> "TableEstimator":
    """Read what `_save_estimator` wrote. Raises: ModelFileError naming the field that is not as it should be."""
    from flashgp.classifier import GPClassifier
    from flashgp.estimator import GPRegressor
    from flashgp.fitted_table import restored
    from flashgp.table import FrameEncoding

    data = files.load_metadata(path).get(_ESTIMATOR)
    version = data.get("version") if isinstance(data, dict) else None
    if isinstance(data, dict) and (type(version) is not int or version not in (1, _VERSION)):
        raise refused("estimator.version", f"1 or {_VERSION}", version)
    fields = json_fields(data, "estimator", (*_FIELDS, *("weighted",) * (version == _VERSION)))
    settings, own = fields["settings"], json_list(fields["own"], "estimator.own")
    scalings = [Scaling.from_json(entry) for entry in json_list(fields["units"], "estimator.units")]
    targets = [scaling.target for scaling in scalings]
    kind: Any = GPClassifier if targets and isinstance(targets[0], Classes) else GPRegressor
    known = [name for name in inspect.signature(kind).parameters if name not in own]
    if not isinstance(settings, dict) or not {*settings} <= {*known} or not {*own} <= {*_PARTS}:
        raise refused("estimator.settings", f"some of {', '.join(known)}", settings)
    if any(isinstance(value, list | dict) for value in settings.values()):
        raise refused("estimator.settings", "numbers, texts and flags", settings)
    features = json_count(fields["features"], "estimator.features", _MAX_COLUMNS)
    repeated = json_flag(fields["repeated"], "estimator.repeated")
    weighted = repeated if version == 1 else json_flag(fields["weighted"], "estimator.weighted")
    fitted = restored(path, modules, device, scalings, features, kind.units)
    model, gp = kind(**settings), cast(GP, fitted.posterior.gp.released())
    parts = copy.deepcopy(
        {
            "kernel": gp.kernel,
            "mean": gp.mean,
            "likelihood": _in_units(gp.likelihood, scalings[0].target.sizes[1], weighted),
        }
    )
    model.set_params(**{name: parts[name] for name in own})
    model.n_features_in_ = features
    if fields["names"] is not None:
        names = [json_text(name, "estimator.names") for name in json_list(fields["names"], "estimator.names")]
        if len(names) != features:
            raise refused("estimator.names", f"{features} names", names)
        model.feature_names_in_ = np.asarray(names, dtype=object)
    model.encoding_ = None
    if fields["encoding"] is not None:
        model.encoding_ = FrameEncoding.from_json(fields["encoding"], "estimator.encoding")
        if len(model.encoding_.inputs) != features:
            raise refused("estimator.encoding", f"{features} columns", fields["encoding"])
    evidence = None if fields["evidence"] is None else json_number(fields["evidence"], "estimator.evidence")
    if isinstance(targets[0], Classes):
        model.classes_ = np.array(targets[0].labels)
    restored_model: TableEstimator = model.restore(fitted, gp, evidence, repeated=repeated, weighted=weighted)
    return restored_model


def _plain(value: Any) -> Any:
    """A setting as JSON; a generator of random numbers has none, and is left to the default."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    return str(value).removeprefix("torch.") if isinstance(value, torch.device | torch.dtype) else None


def _in_units(likelihood: Any, y_scale: float, weighted: bool) -> Any:
    """The likelihood as an argument: weights that were given to `fit` are not its own, row variances in units of y."""
    if not isinstance(likelihood, Gaussian):
        return likelihood.with_rows() if weighted else likelihood
    known = likelihood.row_variance
    return Gaussian(
        likelihood.noise_variance,
        row_variance=None if known is None else known * y_scale**2,
        row_weight=None if weighted else likelihood.row_weight,
    )
