"""GPyTorch's models as FlashGP's and back, parameter by parameter.

    post = from_gpytorch(model)               posterior of a live ExactGP given its rows
    post = from_gpytorch(model, likelihood)   and of an ApproximateGP (SVGP), both checked against its own predictions
    k = to_gpytorch(kernel)                   a GPyTorch module of the same covariance function

A state_dict does not say which covariance function it is of, so that live modules are read. Where the libraries
parametrise differently COUNTERPARTS has the map: GPyTorch's Periodic divides by its lengthscale, not by the square, and
its Cosine has half a period.
"""

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import gpytorch
import torch
from torch import Tensor, distributions, nn
from torch.distributions import constraints
from torch.distributions.transforms import AffineTransform, PowerTransform

from flashgp import means
from flashgp.foundations.errors import DomainError
from flashgp.foundations.parameters import Parameter
from flashgp.inference.gp import GP
from flashgp.inference.posterior import Posterior
from flashgp.inference.state import State
from flashgp.inference.streamed.given import state_of_values
from flashgp.kernels import (
    Constant,
    Coregionalization,
    Cosine,
    Kernel,
    Linear,
    Matern,
    Periodic,
    Polynomial,
    Product,
    RationalQuadratic,
    Scaled,
    SpectralMixture,
    SquaredExponential,
    Sum,
)
from flashgp.likelihoods import Bernoulli, Gaussian, Likelihood

__all__ = ["FlashGPKernel", "from_gpytorch", "to_gpytorch"]

Index = tuple[int, ...]
_kernels: Any = gpytorch.kernels
AGREEMENT = 1e-10  # of predictions with those of the model that was read, relative to their largest
CHECKED_ROWS = 2_000  # of the model's, at most: GPyTorch's own answer takes n^3 flops and n^2 numbers
CHECKED_POINTS = 64


@dataclass(frozen=True)
class Link:
    """A parameter of ours, of which a parameter of theirs is scale value^power.

    Fields: ours, theirs, names; event, dimensions of theirs behind a batch; single, which of these has one entry that
    ours lacks, counted from the end; 0 for none.
    """

    ours: str
    theirs: str
    event: int = 0
    single: int = 0
    scale: float = 1.0
    power: float = 1.0

    def value(self, theirs: Tensor) -> Tensor:
        """Ours. Args: theirs, of one member."""
        ours = (theirs.double() / self.scale) ** (1.0 / self.power)
        ours = ours.squeeze(-self.single) if self.single and ours.dim() else ours
        return ours.squeeze(-1) if (self.event, self.single) == (2, 2) and ours.dim() else ours  # one for all columns

    def prior(self, prior: Any) -> Any:
        """Density of ours that a density of theirs means."""
        if self.scale == self.power == 1.0:
            return prior
        moves = [AffineTransform(0.0, 1.0 / self.scale), PowerTransform(torch.tensor(1.0 / self.power).double())]
        return distributions.TransformedDistribution(prior, moves)

    def constraint(self, module: Any) -> Any:
        bounds = module.constraint_for_parameter_name(f"raw_{self.theirs}")
        if bounds is None:
            return constraints.real
        ends = sorted(float(self.value(torch.as_tensor(end))) for end in (bounds.lower_bound, bounds.upper_bound))
        return constraints.interval(*ends) if ends[1] < torch.inf else constraints.greater_than(ends[0])

    def read(self, module: Any, index: Index) -> Parameter:
        """Ours of one member, with its constraint, its prior and whether it is trained."""
        raw = getattr(module, f"raw_{self.theirs}", getattr(module, self.theirs))
        value = self.value(member_of(getattr(module, self.theirs).detach(), self.event, index))
        return Parameter(value, self.constraint(module), self._prior(module), raw.requires_grad)

    def write(self, module: Any, values: Sequence[Tensor]) -> None:
        """Theirs of all members of the batch. Args: values, ours of each."""
        current = getattr(module, self.theirs)
        stacked = torch.stack([self.scale * value.detach() ** self.power for value in values])
        module.initialize(**{self.theirs: stacked.reshape(current.shape).to(current)})

    def _prior(self, module: Any) -> Any:
        names = {f"{self.theirs}_prior", "mean_prior"} if self.theirs == "constant" else {f"{self.theirs}_prior"}
        found = next((one[0] for name, one in module._priors.items() if name in names), None)
        if found is None:
            return None
        plain: Any = next(one for one in type(found).__mro__ if one.__module__.startswith("torch.distributions"))
        if plain is distributions.Distribution or getattr(found, "_transform", None) is not None:
            raise DomainError(
                f"`model` has the prior {type(found).__name__} of {self.theirs}, which torch.distributions lacks; take "
                "another, or none"
            )
        return self.prior(plain(**{name: getattr(found, name).detach() for name in plain.arg_constraints}))


