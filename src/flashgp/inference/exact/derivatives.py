"""Every derivative of the log marginal likelihood that there is: first ones with the value, second ones in closed form.

    value --------> gradient --------> Hessian times a direction
    (eq. (M-33))    (eq. (M-34))       (eq. (M-130))

Three functions in a row, each the derivative of the one before, in reverse and in forward mode, with a rule for vmap:
so autograd twice, torch.func.hessian, jvp of grad and vmap over parameters are all the same closed forms. A gradient
alone never pays for a second derivative. Third ones are refused.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from flashgp.foundations.contexts import entered
from flashgp.foundations.errors import DerivativeError
from flashgp.foundations.quantities import readable_bytes
from flashgp.foundations.transforms import is_transformed
from flashgp.inference.exact.batching import as_whole, event_sum, halves, mapped, padded, placed, whole_batch

Gradients = list[Tensor | None]
HESSIAN_MATRICES = 12  # n x n, that second derivatives have alive at once


class Curvature(Protocol):
    """Second derivatives at some tensors."""

    def along(self, directions: Sequence[Tensor | None]) -> Gradients:
        """The gradient's change along a direction: by every tensor (*batch, ...) of the whole batch, None for 0."""
        ...


@dataclass
class Evaluation:
    """One log marginal likelihood as a function of its tensors, and what is remembered of it.

    Args:
        gradient: value, and gradient by every wanted tensor, each (*batch, ...) of the whole batch or None for 0.
        curvature: what gives second derivatives at some tensors.
        wanted: by which tensors derivatives may be asked for.
        events: dimensions of each tensor that are not of the batch.
        max_rows: of the covariance matrix, up to which second derivatives are computed.
    """

    gradient: Callable[[Sequence[Tensor], Sequence[bool]], tuple[Tensor, Gradients]]
    curvature: Callable[[Sequence[Tensor]], Curvature]
    wanted: Sequence[bool]
    events: Sequence[int]
    max_rows: int
    _gradients: "_Remembered" = field(default_factory=lambda: _Remembered())
    _curvature: "_Remembered" = field(default_factory=lambda: _Remembered())

    def value(self, tensors: Sequence[Tensor]) -> Tensor:
        """The value; its gradient is kept, since the factor is at hand."""
        value, gradients = self.gradient(tensors, self.wanted)
        self._gradients.keep(tensors, gradients)
        return value

    def gradients(self, tensors: Sequence[Tensor]) -> Gradients:
        """The gradient of every member of the batch."""
        found: Gradients = self._gradients.of(tensors, lambda: self.gradient(tensors, self.wanted)[1])
        return found

    def along(self, tensors: Sequence[Tensor], directions: Sequence[Tensor | None]) -> Gradients:
        """The Hessian times a direction, whose parts that are 0 are None. Raises: DerivativeError beyond `max_rows`."""
        rows = tensors[0].shape[-2]
        if rows > self.max_rows:
            size = readable_bytes(HESSIAN_MATRICES * 8 * rows**2 * max(1, tensors[0].shape[:-2].numel()))
            raise DerivativeError(
                f"second derivatives of the log marginal likelihood take dense matrices up to second_order_rows="
                f"{self.max_rows:,} rows, got {rows:,}; pass second_order_rows={rows} (about {size}), take fewer rows, "
                "or differences of gradients",
                order=2,
                rows=rows,
            )
        curvature: Curvature = self._curvature.of(tensors, lambda: self.curvature(tensors))
        return curvature.along(directions)


class _Remembered:
    """Values computed of some tensors, kept for the next time that they come with the same numbers."""

    def __init__(self) -> None:
        self._key: tuple[Any, ...] | None = None
        self._held: list[Tensor] = []  # so that no other tensor gets their memory
        self._value: Any = None

    def keep(self, tensors: Sequence[Tensor], value: Any) -> None:
        self._key, self._value, self._held = _key(tensors), value, [t.detach() for t in tensors]

    def of(self, tensors: Sequence[Tensor], compute: Callable[[], Any]) -> Any:
        if self._key is None or self._key != _key(tensors):
            self._key = self._value = None
            self.keep(tensors, compute())
        return self._value


