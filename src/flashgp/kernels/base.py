"""Covariance functions: the base class, the leaf that states one formula, and how they are combined.

A kernel knows mathematics, never data. It answers three questions: its `form` (structure, eq. (M-1)), the `rows`
that points contribute to it, and the values `theta` of the parameters in its profile. Everything else (matrices,
products, gradients, device code) is derived from these by the layers above.
"""

import functools
import itertools
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, overload

import numpy
import torch
from torch import Tensor, nn

from flashgp.foundations.checks import check_count, check_points, promotions
from flashgp.foundations.determinism import contiguous_copy, deterministically
from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.foundations.expression import Expression, parameter
from flashgp.foundations.form import Form, Rows, broadcast_batch
from flashgp.foundations.lazy_import import lazy_import
from flashgp.foundations.named_values import NamedValues
from flashgp.foundations.parameters import Domain, Parameter, as_parameter, check_numbers, dimensions_of
from flashgp.foundations.tokens import token_of
from flashgp.foundations.transforms import same_numbers
from flashgp.foundations.usual_names import usual_names_refused
from flashgp.kernels.random_features import Draw, RandomFeatures, Term, multiplied

if TYPE_CHECKING:
    from flashgp.operators import CovarianceOperator, SkippingOperator

Numeric = float | Tensor | Parameter
LENGTH_ROLES = ("input_scale", "period")  # of parameters in units of their column; a frequency is in one over them


