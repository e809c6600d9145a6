"""A model of a table: a posterior over standardised numbers, with what turns columns into them and back."""

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from flashgp.foundations.errors import ModelFileError
from flashgp.foundations.events import Event
from flashgp.foundations.profile_ranges import profile_range
from flashgp.inference.posterior import Posterior
from flashgp.standardise import Scaling
from flashgp.table import Encoding
from flashgp.target_transform import WarpedNormal

__all__ = ["RowPredictions", "TableModel"]

_KEY = "flashgp.table"
_FIELDS = ("encoding", "scaling", "kernel")
_Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RowPredictions:
    """Predictions of rows in units of the target, each (n,).

    Fields: target, the distributions of new observations; mean and std, theirs; std_error, the standard error of std
    where variances were sampled, None where they are exact; events of the report.
    """

    target: WarpedNormal
    mean: _Numbers
    std: _Numbers
    std_error: _Numbers | None
    events: list[Event]


@dataclass(frozen=True)
class TableModel:
    """Fields: posterior, over standardised x and y; encoding of columns; scaling; kernel, the expression or ""."""

    posterior: Posterior
    encoding: Encoding
    scaling: Scaling
    kernel: str

    def predict(self, x: _Numbers, variance: str = "auto", memory: str | None = None) -> RowPredictions:
        """Predictions of new observations at encoded rows (n, d); variance, memory: as `Posterior.predict`."""
        post = self.posterior
        scaled = torch.from_numpy(np.ascontiguousarray(self.scaling.x(x)))
        with profile_range("transfers"):
            rows = scaled.to(post.x.device, post.x.dtype)
        with torch.no_grad():
            prediction = post.predict(rows, variance=variance, memory=memory)
            mean = prediction.mean.cpu().double().numpy()
            std = prediction.observation_variance.sqrt().cpu().double().numpy()
            error = prediction.variance_standard_error
        target, events = self.scaling.predictive(mean, std), list(prediction.report.events)
        if error is None:
            return RowPredictions(target, target.mean, target.std, None, events)
        # To first order: the root of a variance v moves by half the error of v over the root.
        moved = 0.5 * error.cpu().double().numpy() / np.maximum(std, np.finfo(np.float64).tiny)
        if self.scaling.transform.identity:
            std_error = self.scaling.std(moved)
        else:
            std_error = np.abs(self.scaling.predictive(mean, std + moved).std - target.std)
        return RowPredictions(target, target.mean, target.std, std_error, events)

    def save(self, path: str) -> None:
        """Write the model file, whole or not at all. Raises: DomainError when it cannot be written."""
        from flashgp.files import save

        data = {"encoding": self.encoding.to_json(), "scaling": self.scaling.to_json(), "kernel": self.kernel}
        save(self.posterior, path, metadata={_KEY: data})

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "TableModel":
        """Read what `save` wrote. Raises: ModelFileError for another file, or one without a table's columns."""
        from flashgp.files import load, load_metadata

        metadata: Any = load_metadata(path)
        data = metadata.get(_KEY) if isinstance(metadata, dict) else None
        if not isinstance(data, dict) or sorted(data) != sorted(_FIELDS) or not isinstance(data["kernel"], str):
            raise ModelFileError(
                f"the model must be one that `flashgp fit` wrote, got {os.fspath(path)!r}, which does not know a "
                "table's columns; use flashgp.load in Python, or fit again with --out"
            )
        encoding, scaling = Encoding.from_json(data["encoding"]), Scaling.from_json(data["scaling"])
        posterior = load(path)
        d = len(encoding.inputs)
        if posterior.x.dim() != 2 or posterior.x.shape[-1] != d or len(scaling.x_shift) != d or posterior.gp.outputs:
            raise ModelFileError(
                f"the columns of {os.fspath(path)!r} do not fit its model: {d} inputs, {len(scaling.x_shift)} scales, "
                f"x of shape {tuple(posterior.x.shape)}; the file is damaged or foreign, fit again"
            )
        return TableModel(posterior, encoding, scaling, data["kernel"])
