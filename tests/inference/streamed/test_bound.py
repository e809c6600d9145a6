"""The collapsed bound that is read block by block, eqs. (M-160) to (M-163): dense references, laws, gradients."""

import math

import numpy
import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.streamed.bracket import bracket
from flashgp.inference.streamed.objective import StreamedLogJoint
from flashgp.inference.streamed.rows import named, prior_of_rows
from flashgp.inference.training.objective import Problem
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.sources.source import Batches, Held
from flashgp.sources.survey import surveyed
from inference.full_scale.test_factor import differences
from inference.plain_gp import F64, data, model
from pairwise.pair_cases import ONE_CASE_EACH, Case

k, lik = fgp.kernels, fgp.likelihoods


def objective(
    gp: fgp.GP, x: Tensor, y: Tensor, z: Tensor, *sizes: int, variance: Tensor | None = None
) -> StreamedLogJoint:
    """Of rows that come in batches of these sizes, or in one."""
    columns = (x, y) if variance is None else (x, y, variance)
    source = Held(x, y, {} if variance is None else {"row_variance": variance})
    if sizes:
        source = named(Batches(list(zip(*(column.split(list(sizes)) for column in columns), strict=True))), gp)
    survey = surveyed(source, gp.outputs, 50, seed=0)
    prior = prior_of_rows(gp.released(), survey.sample)
    problem = Problem(prior, survey.x, survey.y, DirectSettings(TorchTiles()))
    return StreamedLogJoint(problem, survey, z)


def dense(gp: fgp.GP, x: Tensor, y: Tensor, z: Tensor, variance: Tensor | float = 0.0) -> tuple[float, float]:
    """Lower and upper bound of one output by their definitions, with dense matrices of all rows."""
    with torch.no_grad():
        noise = gp.likelihood.variance(x.device) + variance + torch.zeros(len(x), dtype=F64)
        at = gp.kernel.operator(z).to_dense()
        at = at + 1e-8 * at.diagonal().mean() * torch.eye(len(z), dtype=F64)
        cross = gp.kernel.operator(x, z).to_dense()
        low = cross @ torch.linalg.solve(at, cross.mT)
        left = gp.kernel.operator(x).diagonal() - low.diagonal()
        residual, noises = gp.residual(x, y)[:, 0], torch.diag(noise)
        normal = torch.distributions.MultivariateNormal(torch.zeros(len(x), dtype=F64), low + noises)
        lower = float(normal.log_prob(residual)) - 0.5 * float((1.0 + left / noise).log().sum())
        wide = low + (1.0 + float((left / noise).sum())) * noises
        fit = float(residual @ torch.linalg.solve(wide, residual))
        logs = float(torch.linalg.slogdet(low + noises).logabsdet)
        return lower, -0.5 * (len(x) * math.log(2 * math.pi) + logs + fit)


VARIANCE = torch.linspace(0.0, 0.5, 50, dtype=F64).square()


def test_known_variances_of_rows_are_those_of_dense_matrices() -> None:
    """(M-160) and (M-161) with a noise variance of each row, in any batches; and exact where every row is a point."""
    gp, (x, y) = model(), data(50)
    _, sums = objective(gp, x, y, x[:9], 13, 37, variance=VARIANCE).bound()
    lower, upper = dense(gp, x, y, x[:9], VARIANCE)
    assert sums.lower == pytest.approx(lower, rel=1e-8)
    assert sums.upper == pytest.approx(upper, rel=1e-8)
    assert sums.lower != pytest.approx(dense(gp, x, y, x[:9])[0], rel=1e-3)
    known = fgp.GP(gp.kernel, gp.mean, lik.Gaussian(gp.likelihood.noise_variance, VARIANCE))
    _, sums = objective(gp, x, y, x, variance=VARIANCE).bound()
    with torch.no_grad():
        assert sums.lower == pytest.approx(float(known.log_marginal_likelihood(x, y)), rel=1e-6)