def _key(tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    return tuple((t.data_ptr(), 0 if t.is_inference() else t._version, t.shape, t.stride()) for t in tensors)


def differentiable_likelihood(evaluation: Evaluation, tensors: Sequence[Tensor]) -> Tensor:
    """The value, (*batch,), whose first and second derivatives are those of `evaluation`."""
    value: Tensor = _Value.apply(evaluation, *tensors)
    return value


class _Value(torch.autograd.Function):
    """The log marginal likelihood."""

    @staticmethod
    def forward(evaluation: Evaluation, *tensors: Tensor) -> Tensor:
        return evaluation.value([t.detach() for t in tensors])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _save(ctx, inputs)

    @staticmethod
    @entered()
    def backward(ctx: Any, cotangent: Tensor | None) -> tuple[Tensor | None, ...]:
        tensors, events = ctx.saved_tensors, ctx.evaluation.events
        if cotangent is None:
            return (None,) * (1 + len(tensors))
        gradients = _Gradient.apply(ctx.evaluation, *tensors)
        results: list[Tensor | None] = [None]
        for k, (tensor, gradient) in enumerate(zip(tensors, gradients, strict=True)):
            if not ctx.needs_input_grad[1 + k] or not tensor.is_floating_point():
                results.append(None)
                continue
            scale = cotangent.reshape(cotangent.shape + (1,) * events[k])
            results.append((gradient * scale).sum_to_size(tensor.shape).to(tensor.dtype))
        return tuple(results)

    @staticmethod
    @entered()
    def jvp(ctx: Any, _: None, *tangents: Tensor | None) -> Tensor:
        return _slope(ctx.evaluation, 0, ctx.saved_tensors, tangents)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], evaluation: Evaluation, *tensors: Tensor) -> Any:
        inside = placed(info.batch_size, in_dims[1:], evaluation.events, tensors)
        return _Value.apply(evaluation, *inside), 0


class _Gradient(torch.autograd.Function):
    """The gradient by every tensor, (*batch, ...) of the whole batch: what members share is not summed yet."""

    @staticmethod
    def forward(evaluation: Evaluation, *tensors: Tensor) -> tuple[Tensor, ...]:
        found = evaluation.gradients([t.detach() for t in tensors])
        batch = whole_batch(tensors, evaluation.events)
        return tuple(
            as_whole(None if g is None else g.to(t.dtype, copy=True), t, event, batch)
            for g, t, event in zip(found, tensors, evaluation.events, strict=True)
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _save(ctx, inputs)

    @staticmethod
    @entered()
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        found = _along(ctx.evaluation, 0, tensors, cotangents)
        return (None, *(
            None if g is None or not needed else g.sum_to_size(t.shape)
            for g, t, needed in zip(found, tensors, ctx.needs_input_grad[1:], strict=True)
        ))  # fmt: skip

    @staticmethod
    @entered()
    def jvp(ctx: Any, _: None, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        found = _along(ctx.evaluation, 0, ctx.saved_tensors, tangents)
        batch = whole_batch(ctx.saved_tensors, ctx.evaluation.events)
        return tuple(
            as_whole(g, t, event, batch) if t.is_floating_point() else None
            for g, t, event in zip(found, ctx.saved_tensors, ctx.evaluation.events, strict=True)
        )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], evaluation: Evaluation, *tensors: Tensor) -> Any:
        inside = placed(info.batch_size, in_dims[1:], evaluation.events, tensors)
        found = _Gradient.apply(evaluation, *inside)
        return found, tuple(0 for _ in found)


