"""A warning points at the line that the user wrote, however many of our frames, and torch's, lie between."""

import warnings
from collections.abc import Callable

import numpy
import pytest
import torch

import flashgp as fgp
from flashgp.estimator import GPRegressor

X = torch.linspace(0.0, 1.0, 40, dtype=torch.float64)[:, None]
Y = torch.sin(3.0 * X[:, 0])


def condition() -> Callable[[], object]:
    gp = fgp.GP(fgp.kernels.RBF(lengthscale=1e4), likelihood=fgp.likelihoods.Gaussian(None, row_variance=0.0 * Y))
    return lambda: gp.condition(X, Y)


def condition_iteratively() -> Callable[[], object]:
    gp = fgp.GP(fgp.kernels.Matern(), likelihood=fgp.likelihoods.Gaussian(1e-4))
    return lambda: gp.condition(X, Y, solver="cg", time_limit=0.0)


def estimator() -> Callable[[], object]:
    table = X.numpy().copy()
    table[3] = numpy.nan
    model = GPRegressor(missing="drop", target_transform="none", starts=1, max_iterations=1)
    return lambda: model.fit(table, Y.numpy())


@pytest.mark.parametrize("door", [condition, condition_iteratively, estimator])
def test_a_warning_points_at_the_line_of_the_user(door: Callable[[], Callable[[], object]]) -> None:
    call = door()
    for context in (torch.enable_grad(), torch.inference_mode(), torch.autocast("cpu")):
        with warnings.catch_warnings(record=True) as caught, context:
            warnings.simplefilter("always", fgp.FlashGPWarning)
            call()
        line = call.__code__.co_firstlineno
        own = [(w.filename, w.lineno) for w in caught if issubclass(w.category, fgp.FlashGPWarning)]
        assert own, door.__name__
        assert set(own) == {(__file__, line)}