@dataclass(frozen=True)
class Counterpart:
    """A covariance function in both libraries.

    Fields: ours, theirs, classes; links, of parameters; options, ours by name from a module of theirs; arguments, of
    theirs from one of ours; one_column, where they agree for one column alone.
    """

    ours: Callable[..., Kernel]
    theirs: type[Any]
    links: tuple[Link, ...]
    options: dict[str, Callable[[Any], Any]] = field(default_factory=dict)
    arguments: Callable[[Any], dict[str, Any]] = lambda _: {}
    one_column: bool = False


def _columns(parameter: Parameter) -> int | None:
    return parameter.value.shape[-1] if parameter.value.dim() else None


def _ard(kernel: Any) -> dict[str, Any]:
    return {"ard_num_dims": _columns(kernel.lengthscale)}


def _fixed_one(_: Any) -> Parameter:
    return Parameter(1.0, constraints.positive, trainable=False)


LENGTHSCALE, NUMBER = Link("lengthscale", "lengthscale", 2, 2), (1, 1)
COUNTERPARTS = (
    Counterpart(SquaredExponential, _kernels.RBFKernel, (LENGTHSCALE,), arguments=_ard),
    Counterpart(
        Matern, _kernels.MaternKernel, (LENGTHSCALE,), {"nu": lambda module: float(module.nu)},
        lambda kernel: {"nu": kernel.nu, **_ard(kernel)},
    ),
    Counterpart(
        RationalQuadratic, _kernels.RQKernel, (LENGTHSCALE, Link("scale_mixture", "alpha", *NUMBER)), arguments=_ard
    ),
    Counterpart(
        Periodic, _kernels.PeriodicKernel,
        (Link("lengthscale", "lengthscale", 2, 2, power=2.0), Link("period", "period_length", 2, 2)), arguments=_ard,
    ),
    Counterpart(
        Cosine, _kernels.CosineKernel, (Link("frequency", "period_length", 2, 2, 0.5, -1.0),), one_column=True
    ),
    Counterpart(
        Linear, _kernels.LinearKernel, (Link("variance", "variance", 2, 2),),
        arguments=lambda kernel: {"ard_num_dims": _columns(kernel.variance)},
    ),
    Counterpart(
        Polynomial, _kernels.PolynomialKernel, (Link("offset", "offset", *NUMBER),),
        {"degree": lambda module: int(module.power), "variance": _fixed_one}, lambda kernel: {"power": kernel.degree},
    ),
    Counterpart(Constant, _kernels.ConstantKernel, (Link("variance", "constant", *NUMBER),)),
    Counterpart(
        SpectralMixture, _kernels.SpectralMixtureKernel,
        (Link("weights", "mixture_weights", 1), Link("means", "mixture_means", 3, 2),
         Link("scales", "mixture_scales", 3, 2)),
        arguments=lambda kernel: {"num_mixtures": len(kernel.weights.value)}, one_column=True,
    ),
    Counterpart(
        Coregionalization, _kernels.IndexKernel, (Link("factor", "covar_factor", 2), Link("diagonal", "var", 1)),
        {"count": lambda module: module.covar_factor.shape[-2], "rank": lambda module: module.covar_factor.shape[-1]},
        lambda kernel: {"num_tasks": kernel.count, "rank": kernel.rank},
    ),
)  # fmt: skip
SCALED = Link("variance", "outputscale")
JOINED = {_kernels.AdditiveKernel: Sum, _kernels.ProductKernel: Product}


