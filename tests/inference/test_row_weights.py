"""Weights of rows in a likelihood: relative precisions, eq. (M-251), through conditioning, updates, files and ranks."""

from pathlib import Path

import numpy
import pytest
import torch

import flashgp as fgp
from flashgp import kernels as k
from flashgp import likelihoods as lik
from flashgp.foundations.errors import DomainError

F64 = torch.float64
SCALES = (1e-6, 3.0, 1e6)


def table(n: int = 24, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = 4.0 * torch.rand(n, 2, generator=generator, dtype=F64)
    x[n // 2] = x[0]  # which repeats with another weight
    y = torch.sin(2.0 * x[:, 0]) + 0.1 * torch.randn(n, generator=generator, dtype=F64)
    weight = torch.exp(2.0 * torch.randn(n, generator=generator, dtype=F64))
    return x, y, weight


def given(weight: torch.Tensor, **options: object) -> fgp.GP:
    return fgp.GP(1.0 * k.Matern(1.5), likelihood=lik.Gaussian(0.1, row_weight=weight), **options)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("approximation", [None, "full_scale", "sparse"])
def test_the_scale_of_weights_changes_nothing(scale: float, approximation: str | None) -> None:
    x, y, weight = table()
    options = {} if approximation is None else {"approximation": approximation, "inducing": 8}
    one, other = (given(w).condition(x, y, **options) for w in (weight, scale * weight))
    at = x + 0.1
    for name in ("mean", "variance", "observation_variance"):
        torch.testing.assert_close(getattr(one.predict(at), name), getattr(other.predict(at), name), rtol=1e-9, atol=0)
    constant, plain = given(torch.full((24,), scale)), fgp.GP(1.0 * k.Matern(1.5), likelihood=lik.Gaussian(0.1))
    same, wanted = (gp.condition(x, y, **options).predict(at) for gp in (constant, plain))
    torch.testing.assert_close(same.mean, wanted.mean, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(same.observation_variance, wanted.observation_variance, rtol=1e-9, atol=0)


def test_noise_of_rows_by_a_dense_solve() -> None:
    """The posterior with noise_variance exp(mean log u) / u_i, written out, with leave-one-out (M-39)."""
    x, y, weight = table()
    noise = 0.1 * weight.log().mean().exp() / weight
    gp = given(weight)
    covariance = gp.kernel.operator(x, x).to_dense().detach() + torch.diag(noise)
    post = gp.condition(x, y)
    cross = gp.kernel.operator(x + 0.1, x).to_dense().detach()
    torch.testing.assert_close(post.predict(x + 0.1).mean, cross @ torch.linalg.solve(covariance, y), rtol=1e-9, atol=0)
    inverse = torch.linalg.inv(covariance)
    left = post.leave_one_out()
    torch.testing.assert_close(left.mean, y - (inverse @ y) / inverse.diagonal(), rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(left.variance, 1.0 / inverse.diagonal(), rtol=1e-8, atol=0)


@pytest.mark.parametrize("scale", SCALES)
def test_appended_rows_bring_weights_in_the_unit_of_those_before(scale: float, tmp_path: Path) -> None:
    x, y, weight = table()
    wanted = fgp.GP(
        1.0 * k.Matern(1.5), likelihood=lik.Gaussian(0.1).with_rows(None, weight / weight[:20].log().mean().exp())
    )
    whole = wanted.condition(x, y).predict(x + 0.1)
    post = given(scale * weight[:20]).condition(x[:20], y[:20])
    fgp.save(post, tmp_path / "weights.safetensors")
    for head in (post, fgp.load(tmp_path / "weights.safetensors")):
        found = head.append(x[20:], y[20:], row_weight=scale * weight[20:]).predict(x + 0.1)
        torch.testing.assert_close(found.mean, whole.mean, rtol=1e-8, atol=1e-12)
        torch.testing.assert_close(found.variance, whole.variance, rtol=1e-8, atol=0)
    # Rows before that had no weight are of weight 1.
    plain = fgp.GP(1.0 * k.Matern(1.5), likelihood=lik.Gaussian(0.1)).condition(x[:20], y[:20])
    more = plain.append(x[20:], y[20:], row_weight=torch.full((4,), 4.0)).gp.likelihood
    assert more.row_weight.tolist() == [1.0] * 20 + [4.0] * 4


@pytest.mark.parametrize("decades", [6, 40])
def test_weights_over_many_decades(decades: int) -> None:
    x, y, _ = table()
    weight = torch.logspace(-decades, decades, 24, dtype=F64)
    prediction = given(weight).condition(x, y).predict(x)
    sure = weight > 1e4
    assert bool(prediction.mean.isfinite().all() & (prediction.variance > -1e-12).all())
    assert float((prediction.mean - y)[sure].abs().max()) < 1e-2


def test_weights_that_are_none() -> None:
    for weight, message in (
        ([1.0, 0.0], "`row_weight` must be positive, got 0 at row 1; leave rows that do not count out"),
        ([1.0, -2.0], "`row_weight` must be positive, got -2 at row 1"),
        ([1.0, numpy.nan], "`row_weight` must be finite, got NaN at row 1"),
        ([1e-250, 1e250], "`row_weight` must have ratios that float64 holds, got weights from 1e-250 to 1e.250"),
    ):
        with pytest.raises(DomainError, match=message):
            lik.Gaussian(0.1, row_weight=weight)
    with pytest.raises(DomainError, match="`row_weight` must be None without a noise_variance"):
        lik.Gaussian(None, row_variance=torch.ones(2), row_weight=torch.ones(2))
