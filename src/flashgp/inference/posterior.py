"""Posterior: a prior conditioned on data, as a value. Factor once, reuse in every prediction.

With K^ = K + noise and r = y - m(x): representer_weights = K^-1 r, eq. (M-30). The posterior owns a detached copy of
the prior, so changing parameters afterwards changes nothing here."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from flashgp.foundations.contexts import outside_compile
from flashgp.foundations.errors import DomainError
from flashgp.foundations.report import Report
from flashgp.foundations.transforms import refuse_transformed
from flashgp.inference.answers import answer, refusal
from flashgp.inference.base_state import BaseState
from flashgp.inference.full_scale.state import Lost
from flashgp.inference.judgement.verdict import Verdict
from flashgp.inference.judging import judge
from flashgp.inference.online.fantasies import Fantasies
from flashgp.inference.predict.components import Component
from flashgp.inference.predict.importance import Importance, ImportanceSettings
from flashgp.inference.predict.leave_one_out import LeaveOneOut
from flashgp.inference.predict.paths import Paths
from flashgp.inference.predict.plan import Wanted
from flashgp.inference.predict.prediction import Prediction
from flashgp.inference.predict.progress import ToldProgress
from flashgp.inference.prior import Prior
from flashgp.inference.replicates import Replicates
from flashgp.inference.streamed.state import Bound
from flashgp.kernels.base import Kernel
from flashgp.planner.plan import Plan
from flashgp.planner.products import ProductPlan
from flashgp.solvers.direct.cholesky import TriangularFactor

if TYPE_CHECKING:
    from flashgp.inference.training.history import Progress

__all__ = ["Importance", "LeaveOneOut", "Posterior"]


_OF_MANY = "posterior.fantasize(x, y) takes rows and targets of many at once"


class Posterior:
    """A Gaussian process given data, exactly or by an approximation. Made by `gp.condition`; immutable.

    A method that a kind of posterior does not have raises DomainError, and `can` says so before: rows never leave an
    approximation; one of rows that were read holds m points, m x m numbers and a sample of the rows, so that methods
    that need all rows are refused; only exact posteriors have fantasies and are refined. All ranks of a group must call
    the same methods in the same order where there is no factor; `fgp.save` on rank 0 writes a file that one process
    loads. Reading a field sends nothing.

    Inputs and returned tensors are copies; modifying them has no effect. `factor` and `state` alone are what it
    computes with, to be read only. With `differentiable` the parameters are the GP's own.

    Attributes:
        gp: the prior as it was (a detached copy).
        x: the training inputs.
        y: the training targets.
        representer_weights: K^-1 (y - m), (*batch, u, outputs or 1), float64.
        factor: the Cholesky factor of K + noise; None without data, or where iterative solves made the weights.
        by_output: where outputs have noise of their own the posterior of each.
        report: how the answers were computed, and how certain they are.
        plan: the plan that conditioning followed.
        replicates: the u distinct rows that repeated rows of x were joined into; None where u = n. Factor, weights and
            residual are theirs, in that order (inference/replicates.py).
        state: the value behind it, which the functions of inference take and return.
        units: of x and y in words, where they are not the user's own.

    Example:
        >>> x = torch.linspace(0, 5, 30, dtype=torch.float64)[:, None]
        >>> post = fgp.GP(fgp.kernels.Matern()).condition(x, torch.sin(x[:, 0]))
        >>> longer = post.append(x[:2] + 5.0, torch.zeros(2, dtype=torch.float64))
        >>> longer.x.shape, longer.predict(x[:4]).sample(8, seed=0).shape
        (torch.Size([32, 1]), torch.Size([8, 4]))
    """

    def __init__(self, state: BaseState, units: str = "") -> None:
        self.state = state
        self.units = units
        self._gp: Prior | None = None

    def in_units(self, units: str) -> "Posterior":
        """The posterior with text that names the units of x and y."""
        return Posterior(self.state, units)

    @property
    def gp(self) -> Prior:
        """The GP that was conditioned, as it was; a copy, made when first asked for."""
        if self._gp is None:
            prior = self.state.prior.without_held_sites()
            self._gp = prior if self.state.differentiable else copy.deepcopy(prior)
        return self._gp

    @property
    def x(self) -> Tensor:
        """Training inputs, (*batch, n, d). Raises: DomainError where rows were read."""
        return self.state.x.clone()

    @property
    def y(self) -> Tensor:
        """Training targets, (*batch, n) or (*batch, n, outputs). Raises: DomainError where rows were read."""
        return self.state.y.clone()

    @property
    def factor(self) -> TriangularFactor | None:
        """The Cholesky factor of K + noise, no copy, which would take n^2 numbers: to be read only.

        None without data, by an approximation, or where iterative solves made the weights.

        Raises:
            DomainError: where outputs have noise of their own, and with it a factor each.
        """
        return self.state.factor

    @property
    def by_output(self) -> "tuple[Posterior, ...]":
        """The posterior of each output, with y without an axis for outputs, if outputs have noise of their own; else
        ().
        """
        parts = self.state.of_outputs if self.state.prior.separate else ()
        return tuple(Posterior(part, self.units) for part in parts)

    @property
    def residual(self) -> Float64[Tensor, "*batch u p"]:
        """y - m(x) of the distinct rows, (*batch, u, outputs or 1)."""
        return self.state.residual.clone()

    @property
    def report(self) -> Report:
        """Report of conditioning: its computation and accuracy."""
        return self.state.report

    @property
    def plan(self) -> Plan | None:
        """The plan that conditioning followed."""
        return self.state.plan

    @property
    def replicates(self) -> Replicates | None:
        """The distinct rows that repeated rows of x were joined into; None where no row repeats."""
        return None if self.state.replicates is None else self.state.replicates.copied()

    @property
    def representer_weights(self) -> Float64[Tensor, "*batch u p"]:
        """K^-1 (y - m), (*batch, u, outputs or 1), float64; after an update n^2 flops when they are first asked for. Of
        full scale K is that of its model: a pass over the blocks."""
        return self.state.representer_weights.clone()

    @property
    def count(self) -> int:
        """The number of training rows."""
        return self.state.count

    @property
    def distinct(self) -> int:
        """The number of training rows that differ, which are those that are computed with."""
        return self.state.distinct

    @property
    def points(self) -> Float[Tensor, "*batch u d"]:
        """The distinct training inputs, (*batch, u, d), in the order of the weights."""
        return self.state.points.clone()

    @property
    def noise(self) -> Float64[Tensor, "*batch rows"]:
        """The noise variance of each distinct row, with the jitter of the system that was solved, (*batch, u or 1);
        where outputs have noise of their own (*batch, u or 1, outputs)."""
        return self.state.noise.clone()

    @property
    def batch_shape(self) -> torch.Size:
        """Shape of a batch of models; () for one."""
        return self.state.batch_shape

    # -- what is of approximations ------------------------------------------------------------------------------------
    @property
    def inducing(self) -> Tensor:
        """The inducing points of an approximation, (m, d)."""
        return self._ask("inducing")

    @property
    def lost(self) -> Lost | Bound:
        """Accuracy lost by an approximation: `lost.nats`, a row.

        Of full scale an estimate, with its standard error, of the divergence from the exact model, eq. (M-156). A fit
        computes it where its time allows, and its report says it; after `condition` it is computed when asked for: 32
        factors of 8 times the neighbours, once. Of inducing points alone the bound: its `nats` are the most that a row
        may lose in log p(y).
        """
        return self._ask("lost")

    @property
    def bound(self) -> Bound:
        """Lower and upper bound on log p(y) of inducing points alone, nats, eqs. (M-160) and (M-161).

        The upper one is wide: half a nat a row with many rows, however good the inducing points are, unless they leave
        next to nothing. `bracket` has a tighter one. Cost: m^3 flops.
        """
        return self._ask("bound")

    def bracket(self, rows: Any = None) -> Bound:
        """Bounds on log p(y) as `bound`, with a tighter upper one from pairs of the training rows, eq. (M-242).

        All pairs where there are at most 32,768 rows, else those within blocks of as many rows as 2^30 pairs allow: the
        fewer blocks, the tighter.

        Args:
            rows: the training rows once more, as `fgp.fit` takes them, where they were read; None where they are held.

        Raises:
            DomainError: for other rows, or none where the posterior holds none; as a pass over rows that are read.
        Cost: two passes, n m evaluations and n m^2 flops, and at least n times 2^21 / m evaluations, at most 2^30
            otherwise.

        Example:
            >>> x = torch.linspace(0, 5, 400, dtype=torch.float64)[:, None]
            >>> gp = fgp.GP(fgp.kernels.Matern(nu=1.5), likelihood=fgp.likelihoods.Gaussian(0.01))
            >>> post = gp.condition(x, torch.sin(x[:, 0]), approximation="sparse", inducing=20)
            >>> post.bracket().upper <= post.bound.upper
            True
        """
        return self._ask("bracket", rows)

    # -- answers ------------------------------------------------------------------------------------------------------
    @outside_compile
    def predict(
        self,
        x_test: Any,
        *,
        variance: str | None = "auto",
        plan: ProductPlan | None = None,
        memory: str | int | None = None,
        deterministic: bool = False,
        time_limit: float | None = None,
        progress: ToldProgress = None,
    ) -> Prediction:
        """The posterior at x_test, (*batch, n_test, d): lazy, tile by tile, differentiable in x_test.

        Lazy: work begins when something is asked for. From 1e7 pairs of training and test rows on it follows a plan,
        which its report carries. Of a group without a factor mean and variance are computed at once. Approximations
        take (M-154), each point from its own nearest rows, and (M-165).

        Args:
            x_test: (*batch, n_test, d).
            variance: without a float64 factor, "exact" takes solves for every point, (M-101), and "sampled" 64 solves
                once for all points, (M-97), with `p.variance_standard_error`; "auto" samples where exact solves would
                take more than a minute by the machine's rates, (M-107), with as many samples as a minute allows, 8 to
                64, a warning, and never where gradients are wanted or the kernel has no random features. A float64
                factor is exact unless "sampled" is asked for; an approximation has exact ones only. None, of a group,
                for the mean alone, which is quicker without a factor.
            plan: how to compute it, as `flashgp.plan(gp, n=, d=, n_test=)` made it (`distinct=` where rows repeat); by
                default one is made when the mean or the variance is asked for.
            memory: budget of that plan, like "8GiB"; what is free by default.
            deterministic: the same bits whatever the number of threads, as `GP.condition` says; a posterior conditioned
                so predicts so.
            time_limit: seconds that variances may take, from when they are asked for, in place of the minute: exact
                solves where they keep to it, else samples; the solves of both end with it. Exact ones are too large
                then, with a warning; what samples leave uncertain is in `p.variance_standard_error`, (M-263). Means and
                factors, which are quick, do not ask it. An approximation refuses points that would take longer by its
                plan.
            progress: called after every iteration of a solve for variances, with a `PredictionProgress`; False for
                nothing. None for a bar after a second, where a terminal or a notebook shows it.

        Returns:
            Prediction.

        Raises:
            ShapeError: for points of another shape.
            DomainError: for points, a plan or a variance that do not fit; where the result is asked for, if no variance
                can be had within the time limit.
            MemoryBudgetError: where the result is asked for, if nothing fits.
        Cost: n n_test (d + 1) for the mean; n^2 n_test flops for the variance; never n x n_test numbers at once. Of
            full scale with q neighbours and m inducing points q^2 (2 m + q / 3) flops for each point, of inducing
            points alone m evaluations and 2 m^2.
        """
        return self._ask("predict", x_test, Wanted(variance, plan, memory, deterministic, time_limit, progress))

    def predict_seconds(self, rows: int) -> float:
        """Seconds of predicting so many rows with variances, by its plan; 0 where no plan is worth its time. Of an
        approximation about what conditioning took for as many rows."""
        return self._ask("predict_seconds", rows)

    def paths(self, count: int, *, features: int = 2048, seed: int | None = None) -> Paths:
        """Posterior functions by Matheron's rule, eq. (M-94): `f = post.paths(64); f(x_any)`, differentiable in x_any.

        Of approximations inducing values are drawn exactly, their residual from the prior, eqs. (M-155) and (M-166).

        Args:
            count: of functions; each output has independent ones.
            features: of the draw of the prior, per term of the expanded kernel; its error is `f.prior_error` and stands
                in `f.report`. A kernel without random features is drawn exactly, where `f` is called, (M-255): all
                calls are of the same functions, and which these are depends on the seed and on what was asked before,
                points and slopes; the same calls in the same order give the same values, whatever the order of rows.
            seed: of all randomness; without one a single integer is drawn from torch's default generator, of a group
                from rank 0's.

        Returns:
            A function of points (*batch, n_test, d), with values (count, *batch, n_test[, outputs]).

        Raises:
            DomainError: for counts that are none, or without features over several ranks.
            MemoryBudgetError: where so many solves at once do not fit in what is free or, without features, the factor
                of the rows and the points asked for does not.
        Cost: one solve with count outputs right-hand sides; then n (d + count outputs) per point. Without features s^2
            flops more of a point, for s rows and points asked for before, and 24 s^2 bytes; where its slope is wanted,
            of d + 1 points.
        Source: Wilson, Borovitskiy, Terenin, Mostowsky & Deisenroth (2020), eq. 13.
        """
        return self._ask("paths", count, features, seed)

    def component(self, part: int | Kernel) -> Component:
        """Posterior of one term of a sum of covariance functions, such as a trend or a season, eq. (M-410).

        Terms are those of sums, also inside of scales and products, from left to right: `variance * (a + b)` has two.
        The prior mean belongs to none.

        Args:
            part: the number of the term, from 0; or a kernel that has the structure of one term alone, with or without
                its scale, such as the one that the sum was made of, whatever its parameters are by now. Of several such
                terms the one with its values.

        Returns:
            Component, with `predict(x_test)`, and its share of the variance.

        Raises:
            DomainError: for what is none, or of several terms; of outputs with noise of their own, or a mixture.
        Cost: nothing; predictions cost what those of the whole do.
        """
        return self._ask("component", part)

    @property
    def components(self) -> tuple[Component, ...]:
        """Posterior of each term, as `component`."""
        return self._ask("components")

    # -- what this posterior answers ----------------------------------------------------------------------------------
    def can(self, question: str) -> str | None:
        """Reason that this posterior does not answer a method, and what to do instead; None if it does.

        Args:
            question: the name of a method or field, such as "drop".

        Raises:
            DomainError: for a name that no posterior has.

        Example:
            >>> x = torch.linspace(0, 5, 30, dtype=torch.float64)[:, None]
            >>> post = fgp.GP(fgp.kernels.Matern()).condition(x, torch.sin(x[:, 0]), approximation="sparse")
            >>> post.can("append") is None, post.can("drop") is None
            (True, False)
        """
        if not hasattr(type(self), question):
            raise DomainError(
                f"`question` must be a method or field of Posterior, got {question!r}; see dir(posterior)"
            )
        return refusal(self.state, question)

    def _ask(self, question: str, *arguments: Any, **options: Any) -> Any:
        return answer(self.state, question, *arguments, **options)

    def _updated(self, question: str, *arguments: Any, **options: Any) -> "Posterior":
        state = self._ask(question, *arguments, **options)
        return self if state is self.state else Posterior(state, self.units)

    def with_prior(self, prior: Prior) -> "Posterior":
        """The posterior under a prior whose likelihood gives the same covariance matrix and residual."""
        return Posterior(self.state.with_prior(prior), self.units)

    # -- learning online ------------------------------------------------------------------------------------------
    def append(
        self, x: Any, y: Any = None, *, row_variance: Any = None, row_weight: Any = None, **of_rows: Any
    ) -> "Posterior":
        """The posterior with k more rows, eq. (M-111); this one stays as it is.

        An approximation keeps parameters and inducing points. Of full scale new rows become blocks behind the others,
        as wide as those, of one row each where few come at once, eq. (M-176): each has its neighbours among all earlier
        rows. `lost` has the accuracy lost by that; where the appended rows are most of them, or far from the inducing
        points, condition again. Of inducing points alone the sums over rows grow, eq. (M-175); rows that are held stay
        so where x and y are given, rows that are read are not kept, nor are then those before.

        Where sites are found by iteration a new row has that of a local step, eq. (M-275), and the others stay: the
        report has how far q(f) has moved from theirs, `refine` and conditioning again look for all of them anew.

        Args:
            x: (k, d), as `gp.condition` takes it, joined to the rows there are by torch.cat. Of inducing points
                alone and Fourier series, without y, also rows that are read, as `fgp.fit` takes them: one pass.
            y: (k,) or (k, outputs), likewise.
            row_variance: (k,), where the rows before have variances of their own; of rows that are read the third of a
                batch.
            row_weight: (k,), ones by default.
            of_rows: (k,) of other names, where the rows before have such numbers: `exposure`, `trials`.

        Raises:
            ShapeError: for rows that do not fit.
            DomainError: for rows that are not finite, a batch or a differentiable posterior.
            NotPositiveDefiniteError: for a row that repeats another without noise. Nothing changes then.
        Cost: n^2 k flops; k rows of memory, at times a panel of n / 2 spare ones. The weights wait until asked for. Of
            a mixture over hyperparameters n^3 / 3 for each draw.
            Without a float64 factor a solve from the old weights, to the tolerance of conditioning: about two thirds of
            its iterations, and its preparation unless a float32 factor is updated (inference/online/warm_start.py). Of
            full scale for each row, with q neighbours and blocks of b new rows, (q + b)^2 (2 m + q / 3) / b + 2 m^2
            flops and a distance of every row; now and then a copy of all rows with room for half as many. Of inducing
            points alone k m evaluations, 2 k m^2 flops and m^3 / 3 once, and a copy of rows that are held.
        """
        refuse_transformed("append", _OF_MANY, x, y)
        return self._updated("append", x, y, row_variance, row_weight, **of_rows)

    def drop(self, indices: Any) -> "Posterior":
        """The posterior without some rows, eq. (M-112); without any row it is the prior.

        A jitter that the rows before needed stays, and the report names it; condition again to be without it.

        Args:
            indices: numbers of rows of `post.x`, from 0 on, each once.

        Raises:
            DomainError: for numbers that are out of range or repeat, a batch or a differentiable posterior.
        Cost: 2 n^2 flops for each row, from the first that goes on; n^2 numbers. Without a float64 factor as `append`.
        """
        return self._updated("drop", indices)

    def slide(self, x: Any, y: Any, *, row_variance: Any = None, row_weight: Any = None, **of_rows: Any) -> "Posterior":
        """A window moves on: the k rows that came first are dropped, k new ones appended; see `append` and `drop`."""
        refuse_transformed("slide", _OF_MANY, x, y)
        return self._updated("slide", x, y, row_variance, row_weight, **of_rows)

    def replace(
        self, indices: Any, x: Any, y: Any, *, row_variance: Any = None, row_weight: Any = None, **of_rows: Any
    ) -> "Posterior":
        """Some rows are dropped and as many appended, at the end of the table; see `append` and `drop`."""
        refuse_transformed("replace", _OF_MANY, x, y)
        return self._updated("replace", indices, x, y, row_variance, row_weight, **of_rows)

    def fantasize(
        self, x: Any, y: Any = None, *, samples: int | None = None, seed: int | None = None, row_variance: Any = None
    ) -> "Fantasies":
        """Many posteriors at once, each with q hypothetical rows of its own beside these, eq. (M-114).

        Args:
            x: (*b, q, d), the rows of every member.
            y: their targets, (*s, *b, q) or (*s, *b, q, outputs), with the noise of the likelihood; None with
                `samples`.
            samples: how many targets to draw from the posterior in place of y, s = (samples,).
            seed: of these draws.
            row_variance: (*b, q), variances of these rows beside that of the likelihood.

        Returns:
            Fantasies, with `predict(x_test)` of all members at once; differentiable in x, y and x_test.

        Raises:
            ShapeError: for rows that do not fit.
            DomainError: for values that are not finite, or a posterior without one float64 factor.
            NotPositiveDefiniteError: for a row that repeats another without noise.
        Cost: n^2 flops for each distinct row, n q^2 for each member; n numbers for each distinct row. Of a mixture over
            hyperparameters for each draw.
        """
        fantasies: Fantasies = self._ask("fantasize", x, y, samples, seed, row_variance)
        fantasies.posterior = self
        return fantasies

    def refine(
        self,
        steps: int = 5,
        *,
        priors: Literal["weak", "given"] = "weak",
        time_limit: float | None = None,
        progress: "Callable[[Progress], None] | None" = None,
    ) -> "Posterior":
        """The posterior of the same rows with better hyperparameters: a few steps up the log joint from its own.

        Args:
            steps: of L-BFGS-B at most.
            priors: as `fgp.fit`.
            time_limit: as `fgp.fit`.
            progress: as `fgp.fit`.

        Raises:
            DomainError: for a posterior without rows, of a batch or differentiable; other errors as `fgp.fit`.
        Cost: about 1.3 evaluations of n^3 flops a step, and a new factor: not of O(n^2).
        """
        return self._updated("refine", steps, priors=priors, time_limit=time_limit, progress=progress)

    def log_marginal_likelihood(self) -> Float64[Tensor, "*batch"]:
        """log p(y | x) of eqs. (M-33) and (M-87), (*batch,), nats.

        Of an approximation that of its model, of inducing points alone the lower bound, eq. (M-160). Else from the
        float64 factor; without one by stochastic Lanczos quadrature, eq. (M-99), whose standard error goes to
        `report.standard_error`; what weights whose solve ended early may add is an event and a warning. Of outputs with
        noise of their own it is the sum over them.

        Cost: O(n); without a factor some tens of passes over the pairs in float64, once; with a float32 factor, whose
            rounding is all that is left to estimate, a few.
        """
        return self._ask("log_marginal_likelihood")

    def leave_one_out(self) -> LeaveOneOut:
        """Predictions of each observation from the others, without refitting, eqs. (M-39) and (M-40).

        The others include the other observations at the same x, eq. (M-88): a noise-free one leaves no variance. Exact
        for a full-scale model too; inducing points alone stay where they are, eq. (M-167). Where sites are found by
        iteration it is of y under q(f) without the row's own site, eq. (M-268), and refused once rows joined or left.

        Raises:
            DomainError: without a factor, or where rows were read: `leave_out` takes some of them again.
        Cost: n^3 / 3 flops, one strip of the inverse factor. With a float32 factor a solve for every row too, where all
            of them take less than 10 s by the machine's rates; elsewhere 16 rows are compared, and a warning says where
            the factor's rounding matters. Of full scale a pass over the blocks and n m^2 flops, of inducing points
            alone n m evaluations and 3 n m^2 flops.
        """
        return self._ask("leave_one_out")

    def leave_out(self, x: Any, y: Any, **of_rows: Any) -> LeaveOneOut:
        """Predictions of training rows given once more, each from all the others, eqs. (M-167) and (M-438).

        For rows that were read: of some of them. What was no training row gets an answer that means nothing.

        Args:
            x: (k, d).
            y: (k,) or (k, outputs).
            of_rows: (k,) each, numbers that the rows have, by name, as `append`.

        Raises:
            ShapeError: for rows that do not fit.
            DomainError: for values that are not finite, or a posterior without such an answer.
        Cost: k m evaluations and 3 k m^2 flops.
        """
        return self._ask("leave_out", x, y, **of_rows)

    def judge(self, x: Any = None, y: Any = None, **of_rows: Any) -> Verdict:
        """The verdict on the predictions of rows that were held out, or, without any, of its own by leave-one-out.

        Args:
            x: rows that took no part in the fit, (k, d).
            y: their targets, (k,) or (k, outputs).
            of_rows: numbers of theirs by name, (k,), such as exposure, or trials, as `append`.

        Returns:
            Verdict; where it cannot be had, with the reason.

        Raises:
            ShapeError: for rows that do not fit.
            DomainError: for values that are not finite.
        Cost: that of `leave_one_out`, or of predicting the rows with variances.

        Example:
            >>> x = torch.linspace(0, 5, 30, dtype=torch.float64)[:, None]
            >>> post = fgp.GP(fgp.kernels.RBF(), likelihood=fgp.likelihoods.Gaussian(1e-4)).condition(x, x[:, 0].sin())
            >>> post.judge(x + 0.05, torch.sin(x[:, 0] + 0.05)).word.value
            'excellent'
        """
        return judge(self.state, x, y, **of_rows)

    def importance(
        self,
        groups: Mapping[str, int | Sequence[int]] | None = None,
        *,
        rows: int | None = None,
        permutations: int | None = None,
        seed: int = 0,
    ) -> Importance:
        """Importance of the columns of x: the loss of accuracy of held-out rows where one is permuted, eq. (M-151).

        Rows are predicted from others, up to 2,048, with the parameters as they are: from fewer than the posterior has
        a column that matters at short distances alone looks less important than it is. Rows of equal x are held out
        together.

        Args:
            groups: names with the columns of x, from 0, that are permuted together; every column by itself by default.
            rows: held out; None for a quarter of all, 100 to 256, or fewer where there are many columns, 64 at least.
            permutations: of each column; None for as many as 2,304 predictions allow, 1 to 8.
            seed: of the rows and permutations; the same seed gives the same result.

        Returns:
            Importance, of log density and of RMSE with standard errors; exactly 0 of columns that the model does not
                read.

        Raises:
            DomainError: for a batch, fewer than 2 rows, or columns that x has not.
            MemoryBudgetError: if the predictions do not fit.
        Cost: n^3 / 3 flops and n^2 for each prediction, with n the rows behind; up to 4 times the former of few rows.

        Example:
            >>> x = torch.rand(60, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
            >>> post = fgp.GP(fgp.kernels.RBF(torch.tensor([0.5, 9.0]))).condition(x, torch.sin(6.0 * x[:, 0]))
            >>> found = post.importance({"hour": 0, "age": 1})
            >>> found.names[found.order[0]], bool(found.rmse[0] > 10.0 * found.rmse[1])
            ('hour', True)
        """
        settings = ImportanceSettings(rows=rows, permutations=permutations, seed=seed)
        return self._ask("importance", groups, settings)

    def __repr__(self) -> str:
        units = f", of {self.units}" if self.units else ""
        loss = f"\n{'lost':<18} {self.state.loss}" if self.state.loss else ""
        return f"Posterior of {self.count:,} rows{units}\n{self.state.prior!r}\n{self.report}{loss}"

    def _repr_html_(self) -> str:
        units = f"<p>Posterior of {self.units}</p>" if self.units else ""
        return f"{units}{self.state.prior._repr_html_()}{self.report._repr_html_()}"
