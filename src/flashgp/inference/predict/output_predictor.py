"""Predictions of several outputs with noise of their own: those of each output side by side."""

from collections.abc import Sequence
from dataclasses import fields

import torch
from torch import Tensor

from flashgp.foundations.report import Report
from flashgp.inference.output_states import OutputStates, joined_report
from flashgp.inference.predict.paths import Paths, draw_paths
from flashgp.inference.predict.predictor import Predictor, Variance


class OutputPredictor(Predictor):
    """What the state of each output says of points.

    Args: state, of all outputs; each, the predictor of every output, of one prediction.
    """

    separate = True

    def __init__(self, state: OutputStates, each: Sequence[Predictor]) -> None:
        self._state, self._each = state, each
        self.deterministic, self.differentiable = each[0].deterministic, each[0].differentiable
        self.report = Report()
        self._fill_report()

    def mean(self, x: Tensor) -> Tensor:
        mean = torch.cat([one.mean(x) for one in self._each], dim=-1)
        self._fill_report()
        return mean

    def variance(self, x: Tensor) -> Variance:
        variance = Variance.beside([one.variance(x) for one in self._each])
        self._fill_report()
        return variance

    def covariance(self, x: Tensor) -> Tensor:
        joint = torch.stack([one.covariance(x) for one in self._each], dim=-3)
        self._fill_report()
        return joint

    def rounding(self, x: Tensor) -> Tensor:
        return torch.stack([one.rounding(x) for one in self._each], dim=-1)

    def paths(self, count: int, features: int, seed: int | None) -> Paths:
        return draw_paths(self._state, count, features, seed)

    def forget(self) -> None:
        for one in self._each:
            one.forget()

    def _fill_report(self) -> None:
        """From the work on each output so far; events that others have put there stay."""
        reports = [one.report for one in self._each]
        joined, beside = joined_report(reports), self.report.events
        predicted = [report.predicted_seconds for report in reports if report.predicted_seconds is not None]
        joined.predicted_seconds = sum(predicted) if predicted else None
        joined.events += [event for event in beside if event not in joined.events]
        for one in fields(Report):
            setattr(self.report, one.name, getattr(joined, one.name))
