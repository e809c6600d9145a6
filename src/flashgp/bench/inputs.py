"""Inputs of a benchmark: private copies, fresh values for every run, and proof that a run left them alone.

Why. A candidate that remembers an answer must not win. So every run gets values that no run had before, in the same
tensors: the same objects at the same addresses, updated in place. A memory keyed by `id()` or by address then returns
the answer to other inputs, which the comparison with the reference at the new inputs finds; a memory keyed by values
never hits, and saves nothing.

How. Each floating input x becomes x (1 + s (l w + v / 4)), elementwise: w a fixed random direction with entries of
size 1/2 to 1, v fresh noise in (-1, 1) for every run, l a level from {-2, -1, 1, 2} that differs from the level of the
run before, s a step of that input. Zeros, signs and finiteness survive. An exactly symmetric matrix A becomes D A D
with D diagonal, so it stays symmetric and as definite as it was. Other structure (sorted grids, equal rows, whole
numbers as codes) does not survive: pass a function of your own for such inputs.

How large. The step starts at 1e-4 (or 8 eps of the dtype), large enough that a warm start from the answer before is
little help, and grows, for each input on its own, until one level of it moves every output that depends on it by 8
tolerances. Two answers, each within one tolerance of its own truth, cannot then pass for each other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from flashgp.bench.answers import Tensors, distances, reference_tensors, same_values
from flashgp.foundations.errors import DomainError

Perturb = bool | Callable[[Any, torch.Generator], Any]
LEVELS = (-2, -1, 1, 2)
SMALLEST_STEP = 1e-4
LARGEST_STEP = 0.05  # at most about 11 % of a value: beyond, it would be another problem
MARGIN = 8.0  # tolerances that one level of an input must move the outputs by
_NOISE = 0.25  # of one level: two neighbouring levels stay half a level apart
_EPS_FACTOR = 8
_ROUNDING = 64 * torch.finfo(torch.float64).eps
_TRIES = 12


@dataclass
class _Leaf:
    """One array among the inputs: its values (on the CPU) and what its private copies must look like."""

    name: str
    base: torch.Tensor
    device: torch.device
    is_numpy: bool
    is_parameter: bool
    requires_grad: bool
    symmetric: bool
    step: float

    @property
    def floating(self) -> bool:
        return self.base.is_floating_point() or self.base.is_complex()


class _Slot(int):
    """Position of an array of the nested inputs among the leaves."""


def _mapped(value: Any, function: Callable[[Any, str], Any], name: str = "inputs") -> Any:
    """Nested dicts, tuples and lists made anew, with `function(entry, name)` in place of everything else."""
    if type(value) is dict:
        return {key: _mapped(entry, function, f"{name}[{key!r}]") for key, entry in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_mapped(entry, function, f"{name}[{index}]") for index, entry in enumerate(value))
    return function(value, name)


class InputSource:
    """The caller's inputs, read once, and the values made from them for each run.

    Args:
        inputs: a tuple or list (positional arguments), a dict (keyword arguments), or one tensor. Strided tensors and
            NumPy arrays, also inside tuples, lists and dicts, are copied and varied; the same tensor given twice
            stays one tensor. Anything else is passed on as it is: not copied, not varied, not checked.
        reference: callable of the inputs that gives the truth, or its value.
        seed: of all perturbations; the global generators are not used.
        perturb: True as above; False the same values in every run; or a function `(inputs, generator) -> inputs`.
    """

    def __init__(self, inputs: Any, *, reference: Any = None, seed: int = 0, perturb: Perturb = False) -> None:
        if isinstance(inputs, torch.Tensor):
            inputs = (inputs,)
        if not isinstance(inputs, tuple | list | dict):
            raise DomainError(
                f"`inputs` must be a tuple of positional or a dict of keyword arguments, got {type(inputs).__name__}; "
                "write `(x,)` for one argument"
            )
        self.leaves: list[_Leaf] = []
        self.opaque: list[str] = []
        self.reference, self.perturb = reference, perturb
        self._seed = seed
        self._generator = torch.Generator().manual_seed(seed)
        self._known: dict[int, _Slot] = {}  # by the id of the caller's object
        self._template = _mapped(inputs, self._read)

    def _read(self, value: Any, name: str) -> Any:
        is_numpy = type(value) is numpy.ndarray and (value.dtype.kind in "bcfi" or value.dtype == numpy.uint8)
        if not is_numpy and not (isinstance(value, torch.Tensor) and value.layout is torch.strided):
            if not isinstance(value, bool | int | float | complex | str | torch.dtype | torch.device | type(None)):
                self.opaque.append(f"{name} ({type(value).__name__})")
            return value
        if id(value) not in self._known:
            self._known[id(value)] = _Slot(len(self.leaves))
            tensor = torch.from_numpy(value.copy()) if is_numpy else value.detach()
            base = tensor.to("cpu", copy=True)
            floating = base.is_floating_point() or base.is_complex()
            square = base.dim() >= 2 and base.shape[-1] == base.shape[-2] >= 2
            self.leaves.append(
                _Leaf(
                    name=name,
                    base=base,
                    device=tensor.device,
                    is_numpy=is_numpy,
                    is_parameter=isinstance(value, torch.nn.Parameter),
                    requires_grad=not is_numpy and value.requires_grad,
                    symmetric=floating and square and torch.equal(base, base.mH),
                    step=max(SMALLEST_STEP, _EPS_FACTOR * torch.finfo(base.dtype).eps if floating else 0.0),
                )
            )
        return self._known[id(value)]

    def fill(self, arrays: Sequence[Any]) -> Any:
        """The inputs as nested as the caller's, with these arrays."""
        return _mapped(self._template, lambda value, _: arrays[value] if type(value) is _Slot else value)

    def draw(self, level: int, *, only: int | None = None) -> list[torch.Tensor]:
        """Values of every array for one run (CPU), varied at this level; `only` varies a single array."""
        if self.perturb is False:
            return [leaf.base for leaf in self.leaves]
        if callable(self.perturb):
            return self._draw_with(self.perturb)
        return [
            self._vary(leaf, index, level) if level and leaf.floating and only in (None, index) else leaf.base
            for index, leaf in enumerate(self.leaves)
        ]

    def _vary(self, leaf: _Leaf, index: int, level: int) -> torch.Tensor:
        shape = leaf.base.shape[:-1] if leaf.symmetric else leaf.base.shape
        # The direction is drawn again from its own seed: keeping it would cost another copy of the input.
        direction_generator = torch.Generator().manual_seed(self._seed + 7919 * (index + 1))
        direction = 2.0 * torch.rand(shape, generator=direction_generator, dtype=torch.float64) - 1.0
        direction = direction.sign() * (0.5 + 0.5 * direction.abs())
        noise = 2.0 * torch.rand(shape, generator=self._generator, dtype=torch.float64) - 1.0
        factor = 1.0 + leaf.step * (level * direction + _NOISE * noise)
        if leaf.symmetric:
            factor = factor.unsqueeze(-1) * factor.unsqueeze(-2)
        wide = torch.promote_types(leaf.base.dtype, torch.float64)
        return (leaf.base.to(wide) * factor).to(leaf.base.dtype)

    def _draw_with(self, perturb: Callable[[Any, torch.Generator], Any]) -> list[torch.Tensor]:
        leaves = InputSource(perturb(Feed(self).load([leaf.base for leaf in self.leaves]), self._generator)).leaves
        wanted = [(tuple(leaf.base.shape), leaf.base.dtype) for leaf in self.leaves]
        given = [(tuple(leaf.base.shape), leaf.base.dtype) for leaf in leaves]
        if wanted != given:
            raise DomainError(
                f"`perturb` must return inputs like those it was given, {wanted}, got {given}; "
                "change values only, not shapes, dtypes or their number"
            )
        return [leaf.base for leaf in leaves]

    def truth(self, values: Sequence[torch.Tensor]) -> Tensors:
        """Answer of the reference for fresh copies of these values."""
        fixed = not callable(self.reference)
        return reference_tensors(self.reference if fixed else call(self.reference, Feed(self).load(values)))

    def describe(self) -> list[dict[str, Any]]:
        """Name, shape, dtype, device and step of each array, for the record."""
        return [
            {
                "name": leaf.name,
                "shape": list(leaf.base.shape),
                "dtype": str(leaf.base.dtype).removeprefix("torch."),
                "device": str(leaf.device),
                "relative_step": leaf.step if leaf.floating and self.perturb is True else None,
            }
            for leaf in self.leaves
        ]


