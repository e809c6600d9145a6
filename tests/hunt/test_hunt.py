"""A short hunt with every run of the tests, and that it would find something: bounds hold, and are not far too wide."""

from dataclasses import replace
from typing import Any

import numpy
import pytest
import torch

import flashgp as fgp
from hunt import specs
from hunt.calls import CALLS, CallCase
from hunt.cases import Noise, Points, PosteriorCase
from hunt.differences import Findings, is_typed
from hunt.generate import KINDS, case_of
from hunt.gradients import derivative
from hunt.layouts import LAYOUTS, cast, laid_out
from hunt.reference import Data, NotDefiniteError, Reference, cholesky, covariance, inverse, solve
from hunt.rounding import EPS, LD, Rounded
from hunt.shrink import shrunk
from hunt.usefulness import DateCase, DensityCase, DrawCase, LimitCase, ModeCase, PeriodCase, WeightCase

SHORT = {
    "posterior": range(16),
    "operator": range(20),
    "chain": range(3),
    "gradient": range(12),
    "call": range(60),
    "likelihood": range(20),
    "linalg": range(20),
    "stream": range(3),
    "fit": range(2),
    "approximate": range(6),
    "estimator": range(40),
    "table": range(10),
    "useful": (2, 3, 6, 10),
    "meaning": (1, 3, 6, 7, 8, 11, 13, 18),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_short_hunt_finds_nothing(kind: str) -> None:
    for seed in SHORT[kind]:
        case = case_of(kind, seed)
        assert case.check().differences == {}, f"{case!r}"


def test_a_case_is_its_seed_and_its_repr_runs() -> None:
    names: dict[str, Any] = {}
    exec("from hunt.everything import *", names)
    for kind in KINDS:
        for seed in range(40):
            case = case_of(kind, seed)
            assert case == case_of(kind, seed)
            assert eval(repr(case), names) == case


RAW_ONCE = [
    ("condition", "differentiable", "sparse"),
    ("SquaredExponential", "active_dims", "nan"),
    ("Cosine", "active_dims", "numpy bool"),
    ("RationalQuadratic", "lengthscale", "ragged"),
    ("RationalQuadratic", "scale_mixture", "tiny"),
    ("Periodic", "lengthscale", "sparse"),
    ("Matern", "nu", "vector"),
    ("Matern", "nu", "ragged"),
    ("fit", "initial", "records"),
    ("fit", "priors", "array of objects"),
    ("with_noise", "v", "complex tensor"),
    ("with_noise", "v", "sparse"),
    ("fantasize", "x", "no rows"),
    ("condition", "device", "many"),
    ("theta", "value", "complex tensor"),
    ("theta", "value", "sparse"),
    ("SpectralMixture", "scales", "empty text"),
    ("SpectralMixture.from_data", "seed", "vector"),
    ("Coregionalization", "count", "true"),
    ("Constant mean", "outputs", "inf"),
    ("Linear mean", "slope", "parameter"),
    ("Linear mean", "slope", "object"),
    ("Gaussian", "noise_variance", "masked array"),
    ("Parameter", "trainable", "scalar tensor"),
    ("condition", "x", "masked array"),
    ("evidence", "theta", "zero"),
    ("evidence", "jitter", "array of objects"),
    ("evidence", "dtype", "minus one"),
    ("condition", "solver", "ragged"),
    ("condition", "differentiable", "none"),
    ("condition", "deterministic", "cube"),
    ("condition", "device", "masked array"),
    ("predict", "variance", "masked array"),
    ("sample", "seed", "scalar tensor"),
    ("sample", "count", "many"),
    ("sample", "observed", "other matrix"),
    ("paths", "seed", "range"),
    ("with_noise", "v", "type"),
    ("to_dense", "dtype", "empty tensor"),
    ("save", "metadata", "nan"),
    ("load", "path", "nan tensor"),
    ("solve_triangular", "upper", "inf"),
    ("fit", "jitter", "text"),
    ("fit", "progress", "integers"),
]


@pytest.mark.parametrize(("call", "argument", "value"), RAW_ONCE)
def test_a_wrong_argument_is_named(call: str, argument: str, value: str) -> None:
    found = CallCase(call, argument, value).check()
    assert found.differences == {}
    assert found.refused == ["a wrong argument"]


def test_a_jitter_that_stays_with_a_chain_is_the_references_too() -> None:
    """Of two rows of a line without noise; one that is left would do without."""
    case = case_of("chain", 9000272)
    assert case.check().differences == {}


def test_calls_that_are_right_are_answered() -> None:
    for call in CALLS.keys() - {"load", "save"}:
        assert CallCase(call).check().differences == {}, call


RAW_OF_RIGHT = [
    ("fit", "jitter", "many"),  # 1e30, as `condition` takes it
    ("fit", "progress", "module"),  # what fails is the module
    ("fantasies", "x_test", "no rows"),
    ("append one", "y", "huge"),
    ("stream", "y", "huge"),
]


@pytest.mark.parametrize(("call", "argument", "value"), RAW_OF_RIGHT)
def test_an_argument_at_the_edge_is_answered_without_a_raw_error(call: str, argument: str, value: str) -> None:
    assert CallCase(call, argument, value).check().differences == {}


# -- running error analysis ------------------------------------------------------------------------------------------
def test_rounding_errors_of_float64_stay_within_their_bound_and_near_it() -> None:
    rng = numpy.random.default_rng(0)
    a, b = rng.normal(size=(2, 2000)), rng.normal(size=(2, 2000))
    x, y = Rounded(a), Rounded(b)
    expected = ((x * y + x / (1 + y * y)).sin() * (-(x - y).abs()).exp()).sum(0)
    plain = (numpy.sin(a * b + a / (1 + b * b)) * numpy.exp(-abs(a - b))).sum(0)
    share = abs(plain - expected.value) / (EPS * expected.error)
    assert 0.02 < share.max() < 1.0


def test_a_root_near_zero_may_lose_half_its_digits() -> None:
    assert float(Rounded(0.0, 1.0).sqrt().error) == pytest.approx(EPS**-0.5)
    assert float(Rounded(1.0, 1.0).sqrt().error) == pytest.approx(1.5)


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


def test_a_difference_quotient_knows_how_far_off_it_is_where_a_step_crosses_a_row() -> None:
    """Of Matern-3/2, whose third derivative jumps there; orders of the quotient alone claimed less than they erred."""
    length = LD(584.9)
    for distance in LD(10.0) ** -numpy.arange(6):
        slope, off = derivative(lambda h, r=distance: covariance(specs.Matern(1.5, 584.9), [[r + h]], [[0.0]]).value)
        exact = -3 * distance / length**2 * numpy.exp(-numpy.sqrt(LD(3)) * distance / length)
        assert abs(slope - exact) <= off


def test_a_matrix_that_float64_cannot_tell_from_a_singular_one_is_not_judged() -> None:
    with pytest.raises(NotDefiniteError):
        Reference(_data(30, 1e-18, specs.SquaredExponential(5.0)))


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


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "int64"])
def test_a_layout_changes_no_number(layout: str, dtype: str) -> None:
    values = cast(numpy.random.default_rng(3).normal(size=(4, 3)), dtype)
    for part in (values, values[:, 0], values[:0]):
        given = laid_out(part, dtype, layout)
        tensor = given.detach() if isinstance(given, torch.Tensor) else torch.from_numpy(numpy.array(given, float))
        assert numpy.array_equal(tensor.double().numpy(), part)


