"""Kernels, means and likelihoods inside scikit-learn's searches: values by name, clones, and what is no value."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

import flashgp as fgp
from flashgp.foundations.errors import DomainError
from flashgp.foundations.expression import Expression, squared_distance
from flashgp.foundations.named_values import NamedValues
from flashgp.kernels.squared_exponential import Stationary

F64 = torch.float64
X = np.random.default_rng(0).uniform(0, 4, (24, 2))
Y = np.sin(2 * X[:, 0])


def test_a_grid_over_the_values_of_a_kernel() -> None:
    kernel = 1.0 * fgp.kernels.RBF(0.7)
    model = fgp.GPRegressor(kernel=kernel, optimise=False)
    grid = {"kernel__kernel__lengthscale": [1e-3, 0.7, 50.0], "kernel__variance": [0.5, 1.0]}
    search = GridSearchCV(model, grid, cv=3).fit(X, Y)
    assert search.best_params_["kernel__kernel__lengthscale"] == 0.7
    assert search.best_estimator_.kernel_.kernel.lengthscale.value.item() == pytest.approx(0.7)
    assert float(kernel.kernel.lengthscale) == pytest.approx(0.7)
    assert float(kernel.variance) == pytest.approx(1.0)
    scores = search.cv_results_["mean_test_score"]
    assert scores[0] < scores[2]  # by the lengthscale
    plain = GridSearchCV(
        fgp.GPRegressor(kernel=fgp.kernels.RBF(), optimise=False), {"kernel__lengthscale": [0.7, 0.8]}, cv=3
    )
    assert plain.fit(X, Y).best_estimator_.kernel.get_params()["lengthscale"] in (
        pytest.approx(0.7),
        pytest.approx(0.8),
    )
    whole = GridSearchCV(model, {"kernel": [fgp.kernels.RBF(), fgp.kernels.Matern(0.5)]}, cv=3).fit(X, Y)
    assert isinstance(whole.best_estimator_.kernel, fgp.kernels.Kernel)


def test_names_and_values() -> None:
    k = 2.0 * fgp.kernels.Matern(1.5, torch.ones(2)) + fgp.kernels.Periodic(3.0, active_dims=[0])
    found = k.get_params()
    assert found["kernels__0__variance"] == pytest.approx(2.0)
    assert found["kernels__0__kernel__lengthscale"].tolist() == pytest.approx([1.0, 1.0])
    assert found["kernels__1__period"] == pytest.approx(3.0)
    assert found["kernels__1__active_dims"] == (0,)
    assert "kernels__1__period" not in k.get_params(deep=False)
    assert k.set_params(kernels__0__kernel__lengthscale=[0.5, 2.0], kernels__1__period=np.float64(4.0)) is k
    x = torch.rand(5, 2, dtype=F64)
    wanted = 2.0 * fgp.kernels.Matern(1.5, [0.5, 2.0]) + fgp.kernels.Periodic(4.0, active_dims=[0])
    assert torch.allclose(k(x).to_dense(), wanted(x).to_dense())


def test_every_kernel_has_its_values_by_name() -> None:
    for row in fgp.kernels.REGISTRY.values():
        for k in row.examples(3):
            numbers = {name: value for name, value in k.get_params().items() if isinstance(value, float | torch.Tensor)}
            before = {name: p.value.clone() for name, p in k.named_children() if isinstance(p, fgp.Parameter)}
            k.set_params(**numbers)
            for name, value in before.items():
                assert torch.allclose(getattr(k, name).value, value)


@pytest.mark.parametrize(
    ("kernel", "values", "text"),
    [
        (fgp.kernels.Matern(), {"nu": 0.5}, r"\"kernel\": \[k1, k2\]"),
        (2.0 * fgp.kernels.RBF(), {"kernel": fgp.kernels.Matern()}, "make whole kernels"),
        (fgp.kernels.RBF() + 1.0, {"kernels__0": fgp.kernels.Matern()}, "make whole kernels"),
        (fgp.kernels.RBF() + 1.0, {"kernels__2__variance": 1.0}, "kernels__1__variance"),
        (fgp.kernels.RBF(), {"lengthscale": "a"}, "`lengthscale` must be a number"),
    ],
)
def test_what_is_no_value_is_refused(kernel: fgp.kernels.Kernel, values: dict[str, object], text: str) -> None:
    with pytest.raises(DomainError, match=text):
        kernel.set_params(**values)


# -- means, likelihoods and priors -----------------------------------------------------------------------------------
EXAMPLES = [
    fgp.means.Zero(),
    fgp.means.Constant(1.5),
    fgp.means.Constant([1.0, 2.0], outputs=2),
    fgp.means.Linear([1.0, -2.0], 0.5),
    fgp.likelihoods.Gaussian(0.2),
    fgp.likelihoods.Gaussian(None, row_variance=[0.1, 0.2]),
    fgp.likelihoods.Gaussian(0.2, row_weight=[1.0, 4.0, 30.0]),
    fgp.likelihoods.Gaussian([0.1, 0.2], outputs=2),
    fgp.likelihoods.Gaussian(0.1, shared=True),
    fgp.GP(2.0 * fgp.kernels.RBF(), fgp.means.Zero(), outputs=2),
    *(row.examples(2)[0] for name, row in fgp.kernels.REGISTRY.items() if name not in ("Sum", "Product")),
]


@pytest.mark.parametrize("one", EXAMPLES, ids=lambda one: type(one).__name__)
def test_its_values_make_another_one(one: Any) -> None:
    other = type(one)(**one.get_params(deep=False))
    same = one.state_dict()
    assert other.state_dict().keys() == same.keys()
    for name, value in other.state_dict().items():
        assert torch.allclose(value, same[name], rtol=1e-14), name
    assert str(other) == str(one)
    copied = clone(one, safe=False)
    assert copied is not one
    assert str(copied) == str(one)


def test_a_grid_over_the_noise_and_the_mean() -> None:
    likelihood, mean = fgp.likelihoods.Gaussian(0.5), fgp.means.Constant(3.0)
    model = fgp.GPRegressor(fgp.kernels.RBF(0.7), mean=mean, likelihood=likelihood, optimise=False)
    grid = {"likelihood__noise_variance": [1e-3, 0.5], "mean__value": [0.0, 9.0]}
    best = GridSearchCV(model, grid, cv=3).fit(X, Y).best_estimator_
    assert best.get_params()["likelihood__noise_variance"] == pytest.approx(1e-3)
    assert float(best.gp_.likelihood.noise_variance) == pytest.approx(1e-3)
    assert float(best.mean.value) == 0.0
    assert float(likelihood.noise_variance) == pytest.approx(0.5)


def test_values_of_a_gaussian() -> None:
    likelihood = fgp.likelihoods.Gaussian(0.2, row_weight=[2.0, 8.0])
    likelihood.set_params(noise_variance=[0.1, 0.3])
    assert likelihood.get_params()["row_weight"].tolist() == pytest.approx([2.0, 8.0])
    assert float(likelihood.weight_unit) == pytest.approx(4.0)
    bare = fgp.likelihoods.Gaussian([0.2, 0.3], outputs=2).set_params(noise_variance=None)
    assert (bare.noise_variance, bare.outputs) == (None, None)
    assert float(bare.set_params(noise_variance=0.7).noise_variance) == pytest.approx(0.7)
    separate = fgp.likelihoods.Gaussian(0.2, shared=True).set_params(shared=False)
    assert fgp.GP(fgp.kernels.RBF(), likelihood=separate, outputs=2).separate
    with pytest.raises(DomainError, match="got one Parameter"):
        fgp.GP(fgp.kernels.RBF(), likelihood=fgp.likelihoods.Gaussian(fgp.Parameter(0.1)), outputs=2)


def test_a_function_of_the_same_form_is_the_new_one() -> None:
    k = fgp.kernels.Custom(lambda x, z, width: torch.exp(-width * (x - z).square().sum()), width=1.0, columns=2)
    x = torch.as_tensor(X[:4])
    wanted = k(x.sin()).to_dense().detach()
    k.set_params(function=lambda x, z, width: torch.exp(-width * (x.sin() - z.sin()).square().sum()))
    assert torch.allclose(k(x).to_dense(), wanted)


# -- classes of the user's -------------------------------------------------------------------------------------------
class Squared(Stationary):
    @property
    def profile(self) -> Expression:
        return 1 / (1 + squared_distance())


class Keeping(Squared):
    def __init__(self, stretch: float = 1.0, lengthscale: Any = 1.0) -> None:
        super().__init__(lengthscale)
        self.stretch = stretch

    def _features(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(self.stretch * one for one in super()._features(x))


class HandingOn(fgp.kernels.Matern):
    def __init__(self, *args: Any, label: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.label = label


class Forgetful(Squared):
    def __init__(self, stretch: float = 1.0, lengthscale: Any = 1.0) -> None:
        super().__init__(lengthscale)


class Renaming(Squared):
    def __init__(self, scale: float = 1.0) -> None:
        super().__init__(scale)


class Alone(Squared):
    def __init__(self) -> None:
        super().__init__(2.0)


class NumbersOnly(Squared):
    def __init__(self, lengthscale: Any = 1.0, active_dims: Any = None) -> None:
        super().__init__(torch.as_tensor(lengthscale), active_dims)


class Shifted(fgp.means.Constant):
    def __init__(self, shift: float, value: Any = 0.0) -> None:
        super().__init__(value)
        self.shift = shift


class Level(NamedValues):
    """A mean from scratch."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.full(x.shape[:-1], self.value, dtype=F64)


