"""A posterior is a value: nothing that its user owns, or is given by it, reaches its later answers when written to.

Every tensor that went in is overwritten with NaN after conditioning, every tensor that came out before asking again;
the answers must have the same bits as where nothing was touched.
"""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import flashgp as fgp
from flashgp.inference.posterior import Posterior

F64 = torch.float64
N, D = 14, 2


@dataclasses.dataclass
class Given:
    """What a user owns: every array that goes into a model, its data and its questions."""

    x: Any
    y: Any
    x_test: Any
    new_x: Any
    new_y: Any
    noise: Any
    weight: Any
    new_noise: Any
    lengthscale: Any
    slope: Any
    value: Any

    @classmethod
    def make(cls, outputs: int | None = None, dtype: torch.dtype = F64, arrays: bool = False) -> "Given":
        g = torch.Generator().manual_seed(5)

        def draw(*shape: int, of: torch.dtype = dtype) -> Any:
            values = torch.rand(shape, generator=g, dtype=F64).to(of)
            return values.numpy() if arrays else values

        tail = () if outputs is None else (outputs,)
        return cls(
            draw(N, D), draw(N, *tail), draw(5, D), draw(2, D), draw(2, *tail), draw(N, of=F64), draw(N, of=F64),
            draw(2, of=F64), draw(D, of=F64), draw(D, of=F64), draw(*tail, of=F64),
        )  # fmt: skip

    def overwrite(self) -> None:
        for field in dataclasses.fields(self):
            _spoil(getattr(self, field.name))


def _spoil(value: Any) -> None:
    """Write NaN, or -1 into whole numbers."""
    if isinstance(value, numpy.ndarray):
        value.fill(numpy.nan)
    elif isinstance(value, Tensor) and value.numel():
        with torch.no_grad():
            value.fill_(torch.nan if value.is_floating_point() else -1)


def kernel(given: Given) -> fgp.kernels.Kernel:
    """Features that are x itself, features that are not, and a parameter of the user's tensor."""
    k = fgp.kernels
    return 1.5 * k.Matern(2.5, torch.as_tensor(given.lengthscale)) + k.Linear() * k.Polynomial(2) + k.RBF()


def model(given: Given, outputs: int | None = None, **noise: Any) -> fgp.GP:
    mean: nn.Module
    if outputs is None:
        mean = fgp.means.Linear(torch.as_tensor(given.slope))
    else:
        mean = fgp.means.Constant(torch.as_tensor(given.value), outputs=outputs)
    return fgp.GP(kernel(given), mean, fgp.likelihoods.Gaussian(0.1, **noise), outputs)


def _repeated(given: Given) -> Given:
    given.x[5:9] = given.x[:4]
    return given


def _reloaded(posterior: Posterior, folder: Path) -> Posterior:
    fgp.save(posterior, folder / "m")
    return fgp.load(folder / "m")


# How posteriors come about, each from what the user owns.
MADE: dict[str, tuple[Callable[[], Given], Callable[[Given, Path], Posterior]]] = {
    "float64 factor": (Given.make, lambda g, _: model(g).condition(g.x, g.y)),
    "arrays": (lambda: Given.make(arrays=True), lambda g, _: model(g).condition(g.x, g.y)),
    "float32 data": (lambda: Given.make(dtype=torch.float32), lambda g, _: model(g).condition(g.x, g.y)),
    "float32 factor": (Given.make, lambda g, _: model(g).condition(g.x, g.y, dtype=torch.float32)),
    "iterations": (Given.make, lambda g, _: model(g).condition(g.x, g.y, solver="cg")),
    "outputs": (lambda: Given.make(2), lambda g, _: model(g, 2).condition(g.x, g.y)),
    "outputs of one noise": (lambda: Given.make(2), lambda g, _: model(g, 2, shared=True).condition(g.x, g.y)),
    "row variance": (Given.make, lambda g, _: model(g, row_variance=g.noise).condition(g.x, g.y)),
    "row weight": (Given.make, lambda g, _: model(g, row_weight=g.weight).condition(g.x, g.y)),
    "arrays of rows": (
        lambda: Given.make(arrays=True),
        lambda g, _: model(g, row_variance=g.noise, row_weight=g.weight).condition(g.x, g.y),
    ),
    "repeated rows": (lambda: _repeated(Given.make()), lambda g, _: model(g).condition(g.x, g.y)),
    "deterministic": (Given.make, lambda g, _: model(g).condition(g.x, g.y, deterministic=True)),
    "differentiable": (
        Given.make, lambda g, _: model(g, row_variance=g.noise).condition(g.x, g.y, differentiable=True)
    ),
    "appended": (Given.make, lambda g, _: model(g).condition(g.x, g.y).append(g.new_x, g.new_y)),
    "appended with noise": (
        Given.make,
        lambda g, _: model(g, row_variance=g.noise).condition(g.x, g.y).append(
            g.new_x, g.new_y, row_variance=g.new_noise
        ),
    ),
    "appended to none": (
        Given.make, lambda g, _: model(g).condition(g.x[:0], g.y[:0]).append(g.new_x, g.new_y)
    ),
    "dropped": (Given.make, lambda g, _: model(g).condition(g.x, g.y).drop([1, 3])),
    "loaded": (Given.make, lambda g, folder: _reloaded(model(g).condition(g.x, g.y), folder)),
    "fitted": (Given.make, lambda g, _: fgp.fit(model(g), g.x, g.y, max_iterations=1, starts=1).posterior),
}  # fmt: skip


