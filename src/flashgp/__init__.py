"""FlashGP: exact Gaussian processes on PyTorch, planned, measured and certified."""

import importlib
from typing import TYPE_CHECKING, Any

from flashgp import kernels, likelihoods, means
from flashgp.foundations.errors import (
    BackendUnavailableError,
    ConvergenceError,
    DerivativeError,
    DomainError,
    FitInterrupted,
    FlashGPError,
    FlashGPWarning,
    MeasurementDisturbedError,
    MemoryBudgetError,
    MissingNameError,
    ModelFileError,
    NotPositiveDefiniteError,
    ProcessGroupError,
    RankMismatchError,
    ShapeError,
)
from flashgp.foundations.events import Event, EventKind, StopReason
from flashgp.foundations.lazy_import import lazy_import
from flashgp.foundations.parameters import Parameter
from flashgp.foundations.report import Report
from flashgp.inference.gp import GP

__version__ = "0.1.0"

# Names that bring heavier modules along are imported when first used.
_LATE = {
    "Fit": ("flashgp.inference.fit", "Fit"),
    "GPRegressor": ("flashgp.estimator", "GPRegressor"),
    "Importance": ("flashgp.inference.predict.importance", "Importance"),
    "Plan": ("flashgp.planner.plan", "Plan"),
    "Prediction": ("flashgp.inference.predict.prediction", "Prediction"),
    "Posterior": ("flashgp.inference.posterior", "Posterior"),
    "Stream": ("flashgp.inference.stream", "Stream"),
    "TableModel": ("flashgp.table_model", "TableModel"),
    "bench": ("flashgp.bench", None),
    "data": ("flashgp.data", None),
    "doctor": ("flashgp.diagnosis", "doctor"),
    "fit": ("flashgp.inference.fit", "fit"),
    "linalg": ("flashgp.linalg", None),
    "load": ("flashgp.model_files", "load"),
    "operators": ("flashgp.operators", None),
    "plan": ("flashgp.inference.plan", "plan"),
    "plots": ("flashgp.plots", None),
    "processes": ("flashgp.processes", None),
    "runtime": ("flashgp.foundations.placement", "runtime"),
    "save": ("flashgp.model_files", "save"),
    "tune": ("flashgp.planner.tuning", "tune"),
}

__all__ = [
    "GP",
    "BackendUnavailableError",
    "ConvergenceError",
    "DerivativeError",
    "DomainError",
    "Event",
    "EventKind",
    "Fit",
    "FitInterrupted",
    "FlashGPError",
    "FlashGPWarning",
    "GPRegressor",
    "Importance",
    "MeasurementDisturbedError",
    "MemoryBudgetError",
    "MissingNameError",
    "ModelFileError",
    "NotPositiveDefiniteError",
    "Parameter",
    "Plan",
    "Posterior",
    "Prediction",
    "ProcessGroupError",
    "RankMismatchError",
    "Report",
    "ShapeError",
    "StopReason",
    "Stream",
    "TableModel",
    "bench",
    "data",
    "doctor",
    "fit",
    "kernels",
    "likelihoods",
    "linalg",
    "load",
    "means",
    "operators",
    "plan",
    "plots",
    "processes",
    "runtime",
    "save",
    "tune",
]

if TYPE_CHECKING:
    from flashgp import bench, data, linalg, operators, plots, processes
    from flashgp.diagnosis import doctor
    from flashgp.estimator import GPRegressor
    from flashgp.foundations.placement import runtime
    from flashgp.inference.fit import Fit, fit
    from flashgp.inference.plan import plan
    from flashgp.inference.posterior import Posterior
    from flashgp.inference.predict.importance import Importance
    from flashgp.inference.predict.prediction import Prediction
    from flashgp.inference.stream import Stream
    from flashgp.model_files import load, save
    from flashgp.planner.plan import Plan
    from flashgp.planner.tuning import tune
    from flashgp.table_model import TableModel


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'flashgp' has no attribute {name!r}")
    module, attribute = _LATE[name]
    lazy_import(module)
    loaded = importlib.import_module(module)
    value = loaded if attribute is None else getattr(loaded, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
