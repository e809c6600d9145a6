"""Posterior of the terms of a covariance function: f = m + f_1 + f_2 + ... with k = k_1 + k_2 + ..., eq. (M-410).

A term has the covariance k_i with the rows, and everything else of the posterior of f: its weights and factor, or what
inducing points, neighbours or frequencies know. The state of a term is that of f with another covariance function of
points, so that predictions are those of any state.

Does not do: paths of one term.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from flashgp.foundations.errors import DomainError
from flashgp.foundations.parameters import Parameter
from flashgp.inference.base_state import BaseState
from flashgp.inference.predict.plan import Wanted
from flashgp.inference.predict.prediction import Prediction
from flashgp.inference.prior import Prior, outline
from flashgp.kernels.base import Kernel, Scaled, terms
from flashgp.likelihoods.gaussian import Gaussian
from flashgp.means import Zero

Ask = Callable[..., Any]
MAX_ROWS = 2048  # that shares are of


@dataclass(frozen=True, eq=False)
class Component:
    """Posterior of one term of the covariance function. Made by `posterior.component`; immutable.

    Attributes:
        kernel: the term.
        number: of the term, from 0, among those of the whole.

    Example:
        >>> x = torch.linspace(0, 6, 60, dtype=torch.float64)[:, None]
        >>> k = fgp.kernels.Linear() + fgp.kernels.Periodic(period=1.0)
        >>> post = fgp.GP(k).condition(x, 2.0 * x[:, 0] + torch.sin(6.28 * x[:, 0]))
        >>> trend, season = post.components
        >>> both = trend.predict(x).mean + season.predict(x).mean
        >>> torch.allclose(both, post.predict(x).mean), bool(trend.share > season.share)
        (True, True)
    """

    kernel: Kernel
    number: int
    _whole: "_Terms"

    def predict(self, x_test: Any, *, memory: str | int | None = None, deterministic: bool = False) -> Prediction:
        """The term at x_test as `Posterior.predict`: mean, variance, covariance, samples and intervals of f_i, eq.
        (M-410). The prior mean is in none: over all terms means add up to that of f without it. Variances do not add
        up, since terms are not independent given the data.

        Args:
            x_test: (*batch, n_test, d), all columns.
            memory: as `Posterior.predict`.
            deterministic: as `Posterior.predict`.
        Cost: as `Posterior.predict`, with exact variances.
        """
        return self._whole.predict(self.number, x_test, memory=memory, deterministic=deterministic)

    @property
    def share(self) -> Float64[Tensor, "*shape"]:
        """Variance of its posterior mean over the training rows, as a share of that of all terms together, eq. (M-411).

        At most 2,048 rows; one of each batch member and output. With `share_with_others` of all terms the sum is 1; 0
        where no term varies.

        Raises:
            DomainError: for fewer than 2 rows, over which nothing varies.
        """
        return self._whole.shares[0][self.number]

    @property
    def share_with_others(self) -> Float64[Tensor, "*shape"]:
        """Its covariance with the other terms over these rows, as a share of the same: far from 0, where terms explain
        the same, so that `share` is no part of a whole; negative where they cancel each other."""
        return self._whole.shares[1][self.number]

    def __repr__(self) -> str:
        return f"Component {self.number} of {len(self._whole.kernels)}: {outline(self.kernel)}"


def components(state: BaseState, ask: Ask) -> tuple[Component, ...]:
    """Components of a state. Args: ask, `answer`."""
    kernels = [*terms(state.prior.kernel)]
    whole = _Terms(state, kernels, ask)
    return tuple(Component(kernel, number, whole) for number, kernel in enumerate(kernels))


def component(state: BaseState, part: int | Kernel, ask: Ask) -> Component:
    """See `Posterior.component`."""
    found = components(state, ask)
    if isinstance(part, int) and not isinstance(part, bool) and 0 <= part < len(found):
        return found[part]
    if isinstance(part, Kernel):
        for alike in (_alike, _alike_unscaled):
            some = [one for one in found if alike(one.kernel, part)]
            exact = [one for one in some if _numbers(one.kernel) == _numbers(part)] if len(some) > 1 else some
            if len(exact) == 1:
                return exact[0]
    shown = "; ".join(f"{one.number}: {outline(one.kernel)}" for one in found)
    got = outline(part) if isinstance(part, Kernel) else repr(part)
    raise DomainError(
        f"`part` must be the number of a term of the covariance function, or a kernel that is like one term alone, got "
        f"{got}; pass one of {shown}"
    )


@dataclass(frozen=True, eq=False)
class _Terms:
    """Fields: state, of f; kernels, the terms; ask, answers of states."""

    state: BaseState
    kernels: Sequence[Kernel]
    ask: Ask

    def predict(self, number: int, x: Any, *, memory: str | int | None = None, deterministic: bool = False) -> Any:
        wanted = Wanted("exact", memory=memory, deterministic=deterministic, progress=None)
        return self.ask(self.states[number], "predict", x, wanted)

    @cached_property
    def states(self) -> list[BaseState]:
        outputs = self.state.prior.outputs
        return [self.state.of_term(Prior(kernel, Zero(), Gaussian(None), outputs)) for kernel in self.kernels]

    @cached_property
    @torch.no_grad()
    def shares(self) -> tuple[Tensor, Tensor]:
        """Own shares and those with others, (terms, *batch[, outputs]), eq. (M-411)."""
        x, outputs = self.state.some_inputs, self.state.prior.outputs
        if x.shape[-2] < 2:
            raise DomainError(
                f"`share` is of the variance over training rows, of which it needs 2, got {x.shape[-2]}; condition on "
                "more rows"
            )
        if x.shape[-2] > MAX_ROWS:
            x = x[..., torch.randperm(x.shape[-2], generator=torch.Generator().manual_seed(0))[:MAX_ROWS], :]
        means = torch.stack([self.predict(number, x).mean.double() for number in range(len(self.kernels))])
        means = means - means.mean(-1 if outputs is None else -2, keepdim=True)
        axis = -1 if outputs is None else -2
        total = means.sum(0)
        whole = total.square().sum(axis)
        own, with_all = means.square().sum(axis), (means * total).sum(axis)
        whole = torch.where(whole > 0.0, whole, 1.0)
        return own / whole, (with_all - own) / whole


def _alike(one: Kernel, other: Kernel) -> bool:
    """True if two kernels have the same structure."""
    same = one.structure() == other.structure() and len(one.parts) == len(other.parts)
    return same and all(map(_alike, one.parts, other.parts))


def _alike_unscaled(one: Kernel, other: Kernel) -> bool:
    return _alike(_unscaled(one), _unscaled(other))


def _unscaled(kernel: Kernel) -> Kernel:
    return _unscaled(kernel.kernel) if isinstance(kernel, Scaled) else kernel


def _numbers(kernel: Kernel) -> list[list[float]]:
    """Values of all parameters but scales."""
    inner = _unscaled(kernel)
    return [one.value.flatten().tolist() for one in inner.modules() if isinstance(one, Parameter)]