class Feed:
    """One candidate's private inputs: the same objects in every run, with new values written into them."""

    def __init__(self, source: InputSource) -> None:
        self._source = source
        self._buffers: list[torch.Tensor] = []
        self._arrays: list[Any] = []
        self._expected: Sequence[torch.Tensor] = ()
        self._structure: Any = None
        for leaf in source.leaves:
            buffer = leaf.base.clone() if leaf.device.type == "cpu" else leaf.base.to(leaf.device)
            if leaf.is_parameter:
                buffer = torch.nn.Parameter(buffer, requires_grad=leaf.requires_grad)
            else:
                buffer.requires_grad_(leaf.requires_grad)
            self._buffers.append(buffer)
            self._arrays.append(buffer.numpy() if leaf.is_numpy else buffer)

    def load(self, values: Sequence[torch.Tensor]) -> Any:
        """Write these values into the buffers, clear their gradients, and return the nested inputs."""
        with torch.no_grad():
            for buffer, value in zip(self._buffers, values, strict=True):
                buffer.copy_(value)
                buffer.grad = None
        self._expected = values
        self._structure = self._source.fill(self._arrays)
        return self._structure

    def mutation(self) -> str | None:
        """Change of the inputs by the run, or None: compared with the private copy, exactly."""
        for leaf, buffer, array, expected in zip(
            self._source.leaves, self._buffers, self._arrays, self._expected, strict=True
        ):
            now = torch.from_numpy(array) if leaf.is_numpy else buffer
            if now.shape != expected.shape or now.dtype != expected.dtype or now.device != leaf.device:
                return f"{leaf.name} became {tuple(now.shape)} {now.dtype} on {now.device}"
            if now.requires_grad != leaf.requires_grad:
                return f"{leaf.name}.requires_grad became {now.requires_grad}"
            if not same_values(now.detach().to("cpu"), expected):
                return f"the values of {leaf.name} changed"
        if not _same_objects(self._structure, self._source.fill(self._arrays)):
            return "a list or dict among the inputs changed"
        return None


