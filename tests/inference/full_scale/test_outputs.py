"""Outputs with noise of their own, and classes, by full scale: with all rows as neighbours it is exact, (M-148)."""

from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import DomainError
from inference.full_scale.test_factor import differences, factor, layout, objective

F64 = torch.float64
ALL = {"approximation": "full_scale", "inducing": 9, "neighbours": 60}
FEW = {"approximation": "full_scale", "inducing": 9, "neighbours": 10}
AT = torch.rand(7, 2, generator=torch.Generator().manual_seed(9), dtype=F64)


def kernel() -> fgp.kernels.Kernel:
    return 4.0 * fgp.kernels.Matern(nu=2.5, lengthscale=0.5)


def numbers() -> tuple[fgp.GP, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(60, 2, generator=generator, dtype=F64)
    y = torch.stack([(5.0 * x[:, 0]).sin(), (4.0 * x[:, 1]).cos(), x.sum(1)], 1)
    noise = fgp.likelihoods.Gaussian(torch.tensor([0.01, 0.1, 1.0], dtype=F64), outputs=3)
    return fgp.GP(kernel(), likelihood=noise, outputs=3), x, y + torch.randn(y.shape, generator=generator, dtype=F64)


def classes() -> tuple[fgp.GP, Tensor, Tensor]:
    _, x, y = numbers()
    return fgp.GP(kernel(), likelihood=fgp.likelihoods.Categorical(3)), x, y.argmax(1)


def apart(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


@pytest.mark.parametrize(("made", "tolerance"), [(numbers, 1e-9), (classes, 1e-3)])
def test_all_rows_as_neighbours_are_exact(made: Any, tolerance: float) -> None:
    """Classes to the tolerance of their sites."""
    gp, x, y = made()
    found, wanted = gp.condition(x, y, **ALL), gp.condition(x, y)
    p, q = found.predict(AT), wanted.predict(AT)
    for name in ("mean", "variance", "observation_mean"):
        assert apart(getattr(p, name), getattr(q, name)) < tolerance
    assert apart(p.covariance(), q.covariance()) < tolerance
    assert apart(found.log_marginal_likelihood(), wanted.log_marginal_likelihood()) < tolerance
    assert apart(found.leave_one_out().log_prob, wanted.leave_one_out().log_prob) < tolerance
    assert found.lost.nats < 1e-6
    assert len(found.by_output) == 3
    assert apart(found.by_output[1].predict(AT).mean, q.mean[:, 1]) < tolerance


@pytest.mark.parametrize("made", [numbers, classes])
def test_fits_are_exact_too(made: Any) -> None:
    gp, x, y = made()
    found, wanted = fgp.fit(gp, x, y, **ALL).gp.state_dict(), fgp.fit(gp, x, y).gp.state_dict()
    for name, value in wanted.items():
        assert apart(found[name], value) < 2e-3 * (1.0 + float(value.abs().max())), name


def test_gradients_agree_with_differences() -> None:
    """(M-149), (M-150), summed over the matrices."""
    gp, x, y = numbers()
    of = objective(gp, x, y, layout(gp, x, 6, 5, 8))
    theta = of.parameters.values()
    wanted = differences(of, theta)
    assert numpy.abs(of(theta).gradient - wanted).max() <= 1e-6 * (1.0 + numpy.abs(wanted).max())


def test_a_matrix_of_each_is_that_of_each_alone() -> None:
    gp, x, y = numbers()
    made = layout(gp, x, 6, 5, 8)
    together = [one.log_likelihood(60) for one in factor(gp, x, y, made).sums_of_each()]
    alone = [factor(gp.output(j), x, y[:, j], made).sums_of_each()[0].log_likelihood(60) for j in range(3)]
    assert together == pytest.approx(alone, rel=1e-12)


def test_permuted_classes_change_nothing() -> None:
    gp, x, y = classes()
    order = torch.tensor([2, 0, 1])
    found, other = (gp.condition(x, labels, **FEW).predict(AT).probability for labels in (y, order[y]))
    torch.testing.assert_close(found, other[:, order], rtol=0.0, atol=1e-9)


@pytest.mark.parametrize("made", [numbers, classes])
def test_rows_join_files_keep_and_paths_are_of_the_posterior(made: Any, tmp_path: Any) -> None:
    gp, x, y = made()
    post = gp.condition(x[:50], y[:50], **{**ALL, "neighbours": 50})
    longer = post.append(x[50:], y[50:])
    wanted = gp.condition(x[:50], y[:50]).append(x[50:], y[50:])
    assert apart(longer.predict(AT).mean, wanted.predict(AT).mean) < 2e-3
    fgp.save(longer, tmp_path / "m.safetensors")
    again = fgp.load(tmp_path / "m.safetensors")
    assert apart(again.predict(AT).mean, longer.predict(AT).mean) < 1e-12
    fgp.save(post, tmp_path / "m.safetensors")
    again = fgp.load(tmp_path / "m.safetensors")
    assert apart(again.log_marginal_likelihood(), post.log_marginal_likelihood()) < 1e-9
    drawn = longer.paths(400, seed=0)(AT)
    assert drawn.shape == (400, 7, 3)
    p = longer.predict(AT)
    assert bool(((drawn.mean(0) - p.mean).abs() < 5.0 * (p.variance / 400).sqrt() + 0.02).all())
    assert bool((drawn.var(0) / p.variance - 1.0).abs().max() < 0.4)
    among = torch.corrcoef(drawn[:, 0].T)
    assert apart(among, torch.eye(3, dtype=F64)) < 0.25, "outputs are independent"


def test_cells_that_miss_are_refused() -> None:
    gp, x, y = numbers()
    post = gp.condition(x[:50], y[:50], **{**ALL, "neighbours": 50})
    y[55, 1] = torch.nan
    with pytest.raises(DomainError, match="`y`"):
        gp.condition(x, y, **ALL)
    with pytest.raises(DomainError, match="`y`"):
        post.append(x[50:], y[50:])