class _Slope(torch.autograd.Function):
    """The derivative of the value along directions, (*lead, *batch): for forward mode.

    A function of its own, as all that forward mode differentiates again must be: what else is done in a `jvp` has no
    derivative there, and torch does not say so.
    """

    @staticmethod
    def forward(evaluation: Evaluation, lead: int, *given: Tensor | None) -> Tensor:
        tensors, directions = halves(given)
        tensors = [t.detach() for t in tensors]
        batch = whole_batch(tensors, evaluation.events)
        front = next(d.shape[:lead] for d in directions if d is not None)
        total = torch.zeros((*front, *batch), dtype=torch.float64, device=tensors[0].device)
        for g, d, event in zip(evaluation.gradients(tensors), directions, evaluation.events, strict=True):
            if d is not None and g is not None:
                total = total + event_sum(g * padded(d.detach(), event, len(batch), lead), event)
        return total

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.evaluation, ctx.lead, *given = inputs
        ctx.shape = output.shape
        _keep(ctx, given)

    @staticmethod
    @entered()
    def backward(ctx: Any, cotangent: Tensor | None) -> tuple[Tensor | None, ...]:
        tensors, directions = _given(ctx)
        events, lead, count = ctx.evaluation.events, ctx.lead, len(tensors)
        if cotangent is None:
            return (None,) * (2 + 2 * count)
        rank = cotangent.dim() - lead
        gradients = _Gradient.apply(ctx.evaluation, *tensors)
        found = _along(ctx.evaluation, lead, tensors, directions)
        results: list[Tensor | None] = [None] * (2 * count)
        for k, event in enumerate(events):
            scale = cotangent.reshape(cotangent.shape + (1,) * event)
            direction, gradient = directions[k], found[k]
            if gradient is not None and ctx.needs_input_grad[2 + k]:
                results[k] = (gradient * scale).sum_to_size(tensors[k].shape)
            if direction is not None and ctx.needs_input_grad[2 + count + k]:
                shape = padded(direction, event, rank, lead).shape
                results[count + k] = (gradients[k] * scale).sum_to_size(shape).reshape(direction.shape)
        return (None, None, *results)

    @staticmethod
    @entered()
    def jvp(ctx: Any, _evaluation: None, _lead: None, *tangents: Tensor | None) -> Tensor:
        (tensors, directions), (moved, turned) = _given(ctx), halves(tangents)
        total = torch.zeros(ctx.shape, dtype=torch.float64, device=tensors[0].device)
        if any(t is not None for t in turned):
            total = total + _slope(ctx.evaluation, ctx.lead, tensors, turned)
        found = _along(ctx.evaluation, ctx.lead, tensors, directions)
        rank = len(ctx.shape) - ctx.lead
        for g, t, event in zip(found, moved, ctx.evaluation.events, strict=True):
            if g is not None and t is not None:
                total = total + event_sum(g * padded(t, event, rank), event)
        return total

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], evaluation: Evaluation, lead: int, *given: Tensor | None
    ) -> Any:
        lead, inside, out = mapped(info.batch_size, in_dims[2:], evaluation.events, lead, given)
        return _Slope.apply(evaluation, lead, *inside), out


class _Along(torch.autograd.Function):
    """The Hessian times directions, by every tensor, (*lead, *batch, ...): `lead` dimensions of directions in front."""

    @staticmethod
    def forward(evaluation: Evaluation, lead: int, *given: Tensor | None) -> tuple[Tensor, ...]:
        tensors, directions = halves(given)
        tensors = [t.detach() for t in tensors]
        events, batch = evaluation.events, whole_batch(tensors, evaluation.events)
        front = next(d.shape[:lead] for d in directions if d is not None)
        flat = [None if d is None else d.detach().double().reshape(front.numel(), *d.shape[lead:]) for d in directions]
        rows = []
        for k in range(front.numel()):
            one = [None if d is None or not bool(d[k].any()) else d[k] for d in flat]
            found = evaluation.along(tensors, one)
            rows.append([as_whole(g, t, event, batch) for g, t, event in zip(found, tensors, events, strict=True)])
        if not rows:
            empty = [as_whole(None, t, event, batch) for t, event in zip(tensors, events, strict=True)]
            return tuple(e.new_zeros((*front, *e.shape)) for e in empty)
        return tuple(torch.stack(parts).reshape((*front, *parts[0].shape)) for parts in zip(*rows, strict=True))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.evaluation, ctx.lead, *given = inputs
        _keep(ctx, given)

    @staticmethod
    @entered()
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        """The Hessian is symmetric: by the directions it is the Hessian times the cotangents."""
        tensors, directions = _given(ctx)
        zeros = [torch.zeros_like(t) if t.is_floating_point() else None for t in tensors]  # _Last refuses them
        found = _along(ctx.evaluation, ctx.lead, tensors, cotangents)
        turned: list[Tensor | None] = []
        for g, d, event in zip(found, directions, ctx.evaluation.events, strict=True):
            if g is None or d is None:
                turned.append(None)
            else:
                shape = padded(d, event, g.dim() - event - ctx.lead, ctx.lead).shape
                turned.append(g.sum_to_size(shape).reshape(d.shape))
        return (None, None, *zeros, *turned)

    @staticmethod
    def jvp(ctx: Any, _evaluation: None, _lead: None, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        (tensors, _), (moved, turned) = _given(ctx), halves(tangents)
        if any(t is not None for t in moved):
            raise _third(tensors[0].shape[-2])
        found = _Along.apply(ctx.evaluation, ctx.lead, *tensors, *turned)
        return tuple(g if t.is_floating_point() else None for g, t in zip(found, tensors, strict=True))

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], evaluation: Evaluation, lead: int, *given: Tensor | None
    ) -> Any:
        lead, inside, out = mapped(info.batch_size, in_dims[2:], evaluation.events, lead, given)
        found = _Along.apply(evaluation, lead, *inside)
        return found, tuple(out for _ in found)


