"""GP: the prior, a description of covariance function, mean and likelihood, and what it says about data."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from flashgp.foundations.checks import (
    check_count,
    check_device,
    check_dtype,
    check_flag,
    check_jitter,
    check_points,
    check_seed,
)
from flashgp.foundations.contexts import entered
from flashgp.foundations.deadline import Deadline
from flashgp.foundations.errors import DomainError
from flashgp.foundations.lazy_import import lazy_import
from flashgp.foundations.parameters import check_numbers
from flashgp.foundations.transforms import refuse_transformed
from flashgp.foundations.usual_names import usual_names_refused
from flashgp.inference.approximate_products import MAKERS
from flashgp.inference.approximation import approximation_of, approximation_of_read
from flashgp.inference.choice import GRIDS, PRODUCTS
from flashgp.inference.exact.likelihood import SECOND_ORDER_ROWS, DirectSettings, evaluate_likelihood
from flashgp.inference.exact.solve import LikelihoodRounding
from flashgp.inference.extent import check_likelihood
from flashgp.inference.fourier.planned import expected_sizes
from flashgp.inference.fourier.product import expected_products, fourier_products
from flashgp.inference.prior import Prior
from flashgp.inference.run import Run
from flashgp.inference.settings import ConditionSettings
from flashgp.kernels.base import Kernel
from flashgp.likelihoods import Gaussian, Likelihood
from flashgp.means import Constant, Zero
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.processes.group import Group
from flashgp.sources.source import source_of

if TYPE_CHECKING:
    from flashgp.inference.posterior import Posterior
    from flashgp.inference.streamed.minibatch import InducingValues, MinibatchBound
    from flashgp.planner.plan import Plan
    from flashgp.solvers.contract import Step

GRIDS["fourier"] = expected_sizes
PRODUCTS["fourier"] = expected_products
MAKERS["fourier"] = fourier_products
_OF_MANY = (
    "pass all targets or points at once, y (*batch, n) or x (*batch, n, d), for a posterior of each; for gradients "
    "condition(..., differentiable=True), or gp.log_marginal_likelihood"
)


class GP(Prior):
    """A Gaussian process prior with its likelihood: f ~ GP(mean, kernel), y | f ~ likelihood.

    Args:
        kernel: covariance function.
        mean: prior mean, a flashgp mean or any nn.Module from (*batch, n, d) to (*batch, n), which every call has in
            evaluation mode and leaves in its own; Constant by default.
        likelihood: `flashgp.likelihoods.Gaussian` by default.
        outputs: None for y of shape (*batch, n); p for y of shape (*batch, n, p): outputs with one covariance function,
            independent of each other. Each has a noise variance of its own, and with it a factor; one factor serves all
            where the likelihood is Gaussian(..., shared=True).

    Raises:
        DomainError: for arguments of the wrong kind.

    Example:
        >>> x = torch.linspace(0, 5, 30, dtype=torch.float64)[:, None]
        >>> gp = fgp.GP(2.0 * fgp.kernels.Matern(nu=2.5), likelihood=fgp.likelihoods.Gaussian(0.01))
        >>> p = gp.condition(x, torch.sin(x[:, 0])).predict(x[:3])
        >>> p.mean.shape, p.variance.shape
        (torch.Size([3]), torch.Size([3]))
        >>> two = fgp.GP(fgp.kernels.Matern(), outputs=2).condition(x, torch.cat([x.sin(), x.cos()], dim=1))
        >>> two.predict(x[:3]).variance.shape, two.predict(x[:3]).covariance().shape
        (torch.Size([3, 2]), torch.Size([2, 3, 3]))
    """

    @usual_names_refused
    def __init__(
        self,
        kernel: Kernel,
        mean: nn.Module | None = None,
        likelihood: Likelihood | None = None,
        outputs: int | None = None,
    ) -> None:
        if not isinstance(kernel, Kernel):
            raise DomainError(
                f"`kernel` must be a covariance function, got {type(kernel).__name__}; for example "
                "2.0 * flashgp.kernels.Matern(nu=2.5)"
            )
        outputs = None if outputs is None else check_count(outputs, "outputs", 1)
        likelihood = Gaussian() if likelihood is None else likelihood
        if not isinstance(likelihood, Likelihood):
            raise DomainError(
                f"`likelihood` must be a flashgp.likelihoods.Likelihood, got {type(likelihood).__name__}; for example "
                "flashgp.likelihoods.Gaussian()"
            )
        if not likelihood.has_sites:
            if outputs not in (None, likelihood.outputs):
                raise DomainError(
                    f"`outputs` must be None for {likelihood.name}, whose sites are found by iteration, got {outputs}; "
                    "fit a GP for each output"
                )
            outputs = likelihood.outputs
            if outputs is not None and not isinstance(mean, Zero | None):
                raise DomainError(
                    f"`mean` must be Zero for {likelihood.name}, whose functions matter by their differences, got "
                    f"{type(mean).__name__}; leave it out"
                )
        if mean is None:
            mean = Constant(outputs=outputs) if likelihood.has_sites or outputs is None else Zero()
        if not isinstance(mean, nn.Module):
            raise DomainError(
                f"`mean` must be a torch.nn.Module, got {type(mean).__name__}; use flashgp.means.Constant()"
            )
        super().__init__(kernel, mean, likelihood, outputs)

    def condition(
        self,
        x: Any,
        y: Any = None,
        *,
        solver: str | None = None,
        tolerance: float = 1e-3,
        time_limit: float | None = None,
        memory: str | int | None = None,
        plan: "Plan | None" = None,
        seed: int = 0,
        deterministic: bool = False,
        progress: "Callable[[Step], bool | None] | None" = None,
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
        jitter: float | None = None,
        differentiable: bool = False,
        approximation: str | None = None,
        inducing: "int | str | Tensor" = "auto",
        neighbours: int | str = "auto",
        group: Any = None,
    ) -> "Posterior":
        """The posterior given rows x, (*batch, n, d), and targets y, (*batch, n) or (*batch, n, outputs).

        Or given rows that are read, not held: `gp.condition(rows, inducing=512)`, as `fgp.fit` takes them. Or given the
        minibatches of `minibatch_bound`: `gp.condition(q)`.

        Detached from parameters and data unless `differentiable`. n = 0 gives the prior as a posterior. Whatever the
        route, the mean is that of a float64 Cholesky factor to `tolerance`, and the report says how certain that is.
        Rows of equal x are joined, which changes no answer (`Posterior.replicates`), but not with `differentiable`.

        Args:
            x: (*batch, n, d).
            y: (*batch, n), or (*batch, n, outputs) of a GP with outputs.
            solver: "cholesky" or "cg" (block conjugate gradients); by default the plan chooses: a factor while one is
                quick or fits, else conjugate gradients. What fails hands over to a float64 factor where it fits.
            tolerance: of the mean, in standard deviations of an observation.
            time_limit: seconds after which an iteration ends; the report then says how far off the mean may be. Where
                the plan says that a factor, or a tenth of an iterative solve, would end too late (by more than a tenth
                of the limit and 1 s), the posterior is that of as many random rows as a factor can have, 400 at least:
                an event and a warning say so. What has begun, other than iterations, is not interrupted.
            memory: budget like "8GiB"; what is free by default.
            plan: run exactly, as `flashgp.plan` made it.
            seed: of the preconditioner's draws.
            deterministic: the same seed gives the same bits on one machine's processor, whatever its number of threads:
                all of it runs on one thread and is planned with built-in rates, and so is what the posterior answers.
                Pass memory= or plan= too where memory is short: what is free decides which route fits. A time limit is
                a clock, and a gradient you take through an answer runs on your threads.
            progress: called after every iteration with its `Step`; a true answer ends the solve.
            device: None for x's device, "auto" for an accelerator when there is one.
            dtype: torch.float64 for a float64 factor, torch.float32 for a float32 one whose weights float64 corrects.
            jitter: relative to the mean diagonal; None tries n eps times 1, 10, 100 after a failure, and says so.
            differentiable: keep gradients to parameters, x and y (an autograd graph over n x n matrices).
            approximation: as `fgp.fit`; an approximate posterior of these parameters, for which solver, plan, jitter,
                progress and differentiable do not exist.
            inducing: as `fgp.fit`.
            neighbours: as `fgp.fit`.
            group: a ProcessGroup, or a DeviceMesh of one dimension, whose ranks call this together, each with rows of
                its own, some with none. The posterior is that of all rows on every rank: a factor is made by each of
                them, conjugate gradients and passes over blocks of full scale are shared, and errors are the same on
                every rank. None for this process alone.

        Raises:
            ShapeError: for x and y whose shapes do not fit.
            DomainError: for values that are not finite, or options that are none.
            MemoryBudgetError: if no plan fits the budget.
            NotPositiveDefiniteError: if the factorisation fails after the largest jitter.
            RankMismatchError: if ranks of the group were given different columns, models or options.
            ProcessGroupError: if a rank of the group has died or does not answer.
        Cost: as `flashgp.plan` says: n^3 / 3 flops and one n x n buffer, or passes over the pairs, with n the number of
            distinct rows.
        """
        lazy_import("flashgp.inference.condition")
        from flashgp.inference.condition import condition
        from flashgp.inference.data import Data
        from flashgp.inference.posterior import Posterior

        ranks = Group.of(group)
        with ranks.together():
            if not check_flag(differentiable, "differentiable"):
                refuse_transformed("condition", _OF_MANY, x, y, *self.parameters())
            check_numbers(self)
            run = Run(
                check_seed(seed), deterministic, tolerance, ranks, check_device(device), check_dtype(dtype), memory,
                Deadline.after(time_limit),
            )  # fmt: skip
            settings = ConditionSettings(
                run, solver, plan, progress, jitter=check_jitter(jitter), differentiable=bool(differentiable)
            )
            found = self._condition_on_values(x, settings, (approximation, inducing, neighbours)) if y is None else None
            if found is not None:
                return found
            if y is None:
                asked = approximation_of_read(approximation, inducing, neighbours)
                return Posterior(condition(self, source_of(x), settings, asked))
            asked_approximation = approximation_of(approximation, inducing, neighbours)
            return Posterior(condition(self, Data.of(self, x, y), settings, asked_approximation))

    def _condition_on_values(self, q: Any, settings: ConditionSettings, asked: Sequence[Any]) -> "Posterior | None":
        """Posterior of the inducing values of minibatches; None if q is something else."""
        from flashgp.inference.posterior import Posterior
        from flashgp.inference.streamed.minibatch import InducingValues, condition_on_values

        if not isinstance(q, InducingValues):
            return None
        for name, value in zip(("approximation", "inducing", "neighbours"), asked, strict=True):
            if value is not None and not (isinstance(value, str) and value == "auto"):
                raise DomainError(f"`{name}` is that of q, got {value!r} beside it; leave it out")
        return Posterior(condition_on_values(self, q, settings))

    @entered()
    def log_marginal_likelihood(
        self,
        x: Any,
        y: Any,
        *,
        theta: Mapping[str, Tensor] | None = None,
        dtype: torch.dtype | None = None,
        jitter: float | None = None,
        second_order_rows: int = SECOND_ORDER_ROWS,
        group: Any = None,
    ) -> Float64[Tensor, "*batch"]:
        """log p(y | x), eq. (M-33), in nats, with a closed-form gradient and Hessian: for own training loops.

        Both are there for autograd (also create_graph=True), torch.func (grad, hessian, jvp of grad) and vmap over
        parameters, by parameters, x and y. A jitter counts as a constant. It is the same at every call: `gp.train()`
        and `gp.eval()` change nothing, since modules are evaluated in evaluation mode.

        Args:
            x: (*batch, n, d).
            y: (*batch, n) or (*batch, n, outputs).
            theta: unconstrained values by parameter name (the keys of `named_parameters()`), each of the parameter's
                shape behind any leading chain dimensions; names left out keep their value.
            dtype: of the n x n matrix; float64 by default.
            jitter: as `condition`.
            second_order_rows: up to which second derivatives are computed, by a dozen float64 matrices of n x n, 1.5
                GiB for 4,096 rows; without them it does not matter.
            group: as `condition`; every rank makes the factor of all rows, and has the whole gradient by parameters,
                and that by its own x and y: nothing is to be summed, or averaged, over ranks.

        Returns:
            (*batch,), float64; with theta, the chain dimensions. A warning says where rounding may move it by more than
                a thousandth of itself, eq. (M-260).

        Raises:
            ShapeError: as `condition`.
            DomainError: as `condition`.
            NotPositiveDefiniteError: naming the batch members that failed.
            DerivativeError: for a second derivative of more than second_order_rows, or a third one of any.
        Cost: n^3 flops with the gradient, one n x n buffer; 4 n^3 flops for each row of a Hessian.
        """
        ranks = Group.of(group)
        if ranks.size > 1:
            lazy_import("flashgp.inference.gathered")
            from flashgp.inference.data import Data
            from flashgp.inference.gathered import gathered

            with ranks.together():
                table = gathered(
                    self, Data.of(self, x, y), ranks, dtype=dtype, jitter=jitter, theta=sorted(theta or ())
                )
                return self.with_likelihood(table.prior.likelihood).log_marginal_likelihood(
                    table.x, table.y, theta=theta, dtype=dtype, jitter=jitter, second_order_rows=second_order_rows
                )
        check_numbers(self)
        x = check_points(x, "x")
        y = self.checked_targets(y, x)
        dtype, jitter = check_dtype(dtype), check_jitter(jitter)
        if theta is not None:

            def at(gp: GP) -> Tensor:
                return gp.log_marginal_likelihood(x, y, dtype=dtype, jitter=jitter, second_order_rows=second_order_rows)

            return self.at(theta, x, y, at)
        rows = check_count(second_order_rows, "second_order_rows", 0)
        settings = DirectSettings(
            TorchTiles(), dtype or torch.float64, jitter, repair=lambda: self.repairable(x, y), second_order_rows=rows,
            rounding=LikelihoodRounding(),
        )  # fmt: skip
        value = evaluate_likelihood(self, settings, x, y)
        check_likelihood(self, x, y, value)
        assert settings.rounding is not None
        settings.rounding.warn()
        return value

    @entered()
    def log_joint(
        self,
        x: Any,
        y: Any,
        *,
        theta: Mapping[str, Tensor] | None = None,
        jacobian: bool = False,
        dtype: torch.dtype | None = None,
        jitter: float | None = None,
        second_order_rows: int = SECOND_ORDER_ROWS,
    ) -> Float64[Tensor, "*batch"]:
        """log p(y | x, theta) + log p(theta) over all priors, eq. (M-38): the objective of `fit`, or of a sampler.

        Args:
            x: as `log_marginal_likelihood`.
            y: as `log_marginal_likelihood`.
            theta: as `log_marginal_likelihood`.
            jacobian: add log |d value / d raw|, so that the density is that of the unconstrained values, as Hamiltonian
                Monte Carlo needs.
            dtype: as `log_marginal_likelihood`.
            jitter: as `condition`.
            second_order_rows: as `log_marginal_likelihood`.

        Returns:
            (*batch,), or the chain dimensions of theta.
        """
        if theta is not None:
            x = check_points(x, "x")
            y = self.checked_targets(y, x)

            def at(gp: GP) -> Tensor:
                return gp.log_joint(
                    x, y, jacobian=jacobian, dtype=dtype, jitter=jitter, second_order_rows=second_order_rows
                )

            return self.at(theta, x, y, at)

        value = self.log_marginal_likelihood(x, y, dtype=dtype, jitter=jitter, second_order_rows=second_order_rows)
        return value + self.log_prior(jacobian=jacobian)

    @entered()
    def collapsed_bound(self, x: Any, y: Any, *, inducing: Any, group: Any = None) -> Float64[Tensor, ""]:
        """A lower bound on log p(y | x) by inducing points, eq. (M-160), nats, with a closed-form gradient.

        For training loops of your own where n^3 is too much: linear in the rows, differentiable by all parameters,
        networks inside kernels and means among them, by x, y and the inducing points. The distribution of the inducing
        values is the best there is; nothing but your optimiser has a step size. `self.log_prior()` adds priors.

        Args:
            x: (n, d), n at least 1.
            y: (n,) or (n, outputs), with one noise variance for all.
            inducing: points (m, d) in the space of x, at most n; `inducing_points` chooses some.
            group: a ProcessGroup whose ranks each have rows of their own, some none. Value and gradients are those of
                all rows on every rank; a network may be wrapped in DistributedDataParallel or fully_shard, whose mean
                of gradients is made a sum, (M-220).

        Returns:
            A scalar, float64. Under `torch.no_grad()` the value alone is computed.

        Raises:
            ShapeError: for x, y and points whose shapes do not fit.
            DomainError: for rows, points and models that have no such bound.
            NotPositiveDefiniteError: if a factorisation fails.
            DerivativeError: for create_graph=True.
        Cost: 2 n m evaluations and 7.5 n m^2 flops; memory of a block of rows and of their features.

        Example:
            >>> x = torch.linspace(0, 5, 200, dtype=torch.float64)[:, None]
            >>> gp = fgp.GP(fgp.kernels.Matern(nu=1.5))
            >>> z = gp.inducing_points(x, 20)
            >>> optimiser = torch.optim.Adam(gp.parameters(), lr=0.05)
            >>> (-gp.collapsed_bound(x, torch.sin(x[:, 0]), inducing=z)).backward()
            >>> optimiser.step()
            >>> post = gp.condition(x, torch.sin(x[:, 0]), approximation="sparse", inducing=z)
        """
        from flashgp.inference.streamed.collapsed import collapsed_bound

        return collapsed_bound(self, x, y, inducing, group=Group.of(group))

    @entered()
    def minibatch_bound(
        self,
        x: Any,
        y: Any,
        *,
        count: int,
        inducing: Any,
        q: "InducingValues | None" = None,
        group: Any = None,
    ) -> "MinibatchBound":
        """The bound of inducing points estimated from a minibatch, eq. (M-190), and q(u) after it, eq. (M-192).

        For training loops of your own over more rows than a step of the optimiser may read. `value` is an unbiased
        estimate of a lower bound on log p of all rows, at the distribution q(u) that came in; the q returned has
        learned the batch too, by a natural-gradient step whose size follows from how far batches scatter and parameters
        move. Without q the batch alone says where q(u) is, and its value is optimistic.

        Args:
            x: (b, d), a random batch of the rows.
            y: (b,) or (b, outputs), with one noise variance for all.
            count: of all rows, n.
            inducing: points (m, d), the same for every batch, or moved by your optimiser.
            q: that of the batch before; None at first.
            group: as `collapsed_bound`; the batch is that of all ranks together.

        Returns:
            MinibatchBound: value, a scalar in nats of all rows, differentiable as `collapsed_bound`; q, which
                `gp.condition(q)` takes for a posterior without another pass.

        Raises:
            ShapeError: as `collapsed_bound`.
            DomainError: as `collapsed_bound`.
            NotPositiveDefiniteError: if a factorisation fails.
            DerivativeError: for create_graph=True.
        Cost: b m + m^2 evaluations with their gradients, 6.5 b m^2 + 3.3 m^3 flops.

        Example:
            >>> x = torch.linspace(0, 5, 1000, dtype=torch.float64)[torch.randperm(1000)][:, None]
            >>> gp = fgp.GP(fgp.kernels.Matern(nu=1.5))
            >>> z, q = gp.inducing_points(x, 20), None
            >>> optimiser = torch.optim.Adam(gp.parameters(), lr=0.05)
            >>> for batch in x.split(100):
            ...     step = gp.minibatch_bound(batch, torch.sin(batch[:, 0]), count=1000, inducing=z, q=q)
            ...     optimiser.zero_grad()
            ...     (-step.value).backward()
            ...     optimiser.step()
            ...     q = step.q
            >>> gp.condition(q).predict(x[:3]).mean.shape
            torch.Size([3])
        """
        from flashgp.inference.streamed.minibatch import minibatch_bound

        return minibatch_bound(self, x, y, count, inducing, q, Group.of(group))

    @entered()
    def inducing_points(self, x: Any, count: int, *, seed: int = 0, group: Any = None) -> Tensor:
        """At most `count` of the rows x as inducing points, (m, d): those that the others say least about.

        Pivots of a partial Cholesky factor, eq. (M-77), of 20 times as many random rows, at the present parameters. A
        warning says where they are fewer: the rows beyond them are known from these to within rounding or the noise.

        Args:
            x: rows, (n, d); with a group this rank's.
            count: of points, at most.
            seed: of the random rows.
            group: ranks whose rows the points are among, the same points on every rank.

        Raises:
            ShapeError: for x of another shape.
            DomainError: for values that are not finite, or a count that is none.
        Cost: 20 m^2 evaluations, 20 m^3 flops.
        """
        from flashgp.inference.streamed.collapsed import chosen_points

        return chosen_points(self, x, check_count(count, "count", 1), check_seed(seed), Group.of(group))
