"""The numbers that tune training, with their defaults: values that are passed down, for experiments and tests."""

import dataclasses
import math
from dataclasses import dataclass, field

from flashgp.planner.approximate import ApproximateWork
from flashgp.planner.fit_stages import StageSettings
from flashgp.solvers.settings import SolveSettings


@dataclass(frozen=True)
class PeriodSettings:
    """Starts of periods (period_starts.py).

    Args:
        candidates: frequencies of each series that are weighed.
        multiples: of the period of the strongest, weighed too.
        sweeps: over several periods of a model.
        max_evaluations: of all of it; periods beyond begin with the strongest frequencies.
        max_rows: of an evaluation; with more, as where modules of a user's own take part, nothing is weighed.
        spectrum_rows: random rows whose periodogram is taken, where there are more.
        max_series: columns, outputs or tables that one period is looked for in.
        seed: of these rows, and of frequencies of several columns.
    """

    candidates: int = 8
    multiples: int = 2
    sweeps: int = 2
    max_evaluations: int = 60
    max_rows: int = 2000
    spectrum_rows: int = 2**14
    max_series: int = 4
    seed: int = 0


@dataclass(frozen=True)
class ColumnSettings:
    """The search for columns that a model ignores (column_screen.py).

    Args:
        min_columns: of a covariance function with a lengthscale for each, from which it is made.
        ignored: a lengthscale is one of an ignored column beyond so many standard deviations of it.
        scales: standard deviations at which such a column is tried, the first of them also where it is scored.
        least_score: of what a column explains, over what chance does, at which it is tried.
        tries: columns evaluated in a round.
        slack: nats a row by which the best of them may be worse at first for a search from there.
        max_columns: that are found one after the other.
        sparse_rows: rows for each column below which lengthscales have sparse priors, eq. (M-386).
    """

    min_columns: int = 12
    ignored: float = 4.0
    scales: tuple[float, ...] = (0.8, 2.4)
    least_score: float = 4.5
    tries: int = 2
    slack: float = 0.2
    max_columns: int = 8
    sparse_rows: float = 12.0

    def few_matter(self, rows: int, columns: int) -> bool:
        """True if rows are so few for the columns that few of these can be told to matter."""
        return columns >= self.min_columns and rows < self.sparse_rows * columns


@dataclass(frozen=True)
class SearchSettings:
    """Starting values, subsets and L-BFGS-B (docs/decisions/0005).

    Args:
        default_starts: runs where the caller names no number.
        start_rows: rows to which starts are fitted; all of them where a table has no more.
        start_reach: how far a positive parameter may move there, in logarithms: few rows may send a lengthscale to
            where the gradient of all rows is zero.
        start_spread: standard deviation of random starts around the first one, in logarithms.
        min_decrease: nats; L-BFGS-B stops when a step improves the objective by less.
        max_gradient: or when no entry of the projected gradient is larger.
        reset_ratio: a lengthscale that ends longer than this times its start is reset in the last run.
        reset_noise: a noise variance that ends below this share of its start is reset too: the gradient by its
            logarithm vanishes there.
        periods: how periods are looked for first.
        columns: how columns that the best vector ignores are looked for.
    """

    default_starts: int = StageSettings.default_starts
    start_rows: int = StageSettings.start_rows
    start_reach: float = math.log(30.0)
    start_spread: float = 1.0
    min_decrease: float = 1e-4
    max_gradient: float = 1e-2
    reset_ratio: float = 1.5
    reset_noise: float = 1e-4
    periods: PeriodSettings = field(default_factory=PeriodSettings)
    columns: ColumnSettings = field(default_factory=ColumnSettings)


@dataclass(frozen=True)
class ScoringSettings:
    """Fisher scoring (fisher_scoring.py).

    Args:
        max_gradients: of one search.
        first_reach, max_reach: of a step in any entry; factors of 1.35 and 1.8 of a positive parameter.
        turn: a step is taken back where its slope turned uphill by more than this share of what it was downhill.
        wild: or where the gradient became so many times as large.
        max_trials: of one step.
        damping: of BFGS, Powell's.
        max_last_gain: a search ends only once its last step gained at most so many times what is enough.
        max_curvature_scale: by which first steps may scale the curvature, over all searches of a fit.
    """

    max_gradients: int = 40
    first_reach: float = 0.3
    max_reach: float = 0.6
    turn: float = 0.7
    wild: float = 5.0
    max_trials: int = 6
    damping: float = 0.2
    max_last_gain: float = math.inf
    max_curvature_scale: float = 3.0


