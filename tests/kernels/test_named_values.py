"""Kernels inside scikit-learn's searches: values by name, clones, and what is no value."""

import copy

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

import flashgp as fgp
from flashgp.foundations.errors import DomainError

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


def test_priors_constraints_and_sharing_stay() -> None:
    given = fgp.Parameter(1.5, torch.distributions.constraints.interval(1, 3), torch.distributions.Normal(2.0, 1.0))
    k = fgp.kernels.RBF(given) * fgp.kernels.Matern(2.5, given)
    k.set_params(kernels__0__lengthscale=2.0)
    assert float(given) == pytest.approx(2.0)
    assert k.get_params()["kernels__1__lengthscale"] == pytest.approx(2.0)
    with pytest.raises(DomainError, match="inside the domain"):
        k.set_params(kernels__0__lengthscale=5.0)
    single = fgp.kernels.RBF(given)
    single.set_params(lengthscale=[1.2, 2.5])
    assert single.lengthscale.prior is given.prior
    assert str(single.lengthscale.domain) == "in (1, 3)"
    x = torch.rand(5, 2, dtype=F64)
    assert torch.allclose(single(x).to_dense(), fgp.kernels.RBF([1.2, 2.5])(x).to_dense())
    copied = clone(fgp.GPRegressor(kernel=k)).kernel
    assert copied is not k
    assert copied.kernels[0].lengthscale is copied.kernels[1].lengthscale
    assert type(copy.deepcopy(k)) is type(clone(k, safe=False))


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
        (fgp.kernels.RBF(), {"ls": 2.0}, "has lengthscale, active_dims"),
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