def test_a_class_that_keeps_what_it_is_given() -> None:
    given = fgp.Parameter(2.0, prior=torch.distributions.LogNormal(0.0, 1.0))
    k = Keeping(2.0, given)
    assert k.get_params() == {"stretch": 2.0, "lengthscale": pytest.approx(2.0)}
    k.set_params(stretch=4.0)
    assert k.lengthscale is given
    x = torch.as_tensor(X[:4])
    assert torch.allclose(k(x).to_dense(), Keeping(4.0, 2.0)(x).to_dense())
    k.set_params(lengthscale=[1.0, 3.0])
    assert (k.stretch, k.lengthscale.prior) == (4.0, given.prior)
    passed = HandingOn(nu=1.5, lengthscale=2.0, label="a").set_params(lengthscale=[1.0, 3.0])
    assert (passed.nu, passed.label, passed.get_params()["active_dims"]) == (1.5, "a", None)
    assert torch.allclose(passed(x).to_dense(), fgp.kernels.Matern(1.5, [1.0, 3.0])(x).to_dense())
    assert Shifted(1.0).set_params(shift=2.0, value=[1.0, 2.0]).get_params()["value"].tolist() == [1.0, 2.0]
    gp = fgp.GP(2.0 * k, Level(1.0)).set_params(mean__value=5.0, kernel__kernel__stretch=1.0)
    assert (gp.mean.value, gp.kernel.kernel.stretch) == (5.0, 1.0)


