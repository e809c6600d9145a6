"""A covariance function of learned features, eq. (M-17): k(f(x), f(x')) for any torch module f."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from flashgp.foundations.contexts import autocast_of_the_caller, callers_autocast, evaluation_mode
from flashgp.foundations.errors import DomainError, ShapeError, warn
from flashgp.foundations.events import Event, EventKind
from flashgp.foundations.form import Form, Rows
from flashgp.kernels.base import Kernel, active_columns, as_dims
from flashgp.kernels.random_features import Draw, Term
from flashgp.processes.gradient_shares import called

COLLAPSED_LENGTHSCALES = 1e-2  # standard deviation of a feature, below which it tells no rows apart
CHECKED_ROWS = 1000


class Warped(Kernel):
    """kernel(module(x), module(x')), eq. (M-17): warps, embeddings, deep kernels.

    Only the n x d' features pass through autograd; the n^2 work is the inner kernel's.

    Args:
        module: maps (*batch, n, d) to (*batch, n, d'); runs in the dtype of its own parameters (float64 without any),
            under the caller's torch.autocast, where one is on: the report says so. All else is computed in full. Every
            call of it is in evaluation mode, in `fit` and in training loops of your own too, and leaves its mode as it
            was: dropout does nothing, and batch normalisation takes the running statistics that it has.
        kernel: the covariance function of the features.
        active_dims: the columns of x the module sees; None for all.

    Raises:
        ShapeError: on use, if the module does not return one row per row.

    Example:
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
        >>> k = fgp.kernels.Warped(net, fgp.kernels.Matern(nu=2.5))
        >>> k(torch.rand(5, 3)).to_dense().shape
        torch.Size([5, 5])
    """

    def __init__(self, module: nn.Module, kernel: Kernel, active_dims: Sequence[int] | int | None = None) -> None:
        super().__init__()
        if not isinstance(module, nn.Module):
            raise DomainError(
                f"`module` must be a torch.nn.Module, got {type(module).__name__}; wrap a function in a module"
            )
        if not isinstance(kernel, Kernel):
            raise DomainError(f"`kernel` must be a covariance function, got {type(kernel).__name__}")
        self.module = module
        self.kernel = kernel
        self.active_dims = as_dims(active_dims)

    @property
    def form(self) -> Form:
        return self.kernel.form

    @property
    def parts(self) -> tuple[Kernel, ...]:
        return (self.kernel,)

    def rows(self, x: Tensor) -> Rows:
        return self.kernel.rows(self.features_of(x))

    def feature_terms(self, x: Tensor, draw: Draw) -> list[Term]:
        return self.kernel.feature_terms(self.features_of(x), draw)

    def features_of(self, x: Tensor) -> Tensor:
        """Output of the module at points (*batch, n, d): (*batch, n, d'), float64."""
        x = active_columns(x, self.active_dims)
        own = next((p.dtype for p in self.module.parameters() if p.is_floating_point()), torch.float64)
        if torch.compiler.is_compiling():
            with evaluation_mode(self.module):
                features = self.module(x.to(own))
        else:
            with callers_autocast():
                features = called(self.module, x.to(own))
        if not isinstance(features, Tensor) or features.shape[-2:-1] != x.shape[-2:-1]:
            got = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise ShapeError(
                f"`module` of Warped must return shape (*batch, {x.shape[-2]}, d'), got {got}; keep one row per row"
            )
        return features.to(torch.float64)

    def theta(self) -> tuple[Tensor, ...]:
        return self.kernel.theta()

    def structure(self) -> dict[str, Any]:
        return {"kind": "Warped", "active_dims": None if self.active_dims is None else list(self.active_dims)}


def autocast_events(kernel: Kernel) -> list[Event]:
    """An event where networks of a kernel run under an autocast that the caller has on."""
    active = autocast_of_the_caller()
    if not active or not _has_networks(kernel):
        return []
    dtypes = [f"{str(dtype).removeprefix('torch.')} on {device}" for device, dtype in active.items()]
    return [Event(EventKind.AUTOCAST, dtypes=dtypes)]


def collapsed_features(kernel: Kernel, x: Tensor, rows: Rows | None = None) -> list[Event]:
    """An event, and a warning, for each network of a kernel whose features tell rows apart no more, or some of them.

    Features of distances are in lengthscales: where all rows lie within a hundredth of one, the covariance takes them
    for one row, to 1e-4 of a smooth function's variance. Rows that are equal in x say nothing.

    Args:
        x: (n, d).
        rows: what the kernel makes of them; None for at most 1,000 of them, evaluated here.
    Cost: O(n d') with rows, else the networks of 1,000 rows; nothing without networks.
    """
    if not _has_networks(kernel) or x.dim() != 2 or len(x) < 2 or bool((x == x[0]).all()):
        return []
    if rows is None:
        with torch.no_grad():
            rows = kernel.rows(x[:: -(-len(x) // CHECKED_ROWS)])
    events = []
    for place in _warped_statistics(kernel, 0):
        kinds = zip(rows.features[place], kernel.form.statistics[place], strict=True)
        scaled = [f.detach() for f, kind in kinds if kind == "distance" and f.shape[-1] and f.dim() == 2]
        spread = [float(one) for f in scaled for one in f.std(0, correction=0)]
        dead = sum(one < COLLAPSED_LENGTHSCALES for one in spread)
        if dead:
            events.append(Event(EventKind.FEATURES_COLLAPSED, dead=dead, features=len(spread), all=dead == len(spread)))
            warn(str(events[-1]))
    return events


def _warped_statistics(kernel: Kernel, start: int) -> Iterator[slice]:
    """Positions of the statistics of the outermost Warped parts among those of a kernel."""
    if isinstance(kernel, Warped):
        yield slice(start, start + len(kernel.form.statistics))
        return
    for part in kernel.parts:  # whose statistics follow each other
        yield from _warped_statistics(part, start)
        start += len(part.form.statistics)


def _has_networks(kernel: Kernel) -> bool:
    return isinstance(kernel, Warped) or any(_has_networks(part) for part in kernel.parts)