class FlashGPKernel(gpytorch.kernels.Kernel):
    """A covariance function of ours as a GPyTorch module, for those that GPyTorch lacks. Cost: a dense block."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **_: Any) -> Tensor:
        block = self.kernel(x1, x2).to_dense()
        return block.diagonal(dim1=-2, dim2=-1) if diag else block


# -- reading -----------------------------------------------------------------------------------------------------------
def members(batch: torch.Size) -> Iterator[Index]:
    """Indices of the members of a batch; one, empty, where there is none."""
    return (tuple(row) for row in torch.cartesian_prod(*map(torch.arange, batch)).reshape(-1, len(batch)).tolist()) \
        if batch else iter([()])  # fmt: skip


def member_of(value: Tensor, event: int, index: Index) -> Tensor:
    """What a member has of a value (*batch, *event); the one there is where the batch lacks a dimension or has one."""
    for place in reversed(index):
        if value.dim() > event:
            value = value.select(-event - 1, place if value.shape[-event - 1] > 1 else 0)
    return value


def kernel_from(module: Any, columns: int, index: Index = ()) -> Kernel:
    """Covariance function of a GPyTorch module for so many columns; of one member of its batch.

    Raises: DomainError that names what has no counterpart.
    """
    if isinstance(module, FlashGPKernel):
        return module.kernel
    dims = None if module.active_dims is None else module.active_dims.tolist()
    if dims is None and type(module) is _kernels.ScaleKernel:
        return Scaled(kernel_from(module.base_kernel, columns, index), SCALED.read(module, index))
    if dims is None and type(module) in JOINED:
        return JOINED[type(module)](*(kernel_from(one, columns, index) for one in module.kernels))
    row = next((row for row in COUNTERPARTS if type(module) is row.theirs), None)
    if row is None or (row.one_column and (columns if dims is None else len(dims)) != 1):
        where = "" if row is None else " of several columns"
        raise DomainError(
            f"`model` has the covariance function {type(module).__name__}{where}, which has no counterpart; write it "
            "with fgp.kernels.Custom or Warped"
        )
    arguments: dict[str, Any] = {link.ours: link.read(module, index) for link in row.links}
    return row.ours(**arguments, **{name: of(module) for name, of in row.options.items()}, active_dims=dims)


def mean_from(module: Any, index: Index = ()) -> nn.Module:
    """Mean of a GPyTorch module. Raises: DomainError that names what has no counterpart."""
    if type(module) is gpytorch.means.ZeroMean:
        return means.Zero()
    if type(module) is gpytorch.means.ConstantMean:
        return means.Constant(Link("value", "constant").read(module, index))
    if type(module) is gpytorch.means.LinearMean:
        slope = Link("slope", "weights", 2, 1).read(module, index)
        return means.Linear(slope, 0.0 if module.bias is None else Link("intercept", "bias", 1, 1).read(module, index))
    raise DomainError(
        f"`model` has the mean {type(module).__name__}, which has no counterpart; take ZeroMean, ConstantMean or "
        "LinearMean"
    )


def likelihood_from(module: Any, index: Index = ()) -> Likelihood:
    """Likelihood of a GPyTorch module. Raises: DomainError that names what has no counterpart."""
    noise = Link("noise_variance", "noise", *NUMBER)
    if isinstance(module, gpytorch.likelihoods.FixedNoiseGaussianLikelihood):
        of_rows = member_of(module.noise_covar.noise.detach(), 1, index).double()
        more = module.second_noise_covar
        return Gaussian(None if more is None else noise.read(more, index), row_variance=of_rows)
    if isinstance(module, gpytorch.likelihoods.GaussianLikelihood):
        return Gaussian(noise.read(module.noise_covar, index))
    if type(module) is gpytorch.likelihoods.BernoulliLikelihood:
        return Bernoulli()
    raise DomainError(
        f"`model` has the likelihood {type(module).__name__}, which has no counterpart; take GaussianLikelihood, "
        "FixedNoiseGaussianLikelihood or BernoulliLikelihood"
    )


def gp_from(model: Any, columns: int, index: Index = (), likelihood: Any = None) -> GP:
    """Prior of a model with `covar_module` and `mean_module`; of one member of its batch.

    Args: likelihood, where it is not the model's own."""
    for name in ("covar_module", "mean_module", *(["likelihood"] if likelihood is None else [])):
        if not hasattr(model, name):
            raise DomainError(f"`model` must have a `{name}`, got {type(model).__name__} without; name its module so")
    kernel = kernel_from(model.covar_module, columns, index)
    of_rows = likelihood_from(model.likelihood if likelihood is None else likelihood, index)
    return GP(kernel, mean_from(model.mean_module, index), of_rows)