@pytest.mark.parametrize(
    ("kernel", "values", "text"),
    [
        (Forgetful(), {"stretch": 2.0}, r"write self\.stretch = stretch in Forgetful\.__init__"),
        (Renaming(), {"scale": 2.0}, r"call scale, which Renaming\.__init__ takes, as what it keeps, lengthscale"),
        (Alone(), {"lengthscale": [1.0, 2.0]}, r"let Alone\.__init__ take lengthscale"),
        (NumbersOnly(), {"active_dims": [0]}, "take a Parameter where it takes a number"),
        (Forgetful(), {"lengthscale": [1.0, 2.0]}, r"write self\.stretch = stretch in Forgetful\.__init__"),
    ],
)
def test_a_class_that_does_not_is_told_what_to_write(
    kernel: fgp.kernels.Kernel, values: dict[str, object], text: str
) -> None:
    kernel.set_params(lengthscale=3.0)  # where it is
    assert kernel.get_params()["lengthscale"] == pytest.approx(3.0)
    model = fgp.GPRegressor(kernel=kernel).set_params(starts=2)
    assert clone(model).get_params()["kernel__lengthscale"] == pytest.approx(3.0)
    with pytest.raises(DomainError, match=text):
        kernel.set_params(**values)
    assert kernel.get_params()["lengthscale"] == pytest.approx(3.0)
