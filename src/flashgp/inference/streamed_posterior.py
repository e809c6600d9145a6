"""StreamedPosterior: a posterior of rows that were read and are not held, behind the methods of every posterior."""

from typing import Any, NoReturn

import torch
from jaxtyping import Float64
from torch import Tensor

from flashgp.foundations.checks import check_points
from flashgp.foundations.errors import DomainError
from flashgp.inference.approximate_posterior import ApproximatePosterior
from flashgp.inference.approximation import Approximation, refuse_exact
from flashgp.inference.decision import counts_of, decided
from flashgp.inference.exact.condition import condition
from flashgp.inference.full_scale.condition import condition as condition_approximately
from flashgp.inference.plan_settings import PlanSettings, chosen_device
from flashgp.inference.posterior import Posterior
from flashgp.inference.predict.prediction import Prediction
from flashgp.inference.prior import Prior
from flashgp.inference.settings import ConditionSettings
from flashgp.inference.streamed.append import append
from flashgp.inference.streamed.condition import condition as condition_on_read
from flashgp.inference.streamed.predictor import StreamedPaths, draw_paths, predict
from flashgp.inference.streamed.state import Bound, StreamedState
from flashgp.sources.source import RowSource, held

__all__ = ["StreamedPosterior", "posterior_given", "posterior_of_read"]


class StreamedPosterior(ApproximatePosterior):
    """The posterior of inducing points by their collapsed bound, eqs. (M-160) and (M-165).

    Made by `fgp.fit(gp, rows)` and `gp.condition(rows, inducing=512)` for rows that are read, and with
    approximation="sparse". It holds m points and m x m numbers, no rows: what asks for rows is refused.

    Fields: inducing, the points (m, d); bound, lower and upper bound on log p(y).

    Example:
        >>> x = torch.linspace(0, 5, 200, dtype=torch.float64)[:, None]
        >>> gp = fgp.GP(fgp.kernels.Matern(nu=1.5), likelihood=fgp.likelihoods.Gaussian(0.01))
        >>> batches = [(part, torch.sin(part[:, 0])) for part in x.split(64)]
        >>> post = gp.condition(batches, inducing=40)
        >>> bool((post.predict(x[:4]).mean - torch.sin(x[:4, 0])).abs().max() < 0.02), post.bound.nats < 0.5
        (True, True)
    """

    state: StreamedState  # type: ignore[assignment]

    def __init__(self, state: StreamedState, units: str = "") -> None:
        super().__init__(state, units)  # type: ignore[arg-type]

    def in_units(self, units: str) -> "StreamedPosterior":
        return StreamedPosterior(self.state, units)

    @property
    def inducing(self) -> Tensor:
        """The inducing points, (m, d)."""
        return self.state.inducing.clone()

    @property
    def bound(self) -> Bound:
        """Lower and upper bound on log p(y), nats, eqs. (M-160) and (M-161). Cost: m^3 flops."""
        return self.state.bound

    @property
    def lost(self) -> Bound:  # type: ignore[override]
        """The bound, whose `nats` are what a row loses at most in log p(y)."""
        return self.bound

    @property
    def distinct(self) -> int:
        """The number of training rows: equal ones are not joined."""
        return self.count

    @property
    def noise(self) -> Float64[Tensor, "1"]:
        """The noise variance of each row, (1,). Raises: DomainError where rows have some of their own."""
        if self.state.sums.log_noises != 0.0:
            self._refuse_rows("noise")
        return self.state.sums.gram.new_full((1,), self.state.sums.noise)

    @property
    def replicates(self) -> None:
        """None: equal rows are not joined."""
        return

    def predict(
        self,
        x_test: Any,
        *,
        variance: str = "auto",
        plan: Any = None,
        memory: str | int | None = None,
        deterministic: bool = False,
    ) -> Prediction:
        """As `Posterior.predict`, eq. (M-165). Raises: DomainError beside that for a plan, or for variance="sampled".

        Cost: for each point m evaluations and 2 m^2 flops.
        """
        self._check_exact_only(variance, plan)
        return predict(self.state, x_test, deterministic=deterministic)

    def paths(self, count: int, *, features: int = 2048, seed: int | None = None) -> StreamedPaths:  # type: ignore[override]
        """As `Posterior.paths`, eq. (M-166): inducing values are drawn exactly, what they leave from the prior."""
        return draw_paths(self.state, count, features, seed)

    def log_marginal_likelihood(self) -> Float64[Tensor, ""]:
        """The lower bound on log p(y), nats, eq. (M-160). Cost: m^3 flops."""
        return self.state.log_marginal_likelihood()

    def append(self, x: Any, y: Any = None, *, row_variance: Any = None, row_weight: Any = None) -> "StreamedPosterior":
        """The posterior with more rows, eq. (M-175); this one stays what it is, and the inducing points are kept.

        Args:
            x: (k, d), or without y rows that are read, as `fgp.fit` takes them: one pass.
            y: (k,) or (k, outputs).
            row_variance, row_weight: (k,), where the rows before have variances of their own.
        Raises: ShapeError, DomainError for rows that do not fit or are not finite. Nothing changes then.
        Cost: k m evaluations and 2.25 k m^2 flops, and m^3 / 3 once; it does not grow with the rows there are.
        """
        state = append(self.state, x, y, row_variance, row_weight)
        return self if state is self.state else StreamedPosterior(state, self.units)

    def __repr__(self) -> str:
        return f"{Posterior.__repr__(self)}\n{'lost':<18} {self.bound}"

    # -- what asks for rows ------------------------------------------------------------------------------------------
    @property
    def x(self) -> Tensor:
        """Raises: DomainError."""
        self._refuse_rows("x")

    @property
    def y(self) -> Tensor:
        """Raises: DomainError."""
        self._refuse_rows("y")

    @property
    def points(self) -> Tensor:
        """Raises: DomainError."""
        self._refuse_rows("points")

    @property
    def residual(self) -> Tensor:
        """Raises: DomainError."""
        self._refuse_rows("residual")

    @property
    def representer_weights(self) -> Tensor:
        """Raises: DomainError."""
        self._refuse_rows("representer_weights")

    def leave_one_out(self) -> NoReturn:
        """Raises: DomainError."""
        self._refuse_rows("leave_one_out")

    def importance(self, *_: Any, **__: Any) -> NoReturn:
        """Raises: DomainError."""
        self._refuse_rows("importance")

    def _refuse_rows(self, name: str) -> NoReturn:
        raise DomainError(
            f"`{name}` is of posteriors that hold their rows, got one of {self.count:,} rows that were read; take "
            "post.inducing, or condition on the rows that count"
        )


