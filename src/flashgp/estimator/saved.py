"""A fitted GPRegressor in a model file: its posterior as `flashgp.files` writes it, the rest in the metadata.

Reading executes nothing and checks every field. Not kept: X_train_ and y_train_, the history of the fit, and the
starting values of a kernel, mean or likelihood of the user's, which come back with their fitted parameters.
"""

import copy
import inspect
import os
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, cast

import numpy as np
import torch

from flashgp import files
from flashgp.estimator.regressor import GPRegressor
from flashgp.foundations.errors import DomainError, ModelFileError
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
from flashgp.standardise import MAX_SCALE, MIN_SCALE, ColumnScaling, Scaling
from flashgp.table import FrameEncoding
from flashgp.units import Units

ESTIMATOR_KEY = "flashgp.estimator"  # of a file's metadata
_VERSION = 2  # since it says whether weights were given to `fit`
_FIELDS = ("version", "settings", "own", "units", "features", "names", "encoding", "evidence", "repeated")
_PARTS = ("kernel", "mean", "likelihood")  # of a model; all other arguments are numbers, texts and flags
_MAX_COLUMNS = 1_000_000


def save_regressor(model: GPRegressor, path: str | os.PathLike[str], metadata: Mapping[str, Any]) -> None:
    """Write a fitted estimator. Raises: DomainError before `fit`, for units that no file holds, and as `files.save`."""
    if not hasattr(model, "posterior_"):
        raise DomainError("`model` must be a fitted GPRegressor, got one without data; call fit(X, y) first")
    scalings = model._units.scalings()
    for scaling in scalings:
        numbers = (*scaling.x_scale, scaling.y_scale, *map(abs, scaling.x_shift), abs(scaling.y_shift))
        if max(numbers) >= MAX_SCALE or min(*scaling.x_scale, scaling.y_scale) <= MIN_SCALE:
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
    files.save(model.posterior_, path, metadata={**metadata, ESTIMATOR_KEY: data})


def load_regressor(path: str | os.PathLike[str], modules: Any, device: Any) -> GPRegressor:
    """Read what `save_regressor` wrote. Raises: ModelFileError naming the field that is not as it should be."""
    data = files.load_metadata(path).get(ESTIMATOR_KEY)
    version = data.get("version") if isinstance(data, dict) else None
    if isinstance(data, dict) and (type(version) is not int or version not in (1, _VERSION)):
        raise refused("estimator.version", f"1 or {_VERSION}", version)
    fields = json_fields(data, "estimator", (*_FIELDS, *("weighted",) * (version == _VERSION)))
    settings, own = fields["settings"], json_list(fields["own"], "estimator.own")
    known = [name for name in inspect.signature(GPRegressor).parameters if name not in own]
    if not isinstance(settings, dict) or not {*settings} <= {*known} or not {*own} <= {*_PARTS}:
        raise refused("estimator.settings", f"some of {', '.join(known)}", settings)
    if any(isinstance(value, list | dict) for value in settings.values()):
        raise refused("estimator.settings", "numbers, texts and flags", settings)
    scalings = [Scaling.from_json(entry) for entry in json_list(fields["units"], "estimator.units")]
    features = json_count(fields["features"], "estimator.features", _MAX_COLUMNS)
    repeated = json_flag(fields["repeated"], "estimator.repeated")
    weighted = repeated if version == 1 else json_flag(fields["weighted"], "estimator.weighted")
    posterior = files.load(path, modules, device=device)
    if (
        (like := posterior.state.like[0]).shape != (len(like), features)
        or len(scalings) != (posterior.gp.outputs or 1)
        or any(len(scaling.x_shift) != features for scaling in scalings)
    ):
        raise ModelFileError(
            f"the units of {os.fspath(path)!r} do not fit its model of x {tuple(like.shape)}; "
            "the file is damaged or foreign, save the model again"
        )
    model = GPRegressor(**settings)
    model._units = _units(scalings)
    gp = cast(GP, posterior.gp.released())
    parts = copy.deepcopy(
        {"kernel": gp.kernel, "mean": gp.mean, "likelihood": _in_units(gp.likelihood, model, weighted)}
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
    model.restore(gp, posterior, evidence, repeated=repeated, weighted=weighted)
    return model


def _plain(value: Any) -> Any:
    """A setting as JSON; a generator of random numbers has none, and is left to the default."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    return str(value).removeprefix("torch.") if isinstance(value, torch.device | torch.dtype) else None


def _units(scalings: list[Scaling]) -> Units:
    first = scalings[0]
    x = ColumnScaling(*_columns(first.x_shift, first.x_scale))
    y = ColumnScaling(*_columns([s.y_shift for s in scalings], [s.y_scale for s in scalings]))
    return Units(x, y, tuple(scaling.transform for scaling in scalings))


def _columns(shift: Any, scale: Any) -> tuple[Any, Any, Any]:
    return np.asarray(shift, np.float64), np.asarray(scale, np.float64), np.zeros(len(shift), dtype=bool)


def _in_units(likelihood: Any, model: GPRegressor, weighted: bool) -> Any:
    """The likelihood as an argument: weights that were given to `fit` are not its own, row variances in units of y."""
    if not isinstance(likelihood, Gaussian):
        return likelihood
    known = likelihood.row_variance
    return Gaussian(
        likelihood.noise_variance,
        row_variance=None if known is None else known * model._units.y.scale[0] ** 2,
        row_weight=None if weighted else likelihood.row_weight,
    )