@pytest.mark.parametrize(("seed", "blocks"), [(0, 1), (1, 7), (2, 16), (0, 400), (1, 400)])
def test_a_bound_is_that_of_any_order_of_blocks_of_any_size(seed: int, blocks: int) -> None:
    """The law of (M-163): value, gradient and posterior of streams that differ in blocks and their order agree."""
    draws = torch.Generator().manual_seed(seed)
    gp, (x, y) = model(), data(400, seed=seed)
    variance = torch.rand(400, generator=draws, dtype=F64) * (seed % 2)
    z, order = x[:20].clone(), torch.randperm(400, generator=draws)
    one = objective(gp, x, y, z, variance=variance)
    shuffled = [column[order] for column in (x, y, variance)]
    size = -(-400 // blocks)
    sizes = [min(size, 400 - start) for start in range(0, 400, size)]
    other = objective(gp, *shuffled[:2], z, *sizes, variance=shuffled[2])
    theta = one.parameters.values()
    first, second = one(theta), other(theta)
    assert second.value == pytest.approx(first.value, rel=1e-10)
    scale = numpy.abs(first.gradient).max()
    assert numpy.abs(second.gradient - first.gradient).max() <= 1e-10 * max(scale, abs(first.value))
    (_, a), (_, b) = one.bound(), other.bound()
    assert b.upper == pytest.approx(a.upper, rel=1e-10)
    assert (b.weights - a.weights).norm() <= 1e-10 * a.weights.norm() * torch.linalg.cond(a.inner) ** 2


@pytest.mark.parametrize("case", ONE_CASE_EACH)
def test_gradients_agree_with_differences(case: Case) -> None:
    """Of every kernel, (M-162) and (M-163)."""
    gp = fgp.GP(case.kernel, fgp.means.Linear(torch.full((case.d,), 0.2)), lik.Gaussian(0.1))
    x = case.points(40, seed=1)
    y = torch.sin(x.sum(-1)) + data(40, seed=2)[1]
    of = objective(gp, x, y, case.points(6, seed=4), 15, 25)
    theta = of.parameters.values()
    found, wanted = of(theta).gradient, differences(of, theta)
    assert numpy.abs(found - wanted).max() <= 1e-6 * (1.0 + numpy.abs(wanted).max())


@pytest.mark.parametrize("size", [1, 7, 25, 50])
@pytest.mark.parametrize("known", [False, True])
def test_the_tighter_upper_bound_is_that_of_dense_matrices(size: int, *, known: bool) -> None:
    """(M-242), and above the likelihood, below (M-161)."""
    (x, y), z = data(50), data(50)[0][:9]
    gp = model()
    if known:
        gp = fgp.GP(gp.kernel, gp.mean, lik.Gaussian(gp.likelihood.noise_variance, VARIANCE))
    post = gp.condition(x, y, approximation="sparse", inducing=z)
    found = bracket(post.state, post.state.held, size)
    with torch.no_grad():
        noise = gp.likelihood.variance(x.device) + (VARIANCE if known else torch.zeros(50, dtype=F64))
        at = gp.kernel.operator(z).to_dense()
        at = at + 1e-8 * at.diagonal().mean() * torch.eye(9, dtype=F64)
        low = gp.kernel.operator(x, z).to_dense() @ torch.linalg.solve(at, gp.kernel.operator(z, x).to_dense())
        rest, r = gp.kernel.operator(x).to_dense() - low, gp.residual(x, y)[:, 0]
        v = torch.linalg.solve(low + torch.diag(noise), r)
        parts = [
            float(v[i : i + size] @ rest[i : i + size, i : i + size] @ v[i : i + size]) for i in range(0, 50, size)
        ]
        whole = sum(part**0.5 for part in parts) ** 2 + float(v @ (low @ v + noise * v))
        logs = float(torch.linalg.slogdet(low + torch.diag(noise)).logabsdet)
        wanted = -0.5 * (50 * math.log(2 * math.pi) + logs + float(r @ v) ** 2 / whole)
        exact = float(gp.log_marginal_likelihood(x, y))
    assert found.lower == post.bound.lower
    assert found.upper == pytest.approx(min(wanted, post.bound.upper), rel=1e-8)
    assert found.lower <= exact <= found.upper <= post.bound.upper
    if size == 50:
        assert found.upper < post.bound.upper


def test_the_rows_of_a_bracket_are_those_of_the_posterior() -> None:
    x, y = data(60)
    rows = list(zip(x.split(25), y.split(25), strict=True))
    read, held = model().condition(rows, inducing=9), model().condition(x, y, approximation="sparse", inducing=9)
    assert read.bracket(rows).upper == pytest.approx(held.bracket().upper, rel=1e-6)
    with pytest.raises(fgp.DomainError, match="bracket"):
        read.bracket()
    with pytest.raises(fgp.DomainError, match="training rows"):
        read.bracket(rows[:-1])
    two = fgp.GP(model().kernel, likelihood=lik.Gaussian(0.07, shared=True), outputs=2)
    both = two.condition(x, torch.stack([y, y.cos()], 1), approximation="sparse", inducing=9)
    with torch.no_grad():
        exact = float(two.log_marginal_likelihood(x, torch.stack([y, y.cos()], 1)))
    assert both.bracket().lower <= exact <= both.bracket().upper <= both.bound.upper


@pytest.mark.parametrize("known", [False, True])
def test_threads_take_parts_of_a_block_and_change_nothing(*, known: bool) -> None:
    """(M-163), with tiles of the sum over rows of a^T a too."""
    (x, y), gp, before = data(1500), model(), torch.get_num_threads()
    variance = torch.linspace(0.0, 0.5, 1500, dtype=F64) if known else None
    found = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        try:
            of = objective(gp, x, y, x[:300], variance=variance)
            found.append(of(of.parameters.values()))
        finally:
            torch.set_num_threads(before)
    for other in found[1:]:
        assert other.value == pytest.approx(found[0].value, rel=1e-10)
        scale = max(numpy.abs(found[0].gradient).max(), abs(found[0].value))
        assert numpy.abs(other.gradient - found[0].gradient).max() <= 1e-10 * scale