@dataclass(frozen=True)
class EstimateSettings:
    """Estimated gradients (stochastic_objective.py).

    Args:
        min_probes, max_probes: of one gradient; more on few rows, where they cost little.
        probed_rows: probes times rows, between these two.
        factor_probes: at least, with a factor: they cost little beside it.
        solving: of the solves.
        solve_error: at which a solve ends, |e|_A / sqrt(n), (M-106).
        residual_goal: relative; no less is asked for, also where no noise bounds the error.
        max_iterations: of a solve with a factor, or without one where none fits.
        factor_slack: of the error bound (M-83) of a factor, which is a thousand times an estimate of the error.
        double_after: iterations with a float32 factor beyond which it is made in float64.
        rough_corrections: iterations with a float32 factor beyond which the posterior takes a float64 one.
        rough_residual: beyond which the report says that a gradient was rough.
        useless_residual: beyond which a solution is no solution.
    """

    min_probes: int = 8
    max_probes: int = 64
    probed_rows: int = 2**17
    factor_probes: int = 32
    solving: SolveSettings = field(default_factory=lambda: SolveSettings(stagnation_window=40))
    solve_error: float = 0.03
    residual_goal: float = 1e-9
    max_iterations: int = 10_000
    factor_slack: float = 4.0
    double_after: int = 8
    rough_corrections: int = 2
    rough_residual: float = 1e-2
    useless_residual: float = 0.5


@dataclass(frozen=True)
class StochasticSettings:
    """The stages of a fit of many rows (stochastic.py; docs/decisions/0013).

    Args:
        first_rows: rows fitted with exact gradients before any is estimated.
        first_decrease: nats; `min_decrease` there.
        draws_per_parameter, min_draws: simulated scores for the Fisher information.
        step_share: of the p / (2 S) nats that the estimate costs: a step that promises less is not taken.
        min_gain: nats; nor one that promises less than this.
        negligible_gain: nats per row that no prediction shows.
        negligible_gain_in_float64, negligible_gain_by_factors: the same where an estimated gradient takes iterations
            with float64 products, or a factor.
        negligible_gain_by_values: the same of exact gradients.
        stage_ratio: of rows, at most, from one stage of exact gradients to the next.
        max_parameters: whose Fisher information is drawn; models of more take L-BFGS-B.
        part_ratio: of rows, from one part to the next.
        part_gradients: of one part, at most.
        min_part_ratio: rows that follow, over those of a part that is put in because of factors.
        doubled_rows: of a part, from which another is put in: with fewer, gradients of all rows are cheap.
        max_drop: nats per row by which the exact likelihood of the first rows may fall.
        reach: of a positive parameter from its value on the first rows, in logarithms.
        min_factor_passes: passes over the pairs of a part before a factor may take over.
        min_trend_ratio: of two numbers of rows whose optima say where more rows lead, (M-122).
        max_trend: how far they lead, in ways between these optima.
    """

    first_rows: int = StageSettings.first_rows
    first_decrease: float = 0.05
    draws_per_parameter: int = StageSettings.draws_per_parameter
    min_draws: int = StageSettings.min_draws
    step_share: float = 0.5
    min_gain: float = 0.02
    negligible_gain: float = 3e-4
    negligible_gain_in_float64: float = 5e-4
    negligible_gain_by_factors: float = 1e-3
    negligible_gain_by_values: float = 1e-4
    stage_ratio: float = StageSettings.stage_ratio
    max_parameters: int = StageSettings.max_parameters
    part_ratio: int = StageSettings.part_ratio
    part_gradients: int = 15
    min_part_ratio: float = 1.5
    doubled_rows: int = 8000
    max_drop: float = 0.1
    reach: float = math.log(30.0)
    min_factor_passes: int = 10
    min_trend_ratio: float = 1.5
    max_trend: float = 2.0
    scoring: ScoringSettings = field(default_factory=ScoringSettings)
    estimate: EstimateSettings = field(default_factory=EstimateSettings)

    def limited(self, max_gradients: int) -> "StochasticSettings":
        """The settings for searches of so many gradients."""
        return dataclasses.replace(self, scoring=dataclasses.replace(self.scoring, max_gradients=max_gradients))


@dataclass(frozen=True)
class SampleSettings:
    """Fits of rows whose passes take longer than the time limit (streamed/learning.py), (M-244).

    Args:
        min_evaluations: of all rows, a value with its gradient each, that have to fit into the time limit; where fewer
            do, a sample whose rows count for all of them is searched, and minibatches of all rows give q(u).
        rows_per_point, min_rows: of a batch, times the inducing points, and at least.
        share: of the time left after the first pass that the search may take; the rest is for learning at its end.
        max_shift: standard errors by which columns of the rows seen may differ in their mean from all rows before a
            warning says that they are not random.
    """

    min_evaluations: float = ApproximateWork.min_evaluations
    rows_per_point: int = 2
    min_rows: int = 512
    share: float = 0.6
    max_shift: float = 6.0

    def batch_rows(self, inducing: int) -> int:
        """Rows of a batch."""
        return max(self.min_rows, self.rows_per_point * inducing)