class _Last(torch.autograd.Function):
    """Tensors as they are, by which no third derivative is taken in silence."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(t.view_as(t) for t in tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.rows = inputs[0].shape[-2]

    @staticmethod
    def backward(ctx: Any, *_: Tensor | None) -> tuple[Tensor | None, ...]:
        raise _third(ctx.rows)

    @staticmethod
    def jvp(ctx: Any, *_: Tensor | None) -> tuple[Tensor, ...]:
        raise _third(ctx.rows)


def _slope(evaluation: Evaluation, lead: int, tensors: Sequence[Tensor], directions: Sequence[Tensor | None]) -> Tensor:
    moved = _floating(tensors, directions)
    value: Tensor = _Slope.apply(evaluation, lead, *tensors, *moved)
    return value


def _along(
    evaluation: Evaluation, lead: int, tensors: Sequence[Tensor], directions: Sequence[Tensor | None]
) -> Sequence[Tensor | None]:
    moved = _floating(tensors, directions)
    if all(d is None for d in moved):
        return [None for _ in tensors]
    found: Sequence[Tensor] = _Along.apply(evaluation, lead, *_Last.apply(*tensors), *moved)
    return found


def _floating(tensors: Sequence[Tensor], directions: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Directions of what can move. Raises: DerivativeError where they stand for many, of autograd's own vmap."""
    if any(_vectorized(d) for d in directions if d is not None):
        raise DerivativeError(
            "the log marginal likelihood has no such derivative for vectorize=True of torch.autograd.functional, or "
            "is_grads_batched=True; leave these out, or take torch.func.hessian",
            order=2,
            rows=tensors[0].shape[-2],
        )
    return [d if t.is_floating_point() else None for d, t in zip(directions, tensors, strict=True)]


def _vectorized(tensor: Tensor) -> bool:
    """True if it stands for many, of autograd's own vmap, which has no rule for functions of ours."""
    return not is_transformed(tensor) and "Batched" in str(torch._C._dispatch_keys(tensor))


def _third(rows: int) -> DerivativeError:
    return DerivativeError(
        "third derivatives of the log marginal likelihood are not computed; take differences of second ones, or do "
        "not ask for a graph of the Hessian (create_graph=False)",
        order=3,
        rows=rows,
    )


def _save(ctx: Any, inputs: tuple[Any, ...]) -> None:
    ctx.evaluation, *tensors = inputs
    _keep(ctx, tensors)


def _keep(ctx: Any, given: Sequence[Tensor | None]) -> None:
    ctx.save_for_backward(*given)
    ctx.save_for_forward(*given)
    ctx.set_materialize_grads(False)


def _given(ctx: Any) -> tuple[list[Any], list[Any]]:
    """Tensors and directions of a context."""
    return halves(ctx.saved_tensors)
