"""A short hunt with every run of the tests, and that it would find something: bounds hold, and are not far too wide."""

from dataclasses import replace
from typing import Any

import numpy
import pytest
import torch

from hunt import specs
from hunt.calls import CALLS, CallCase
from hunt.cases import PosteriorCase
from hunt.differences import Findings, is_typed
from hunt.generate import KINDS, case_of
from hunt.reference import Data, Reference, cholesky, covariance, inverse, solve
from hunt.rounding import EPS, LD, Rounded
from hunt.usefulness import DensityCase, LimitCase, PeriodCase

SHORT = {
    "posterior": range(16),
    "operator": range(20),
    "chain": (*range(3), 9000272),  # the last: a jitter that stays with a chain of two rows without noise
    "call": range(90),
    "approximate": range(6),
    "useful": (2, 3, 10),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_short_hunt_finds_nothing(kind: str) -> None:
    for seed in SHORT[kind]:
        case = case_of(kind, seed)
        assert case.check().differences == {}, f"{case!r}"


def test_a_case_is_its_seed() -> None:
    for kind in KINDS:
        for seed in range(20):
            assert case_of(kind, seed) == case_of(kind, seed)


RAW_ONCE = [
    ("condition", "differentiable", "sparse"),
    ("Cosine", "active_dims", "numpy bool"),
    ("RationalQuadratic", "lengthscale", "ragged"),
    ("fit", "initial", "records"),
    ("with_noise", "v", "complex tensor"),
    ("fantasize", "x", "no rows"),
    ("Coregionalization", "count", "true"),
    ("Gaussian", "noise_variance", "masked array"),
    ("evidence", "jitter", "array of objects"),
    ("condition", "device", "many"),
    ("sample", "seed", "scalar tensor"),
    ("save", "metadata", "nan"),
    ("load", "path", "nan tensor"),
    ("solve_triangular", "upper", "inf"),
]


@pytest.mark.parametrize(("call", "argument", "value"), RAW_ONCE)
def test_a_wrong_argument_is_named(call: str, argument: str, value: str) -> None:
    found = CallCase(call, argument, value).check()
    assert found.differences == {}
    assert found.refused == ["a wrong argument"]


def test_calls_that_are_right_are_answered() -> None:
    for call in CALLS.keys() - {"load", "save"}:
        assert CallCase(call).check().differences == {}, call


# -- running error analysis ------------------------------------------------------------------------------------------
def test_rounding_errors_of_float64_stay_within_their_bound_and_near_it() -> None:
    rng = numpy.random.default_rng(0)
    a, b = rng.normal(size=(2, 2000)), rng.normal(size=(2, 2000))
    x, y = Rounded(a), Rounded(b)
    expected = ((x * y + x / (1 + y * y)).sin() * (-(x - y).abs()).exp()).sum(0)
    plain = (numpy.sin(a * b + a / (1 + b * b)) * numpy.exp(-abs(a - b))).sum(0)
    share = abs(plain - expected.value) / (EPS * expected.error)
    assert 0.02 < share.max() < 1.0


# -- the reference ----------------------------------------------------------------------------------------------------
def _data(n: int = 12, noise: float = 0.1, kernel: specs.Spec | None = None) -> Data:
    rng = numpy.random.default_rng(1)
    x = rng.normal(size=(n, 2))
    kernel = kernel or specs.Scaled(1.5, specs.Matern(2.5, (0.8, 1.7)))
    return Data(kernel, specs.Mean(), x, rng.normal(size=(n, 1)), Rounded(noise * numpy.ones(n)), Rounded(noise))


def test_the_factor_the_inverse_and_the_solve_of_the_reference_are_those_of_numpy() -> None:
    K = covariance(_data().kernel, _data().x, _data().x).value + 0.1 * numpy.eye(12)
    L = cholesky(K)
    assert L is not None
    assert numpy.allclose(L.astype(float), numpy.linalg.cholesky(K.astype(float)), rtol=0, atol=1e-14)
    assert abs(inverse(L) @ K - numpy.eye(12)).max() < 1e-14
    assert abs(K @ solve(L, numpy.eye(12, dtype=LD)) - numpy.eye(12)).max() < 1e-14
    assert cholesky(-K) is None


@pytest.mark.parametrize("noise", [1.0, 1e-4, 1e-8])
def test_a_plain_float64_computation_stays_within_the_bounds_and_near_them(noise: float) -> None:
    data = _data(30, noise)
    r = Reference(data)
    K = covariance(data.kernel, data.x, data.x).value.astype(float) + noise * numpy.eye(30)
    x_test = numpy.random.default_rng(2).normal(size=(50, 2))
    K_s = covariance(data.kernel, x_test, data.x).value.astype(float)
    K_ss = covariance(data.kernel, x_test, x_test).value.astype(float)
    alpha = numpy.linalg.solve(K, data.y)
    mean, joint = K_s @ alpha, K_ss - K_s @ numpy.linalg.solve(K, K_s.T)
    for got, wanted in ((mean, r.predict_mean(x_test)), (joint, r.predict_covariance(x_test))):
        share = (abs(got - wanted.value) / (EPS * wanted.error)).max()
        assert 1e-5 < share < 1.0
    sign, log_determinant = numpy.linalg.slogdet(K)
    evidence = -0.5 * ((data.y * alpha).sum() + log_determinant + 30 * numpy.log(2 * numpy.pi))
    wanted = r.log_marginal_likelihood()
    assert sign == 1.0
    assert abs(evidence - wanted.value) < EPS * wanted.error


def test_leave_one_out_really_leaves_out() -> None:
    data = _data(6)
    mean, variance, _ = Reference(data).leave_one_out()
    for i in range(6):
        keep = [j for j in range(6) if j != i]
        noise = Rounded(data.noise.value[keep])
        r = Reference(replace(data, x=data.x[keep], y=data.y[keep], noise=noise))
        assert float(r.predict_mean(data.x[i : i + 1]).value[0, 0]) == pytest.approx(float(mean.value[i, 0]), abs=1e-13)
        spread = float(r.predict_variance(data.x[i : i + 1]).value[0]) + 0.1
        assert spread == pytest.approx(float(variance.value[i]), abs=1e-13)


# -- the comparison ---------------------------------------------------------------------------------------------------
def test_a_number_beyond_its_bound_another_shape_and_another_dtype_are_differences() -> None:
    found = Findings()
    wanted = Rounded([1.0, 2.0], [10.0, 10.0])
    found.compare("right", torch.tensor([1.0, 2.0 + 15 * EPS], dtype=torch.float64), wanted)
    assert not found.differences
    found.compare(
        "beyond", torch.tensor([torch.inf, torch.nan], dtype=torch.float64), Rounded([1e300 * LD(1e300), LD("nan")])
    )
    assert found.differences == {}
    found.compare("number", torch.tensor([1.0, 2.0 + 25 * EPS], dtype=torch.float64), wanted)
    found.compare("nan", torch.tensor([1.0, torch.nan], dtype=torch.float64), wanted)
    found.compare("shape", torch.ones(3, dtype=torch.float64), wanted)
    found.compare("dtype", torch.tensor([1.0, 2.0]), wanted)
    assert list(found.differences) == ["number", "nan", "shape of shape", "dtype of dtype"]


def test_raw_errors_are_told_from_typed_ones() -> None:
    found = Findings()
    with found.watched("typed"):
        Points_of_three = PosteriorCase(n=3).points.draw(3)
        specs.Maker().kernel(specs.SquaredExponential(-1.0))(torch.from_numpy(Points_of_three))
    with found.watched("raw"):
        torch.ones(2) @ torch.ones(3)
    assert list(found.differences) == ["refused in typed", "raw error in raw"]
    assert not is_typed(ValueError("who"))


# -- faults that are planted ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "name"),
    [
        (PeriodCase(options=(("initial", "given"), ("max_iterations", 1))), "explained variance"),
        (DensityCase(room=-9.0), "nats a row beside scikit-learn"),
        (DensityCase(room=-9.0), "nats a row beside a constant"),
        (LimitCase(limit=0.5, room=-9.0), "seconds kept"),
    ],
)
def test_a_planted_fault_is_found(case: Any, name: str) -> None:
    assert name in case.check().differences
