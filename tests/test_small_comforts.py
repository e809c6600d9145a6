"""Names and operations that users of other libraries try first."""

import pickle
import pydoc
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import flashgp as fgp
from flashgp.foundations.errors import DomainError, FlashGPError, ShapeError

F64 = torch.float64
X = torch.rand(30, 2, generator=torch.Generator().manual_seed(0), dtype=F64)
Y = torch.sin(3 * X[:, 0])
k = fgp.kernels


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: k.Matern(lenghtscale=1.0), "did you mean `lengthscale`"),
        (lambda: k.RBF(ard_num_dims=3), r"torch\.ones\(d\)"),
        (lambda: k.RBF(outputscale=3.0), r"2\.0 \* kernel"),
        (lambda: fgp.likelihoods.Gaussian(noise=0.1), "`noise_variance`"),
        (lambda: fgp.GP(k.RBF(), noise=0.1), r"Gaussian\(noise_variance=\.\.\.\)"),
        (lambda: fgp.fit(fgp.GP(k.RBF()), X, Y, learning_rate=0.1), "no step size"),
        (lambda: fgp.fit(fgp.GP(k.RBF()), X, Y, max_iter=3), "`max_iterations`"),
    ],
)
def test_usual_names_are_refused_with_the_name_to_use(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(DomainError, match=text):
        call()


@pytest.mark.parametrize("name", ["ard_num_dims", "ARD", "ard"])
def test_one_of_each_column_is_what_the_kernel_that_was_called_takes(name: str) -> None:
    for called, taken in ((k.RBF, "lengthscale"), (k.Categorical, "lengthscale"), (k.Cosine, "frequency")):
        with pytest.raises(DomainError, match=rf"{called.__name__}, which.*; {taken}=torch\.ones\(d\)"):
            called(**{name: 2})
        assert called(**{taken: torch.ones(2)})(X.round()).shape == (30, 30)


def test_sums_powers_and_floats() -> None:
    one, two = k.RBF(0.5), k.Matern(1.5)
    total = sum([one, two])
    assert isinstance(total, k.Sum)
    assert torch.equal(total(X).to_dense(), (one + two)(X).to_dense())
    assert torch.allclose((two**3)(X).to_dense(), two(X).to_dense() ** 3)
    assert two**1 is two
    assert len(list((two**3).parameters())) == 1
    for power in (0, -1, 0.5):
        with pytest.raises(DomainError, match="`power`"):
            two**power  # type: ignore[operator]
    assert float(one.lengthscale) == pytest.approx(0.5)
    with pytest.raises(ShapeError, match="one value"):
        float(k.RBF([1.0, 2.0]).lengthscale)


def test_texts_show_the_prior_and_a_summary() -> None:
    given = fgp.Parameter(0.5, prior=torch.distributions.LogNormal(0.0, 1.0))
    for text in (repr(given), repr(2.0 * k.RBF(given)), repr(fgp.GP(k.RBF(given)))):
        assert "LogNormal(0, 1)" in text
    left = fgp.GP(k.RBF(0.5), likelihood=fgp.likelihoods.Gaussian(0.1)).condition(X, Y).leave_one_out()
    error = float((left.mean - Y).square().mean().sqrt())
    assert f"root mean square error {error:.4g}" in repr(left)
    asked = fgp.GP(k.RBF(0.5)).condition(X, Y, solver="cg").predict(X)
    assert "; ask for mean, std, quantile(q) or sample(count)" in repr(asked)
    for call in re.findall(r"(\w+)(?:\((?:q|count)\))?(?:,| or |$)", repr(asked).splitlines()[0].split("ask for ")[1]):
        given = {"quantile": 0.5, "sample": 2}.get(call)
        value = getattr(asked, call) if given is None else getattr(asked, call)(given)
        assert value.shape[-1] == 30
    assert "ask for" not in repr(asked)
    assert len(str(left)) < 300


def test_one_row_is_appended_as_a_table() -> None:
    post = fgp.GP(k.RBF()).condition(X, Y)
    for call in (post.append, post.slide):
        with pytest.raises(ShapeError, match=r"x\[:1\] and y\[:1\]"):
            call(X[0], Y[0])
    assert len(post.append(X[:1] + 2.0, Y[:1]).x) == 31


@pytest.mark.parametrize("name", ["Cauchy", "Softmax"])
def test_likelihoods_that_are_not_there_say_what_is(name: str) -> None:
    with pytest.raises(AttributeError, match=f"has Bernoulli, .*Gaussian.*, got '{name}'") as caught:
        getattr(fgp.likelihoods, name)
    assert isinstance(caught.value, FlashGPError)
    assert not hasattr(fgp.likelihoods, name)


def test_help_leaves_out_what_every_module_has() -> None:
    for made in (fgp.GP(k.RBF()), k.Matern(), fgp.likelihoods.Gaussian(), fgp.Parameter(1.0)):
        text = pydoc.render_doc(type(made), renderer=pydoc.plaintext)
        assert "nn.modules.module" not in text.split("\n |  --", 1)[1]
        assert "register_forward_hook" not in text
        assert {"register_forward_hook", "parameters", "state_dict", *dir(type(made))} <= {*dir(made)}
        assert repr(pickle.loads(pickle.dumps(made))) == repr(made)
    assert len(pydoc.render_doc(fgp.GP, renderer=pydoc.plaintext).splitlines()) < 500
    assert "condition" in dir(fgp.GP)


def test_a_prediction_shows_numbers_of_the_function_and_of_an_observation() -> None:
    post = fgp.GP(k.RBF(), likelihood=fgp.likelihoods.Gaussian(0.04)).condition(X, Y)
    prediction, before = post.predict(X), post.predict(X)
    head, first = str(prediction).splitlines()[1:3]
    assert head.split("  ")[-1].strip() == "97.5 % of y"
    low, high = before.interval()
    wanted = (before.mean, before.std, before.observation_mean, before.observation_std, low, high)
    assert first.split() == ["[0]", *(f"{float(one[0]):.4g}" for one in wanted)]
    assert len(str(prediction).splitlines()) == 2 + 6 + 1 + len(prediction.report.lines())
    assert prediction.report.seconds is None  # nothing was asked for
    assert torch.equal(prediction.mean, before.mean)
    assert str(prediction).splitlines()[2] == first
    assert f"<td>{first.split()[1]}</td>" in prediction._repr_html_()
    assert torch.allclose(before.observation_std.square(), before.variance + 0.04)


@pytest.mark.parametrize("likelihood", [fgp.likelihoods.Bernoulli(), fgp.likelihoods.Ordinal(3)])
def test_a_prediction_of_classes_shows_probabilities(likelihood: fgp.likelihoods.Likelihood) -> None:
    post = fgp.GP(k.RBF(), likelihood=likelihood).condition(X, (Y > 0.5).double())
    prediction = post.predict(X[:2])
    shown = str(prediction).splitlines()
    assert len(shown[2].split()) > 2
    assert shown[2].split()[-1] == f"{float(prediction.probability[0].reshape(-1)[-1]):.4g}"
    assert "probability" in shown[1]


def test_a_prediction_by_solves_shows_what_was_asked_for() -> None:
    prediction = fgp.GP(k.RBF()).condition(X, Y, solver="cg").predict(X[:9])
    assert "ask for mean" in str(prediction)
    assert prediction.mean is not None
    assert str(prediction).splitlines()[1].split() == ["mean", "of", "f"]


def test_notebooks_show_every_result() -> None:
    post = fgp.GP(k.RBF(), likelihood=fgp.likelihoods.Gaussian(0.04)).condition(X, Y)
    table = {"a": X[:, 0].numpy(), "b": X[:, 1].numpy(), "y": Y.numpy()}
    model = fgp.TableModel("RBF()").fit(table, target="y")
    predicted = model.predict(table)
    results = (post, post.predict(X), post.predict(X).report, post.leave_one_out(), post.importance(), post.gp,
               fgp.plan(post.gp, n=100, d=2), model, model.training, predicted, predicted.known_scores)  # fmt: skip
    for result in results:
        assert "<table>" in result._repr_html_(), type(result)  # type: ignore[union-attr]


def test_predictions_inside_torch_compile_are_eager_and_quiet() -> None:
    post = fgp.GP(k.RBF(), likelihood=fgp.likelihoods.Gaussian(0.04)).condition(X, Y)

    def bound(x: torch.Tensor) -> torch.Tensor:
        prediction = post.predict(2.0 * x)
        return prediction.interval(0.9)[1] - prediction.mean

    with warnings.catch_warnings(record=True) as said:
        x = (0.5 * X).clone().requires_grad_()
        value = torch.compile(bound, backend="eager")(x)
    assert [one for one in said if "ynamo" in str(one.message)] == []
    assert torch.equal(value, bound(x))
    (slope,) = torch.autograd.grad(value.sum(), x)
    assert torch.allclose(slope, torch.autograd.grad(bound(x).sum(), x)[0])
