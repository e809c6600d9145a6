"""A covariance function of the user's own, written for two points in plain torch, eq. (M-48)."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from flashgp.foundations.errors import DomainError, ShapeError
from flashgp.foundations.expression import Expression, opaque
from flashgp.foundations.form import Form, Rows
from flashgp.foundations.pair_function import PairFunction, over_batch
from flashgp.foundations.parameters import Domain, Parameter, as_parameter, dimensions_of
from flashgp.kernels.base import Leaf, Numeric
from flashgp.kernels.tracing.checks import check_symmetry, random_pairs, some_values
from flashgp.kernels.tracing.trace import Fusion, Untraceable, trace

MAX_NUMBERS = 4096  # in the parameters of a function that is not fused: each is an entry of theta
TRIED_COLUMNS = (2, 3, 1, 4, 5, 6, 7, 8, 10, 16)


class Custom(Leaf):
    """function(x, x', **parameters) for two points x and x' of shape (d,), in plain torch, eq. (M-48).

    The function is traced. Where it is a scalar formula of distances, inner products and functions of one point alone,
    it takes the form of eq. (M-1) and is fused like every kernel here; `fusion` says so. Elsewhere it is evaluated pair
    by pair through `torch.func.vmap`, one tile at a time, and `fusion` says which operation did not fit. A point at
    which the function has no derivative (the haversine of equal points) has the mean of both sides, (M-261).

    Args:
        function: two points and the parameters by name to one number; symmetric; the same operations whatever the
            values (torch.where, not if). Tensors from outside (closures, globals, attributes) are refused: they would
            not be fitted or saved. Numbers from outside are constants, read when the kernel is made: after a change
            make a new kernel, or pass them as parameters.
        active_dims: the columns of x it sees; None for all.
        columns: how many columns it sees, for a function whose form depends on it (a sum over columns of what is not a
            square); None where active_dims or the function tell.
        parameters: numbers, tensors or Parameters by name; whole tensors of any shape. Numbers and tensors are real:
            pass Parameter(0.5, torch.distributions.constraints.positive) for what must stay positive.

    Raises:
        DomainError: for a function that is not symmetric (with the pair and both values) for these parameters or others
            of their domains, has no finite value, does not take these parameters, looks at values, draws random numbers
            (dropout), or uses a tensor from outside.
        ShapeError: for one that returns several numbers, and (on use) for other columns.
    Cost: fused, that of its form. Tiled, n m calls' arithmetic in Python's order, one tile's temporaries in memory.

    Example:
        >>> def laplace(x, z, scale):
        ...     return torch.exp(-((x - z) / scale).abs().sum())
        >>> k = 2.0 * fgp.kernels.Custom(laplace, scale=1.0, columns=1)
        >>> k(torch.tensor([[0.0], [1.0]])).to_dense().detach()
        tensor([[2.0000, 0.7358],
                [0.7358, 2.0000]])
        >>> k.fusion
        'fused'
    """

    per_column = frozenset()
    not_fingerprinted = frozenset({"_traces", "_settled", "_example"})

    def __init__(
        self,
        function: Callable[..., Tensor],
        active_dims: Sequence[int] | int | None = None,
        columns: int | None = None,
        **parameters: Numeric,
    ) -> None:
        super().__init__(active_dims)
        _check_function(function, parameters)
        self.function = function
        self.names = tuple(parameters)
        for name, value in parameters.items():
            if hasattr(type(self), name) or name in vars(self) or name.startswith("_"):
                raise DomainError(f"`function` must not name a parameter {name!r}, a name kernels use; rename it")
            setattr(self, name, as_parameter(value, Domain(), name, event_dim=dimensions_of(value, name)))
        self.columns = self._given_columns(columns)
        self._traces: dict[tuple[int, frozenset[str]], Fusion | str] = _Traces()
        self._settled: dict[frozenset[str], tuple[int, Fusion | str, Form]] = _Traces()
        self._example: dict[str, Tensor] = {}
        self._form_at()

    def _given_columns(self, columns: int | None) -> int | None:
        wanted = None if self.active_dims is None else len(self.active_dims)
        if columns is None:
            return wanted
        if not isinstance(columns, int) or isinstance(columns, bool) or columns < 1 or (wanted or columns) != columns:
            raise DomainError(
                f"`columns` must be the number of columns the function sees"
                f"{'' if wanted is None else f', {wanted} of active_dims'}, got {columns!r}; leave it out or correct it"
            )
        return columns

    # -- the form -----------------------------------------------------------------------------------------------
    @property
    def form(self) -> Form:
        return self._form_at()[2]

    @property
    def profile(self) -> Expression:
        return self.form.profile

    @property
    def statistics(self) -> tuple[str, ...]:
        return self.form.statistics

    @property
    def parameter_count(self) -> int:
        return self.form.parameter_count

    @property
    def fusion(self) -> str:
        fusion = self._form_at()[1]
        return f"tiled: {fusion}" if isinstance(fusion, str) else "fused"

    def theta(self) -> tuple[Tensor, ...]:
        values, fusion = self._values(), self._form_at()[1]
        if isinstance(fusion, str):
            return self._pair_function().flat(values)
        if not fusion.theta:
            return ()
        entries: tuple[Tensor, ...] = over_batch(
            lambda *own: fusion.values(dict(zip(self.names, own, strict=True))), values, self._events()
        )
        return entries

    def _features(self, x: Tensor) -> tuple[Tensor, ...]:
        raise NotImplementedError("features and row scalars are one computation: `rows`")

    def rows(self, x: Tensor) -> Rows:
        x = self.select(x).to(torch.float64)
        shape = (x.shape[-2], x.shape[:-2], x.device)
        if self.columns is not None and x.shape[-1] != self.columns:
            raise ShapeError(
                f"`x` must have {self.columns} columns for {self._name}, got {x.shape[-1]}; choose them by active_dims"
            )
        fusion = self._form_at()[1]
        try:
            own = self._fusion(x.shape[-1])
        except Untraceable as error:
            raise ShapeError(
                f"`x` must have columns that {self._name} takes, got {x.shape[-1]} ({str(error)[:300]}); choose them "
                "by active_dims"
            ) from error
        if isinstance(fusion, str):
            return Rows((x,), (), *shape)
        if not isinstance(own, Fusion) or (own.profile, own.kinds) != (fusion.profile, fusion.kinds):
            raise ShapeError(
                f"`x` has {x.shape[-1]} columns, for which {self._name} takes another form than the one that was "
                f"traced for {self._form_at()[0]}; pass Custom(..., columns={x.shape[-1]})"
            )
        values = tuple(v.to(x.device) for v in self._values())

        def one(point: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
            return own.row(point, dict(zip(self.names, rest, strict=True)))

        if not own.features and not own.scalars:
            return Rows((), (), *shape)
        every = torch.func.vmap(one, (0, *(None for _ in values)))
        some = x if x.shape[-2] else x.new_zeros((*x.shape[:-2], 1, x.shape[-1]))  # a view(-1) of no rows has no size
        tensors = over_batch(every, (some, *values), (2, *self._events()))
        if not x.shape[-2]:
            features = len(own.features)
            tensors = [t[..., :0, :] if k < features else t[..., :0] for k, t in enumerate(tensors)]
        split = len(own.features)
        return Rows(tuple(tensors[:split]), tuple(tensors[split:]), *shape)

    def forget(self) -> None:
        """Trace the function again when its form is next asked for."""
        self._traces.clear()
        self._settled.clear()

    def arguments(self) -> dict[str, Any]:
        return super().arguments() | self.options()

    def options(self) -> dict[str, Any]:
        dims = None if self.active_dims is None else len(self.active_dims)
        return {"columns": None if self.columns == dims else self.columns}

    def extra_repr(self) -> str:
        inherited = "" if self.active_dims is None else f", active_dims={self.active_dims}"
        return f"{self._name}{inherited}, {self.fusion}"

    # -- tracing ------------------------------------------------------------------------------------------------
    @property
    def _name(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)

    def _own(self) -> list[Parameter]:
        return [getattr(self, name) for name in self.names]

    def _values(self) -> tuple[Tensor, ...]:
        return tuple(p.value for p in self._own())

    def _events(self) -> tuple[int, ...]:
        return tuple(p.event_dim for p in self._own())

    def _pair_function(self) -> PairFunction:
        shapes = tuple(tuple(p.raw.shape[p.raw.dim() - p.event_dim :]) for p in self._own())
        return PairFunction(self.function, self.names, shapes)

    def _single_values(self) -> dict[str, Tensor]:
        """The parameters of one model, of a batch the first; while torch.func holds them, what they were before."""
        if any(torch._C._functorch.is_functorch_wrapped_tensor(p.raw) for p in self._own()):
            return self._example
        values = {}
        for name, p in zip(self.names, self._own(), strict=True):
            value = p.value.detach().cpu()
            values[name] = value.reshape(-1, *value.shape[value.dim() - p.event_dim :])[0]
        self._example = values
        return values

    def _positive(self) -> frozenset[str]:
        return frozenset(n for n, p in zip(self.names, self._own(), strict=True) if p.domain.lower >= 0.0)

    def _fusion(self, columns: int) -> Fusion | str:
        """The form for that many columns, where the function is symmetric there."""
        key = columns, self._positive()
        if key not in self._traces:
            with temporarily_clear_interpreter_stack():  # a transform of torch.func would follow what is tried here
                tried = some_values(self._single_values(), [p.domain for p in self._own()])
                fusion = trace(self._pair_function(), tried, self._positive(), columns)
                check_symmetry(self._pair_function(), tried, columns)
            self._traces[key] = fusion
        return self._traces[key]

    def _form_at(self) -> tuple[int, Fusion | str, Form]:
        """(columns, fusion or reason, form); without a number of columns, the form that two of them agree on."""
        key = self._positive()
        if key not in self._settled:
            columns, fusion = self._settle()
            if isinstance(fusion, Fusion):
                form = Form(fusion.profile, fusion.kinds, len(fusion.scalars), len(fusion.theta))
            else:
                function = replace(self._pair_function(), tiled=f"{self._name} ({fusion})")
                form = Form(opaque(), ("opaque",), 0, function.theta_count, (function,))
            self._settled[key] = columns, fusion, form
        return self._settled[key]

    def _settle(self) -> tuple[int, Fusion | str]:
        if self.columns is not None:
            try:
                return self.columns, self._checked(self.columns, self._fusion(self.columns))
            except Untraceable as error:
                raise DomainError(
                    f"`function` must take two points of {self.columns} columns, but {self._name} failed on them "
                    f"({str(error)[:300]}); pass the number of columns it is written for"
                ) from error
        traced: list[tuple[int, Fusion | str]] = []
        failure: Exception | None = None
        sizes = sorted({size for p in self._own() for size in p.raw.shape[p.raw.dim() - p.event_dim :] if size > 1})
        for columns in dict.fromkeys((*sizes, *TRIED_COLUMNS)):
            if columns == 1 and traced:
                continue  # one column broadcasts against parameters of several
            try:
                traced.append((columns, self._fusion(columns)))
            except Untraceable as error:
                failure = failure or error
            if len(traced) == 2:
                break
        if not traced:
            raise DomainError(
                f"`function` must take two points of shape (d,), but {self._name} failed for every d that was tried "
                f"({str(failure)[:300]}); pass columns=d"
            ) from failure
        columns, first = traced[0]
        second = traced[-1][1]
        if isinstance(first, Fusion) and (
            isinstance(second, str) or (first.profile, first.kinds) != (second.profile, second.kinds)
        ):
            first = f"its form depends on the number of columns; pass columns={columns} or whatever x has"
        return columns, self._checked(columns, first)

    def _checked(self, columns: int, fusion: Fusion | str) -> Fusion | str:
        if isinstance(fusion, Fusion):
            return fusion
        function = self._pair_function()
        count = function.theta_count
        if count > MAX_NUMBERS:
            raise DomainError(
                f"`parameters` of a function that is not fused ({fusion}) must be at most {MAX_NUMBERS} numbers, got "
                f"{count}; put networks into Warped(module, Custom(...))"
            )
        points = torch.stack([x for x, _ in random_pairs(columns)[:2]])
        try:
            function.pairs(points, points, tuple(self._single_values().values()))
        except Exception as error:  # whatever torch says to what the user wrote
            raise DomainError(
                f"`function` must be torch operations that torch.func.vmap can take over pairs, but {self._name} is "
                f"not ({str(error)[:300]}); write it without changing tensors in place and without their values"
            ) from error
        return fusion


class _Traces(dict[Any, Any]):
    """Results of tracing: copied with the kernel, made again after pickling (they hold operations of this process)."""

    def __deepcopy__(self, memo: Any) -> "_Traces":
        return _Traces(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Traces, ()


def _check_function(function: Any, parameters: dict[str, Any]) -> None:
    """Refuse what is no plain function of two points and these parameters."""
    if not callable(function) or isinstance(function, nn.Module | type):
        raise DomainError(
            f"`function` must be a Python function of two points, got {type(function).__name__}; a module's weights "
            "are parameters: pass them by name, or use Warped(module, kernel)"
        )
    try:
        inspect.signature(function).bind(None, None, **parameters)
    except TypeError as error:
        raise DomainError(
            f"`parameters` must be those of the function after its two points, got {sorted(parameters)} ({error}); "
            "pass each by name"
        ) from None
