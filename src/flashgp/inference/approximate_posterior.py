"""ApproximatePosterior: a posterior by an approximation, behind the methods of every posterior."""

from typing import Any, NoReturn

from jaxtyping import Float64
from torch import Tensor

from flashgp.foundations.deadline import Deadline
from flashgp.foundations.errors import DomainError
from flashgp.foundations.quantities import readable_seconds
from flashgp.inference.full_scale.append import append
from flashgp.inference.full_scale.left_out import leave_one_out, lost, representer_weights
from flashgp.inference.full_scale.predictor import FullScalePaths, draw_paths, predict
from flashgp.inference.full_scale.state import FullScaleState, Lost
from flashgp.inference.posterior import Posterior
from flashgp.inference.predict.leave_one_out import LeaveOneOut
from flashgp.inference.predict.prediction import Prediction
from flashgp.inference.predict.progress import ToldProgress


class ApproximatePosterior(Posterior):
    """The posterior of the full-scale model: inducing points, and block Vecchia on what they leave, eq. (M-148).

    Made by `fgp.fit` and `gp.condition` with approximation="full_scale"; linear in the rows. It answers what every
    posterior answers, and says in `lost` what it loses against the exact one; rows join it, but none leaves.

    Example:
        >>> x = torch.linspace(0, 5, 200, dtype=torch.float64)[:, None]
        >>> gp = fgp.GP(fgp.kernels.Matern(nu=1.5), likelihood=fgp.likelihoods.Gaussian(0.01))
        >>> post = gp.condition(x, torch.sin(x[:, 0]), approximation="full_scale", inducing=20, neighbours=10)
        >>> bool((post.predict(x[:4]).mean - torch.sin(x[:4, 0])).abs().max() < 0.02), post.lost.nats < 0.1
        (True, True)
    """

    state: FullScaleState  # type: ignore[assignment]

    def __init__(self, state: FullScaleState, units: str = "") -> None:
        super().__init__(state, units)  # type: ignore[arg-type]

    def in_units(self, units: str) -> "ApproximatePosterior":
        return ApproximatePosterior(self.state, units)

    @property
    def lost(self) -> Lost:
        """Nats a row by which the approximation diverges from the exact model, an estimate with its standard error,
        eq. (M-156). A fit computes it where its time allows, and its report says it; after `condition` it is computed
        when asked for. Cost: 32 factors of 8 times the neighbours, once."""
        return lost(self.state)

    @property
    def factor(self) -> None:
        """None: there is no factor of all rows."""
        return

    @property
    def representer_weights(self) -> Float64[Tensor, "u p"]:
        """Q (y - m), Q the precision of the approximate model, (u, outputs or 1). Cost: a pass over the blocks."""
        return representer_weights(self.state)

    def predict(
        self,
        x_test: Any,
        *,
        variance: str = "auto",
        plan: Any = None,
        memory: str | int | None = None,
        deterministic: bool = False,
        time_limit: float | None = None,
        progress: ToldProgress = None,
    ) -> Prediction:
        """As `Posterior.predict`, each point from its own nearest rows, eq. (M-154); variances are never sampled, and
        points that would take longer than `time_limit` by the plan are refused.

        Raises: DomainError beside that for a plan, or for variance="sampled".
        Cost: for each point, with q neighbours and m inducing points, q^2 (2 m + q / 3) flops.
        """
        self._check_exact_only(variance, plan)
        self._check_time(x_test, time_limit)
        return predict(self.state, x_test, deterministic=deterministic)

    def paths(self, count: int, *, features: int = 2048, seed: int | None = None) -> FullScalePaths:  # type: ignore[override]
        """As `Posterior.paths`; inducing values are drawn exactly, what they leave from the prior, eq. (M-155)."""
        return draw_paths(self.state, count, features, seed)

    def log_marginal_likelihood(self) -> Float64[Tensor, ""]:
        """log p(y) of the approximate model, nats, eq. (M-148). Cost: none."""
        return self.state.log_marginal_likelihood()

    def leave_one_out(self) -> LeaveOneOut:
        """As `Posterior.leave_one_out`, exact for the approximate model. Cost: a pass over the blocks, n m^2 flops."""
        return leave_one_out(self.state)

    def __repr__(self) -> str:
        known: Lost | None = self.state.__dict__.get("lost")
        return f"{Posterior.__repr__(self)}\n{'lost':<18} {known or 'posterior.lost estimates it'}"

    def append(self, x: Any, y: Any, *, row_variance: Any = None, row_weight: Any = None) -> "ApproximatePosterior":
        """The posterior with k more rows, eq. (M-176); this one stays what it is, with inducing points and parameters.

        New rows become blocks behind the others, as wide as those, of one row each where few come at once. Each has its
        neighbours among all earlier rows. What that loses is in `lost`; where the appended rows are most of them, or
        far from the inducing points, condition again.

        Args: as `Posterior.append`.
        Raises: ShapeError, DomainError for rows that do not fit or are not finite, or a posterior without rows.
            NotPositiveDefiniteError for covariances that are not finite. Nothing changes then.
        Cost: for each row, with q neighbours, m inducing points and blocks of b new rows, (q + b)^2 (2 m + q / 3) / b +
            2 m^2 flops and a distance of every row; now and then a copy of all rows with room for half as many.
        """
        state = append(self.state, x, y, row_variance, row_weight)
        return self if state is self.state else ApproximatePosterior(state, self.units)

    # -- what it does not do ----------------------------------------------------------------------------------------
    def drop(self, *_: Any, **__: Any) -> NoReturn:
        """Raises: DomainError."""
        self._refuse("drop")

    def slide(self, *_: Any, **__: Any) -> NoReturn:
        """Raises: DomainError."""
        self._refuse("slide")

    def replace(self, *_: Any, **__: Any) -> NoReturn:
        """Raises: DomainError."""
        self._refuse("replace")

    def fantasize(self, *_: Any, **__: Any) -> NoReturn:
        """Raises: DomainError."""
        self._refuse("fantasize")

    def refine(self, *_: Any, **__: Any) -> NoReturn:
        """Raises: DomainError."""
        self._refuse("refine")

    @staticmethod
    def _check_exact_only(variance: str, plan: Any) -> None:
        if variance not in ("auto", "exact") or plan is not None:
            raise DomainError(
                "`variance` and `plan` are of exact posteriors; an approximate one computes every variance, without a "
                f"plan, got variance={variance!r}, plan={plan!r}; leave them out"
            )

    def _check_time(self, x_test: Any, time_limit: float | None) -> None:
        """Raises: DomainError for what is no time, or less than the points take by the plan."""
        plan, limit = self.state.report.plan, Deadline.after(time_limit).limit
        if limit is None or plan is None:
            return
        count = self.state.checked_points(x_test, "x_test").shape[:-1].numel()
        needed = count * plan.predict_seconds
        if needed > limit:
            fewer = int(limit / plan.predict_seconds)
            ways = f"ask for {fewer:,} at a time, or pass more" if fewer else "pass more"
            raise DomainError(
                f"`time_limit` must be at least about {readable_seconds(needed)} for {count:,} points, got "
                f"{limit:g} s; {ways}"
            )

    def _refuse(self, name: str) -> NoReturn:
        raise DomainError(
            f"`{name}` is of exact posteriors, got an approximate one of {self.count:,} rows; condition again on the "
            "rows that count"
        )
