"""Arguments are checked once, and rows of equal x looked for once, in each public call: at its door, by `Data`.

Inducing points alone join no rows, and check every batch of every pass, whether it is held or read.
"""

import sys
import warnings
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch

import flashgp as fgp
from flashgp.foundations.checks import check_points
from flashgp.inference.replicates import equal_rows

LOOKED = {check_points.__code__: "check_points", equal_rows.__wrapped__.__code__: "equal_rows"}


def looks(work: Callable[[], object]) -> Counter[str]:
    """How often each of the functions ran in this thread."""
    found: Counter[str] = Counter()

    def seen(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code in LOOKED:
            found[LOOKED[frame.f_code]] += 1

    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found


def table(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.rand(n, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[1] = x[0]
    return x, torch.sin(5.0 * x.sum(-1)) + 0.1 * x[:, 0]


def model() -> fgp.GP:
    return fgp.GP(1.0 * fgp.kernels.Matern(nu=1.5, lengthscale=[0.5, 0.5]), likelihood=fgp.likelihoods.Gaussian(0.01))


WAYS: dict[str, dict[str, Any]] = {
    "exact": {}, "full scale": {"approximation": "full_scale", "inducing": 12, "neighbours": 8},
    "auto": {"approximation": "auto"},
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_condition_looks_once(way: str) -> None:
    found = looks(lambda: model().condition(*table(60), **WAYS[way]))
    assert found == {"check_points": 1, "equal_rows": 1}


def test_conjugate_gradients_look_once() -> None:
    found = looks(lambda: model().condition(*table(60), solver="cg"))
    assert found == {"check_points": 1, "equal_rows": 1}


@pytest.mark.parametrize("exact_posterior", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_fit_looks_once(way: str, exact_posterior: bool) -> None:
    options = {"starts": 1, "max_iterations": 2, "progress": False, "exact_posterior": exact_posterior}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fgp.FlashGPWarning)
        found = looks(lambda: fgp.fit(model(), *table(60), **WAYS[way], **options))
    assert found == {"check_points": 1, "equal_rows": 1}


@pytest.mark.parametrize("way", WAYS)
def test_predict_looks_once_at_its_points(way: str) -> None:
    post = model().condition(*table(60), **WAYS[way])
    assert looks(lambda: post.predict(table(5)[0]).variance) == {"check_points": 1}
