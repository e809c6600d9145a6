"""A fitted table: a posterior in standard units, what takes rows there and brings answers back, how it was asked for.

One definition for `GPRegressor`, `TableModel` and the command line, which differ in what they are given: arrays and
frames, tables, files. What is fitted, and how, is `flashgp.table_fit`'s matter: predictions do without it.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flashgp import files
from flashgp.foundations.deadline import Deadline
from flashgp.foundations.errors import DomainError, ModelFileError
from flashgp.foundations.events import Event
from flashgp.foundations.profile_ranges import profile_range
from flashgp.inference.approximation import Approximation, approximation_of
from flashgp.inference.findings import why_unfinished
from flashgp.inference.judgement.verdict import Verdict
from flashgp.inference.judging import Told, verdict_of
from flashgp.inference.posterior import Posterior
from flashgp.inference.predict.importance import Importance, ImportanceSettings, importance
from flashgp.inference.predict.prediction import Prediction
from flashgp.inference.run import Run
from flashgp.kernel_expression import KernelExpression, parse_kernel
from flashgp.kernels import Kernel
from flashgp.likelihoods import Likelihood, PredictiveDistribution
from flashgp.processes.group import ALONE
from flashgp.target_transform import check_target_transform
from flashgp.targets import Classes, Placed, likelihood_names, of_classes
from flashgp.units import Scaling

if TYPE_CHECKING:
    from flashgp.inference.fit import Fit

_DTYPES = {"float64": torch.float64, "float32": torch.float32}
_CHOICES: Mapping[str, tuple[str | None, ...]] = {
    "missing": ("error", "drop"), "unseen": ("error", "new"), "dates": (None, "dmy", "mdy"),
    "standardise": ("both", "x", "y", "none"),
}  # fmt: skip


@dataclass(frozen=True)
class TableSettings:
    """Arguments of a `TableModel` or a `GPRegressor`; their docstrings explain each.

    Fields: kernel_argument, what the expression is called in errors.
    Raises: DomainError for what cannot be.
    """

    kernel: Kernel | str | None = None
    target_transform: str = "auto"
    missing: str = "error"
    starts: int | None = None
    time_limit: float | None = None
    solver: str | None = None
    memory: str | int | None = None
    device: str | torch.device | None = "auto"
    dtype: str | torch.dtype | None = None
    tolerance: float = 1e-3
    seed: int = 0
    deterministic: bool = False
    approximation: str | None = None
    inducing: int | str = "auto"
    neighbours: int | str = "auto"
    likelihood: Likelihood | str | None = None
    kernel_argument: str = "kernel"
    standardise: str = "both"
    unseen: str = "error"
    dates: str | None = None
    initial: str = "data"
    priors: str = "weak"
    max_iterations: int = 200
    jitter: float | None = None
    uncertainty: str | None = None

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                raise DomainError(f"`{name}` must be one of {allowed}, got {value!r}; choose one of these")
        check_target_transform(self.target_transform)
        if self.dtype is not None and str(self.dtype).removeprefix("torch.") not in _DTYPES:
            raise DomainError(f"`dtype` must be None, 'float64' or 'float32', got {self.dtype!r}; choose one of these")
        if not (self.kernel is None or isinstance(self.kernel, str | Kernel)):
            raise DomainError(
                f'`kernel` must be None, "auto", an expression or a Kernel, got {type(self.kernel).__name__}; for '
                "example flashgp.kernels.Matern(nu=1.5)"
            )
        known = likelihood_names()
        if not (self.likelihood in (None, "auto", *known) or isinstance(self.likelihood, Likelihood)):
            raise DomainError(
                f"`likelihood` must be one of auto, {', '.join(known)}, or a flashgp.likelihoods.Likelihood, got "
                f"{self.likelihood!r}; choose one of these"
            )
        _ = self.expression
        if self.approximation != "auto":  # which means one thing where rows are read, and another where they are held
            _ = self.asked_approximation

    @property
    def asked_approximation(self) -> Approximation | None:
        """Approximation of rows that are held; None for exact inference. Raises: DomainError."""
        return approximation_of(self.approximation, self.inducing, self.neighbours)

    @property
    def asked_likelihood(self) -> Likelihood | None:
        """The likelihood; None where the target decides, of classes by their number."""
        if isinstance(self.likelihood, str):
            return None if self.classes is not False else likelihood_names()[self.likelihood]()
        return self.likelihood

    @property
    def classes(self) -> bool | None:
        """Whether the target is one of classes; None where it decides."""
        if self.likelihood in (None, "auto"):
            return None
        return of_classes(likelihood_names()[self.likelihood] if isinstance(self.likelihood, str) else self.likelihood)

    @property
    def compute_dtype(self) -> torch.dtype | None:
        return None if self.dtype is None else _DTYPES[str(self.dtype).removeprefix("torch.")]

    def run(self, deadline: Deadline) -> Run:
        """Run of calls of a model with these settings."""
        return Run(
            self.seed, self.deterministic, self.tolerance, ALONE, self.device, self.compute_dtype, self.memory, deadline
        )

    @cached_property
    def expression(self) -> KernelExpression | None:
        written = isinstance(self.kernel, str) and self.kernel != "auto"
        return parse_kernel(self.kernel, self.kernel_argument) if written else None  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class FittedTable:
    """A posterior in standard units, and what takes rows there and answers back.

    Fields: posterior; scalings, one for each output; fit, None where nothing was fitted, or before this process.
    """

    posterior: Posterior
    scalings: tuple[Scaling, ...]
    fit: "Fit | None" = None

    @property
    def scaling(self) -> Scaling:
        """Scaling of the only output."""
        (scaling,) = self.scalings
        return scaling

    def predict(self, x: npt.NDArray[np.floating[Any]], **asked: Any) -> Prediction:
        """`Posterior.predict`, in standard units, at rows (m, d) in their own. Args: asked, as it."""
        like, points = self.posterior.state.like[0], torch.from_numpy(self.scalings[0].x(x))
        with profile_range("transfers"):
            points = points.to(like.device, like.dtype)
        return self.posterior.predict(points, **asked)

    @property
    def events(self) -> list[Event]:
        """Events of the fit, where there was one, and of the posterior."""
        return [*([] if self.fit is None else self.fit.report.events), *self.posterior.report.events]

    @cached_property
    def verdict(self) -> Verdict:
        """How good the predictions are, by leave-one-out, in units of the target."""
        return verdict_of(self.posterior.state, self.told)

    @property
    def told(self) -> Told:
        """What a verdict is told of the rows."""
        cut = self.fit is not None and self.fit.interrupted
        in_units = self._in_units if len(self.scalings) == 1 else None
        return Told(scales=self.scalings[0].x_scale, in_units=in_units, events=self.events, interrupted=cut, table=True)

    def _in_units(self, y: Tensor, found: PredictiveDistribution) -> tuple[Any, Any]:
        target = self.scaling.target
        values = np.asarray(target.decode(y.double().numpy(force=True)))
        return values, target.answers(found, Placed.all(len(values)))

    def importance(self, groups: Any, settings: ImportanceSettings) -> Importance:
        """Importance of inputs, with `rmse` in units of the target, of classes in probabilities.

        Args: groups, names with positions of columns.
        """
        found = importance(self.posterior.state.training_table, groups, settings, self._mean_of)
        told = self.told
        return replace(found, unfinished=why_unfinished(told.events, interrupted=told.interrupted))

    def _mean_of(self, mean: Tensor, std: Tensor) -> Tensor:
        """The mean of y where its standardised values are normal, eq. (M-142); float64, (..., p)."""
        if isinstance(self.scalings[0].target, Classes):
            return mean
        means, stds = (values.numpy(force=True) for values in (mean, std))
        each = (one.target.mean_of(means[..., j], stds[..., j]) for j, one in enumerate(self.scalings))
        return mean.new_tensor(np.stack(list(each), axis=-1))


def restored(
    path: str | os.PathLike[str], modules: Any, device: Any, scalings: Sequence[Scaling], columns: int, units: str
) -> FittedTable:
    """The fitted table of a model file, whose metadata say so many columns and these scalings.

    Raises: ModelFileError where they do not fit the posterior in it; as `flashgp.load`.
    """
    posterior = files.load(path, modules, device=device)
    like = posterior.state.like[0]
    wrong = like.shape != (len(like), columns) or any(len(one.x_shift) != columns for one in scalings)
    columns_of_y = 1 if any(isinstance(one.target, Classes) for one in scalings) else posterior.gp.outputs or 1
    if wrong or len(scalings) != columns_of_y:
        raise ModelFileError(
            f"the units of {os.fspath(path)!r} do not fit its model: {columns} inputs, scales of "
            f"{[len(one.x_shift) for one in scalings]}, x of shape {tuple(like.shape)}; the file is damaged or "
            "foreign, save the model again"
        )
    return FittedTable(posterior.in_units(units), tuple(scalings))