def from_gpytorch(model: Any, likelihood: Any = None) -> Posterior:
    """The posterior of a live model, `post.gp` its prior: of an ExactGP given its rows, or q(f) of an ApproximateGP.

    The latter holds no rows: its bound is of those that are appended. GPyTorch's VariationalStrategy adds its jitter to
    the variance of f at every point too, which is no part of q(f) and is left out.

    Args:
        model: an ExactGP with train_inputs and train_targets, or an ApproximateGP with a VariationalStrategy or an
            UnwhitenedVariationalStrategy; one model, not a batch.
        likelihood: that the ApproximateGP was trained with, where it is not `model.likelihood`.
    Raises: DomainError that names what has no counterpart, or says how far predictions are apart.
    Cost: that of `gp.condition`, or 3 m^3 flops of m inducing points, and GPyTorch's own prediction from at most 2,000
        rows, for the check.

    Example:
        >>> from flashgp.interop.gpytorch import from_gpytorch  # doctest: +SKIP
        >>> from_gpytorch(model, likelihood).predict(x_test).mean  # doctest: +SKIP
    """
    if isinstance(model, gpytorch.models.ApproximateGP):
        return _from_inducing_points(model, likelihood)
    if not isinstance(model, gpytorch.models.ExactGP) or model.train_inputs is None:
        raise DomainError(
            "`model` must be a gpytorch ExactGP with training rows or an ApproximateGP, got "
            f"{type(model).__name__}; pass the live model, not its state_dict"
        )
    (x, *others), y = model.train_inputs, model.train_targets
    if others or x.dim() != 2 or y.dim() != 1:
        raise DomainError(
            f"`model` must be one model of one output, got rows {tuple(x.shape)} and targets {tuple(y.shape)}; convert "
            "the models of a batch one by one"
        )
    gp = gp_from(model, x.shape[-1])
    _check(model, gp, x.detach(), y.detach())
    return gp.condition(x.detach(), y.detach())


@torch.no_grad()
def _from_inducing_points(model: Any, likelihood: Any) -> Posterior:
    """See `from_gpytorch`."""
    kinds, strategy = gpytorch.variational, model.variational_strategy
    if type(strategy) not in (kinds.VariationalStrategy, kinds.UnwhitenedVariationalStrategy):
        raise DomainError(
            f"`model` has the strategy {type(strategy).__name__}, which has no counterpart; take VariationalStrategy "
            "or UnwhitenedVariationalStrategy"
        )
    if strategy.inducing_points.dim() != 2 or strategy._variational_distribution.shape()[:-1]:
        raise DomainError(
            f"`model` must be one model of one output, got inducing points {tuple(strategy.inducing_points.shape)}; "
            "convert the models of a batch one by one"
        )
    caches = (getattr(module, "_memoize_cache", None) for module in model.modules())
    theirs = copy.deepcopy(model, {id(cache): {} for cache in caches if cache is not None}).double().eval()
    jitter = strategy.jitter_val  # of the dtype that it was trained in
    strategy = theirs.variational_strategy
    strategy.jitter_val = jitter
    points = strategy.inducing_points.detach()
    at = _points_between(points)
    with gpytorch.settings.fast_computations(False, False, False):
        said = theirs(at)  # which initialises what is not yet trained
    values = strategy._variational_distribution()
    gp, mean = gp_from(theirs, points.shape[-1], likelihood=likelihood), values.mean
    if gp.likelihood.row_tensors:
        raise DomainError(
            f"`likelihood` must be of rows that are alike, got {gp.likelihood.name} with numbers of single rows, which "
            "an ApproximateGP does not hold; pass GaussianLikelihood"
        )
    point_mass = isinstance(values, gpytorch.distributions.Delta)
    covariance = torch.diag_embed(torch.zeros_like(mean)) if point_mass else values.covariance_matrix
    whitened = type(strategy) is kinds.VariationalStrategy
    if not whitened:
        block = gp.kernel(points).to_dense()
        block.diagonal().add_(jitter)
        half = torch.linalg.cholesky(block)
        mean = torch.linalg.solve_triangular(half, (mean - gp.mean(points)).unsqueeze(-1), upper=False).squeeze(-1)
        covariance = torch.linalg.solve_triangular(half, covariance, upper=False)
        covariance = torch.linalg.solve_triangular(half, covariance.mT, upper=False)
    post = Posterior(state_of_values(gp, points, mean, covariance, jitter))
    found = post.predict(at)
    prior = gp.kernel(at).diagonal().max()
    allowed = max(AGREEMENT, float(len(points) * torch.finfo(torch.float64).eps * prior / jitter))
    more = jitter if whitened else 0.0
    _compare("mean", found.mean, said.mean, (said.mean - gp.mean(at)).abs().max().maximum(prior.sqrt()), allowed)
    _compare("variance", found.variance, said.variance - more, prior, allowed)
    return post


