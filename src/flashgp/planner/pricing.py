"""Sizes of a problem at the rates of a device, for engines to price their work; stages that all fits begin with.

Each engine prices itself in a file of its own: planner/exact.py, full_scale_price.py and sparse_price.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from flashgp.foundations.profile import DeviceRates, MachineProfile
from flashgp.pairwise.numpy_pairs import MAX_NUMPY_ROWS
from flashgp.planner.fit_stages import Cost, FitStage, Search, WorkSettings
from flashgp.planner.problem import ConditioningProblem


@dataclass(frozen=True)
class Price:
    """A problem of its distinct rows at the rates of a device."""

    problem: ConditioningProblem
    profile: MachineProfile
    device: torch.device

    @property
    def n(self) -> int:
        return self.problem.u

    @property
    def rates(self) -> DeviceRates:
        return self.profile.rates(self.device)

    @property
    def stage_work(self) -> WorkSettings:
        return self.problem.stages.work

    def gemm(self, flops: float) -> float:
        """Seconds of float64 products."""
        return flops / self.rates.gemm(torch.float64)

    def exact_seconds(self, rows: int) -> float:
        """One value with its gradient in float64, eq. (M-146)."""
        problem, rates, work = self.problem, self.rates, self.stage_work
        factor = rows**3 / rates.cholesky(torch.float64, rows)
        if self.device.type == "cpu" and rows <= work.alone_rows:
            factor *= work.alone
        pairs = work.pairs * rows**2 / rates.block_pairs
        calls = work.few_calls if self.device.type == "cpu" and rows <= MAX_NUMPY_ROWS else work.calls
        return problem.factors * (problem.batch * (factor + pairs) + calls * rates.call_seconds)

    def information_seconds(self, rows: int) -> float:
        """The Fisher information of so many rows, eqs. (M-104) and (M-308): a factor and one pass over the pairs, as an
        evaluation, and products with the draws."""
        problem, rates = self.problem, self.rates
        draw = 2.0 * rows**2 * (1.0 + problem.d) / rates.cholesky(torch.float64, rows)
        draw += self.stage_work.draw_calls * rates.call_seconds
        return self.exact_seconds(rows) + problem.stages.draws(problem.parameters) * draw

    def exact_stages(self, stages: Sequence[FitStage], sent: float) -> Cost:
        """The stages with exact gradients, eq. (M-146): their evaluations, and the Fisher information of the first
        rows. Args: sent, bytes of an evaluation."""
        exact = [stage for stage in stages if stage.search is not Search.ESTIMATED]
        total = Cost()
        for stage in exact:
            total += stage.evaluations * Cost.of(self.exact_seconds(stage.rows), sent)
        if any(stage.search is Search.SCORING for stage in exact):
            total += self.stage_work.informations * Cost.of(self.information_seconds(exact[0].rows))
        return total