def call(function: Callable[..., Any], structure: Any) -> Any:
    """`function` with the entries of a dict as keyword arguments, of a tuple or list as positional ones."""
    return function(**structure) if isinstance(structure, dict) else function(*structure)


def _same_objects(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if type(left) is dict:
        return list(left) == list(right) and _same_objects([*left.values()], [*right.values()])
    if type(left) in (tuple, list):
        return len(left) == len(right) and all(map(_same_objects, left, right))
    return left is right


def calibrate(source: InputSource, tolerance: float) -> list[str]:
    """Set the step of every floating input of `source`; returns notes on what a remembered answer could hide behind.

    Raises: DomainError if no input can move the reference by enough within the largest step.
    Cost: one call of the reference, and for each floating input one to a few more.
    """
    truth = source.truth(source.draw(0))
    needed = max(MARGIN * tolerance, _ROUNDING)
    notes: list[str] = []
    any_moved = False
    for index, leaf in enumerate(source.leaves):
        if not leaf.floating or leaf.base.numel() == 0:
            continue
        smallest, first_sufficient, complete = leaf.step, None, False
        for _ in range(_TRIES):
            moved_to = source.truth(source.draw(1, only=index))
            moved = [distance for distance in distances(moved_to, truth) if distance > _ROUNDING]
            if moved and max(moved) >= needed and first_sufficient is None:
                first_sufficient = leaf.step
            complete = bool(moved) and min(moved) >= needed
            if complete or leaf.step >= LARGEST_STEP:
                break
            # To first order the change is proportional to the step; a factor 1.5 on top for what is not.
            growth = 1.5 * needed / min(moved) if moved else 10.0
            leaf.step = min(LARGEST_STEP, leaf.step * max(2.0, growth))
        any_moved = any_moved or first_sufficient is not None
        if not complete:
            leaf.step = first_sufficient or smallest
            notes.append(
                f"{leaf.name} moves some outputs, but not all, by {needed:.1e}"
                if first_sufficient
                else f"{leaf.name} moves no output by {needed:.1e}: reuse across its values would not be noticed"
            )
    if not any_moved:
        raise DomainError(
            "`inputs` must move the reference when they are varied, so that a remembered answer shows, but no floating "
            f"input moved it by {needed:.1e} ({int(MARGIN)} tolerances) within {LARGEST_STEP:.0%}; "
            "pass a smaller `tolerance`, a function as `perturb`, or `perturb=False` to do without"
        )
    return notes
