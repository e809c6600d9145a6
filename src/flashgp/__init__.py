"""FlashGP: exact Gaussian processes on PyTorch, planned, measured and certified."""

import importlib
from typing import TYPE_CHECKING, Any

from flashgp.foundations.lazy_import import lazy_import

__version__ = "0.1.0"

# Where names are; torch comes with the first of them, so that the command line can answer Ctrl-C before.
_HOME = {
    **dict.fromkeys(
        (
            "BackendUnavailableError",
            "ConvergenceError",
            "DerivativeError",
            "DomainError",
            "FitInterrupted",
            "FlashGPError",
            "FlashGPWarning",
            "MeasurementDisturbedError",
            "MemoryBudgetError",
            "MissingNameError",
            "ModelFileError",
            "NotPositiveDefiniteError",
            "ProcessGroupError",
            "RankMismatchError",
            "ShapeError",
        ),
        "flashgp.foundations.errors",
    ),
    "Event": "flashgp.foundations.events",
    "EventKind": "flashgp.foundations.events",
    "Fit": "flashgp.inference.fit",
    "GP": "flashgp.inference.gp",
    "GPClassifier": "flashgp.classifier",
    "GPRegressor": "flashgp.estimator",
    "Importance": "flashgp.inference.predict.importance",
    "Parameter": "flashgp.foundations.parameters",
    "Plan": "flashgp.planner.plan",
    "Posterior": "flashgp.inference.posterior",
    "Prediction": "flashgp.inference.predict.prediction",
    "Report": "flashgp.foundations.report",
    "StopReason": "flashgp.foundations.events",
    "Stream": "flashgp.inference.stream",
    "TableModel": "flashgp.table_model",
    "Verdict": "flashgp.inference.judgement.verdict",
    "bench": "flashgp.bench",
    "data": "flashgp.data",
    "doctor": "flashgp.diagnosis",
    "fit": "flashgp.inference.fit",
    "interop": "flashgp.interop",
    "kernels": "flashgp.kernels",
    "likelihoods": "flashgp.likelihoods",
    "linalg": "flashgp.linalg",
    "load": "flashgp.model_files",
    "means": "flashgp.means",
    "operators": "flashgp.operators",
    "plan": "flashgp.inference.plan",
    "plots": "flashgp.plots",
    "processes": "flashgp.processes",
    "runtime": "flashgp.foundations.placement",
    "save": "flashgp.model_files",
    "tune": "flashgp.planner.tuning",
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
    "GPClassifier",
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
    "Verdict",
    "bench",
    "data",
    "doctor",
    "fit",
    "interop",
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
    from flashgp import bench, data, interop, kernels, likelihoods, linalg, means, operators, plots, processes
    from flashgp.classifier import GPClassifier
    from flashgp.diagnosis import doctor
    from flashgp.estimator import GPRegressor
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
    from flashgp.foundations.parameters import Parameter
    from flashgp.foundations.placement import runtime
    from flashgp.foundations.report import Report
    from flashgp.inference.fit import Fit, fit
    from flashgp.inference.gp import GP
    from flashgp.inference.judgement.verdict import Verdict
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
    if name not in _HOME:
        raise AttributeError(f"module 'flashgp' has no attribute {name!r}")
    lazy_import(_HOME[name])
    module = importlib.import_module(_HOME[name])
    value = module if _HOME[name] == f"flashgp.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