class Kernel(NamedValues, ABC):
    """A covariance function k(x, x'). Combine with +, * and numbers; `k(x1, x2)` is a lazy matrix.

    Example:
        >>> k = 2.0 * fgp.kernels.Matern(nu=2.5, lengthscale=torch.ones(3)) + fgp.kernels.Linear(active_dims=[0])
        >>> K = k(torch.rand(50, 3))
        >>> (K @ torch.ones(50, 1)).shape, K.diagonal().shape
        (torch.Size([50, 1]), torch.Size([50]))
    """

    not_fingerprinted: ClassVar[frozenset[str]] = frozenset({"token"})  # attributes that say nothing of the model

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            cls.__init__ = usual_names_refused(cls.__init__)  # type: ignore[method-assign]

    def __init__(self) -> None:
        super().__init__()
        self.token = token_of(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.token = token_of(self)  # a copy is a kernel of its own

    def _may_become(self, made: Self) -> bool:
        return made.form == self.form

    @property
    @abstractmethod
    def form(self) -> Form:
        """The structure: statistics and profile."""

    @abstractmethod
    def rows(self, x: Tensor) -> Rows:
        """Contribution of the points x, shape (*batch, n, d): features of shape (*batch, n, d'), float64."""

    @abstractmethod
    def theta(self) -> tuple[Tensor, ...]:
        """The values of the profile's parameters, each of shape (*batch,)."""

    @property
    @abstractmethod
    def parts(self) -> "tuple[Kernel, ...]":
        """The kernels this one is made of; empty for a leaf."""

    @abstractmethod
    def structure(self) -> dict[str, Any]:
        """JSON-ready constructor options (no parameter values): how a file names this kernel."""

    def leaves(self) -> "Iterator[Kernel]":
        """Every kernel of the tree without parts, left to right."""
        if not self.parts:
            yield self
        for part in self.parts:
            yield from part.leaves()

    @property
    def fusion(self) -> str:
        """ "fused" when generated code evaluates its profile, else "tiled: " and why its pairs run through Python."""
        texts = (part.fusion for part in self.parts)
        return next((text for text in texts if text != "fused"), "fused")

    # -- random features ----------------------------------------------------------------------------------------
    @property
    def has_features(self) -> bool:
        """True if every part has features."""
        return all(part.has_features for part in self.parts)

    def features(self, count: int, generator: torch.Generator) -> RandomFeatures | None:
        """Features psi with E[psi(x) . psi(x')] = k(x, x'), eq. (M-90); exact where the rank is finite and small.

        Args:
            count: the features of each term of the expanded sum, at least 2; a relative error of about count^(-1/2).
            generator: gives one integer, in which all randomness is frozen.

        Returns:
            A function of points (*batch, n, d), (*batch, n, columns), smooth in x and in the parameters, which it reads
                at every call; None for a kernel without features (Custom, and what contains one).

        Raises:
            DomainError: for a count below 2.
        Cost: count d flops per point and term; nothing until it is called.
        Source: Rahimi & Recht (2007), Random features for large-scale kernel machines.
        """
        count = check_count(count, "count", 2)
        if not self.has_features:
            return None
        seed = int(torch.randint(2**63 - 1, (), generator=generator, device=generator.device))
        return RandomFeatures(self, count, Draw(-(-count // 2), seed))

    @abstractmethod
    def feature_terms(self, x: Tensor, draw: Draw) -> list[Term]:
        """The covariance at points x, (*batch, n, d), as a sum of terms with that randomness, eq. (M-92)."""

    @property
    def batch_shape(self) -> torch.Size:
        """The broadcast batch shape of all parameters."""
        return broadcast_batch(*(p.batch_shape for p in self.modules() if isinstance(p, Parameter)))

    @overload
    def operator(
        self,
        x1: Tensor,
        x2: Tensor | None = None,
        *,
        plan: object | None = None,
        memory: str | int | None = None,
        deterministic: bool = False,
        skip_below: None = None,
    ) -> "CovarianceOperator": ...

    @overload
    def operator(
        self,
        x1: Tensor,
        x2: Tensor | None = None,
        *,
        plan: object | None = None,
        memory: str | int | None = None,
        deterministic: bool = False,
        skip_below: float,
    ) -> "SkippingOperator": ...

    def operator(
        self,
        x1: Tensor,
        x2: Tensor | None = None,
        *,
        plan: object | None = None,
        memory: str | int | None = None,
        deterministic: bool = False,
        skip_below: float | None = None,
    ) -> "CovarianceOperator | SkippingOperator":
        """The covariance between points as a lazy operator.

        The same tensor twice, or another one of the same numbers in memory, is x1 itself: the operator is symmetric,
        and a gradient by x1 counts both of its roles.

        Args:
            x1: points (*batch, n, d).
            x2: points (*batch, m, d); None for x1 itself.
            plan: how its products are computed, as `operator.plan(...)` made it.
            memory: the budget of the plans that are made where none is given.
            deterministic: products, blocks and their first gradients have the same bits whatever the number of threads:
                these plans take built-in rates, and all runs on one thread.
            skip_below: with a number, products leave out tiles in which every covariance is certainly below that share
                of the prior variance, and `operator.product(V)` bounds what that changes, eqs. (M-72), (M-73).

        Returns:
            A CovarianceOperator of shape (*batch, n, m), or a SkippingOperator; nothing of size n m is computed.

        Raises:
            ShapeError: for points of shapes that do not fit.
            DomainError: for points or a share that are none, or `memory` and `skip_below` inside torch.compile.
        """
        if not torch.compiler.is_compiling():
            lazy_import("flashgp.operators")
        # The one sanctioned late import.
        from flashgp.operators.compiled import CompiledOperator
        from flashgp.operators.covariance import CovarianceOperator
        from flashgp.operators.multiplication import OperatorOptions
        from flashgp.operators.skipping import SkippingOperator

        x2 = None if x2 is x1 else x2
        if torch.compiler.is_compiling():
            if memory is not None or skip_below is not None:
                raise DomainError(
                    "`memory` and `skip_below` are taken outside torch.compile, where plans are made and rows ordered; "
                    "inside it pass a plan, plan=k.operator(x1, x2, memory=...).plan(t)"
                )
            return CompiledOperator.of(self, x1, x2, plan, deterministic)
        check_numbers(self)
        notes = tuple(promotions(x1=x1, x2=x2))
        x1 = check_points(x1, "x1")
        x2 = None if x2 is None else check_points(x2, "x2", like=x1)
        x2 = None if x2 is not None and same_numbers(x1, x2) else x2
        options = OperatorOptions.checked(plan, memory, deterministic, notes)
        with deterministically(deterministic):
            x1, x2 = contiguous_copy(x1), None if x2 is None else contiguous_copy(x2)
            theta = tuple(t.to(x1.device) for t in self.theta())
            columns = None if x2 is None else self.rows(x2)
            exact = CovarianceOperator.of(self.form, theta, self.rows(x1), columns, dtype=x1.dtype, options=options)
        return exact if skip_below is None else SkippingOperator.of(exact, skip_below)

    def __call__(self, x1: Tensor, x2: Tensor | None = None) -> "CovarianceOperator":
        return self.operator(x1, x2)

    # -- algebra ------------------------------------------------------------------------------------------------
    def __add__(self, other: "Kernel | Numeric") -> "Kernel":
        if not _is_operand(other):
            return NotImplemented
        return Sum(self, other if isinstance(other, Kernel) else Constant(other))

    def __radd__(self, other: Numeric) -> "Kernel":
        if type(other) is int and other == 0:  # where sum([k1, k2]) begins
            return self
        return Sum(Constant(other), self) if _is_operand(other) else NotImplemented

    def __mul__(self, other: "Kernel | Numeric") -> "Kernel":
        if not _is_operand(other):
            return NotImplemented
        return Product(self, other) if isinstance(other, Kernel) else Scaled(self, other)

    def __pow__(self, power: int) -> "Kernel":
        """The product of so many factors, which share all parameters."""
        power = check_count(power, "power", 1)
        return self if power == 1 else Product(*[self] * power)

    def __rmul__(self, other: Numeric) -> "Kernel":
        return Scaled(self, other) if _is_operand(other) else NotImplemented


def _is_operand(other: object) -> bool:
    return isinstance(other, Kernel | Parameter | Tensor | int | float) and not isinstance(other, bool)


# Features of few rows in NumPy, and their pullback to the parameters, by name.
SmallFeatures = tuple[list[Any], Callable[[Sequence[Any]], dict[str, Any]]]


class Leaf(Kernel):
    """A kernel that states one formula: a profile over its own statistics, and the features that feed them.

    A subclass sets `roles` (what each parameter is, for data-driven initial values), builds its parameters with
    `_parameter`, and implements `profile`, `statistics` and `_features`.
    """

    roles: ClassVar[dict[str, str]] = {}

    def __init__(self, active_dims: Sequence[int] | int | None = None) -> None:
        super().__init__()
        self.active_dims = as_dims(active_dims)

    parts = ()

    @property
    @abstractmethod
    def profile(self) -> Expression:
        """g, stated once; every value and derivative comes from it."""

    @property
    @abstractmethod
    def statistics(self) -> tuple[str, ...]:
        """The kind of each pair statistic: distance, product or match."""

    @abstractmethod
    def _features(self, x: Tensor) -> tuple[Tensor, ...]:
        """One tensor per statistic from the selected columns of x."""

    def small_features(self, x: Any, values: dict[str, Any]) -> SmallFeatures:
        """Optional, for small problems: `_features` in NumPy, and their pullback to the parameters, eq. (M-26).

        Args:
            x: the selected columns (n, d).
            values: this kernel's parameter values by name.

        Returns:
            One array per statistic, and a function from gradients by these to gradients by values, by name. A kernel
                that does not state it takes the general path, where autograd does the same.
        """
        raise NotImplementedError

    @property
    def has_features(self) -> bool:
        return type(self).feature_terms is not Leaf.feature_terms

    def feature_terms(self, x: Tensor, draw: Draw) -> list[Term]:
        """Optional: see `Kernel.feature_terms`; a kernel that does not state it has no random features."""
        raise NotImplementedError

    def _scalars(self, x: Tensor) -> tuple[Tensor, ...]:
        """Row scalars from the selected columns of x; none unless a kernel says so."""
        return ()

    scalar_count: ClassVar[int] = 0

    def _profile_parameters(self) -> tuple[Parameter, ...]:
        """The parameters that stand in the profile, in the order of `parameter(i)`."""
        return ()

    @property
    def parameter_count(self) -> int:
        """Number of scalars that the profile takes as `parameter(i)`."""
        return len(self._profile_parameters())

    def options(self) -> dict[str, Any]:
        """Constructor options other than parameters and active_dims, JSON-ready."""
        return {}

    @functools.cached_property
    def form(self) -> Form:
        return Form(self.profile, self.statistics, self.scalar_count, self.parameter_count)

    def rows(self, x: Tensor) -> Rows:
        x = self.select(x).to(torch.float64)
        return Rows(self._features(x), self._scalars(x), x.shape[-2], x.shape[:-2], x.device)

    def theta(self) -> tuple[Tensor, ...]:
        return tuple(p.value for p in self._profile_parameters())

    def structure(self) -> dict[str, Any]:
        dims = None if self.active_dims is None else list(self.active_dims)
        return {"kind": type(self).__name__, "active_dims": dims, **self.options()}

    def _parameter(self, value: Numeric, name: str, domain: Domain, event_dim: int | None = 0) -> Parameter:
        """A constrained parameter; event_dim None means per column when `value` has a dimension, else one for all."""
        if event_dim is None:
            event_dim = min(dimensions_of(value, name), 1)
        return as_parameter(value, domain, name, event_dim=event_dim)

    def select(self, x: Tensor) -> Tensor:
        """The active columns of x, checked against the number of columns the parameters expect."""
        x = active_columns(x, self.active_dims)
        for name, p in self.named_children():
            if isinstance(p, Parameter) and p.event_dim == 1 and name in self.per_column:
                entries = p.raw.shape[-1]
                if entries not in (1, x.shape[-1]):
                    raise ShapeError(
                        f"`{name}` of {type(self).__name__} must have one entry or {x.shape[-1]}, one per active "
                        f"column of x, got {entries}; pass a number, or a tensor with {x.shape[-1]} entries"
                    )
        return x

    @staticmethod
    def _per_column(gradient: Any, value: Any) -> Any:
        """The gradient by a per-column value from one (n, d) of contributions: summed to the value's own shape."""
        if value.size > 1:
            return gradient.sum(0)
        return gradient.sum().reshape(value.shape)

    per_column: ClassVar[frozenset[str]] = frozenset({"lengthscale", "variance", "period", "frequency"})

    def extra_repr(self) -> str:
        text = ", ".join(f"{k}={v}" for k, v in self.options().items())
        if self.active_dims is not None:
            text += (", " if text else "") + f"active_dims={self.active_dims}"
        return text


class Constant(Leaf):
    """k(x, x') = variance, eq. (M-14): an unknown offset of that prior variance; written `k + 1.0`.

    Args:
        variance: positive number or (*batch,); units of y squared.
        active_dims: accepted for uniformity; it does not matter.

    Example:
        >>> (fgp.kernels.Matern() + 1.5)(torch.zeros(1, 1)).to_dense().detach()
        tensor([[2.5000]])
    """

    roles = {"variance": "output_variance"}
    per_column = frozenset()

    def __init__(self, variance: Numeric = 1.0, active_dims: Sequence[int] | int | None = None) -> None:
        super().__init__(active_dims)
        self.variance = self._parameter(variance, "variance", Domain(lower=0.0))

    @property
    def profile(self) -> Expression:
        return parameter(0)

    statistics = ()

    def _features(self, x: Tensor) -> tuple[Tensor, ...]:
        return ()

    def small_features(self, x: Any, values: dict[str, Any]) -> SmallFeatures:
        return [], lambda gradients: {}

    def feature_terms(self, x: Tensor, draw: Draw) -> list[Term]:
        root = self.variance.value.to(x.device).sqrt()[..., None, None]
        batch = broadcast_batch(root.shape[:-2], x.shape[:-2])
        return [Term(exact=root.expand(*batch, x.shape[-2], 1))]

    def _profile_parameters(self) -> tuple[Parameter, ...]:
        return (self.variance,)


class _Joined(Kernel):
    """Several kernels joined into one form; nested joins of the same kind are flattened."""

    def __init__(self, *kernels: Kernel) -> None:
        super().__init__()
        for kernel in kernels:
            if not isinstance(kernel, Kernel):
                raise DomainError(
                    f"`kernels` of {type(self).__name__} must be covariance functions, got {type(kernel).__name__}; "
                    "use flashgp.kernels"
                )
        if not kernels:
            raise DomainError(f"`kernels` of {type(self).__name__} must not be empty; pass at least one kernel")
        flat = [k for kernel in kernels for k in (kernel.parts if type(kernel) is type(self) else (kernel,))]
        self.kernels = nn.ModuleList(flat)

    @staticmethod
    def _combine(profiles: Sequence[Expression]) -> Expression:
        raise NotImplementedError

    @functools.cached_property
    def form(self) -> Form:
        return Form.combined([k.form for k in self.parts], self._combine)

    @property
    def parts(self) -> tuple[Kernel, ...]:
        return tuple(self.kernels)  # type: ignore[arg-type]

    def rows(self, x: Tensor) -> Rows:
        return _joined_rows([k.rows(x) for k in self.parts])

    def theta(self) -> tuple[Tensor, ...]:
        return tuple(value for k in self.parts for value in k.theta())

    def structure(self) -> dict[str, Any]:
        return {"kind": type(self).__name__}


def _joined_rows(parts: Sequence[Rows]) -> Rows:
    return Rows(
        tuple(f for rows in parts for f in rows.features),
        tuple(a for rows in parts for a in rows.scalars),
        parts[0].count,
        parts[0].batch,
        parts[0].place,
    )


class Sum(_Joined):
    """k1 + k2 + ..., eq. (M-2). Cost: the sum of its parts' in one pass.

    Example:
        >>> k = fgp.kernels.Matern() + fgp.kernels.Linear()
        >>> type(k).__name__, [type(part).__name__ for part in k.parts]
        ('Sum', ['Matern', 'Linear'])
    """

    @staticmethod
    def _combine(profiles: Sequence[Expression]) -> Expression:
        return functools.reduce(operator.add, profiles)

    def feature_terms(self, x: Tensor, draw: Draw) -> list[Term]:
        return [term for i, k in enumerate(self.parts) for term in k.feature_terms(x, draw.part(i))]


class Product(_Joined):
    """k1 * k2 * ..., eq. (M-2); exponentials join into one.

    Example:
        >>> k = fgp.kernels.Matern() * fgp.kernels.Periodic(period=1.0)
        >>> type(k).__name__, [type(part).__name__ for part in k.parts]
        ('Product', ['Matern', 'Periodic'])
    """

    @staticmethod
    def _combine(profiles: Sequence[Expression]) -> Expression:
        return functools.reduce(operator.mul, profiles)

    def feature_terms(self, x: Tensor, draw: Draw) -> list[Term]:
        count = len(self.parts)
        terms = self.parts[0].feature_terms(x, draw.part(0))
        for i, k in enumerate(self.parts[1:], 1):
            terms = multiplied(terms, k.feature_terms(x, draw.part(i)), draw.part(count + i))
        return terms


class Scaled(Kernel):
    """variance * k, eq. (M-3); written `2.0 * k`.

    Args:
        kernel: the covariance function to scale.
        variance: positive number, tensor of shape (*batch,) or Parameter; units of y squared.

    Example:
        >>> k = 2.0 * fgp.kernels.Matern()
        >>> k(torch.zeros(1, 1)).to_dense().detach()
        tensor([[2.]])
    """

    roles = {"variance": "output_variance"}

    def __init__(self, kernel: Kernel, variance: Numeric = 1.0) -> None:
        super().__init__()
        if not isinstance(kernel, Kernel):
            raise DomainError(f"`kernel` must be a covariance function, got {type(kernel).__name__}")
        self.variance = as_parameter(variance, Domain(lower=0.0), "variance")
        self.kernel = kernel

    @functools.cached_property
    def form(self) -> Form:
        inner = self.kernel.form
        return Form(
            parameter(0) * inner.shifted(0, 0, 1),
            inner.statistics,
            inner.scalar_count,
            inner.parameter_count + 1,
            tuple(f.moved(1) for f in inner.pair_functions),
        )

    @property
    def parts(self) -> tuple[Kernel, ...]:
        return (self.kernel,)

    def rows(self, x: Tensor) -> Rows:
        return self.kernel.rows(x)

    def theta(self) -> tuple[Tensor, ...]:
        return (self.variance.value, *self.kernel.theta())

    def feature_terms(self, x: Tensor, draw: Draw) -> list[Term]:
        root = self.variance.value.to(x.device).sqrt()[..., None, None]
        return [term.scaled(root) for term in self.kernel.feature_terms(x, draw)]

    def structure(self) -> dict[str, Any]:
        return {"kind": "Scaled"}


def terms(kernel: Kernel) -> Iterator[Kernel]:
    """Summands of a covariance function, sums inside factors multiplied out; their parameters are the kernel's own."""
    if isinstance(kernel, Sum):
        for part in kernel.parts:
            yield from terms(part)
        return
    if isinstance(kernel, Scaled | Product):
        each = [[*terms(part)] for part in kernel.parts]
        if any(len(some) > 1 for some in each):
            for factors in itertools.product(*each):
                yield Product(*factors) if isinstance(kernel, Product) else Scaled(factors[0], kernel.variance)
            return
    yield kernel


def as_dims(active_dims: Sequence[int] | int | None) -> tuple[int, ...] | None:
    """Column numbers as a checked tuple; DomainError for what is none, or names a column twice."""
    if active_dims is None:
        return None
    try:
        given = list(active_dims) if numpy.iterable(active_dims) else [active_dims]
        whole = not any(isinstance(i, bool | numpy.bool_) for i in given)
        dims = tuple(operator.index(i) for i in given) if whole else ()
    except TypeError:
        dims = ()
    if not dims or len(set(dims)) != len(dims):
        raise DomainError(
            f"`active_dims` must be distinct column numbers, at least one, got {active_dims!r}; for example [0, 2]"
        )
    return dims


def active_columns(x: Tensor, active_dims: tuple[int, ...] | None) -> Tensor:
    """The named columns of x (all for None); ShapeError for one that x does not have."""
    if active_dims is None:
        return x
    d = x.shape[-1]
    if max(active_dims) >= d or min(active_dims) < -d:
        raise ShapeError(
            f"`active_dims` must name columns of x, which has {d}, got {active_dims}; choose columns that exist"
        )
    return x[..., list(active_dims)]