def has_factor(posterior: Posterior) -> bool:
    return all(one.factor is not None for one in posterior.by_output or (posterior,))


def answers(posterior: Posterior, x_test: Any, more: tuple[Any, Any] | None = None) -> list[Tensor]:
    """All that it says at points, and with more rows."""
    p = posterior.predict(x_test)
    found = [
        p.mean,
        p.variance,
        p.covariance(),
        *p.interval(),
        p.sample(2, seed=1),
        p.log_prob(torch.ones_like(p.mean)),
    ]
    found += [posterior.log_marginal_likelihood(), posterior.paths(2, features=64, seed=0)(x_test)]
    if has_factor(posterior):
        loo = posterior.leave_one_out()
        found += [loo.mean, loo.variance, loo.log_prob]
    if more is not None and not posterior.state.differentiable:
        found += [posterior.append(*more).predict(x_test).mean]
    return [one.detach().clone() for one in found]


def same(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(bool(a.isfinite().all()) and torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("how", MADE)
def test_what_went_in_may_be_overwritten(how: str, tmp_path: Path) -> None:
    given_by, make = MADE[how]
    expected = answers(make(given_by(), tmp_path), given_by().x_test)
    given = given_by()
    posterior = make(given, tmp_path)
    given.overwrite()
    assert same(expected, answers(posterior, given_by().x_test))


@pytest.mark.parametrize("how", MADE)
def test_points_may_be_overwritten_before_the_prediction_is_asked(how: str, tmp_path: Path) -> None:
    given_by, make = MADE[how]
    given = given_by()
    posterior = make(given, tmp_path)
    expected = posterior.predict(given.x_test)
    expected = [expected.mean, expected.variance, expected.covariance()]
    prediction, mean = posterior.predict(given.x_test), posterior.predict(given.x_test)
    assert mean.mean is not None
    given.overwrite()
    assert torch.equal(prediction.variance, expected[1])
    assert torch.equal(prediction.mean, expected[0])
    assert torch.equal(mean.covariance(), expected[2])


def handed_out(value: Any, seen: set[int]) -> Iterator[Tensor]:
    """Every tensor that public attributes of a value lead to, but those that say that they are to be read."""
    if id(value) in seen or value is None or isinstance(value, str | int | float | bool | type):
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, nn.Module):
        yield from value.parameters()
        yield from value.buffers()
    elif isinstance(value, tuple | list):
        for item in value:
            yield from handed_out(item, seen)
    elif type(value).__module__.startswith("flashgp."):
        for name in dir(value):
            if not name.startswith("_") and name not in ("state", "factor", "report", "plan", *_refused(value)):
                item = getattr(value, name)
                if not callable(item) or isinstance(item, nn.Module):
                    yield from handed_out(item, seen)


def _refused(value: object) -> list[str]:
    """The names that a posterior does not answer."""
    names = [name for name in dir(type(value)) if not name.startswith("_")]
    return [name for name in names if value.can(name) is not None] if isinstance(value, fgp.Posterior) else []


@pytest.mark.parametrize("how", MADE)
def test_what_came_out_may_be_overwritten(how: str, tmp_path: Path) -> None:
    given_by, make = MADE[how]
    given = given_by()
    posterior = make(given, tmp_path)
    more = None if how == "appended with noise" or "row" in how else (given.new_x, given.new_y)
    answers(posterior, given.x_test, more)  # after an update the weights are made meanwhile
    expected = answers(posterior, given.x_test, more)
    if not posterior.state.differentiable:  # whose parameters are the GP's own
        tensors = list(handed_out(posterior, set()))
        assert len(tensors) > 8
        for tensor in tensors:
            _spoil(tensor)
    for answer in (posterior.leave_one_out(), posterior.log_marginal_likelihood()) if has_factor(posterior) else ():
        for tensor in handed_out(answer, set()):
            _spoil(tensor.detach())
    assert same(expected, answers(posterior, given.x_test, more))


@pytest.mark.parametrize("how", ["float64 factor", "float32 data", "iterations", "outputs", "row variance"])
def test_answers_may_be_overwritten(how: str, tmp_path: Path) -> None:
    """Of a prediction, which keeps them."""
    given_by, make = MADE[how]
    given = given_by()
    posterior = make(given, tmp_path)
    p, expected = posterior.predict(given.x_test), answers(posterior, given.x_test)[:5]
    for tensor in (p.mean, p.variance, p.covariance(), *p.interval(), p.observation_mean, p.observation_variance):
        _spoil(tensor)
    assert same(expected, [p.mean, p.variance, p.covariance(), *p.interval()])


def test_fantasies_are_values_too(tmp_path: Path) -> None:
    given = Given.make()
    posterior = model(given).condition(given.x, given.y)
    new, targets, x_test = given.new_x.clone(), given.new_y.clone(), given.x_test.clone()
    fantasies = posterior.fantasize(new, targets)
    before = fantasies.predict(x_test)
    for tensor in (new, targets, fantasies.x, fantasies.y, *handed_out(fantasies.posterior, set())):
        _spoil(tensor)
    after = fantasies.predict(x_test)
    assert same([before.mean, before.variance], [after.mean, after.variance])


def test_a_prior_keeps_its_own_row_tensors() -> None:
    given = Given.make()
    gp = model(given, row_variance=given.noise, row_weight=given.weight)
    expected = gp.log_marginal_likelihood(given.x, given.y).detach()
    given.noise.fill_(7.0)
    given.weight.fill_(7.0)
    assert torch.equal(gp.log_marginal_likelihood(given.x, given.y).detach(), expected)


def test_a_saved_model_is_the_one_that_was_conditioned(tmp_path: Path) -> None:
    given = Given.make()
    posterior = model(given).condition(given.x, given.y)
    expected = answers(posterior, given.x_test)
    for tensor in handed_out(posterior, set()):
        _spoil(tensor)
    assert same(expected[:3], answers(_reloaded(posterior, tmp_path), given.x_test)[:3])


def test_gradients_reach_points_that_were_given_without_a_graph() -> None:
    given = Given.make()
    posterior = model(given).condition(given.x, given.y)
    x_test = given.x_test.requires_grad_()
    with torch.no_grad():
        prediction = posterior.predict(x_test)
        assert not prediction.mean.requires_grad
    (slope,) = torch.autograd.grad(prediction.mean.sum(), x_test)
    (expected,) = torch.autograd.grad(posterior.predict(x_test).mean.sum(), x_test)
    assert torch.allclose(slope, expected, rtol=1e-12)


def test_a_differentiable_posterior_knows_that_its_parameters_have_changed() -> None:
    """They are the GP's own, so that gradients reach them; its factor is of what they were."""
    given = Given.make()
    gp = model(given)
    posterior = gp.condition(given.x, given.y, differentiable=True)
    optimizer = torch.optim.SGD(gp.parameters(), lr=0.1)
    posterior.predict(given.x_test).mean.sum().backward()
    posterior.predict(given.x_test)
    optimizer.step()
    with pytest.raises(fgp.DomainError, match="changed since; condition again"):
        posterior.predict(given.x_test)