def _points_between(rows: Tensor) -> Tensor:
    """Points between the first rows; on them where a column has codes."""
    codes = (rows == rows.round()).all(0)
    return torch.where(codes, rows, (rows + rows.roll(1, 0)) / 2.0)[:CHECKED_POINTS]


def _compare(name: str, ours: Tensor, theirs: Tensor, scale: Tensor, allowed: float) -> None:
    """Raises: DomainError."""
    apart = float((ours - theirs).abs().max() / scale)
    if not apart <= allowed:
        raise DomainError(
            f"`model` must be its mean, covariance and noise modules and no more, but its {name} differs from "
            f"theirs by {apart:.1e} of the largest; look at its forward"
        )


@torch.no_grad()
def _check(model: Any, gp: GP, x: Tensor, y: Tensor) -> None:
    """DomainError unless both predict the same between the first rows, from these."""
    rows, targets = x[:CHECKED_ROWS].double(), y[:CHECKED_ROWS].double()
    theirs = copy.deepcopy(model).double().eval()
    theirs.set_train_data(rows, targets, strict=False)
    likelihood: Any = gp.likelihood
    if (variance := likelihood.row_variance) is not None:
        variance = variance[:CHECKED_ROWS].double()
        theirs.likelihood.noise_covar.noise = variance
        gp = gp.with_likelihood(Gaussian(likelihood.noise_variance, row_variance=variance))
    points = _points_between(rows)
    with gpytorch.settings.fast_computations(False, False, False), warnings.catch_warnings():
        warnings.simplefilter("ignore", gpytorch.utils.warnings.GPInputWarning)
        said = theirs(points)
    ours, prior = gp.condition(rows, targets).predict(points), gp.kernel(points).diagonal().max()
    least = prior.new_tensor(0.0) if variance is None else variance.min()
    least = least + (0.0 if likelihood.noise_variance is None else likelihood.noise_variance.value)
    allowed = max(AGREEMENT, float(len(rows) * torch.finfo(torch.float64).eps * prior / least))
    _compare("mean", ours.mean, said.mean, targets.abs().max(), allowed)
    _compare("variance", ours.variance, said.variance, prior, allowed)


# -- writing -----------------------------------------------------------------------------------------------------------
def linked(module: Any, kernels: Sequence[Any]) -> Iterator[tuple[Any, Link, list[Parameter]]]:
    """Modules of theirs, links, and the parameters of ours in every member. Args: kernels, ours of each member."""
    if type(module) is _kernels.ScaleKernel:
        yield module, SCALED, [one.variance for one in kernels]
        yield from linked(module.base_kernel, [one.kernel for one in kernels])
    elif type(module) in JOINED:
        for k, part in enumerate(module.kernels):
            yield from linked(part, [one.parts[k] for one in kernels])
    elif not isinstance(module, FlashGPKernel):
        for link in next(row for row in COUNTERPARTS if type(kernels[0]) is row.ours).links:
            yield module, link, [getattr(one, link.ours) for one in kernels]


def write_back(model: Any, gps: Sequence[GP]) -> None:
    """Give a model of theirs the values of ours. Args: gps, of every member of its batch, as `gp_from` made them."""
    kernels: list[Any] = [gp.kernel for gp in gps]
    means_of: list[Any] = [gp.mean for gp in gps]
    for module, link, parameters in linked(model.covar_module, kernels):
        link.write(module, [one.value for one in parameters])
    if isinstance(model.covar_module, FlashGPKernel):
        model.covar_module.kernel.load_state_dict(kernels[0].state_dict())
    for ours, theirs, event in (("value", "constant", 0), ("slope", "weights", 2), ("intercept", "bias", 1)):
        if hasattr(means_of[0], ours) and getattr(model.mean_module, theirs, None) is not None:
            Link(ours, theirs, event).write(model.mean_module, [getattr(one, ours).value for one in means_of])
    likelihoods: list[Any] = [gp.likelihood for gp in gps]
    noise = [one.noise_variance for one in likelihoods]
    if noise[0] is not None:
        fixed = isinstance(model.likelihood, gpytorch.likelihoods.FixedNoiseGaussianLikelihood)
        place = model.likelihood.second_noise_covar if fixed else model.likelihood.noise_covar
        Link("noise_variance", "noise", *NUMBER).write(place, [one.value for one in noise])


