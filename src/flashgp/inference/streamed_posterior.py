"""StreamedPosterior: a posterior of rows that were read and are not held, behind the methods of every posterior."""

from typing import Any, NoReturn

from jaxtyping import Float64
from torch import Tensor

from flashgp.foundations.checks import check_points
from flashgp.foundations.errors import DomainError
from flashgp.inference.approximate_posterior import ApproximatePosterior
from flashgp.inference.data import Data, held
from flashgp.inference.posterior import Posterior
from flashgp.inference.predict.leave_one_out import LeaveOneOut
from flashgp.inference.predict.prediction import Prediction
from flashgp.inference.predict.progress import ToldProgress
from flashgp.inference.streamed.append import append, check_alike
from flashgp.inference.streamed.bracket import bracket
from flashgp.inference.streamed.left_out import leave_out
from flashgp.inference.streamed.predictor import StreamedPaths, draw_paths, predict
from flashgp.inference.streamed.rows import noise_of
from flashgp.inference.streamed.state import Bound, StreamedState
from flashgp.sources.source import Held, source_of
from flashgp.sources.survey import Block, row_variances


class StreamedPosterior(ApproximatePosterior):
    """The posterior of inducing points by their collapsed bound, eqs. (M-160) and (M-165).

    Made by `fgp.fit(gp, rows)` and `gp.condition(rows, inducing=512)` for rows that are read, of which it holds m
    points, m x m numbers and a sample: what asks for all rows is refused. Made of x and y with approximation="sparse"
    it keeps them.

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
        """Lower and upper bound on log p(y), nats, eqs. (M-160) and (M-161), from what the rows add up to.

        The upper one is wide: half a nat a row with many rows, however good the inducing points are, unless they leave
        next to nothing. `bracket` has a tighter one. Cost: m^3 flops.
        """
        return self.state.bound

    def bracket(self, rows: Any = None) -> Bound:
        """The same with a tighter upper bound, from pairs of the training rows, eq. (M-242).

        All pairs where there are at most 32,768 rows, else those within blocks of as many rows as 2^30 pairs allow: the
        fewer blocks, the tighter.

        Args: rows: the training rows once more, as `fgp.fit` takes them, where they were read; None where they are
            held.
        Raises: DomainError for other rows, or none where the posterior holds none; as a pass.
        Cost: two passes, n m evaluations and n m^2 flops, and at least n times 2^21 / m evaluations, at most 2^30
            otherwise.

        Example:
            >>> x = torch.linspace(0, 5, 400, dtype=torch.float64)[:, None]
            >>> gp = fgp.GP(fgp.kernels.Matern(nu=1.5), likelihood=fgp.likelihoods.Gaussian(0.01))
            >>> post = gp.condition(x, torch.sin(x[:, 0]), approximation="sparse", inducing=20)
            >>> post.bracket().upper <= post.bound.upper
            True
        """
        return bracket(self.state, self._held("bracket") if rows is None else source_of(rows))

    @property
    def lost(self) -> Bound:  # type: ignore[override]
        """The bound, whose `nats` are what a row loses at most in log p(y)."""
        return self.bound

    @property
    def distinct(self) -> int:
        """The number of training rows: equal ones are not joined."""
        return self.count

    @property
    def noise(self) -> Float64[Tensor, "rows"]:
        """The noise variance of each row, (1,), or (n,) where rows that are held have known ones."""
        state, rows = self.state, Block(*self.state.sample[:2])
        if state.knows_rows:
            self._refuse_known("noise")
        if state.held is not None:
            rows = Block(state.held.x, state.held.y, state.held.row_variance)
        return noise_of(state.prior_of_rows, rows).clamp_min(state.floor).to(state.inducing.device)

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
        time_limit: float | None = None,
        progress: ToldProgress = None,
    ) -> Prediction:
        """As `Posterior.predict`, eq. (M-165). Raises: DomainError beside that for a plan, or for variance="sampled".

        Cost: for each point m evaluations and 2 m^2 flops.
        """
        self._check_exact_only(variance, plan)
        self._check_time(x_test, time_limit)
        return predict(self.state, x_test, deterministic=deterministic)

    def paths(self, count: int, *, features: int = 2048, seed: int | None = None) -> StreamedPaths:  # type: ignore[override]
        """As `Posterior.paths`, eq. (M-166): inducing values are drawn exactly, what they leave from the prior."""
        return draw_paths(self.state, count, features, seed)

    def log_marginal_likelihood(self) -> Float64[Tensor, ""]:
        """The lower bound on log p(y), nats, eq. (M-160). Cost: m^3 flops."""
        return self.state.log_marginal_likelihood()

    def append(self, x: Any, y: Any = None, *, row_variance: Any = None, row_weight: Any = None) -> "StreamedPosterior":
        """The posterior with more rows, eq. (M-175); this one stays what it is, and the inducing points are kept.

        Rows that are held stay so where new ones are given as x and y; rows that are read are not kept, nor are then
        those before.

        Args:
            x: (k, d), or without y rows that are read, as `fgp.fit` takes them: one pass.
            y: (k,) or (k, outputs).
            row_variance: (k,), where the rows before have known variances, and only there; of rows that are read the
                third of a batch.
            row_weight: (k,), where the likelihood has weights of the rows before.
        Raises: ShapeError, DomainError for rows that do not fit or are not finite. Nothing changes then.
        Cost: k m evaluations and 2 k m^2 flops, and m^3 / 3 once; it does not grow with the rows there are, but for
            a copy where they are held.
        """
        state = append(self.state, x, y, row_variance, row_weight)
        return self if state is self.state else StreamedPosterior(state, self.units)

    def __repr__(self) -> str:
        return f"{Posterior.__repr__(self)}\n{'lost':<18} {self.bound}"

    # -- what asks for all rows ---------------------------------------------------------------------------------------
    @property
    def x(self) -> Tensor:
        """Training inputs, (n, d). Raises: DomainError where rows were read."""
        return self._held("x").x.clone()

    @property
    def y(self) -> Tensor:
        """Training targets, (n,) or (n, outputs). Raises: DomainError where rows were read."""
        return self._held("y").y.clone()

    @property
    def points(self) -> Tensor:
        """The training inputs: equal rows are not joined. Raises: DomainError where rows were read."""
        return self._held("points").x.clone()

    @property
    def residual(self) -> Tensor:
        """y - m(x), (n, outputs or 1). Raises: DomainError where rows were read."""
        rows, prior = self._held("residual"), self.state.prior
        return prior.residual(rows.x, prior.sites(rows.y).targets).detach()

    @property
    def representer_weights(self) -> NoReturn:
        """Raises: DomainError: the mean is a sum over inducing points."""
        raise DomainError(
            "`representer_weights` are one for each row, got a posterior of inducing points, whose mean is a sum over "
            "these; take post.predict(x).mean"
        )

    def leave_one_out(self) -> LeaveOneOut:
        """As `Posterior.leave_one_out`, with the inducing points where they are, eq. (M-167).

        Raises: DomainError where rows were read: they are not there to be predicted.
        Cost: n m evaluations and 3 n m^2 flops.
        """
        rows = self._held("leave_one_out")
        return leave_out(self.state, Block(rows.x.double(), rows.y.double(), rows.row_variance))

    def leave_out(self, x: Any, y: Any, *, row_variance: Any = None) -> LeaveOneOut:
        """Training rows that are given once more, each predicted from all the others, eq. (M-167).

        For rows that were read: of some of them. What was no training row gets an answer that means nothing.

        Args: x (k, d), y (k,) or (k, outputs), row_variance (k,), where the rows have known ones.
        Raises: ShapeError, DomainError.
        Cost: k m evaluations and 3 k m^2 flops.
        """
        if self.state.knows_rows:
            self._refuse_known("leave_out")
        rows = held(Data.of(self.state.prior, x, y))
        check_points(rows.x, "x", like=self.state.inducing)
        known = None if row_variance is None else row_variances(row_variance, "row_variance", rows.x)
        block = Block(rows.x.double(), rows.y.double(), known)
        check_alike(self.state, block)
        return leave_out(self.state, block)

    def _refuse_known(self, name: str) -> NoReturn:
        raise DomainError(
            f"`{name}` needs a likelihood that treats all rows alike but for known variances, got "
            f"{self.state.prior.likelihood.name} with numbers of single rows; take post.leave_one_out()"
        )

    def _held(self, name: str) -> Held:
        if self.state.held is None:
            again = "give some of them again, post.leave_out(x, y)" if name == "leave_one_out" else "take post.inducing"
            raise DomainError(
                f"`{name}` is of posteriors that hold their rows, got one of {self.count:,} rows that were read, or "
                f"are spread over ranks; {again}, or condition on the rows that count"
            )
        return self.state.held