def posterior_of_read(
    prior: Prior, rows: RowSource, settings: ConditionSettings, approximation: Approximation
) -> StreamedPosterior:
    """`GP.condition` on rows that are read, with its arguments as values. Raises: as it."""
    return StreamedPosterior(condition_on_read(prior, rows, approximation, settings))


def posterior_given(
    prior: Prior, x: Any, y: Any, settings: ConditionSettings, approximation: Approximation | None = None
) -> Posterior:
    """`GP.condition` on rows that are held, with its arguments as values. Raises: as it."""
    event = None
    if approximation is not None and approximation.kind == "auto":
        refuse_exact(
            solver=settings.solver, plan=settings.plan, jitter=settings.jitter, differentiable=settings.differentiable,
            dtype=None if settings.dtype == torch.float64 else settings.dtype,
        )  # fmt: skip
        rows = counts_of(prior, x, y)
        wanted = PlanSettings(
            settings.memory, chosen_device(settings.device, check_points(x, "x")), settings.dtype,
            deterministic=settings.solve.deterministic, factored=rows.batch * prior.kernel.batch_shape.numel() > 1,
        )  # fmt: skip
        limit = settings.deadline.limit
        approximation, _, event = decided(prior, rows, approximation, wanted, limit, training=False)
    if approximation is None:
        found = Posterior(condition(prior, x, y, settings))
    elif approximation.kind == "sparse":
        found = posterior_of_read(prior, held(x, y, prior.outputs), settings, approximation)
    else:
        found = ApproximatePosterior(condition_approximately(prior, x, y, approximation, settings))
    if event is not None:
        found.report.events.insert(0, event)
    return found