def test_a_difference_is_shrunk_to_what_it_takes() -> None:
    kernel = specs.Sum(specs.Constant(2.0), specs.Matern())
    case = PosteriorCase(kernel, Points(3, 2), 7, noise=Noise(0.5), options=(("tolerance", -1.0),), extras=("text",))
    small = shrunk(case)
    assert small.check().differences.keys() == case.check().differences.keys() == {"refused in condition"}
    assert small == PosteriorCase(specs.Constant(2.0), Points(3, 2), 1, 1, options=case.options)


# -- faults that are planted ------------------------------------------------------------------------------------------
class AbsoluteWeights(WeightCase):
    def means(self, x: Any, y: Any, points: Any, weight: Any) -> numpy.ndarray:
        likelihood = fgp.likelihoods.Gaussian(1e-4, row_variance=1 / weight)
        return fgp.GPRegressor(likelihood=likelihood, target_transform="none").fit(x, y).predict(points)


class RandomModule(ModeCase):
    def net(self) -> torch.nn.Sequential:
        return torch.nn.Sequential(AlwaysDropout(), *super().net())


class AlwaysDropout(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.5, training=True)


class TimidDraws(DrawCase):
    def draws(self, post: fgp.Posterior, x: torch.Tensor) -> torch.Tensor:
        return 0.8 * post.predict(x).sample(2000, seed=0)


@pytest.mark.parametrize(
    ("case", "name"),
    [
        (PeriodCase(options=(("initial", "given"), ("max_iterations", 1))), "explained variance"),
        (DensityCase(room=-9.0), "nats a row beside scikit-learn"),
        (DensityCase(room=-9.0), "nats a row beside a constant"),
        (LimitCase(limit=0.5, room=-9.0), "seconds kept"),
        (AbsoluteWeights(scale=1e4), "equal answers"),
        (DateCase(of="%d of %m in %Y", n=12, each=3), "refused in dates"),
        (RandomModule(), "mean again"),
        (TimidDraws(), "least variance"),
    ],
)
def test_a_planted_fault_is_found(case: Any, name: str) -> None:
    assert name in case.check().differences
