"""A cell of the table of published sets, and what a method gives for it."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["Answer", "Cell"]


@dataclass(frozen=True)
class Cell:
    """What to run. Fields: set, split, method; rows of the training set that are kept (None: all); memory, the budget;
    data, the folder of sets; time_limit of the training, seconds; peer_steps, of a peer's Adam; seed of ours."""

    set: str
    split: int
    method: str
    data: str
    rows: int | None = None
    memory: str | None = None
    time_limit: float | None = None
    peer_steps: int = 50
    seed: int = 0

    @property
    def key(self) -> str:
        """Its name in the record: what else was chosen is inside the entry."""
        parts = [self.set, str(self.split), self.method]
        parts += [f"rows={self.rows}"] if self.rows is not None else []
        parts += [f"memory={self.memory}"] if self.memory is not None and self.method == "flashgp" else []
        return "/".join(parts)

    def settings(self) -> dict[str, Any]:
        """Everything but the folder, as the record keeps it."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "data"}


@dataclass
class Answer:
    """What a method gives: mean and variance of new observations at the test rows; seconds, without compiling; entries
    of the record; later, called when time and memory have been taken, gives more of them."""

    mean: torch.Tensor
    variance: torch.Tensor
    fit_seconds: float
    predict_seconds: float
    compile_seconds: float = 0.0
    entries: dict[str, Any] = field(default_factory=dict)
    later: Callable[[], dict[str, Any]] = dict
