"""What a check finds: answers beyond their bound, raw errors, warnings that are not the library's."""

import linecache
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch

import flashgp as fgp
from hunt.rounding import EPS, Rounded

SAFETY = 2.0  # second-order terms, and sums in another order than the bound's


@dataclass
class Findings:
    """Of one case: differences by name of what differs, how many numbers were compared, and what was not and why."""

    differences: dict[str, str] = field(default_factory=dict)
    compared: int = 0
    skipped: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    operations: int = 0
    largest: float = 0.0  # share of its bound that a difference took

    def compare(
        self, name: str, got: Any, wanted: Rounded, *, dtype: torch.dtype = torch.float64, room: Any = 0.0
    ) -> None:
        """Numbers against a reference: within SAFETY eps error, the rounding to the answer's dtype, and room."""
        if not isinstance(got, torch.Tensor):
            self.differences[name] = f"a {type(got).__name__}"
            return
        if got.dtype != dtype:
            self.differences[f"dtype of {name}"] = f"{got.dtype}, wanted {dtype}"
        values, bound = wanted.value, SAFETY * EPS * wanted.error + room
        if dtype != torch.float64:
            bound = bound + torch.finfo(dtype).eps * abs(values) + torch.finfo(dtype).tiny
        array = got.detach().to(torch.float64).cpu().numpy()
        if 0 in array.shape and 0 in values.shape and array.shape[-1:] == values.shape[-1:]:
            return  # of no models
        if array.shape != values.shape:
            self.differences[f"shape of {name}"] = f"{array.shape}, wanted {values.shape}"
            return
        self.compared += array.size
        if not array.size:
            return
        array, values, bound = (numpy.atleast_1d(part) for part in (array, values, bound))
        with numpy.errstate(all="ignore"):
            beyond = ~(abs(values) <= torch.finfo(dtype).max)  # and what extended precision does not hold either
            error = abs(array - values)
            share = numpy.where(error <= bound, error / numpy.where(bound > 0, bound, 1), numpy.inf)
            wrong = ~(error <= bound) & ~beyond
            finite = share[~beyond & (error <= bound)]
        if finite.size:
            self.largest = max(self.largest, float(finite.max()))
        if wrong.any():
            place = tuple(int(i[0]) for i in wrong.nonzero())
            self.differences[name] = (
                f"{array[place]!r} at {place}, wanted {float(values[place])!r}, off by {float(error[place]):.3g} where "
                f"{float(bound[place]):.3g} is allowed ({int(wrong.sum())} of {array.size})"
            )

    def equal(self, name: str, got: Any, wanted: Any) -> None:
        self.compared += 1
        same = torch.equal(got, wanted) if isinstance(got, torch.Tensor) else got == wanted
        if not same:
            self.differences[name] = f"{got!r}, wanted {wanted!r}"[:300]

    @contextmanager
    def watched(self, what: str, refusals: tuple[type[Exception], ...] = ()) -> Iterator[None]:
        """Errors inside are differences, but those that the case allows; raw warnings are too."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                yield
            except refusals as error:
                self.refused.append(f"{what}: {type(error).__name__}")
            except Exception as error:
                kind = "refused" if is_typed(error) else "raw error"
                where = traceback.extract_tb(error.__traceback__)[-1]
                self.differences[f"{kind} in {what}"] = (
                    f"{type(error).__name__}: {str(error)[:400]} ({where.filename.rsplit('/', 1)[-1]}:{where.lineno})"
                )
        for warning in caught:
            if not issubclass(warning.category, fgp.FlashGPWarning):
                text = f"{warning.category.__name__}: {str(warning.message)[:200]}"
                self.differences[f"raw warning in {what}"] = f"{text} ({warning.filename}:{warning.lineno})"


def is_typed(error: BaseException) -> bool:
    """Whether the library wrote it: its own kinds, or a ValueError or TypeError raised by a line of its own."""
    if isinstance(error, fgp.FlashGPError) or "unsupported operand type" in str(error):  # Python's own, of operators
        return True
    if not isinstance(error, ValueError | TypeError) or error.__traceback__ is None:
        return False
    last = traceback.extract_tb(error.__traceback__)[-1]
    line = linecache.getline(last.filename, last.lineno or 0)
    return "/flashgp/" in last.filename and "raise" in line and " " in str(error)