class ExactModel(gpytorch.models.ExactGP):
    """What `to_gpytorch` makes of a posterior. Fields: mean_module, covar_module, likelihood, by GPyTorch's names."""

    def __init__(self, x: Tensor, y: Tensor, mean: nn.Module, covariance: Any, likelihood: Any) -> None:
        super().__init__(x, y, likelihood)
        self.mean_module, self.covar_module = mean, covariance

    def forward(self, x: Tensor) -> Any:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def to_gpytorch(thing: Posterior | Kernel) -> Any:
    """A GPyTorch module of the same covariance function, or a model that predicts as an exact posterior does.

    A covariance function without a counterpart is wrapped. Priors stay with ours.
    Raises: DomainError for a posterior of another kind.

    Example:
        >>> from flashgp.interop.gpytorch import to_gpytorch  # doctest: +SKIP
        >>> to_gpytorch(fit.posterior)(x_test).mean  # doctest: +SKIP
    """
    if isinstance(thing, Kernel):
        return kernel_to(thing)
    prior: Any = thing.gp
    likelihood = prior.likelihood
    exact = isinstance(thing.state, State) and isinstance(likelihood, Gaussian)
    if not exact or prior.outputs is not None or thing.batch_shape:
        raise DomainError(
            "`thing` must be a covariance function, or an exact posterior of one output with Gaussian noise, got one "
            f"by {thing.report.route} with {likelihood.name}; condition exactly, each output alone"
        )
    noise = _likelihood_to(likelihood, len(thing.x))
    x, y = thing.x.double(), thing.y.double()
    return ExactModel(x, y, _mean_to(prior.mean), kernel_to(prior.kernel), noise).double().eval()


def _mean_to(mean: Any) -> nn.Module:
    if isinstance(mean, means.Zero):
        return gpytorch.means.ZeroMean()
    if isinstance(mean, means.Constant):
        made = gpytorch.means.ConstantMean().double()
        made.constant = mean.value.value.detach()
        return made
    return mean  # a module from points to values, as GPyTorch's are


def _likelihood_to(likelihood: Gaussian, rows: int) -> Any:
    kinds, positive = gpytorch.likelihoods, gpytorch.constraints.Positive()
    noise = None if likelihood.noise_variance is None else likelihood.noise_variance.value.detach()
    if not likelihood.rows_alike:
        return kinds.FixedNoiseGaussianLikelihood(likelihood.diagonal(rows, torch.device("cpu")).detach())
    made = kinds.GaussianLikelihood(noise_constraint=positive).double()
    made.noise = noise
    return made


def kernel_to(given: Any, batch_shape: torch.Size = torch.Size()) -> Any:  # noqa: B008 - a value
    """A GPyTorch module of a covariance function, with copies for a batch. Raises: DomainError for a batch of what has
    no counterpart and is wrapped, and for what is none of ours."""
    if not isinstance(given, Kernel):
        raise DomainError(
            f"`kernel` must be a covariance function of flashgp.kernels, got {type(given).__name__}; pass one, or "
            "GPyTorch's as covar_module"
        )
    kernel: Any = given
    if isinstance(kernel, Scaled):
        module = _kernels.ScaleKernel(kernel_to(kernel.kernel, batch_shape), batch_shape=batch_shape).double()
    elif isinstance(kernel, Sum | Product):
        joined = next(theirs for theirs, ours in JOINED.items() if type(kernel) is ours)
        return joined(*(kernel_to(part, batch_shape) for part in kernel.parts))
    else:
        row = next((row for row in COUNTERPARTS if type(kernel) is row.ours), None)
        one_column = kernel.active_dims is not None and len(kernel.active_dims) == 1 if row else False
        if row is None or (row.one_column and not one_column) or type(kernel) is Polynomial:
            if batch_shape:
                raise DomainError(
                    f"`kernel` must have a counterpart in GPyTorch for a batch {tuple(batch_shape)}, got "
                    f"{type(kernel).__name__}; make a model for each, such as botorch's ModelListGP"
                )
            return FlashGPKernel(kernel)
        dims = kernel.active_dims
        module = row.theirs(**row.arguments(kernel), batch_shape=batch_shape, active_dims=dims).double()
    for place, link, parameters in linked(module, [kernel] * max(1, batch_shape.numel())):
        if place is module:
            link.write(place, [one.value for one in parameters])
            raw = getattr(place, f"raw_{link.theirs}", getattr(place, link.theirs))
            raw.requires_grad_(parameters[0].trainable)
    return module
