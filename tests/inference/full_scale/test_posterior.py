"""Full-scale posteriors as one consistent Gaussian process, and rows that join them, eq. (M-176)."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import DomainError, MemoryBudgetError, ShapeError
from flashgp.foundations.events import EventKind, of_kind
from flashgp.foundations.workspace import Workspace
from flashgp.inference.full_scale import predictor
from flashgp.inference.full_scale.factor import Basis, FullScaleFactor
from flashgp.solvers.preconditioners.near_rows import blocks_of_near_rows, nearest_rows
from inference.plain_gp import F64, data, model

k, lik = fgp.kernels, fgp.likelihoods


def approximate(
    gp: fgp.GP, x: Tensor, y: Tensor, inducing: Any = 10, neighbours: Any = 12, **options: Any
) -> fgp.Posterior:
    found = gp.condition(x, y, approximation="full_scale", inducing=inducing, neighbours=neighbours, **options)
    assert found.can("lost") is None
    return found


def close(found: Tensor, wanted: Tensor, off: float = 1e-9) -> bool:
    return bool((found - wanted).abs().max() <= off * wanted.abs().max())


def table(n: int = 120) -> tuple[Tensor, Tensor, Tensor]:
    x, y = data(n)
    return x, y, data(9, seed=5)[0]


def test_many_rows_are_looked_up_by_their_blocks() -> None:
    """Beyond so many rows a point's neighbours are those of near blocks, which change no answer of an easy table."""
    x, z = data(3000)[0] + 1e3, data(20, seed=1)[0] + 1e3
    blocks = blocks_of_near_rows(x[:2900], 32, 0)  # and a hundred rows that joined later
    brute = torch.cdist(z, x, compute_mode="donot_use_mm_for_euclid_dist").topk(16, largest=False)[1]
    assert torch.equal(brute, nearest_rows(z, x, blocks, 16))
    assert torch.equal(brute, nearest_rows(z, x, blocks, 16, candidates=350))
    assert torch.equal(brute, nearest_rows(z, x, blocks, 16, candidates=350, numbers=5000))
    one_by_one = torch.cat([nearest_rows(p.unsqueeze(0), x, blocks, 16, candidates=350) for p in z])
    assert torch.equal(brute, one_by_one)


def test_rows_without_a_factor_are_left_out() -> None:
    """A point whose farthest neighbours rounding leaves without a factor is predicted from the nearest half."""
    x, y, z = table()
    states = [approximate(fgp.GP(k.Matern(1.5, 0.8), likelihood=lik.Gaussian(0.01)), x, y, 5, 16).state for _ in "12"]
    broken = states[1]
    states[0].__dict__["near_enough"] = predictor.NearEnough(8)
    broken.__dict__["near_enough"] = predictor.NearEnough(16)
    far = nearest_rows(z, x, broken.layout.conditioned, 16)[0, 8:]
    broken.__dict__["noise_of_rows"] = broken.noise_of_rows.clone().index_fill_(0, far, -10.0)
    few, found = (predictor.local_parts(state.asked, z, state.residual) for state in states)
    for one, other in ((few.shift, found.shift), (few.inner, found.inner), (few.own, found.own)):
        assert close(other[0], one[0])


@pytest.mark.parametrize("approximation", ["full_scale", "sparse"])
def test_what_is_all_but_certain_is_drawn_too(approximation: str) -> None:
    """Where a joint covariance is rounding of the prior's, which a jitter relative to itself does not reach."""
    x = torch.linspace(0.0, 1.0, 40, dtype=F64)[:, None]
    gp = fgp.GP(k.SquaredExponential(2.0), likelihood=lik.Gaussian(1e-14))
    p = gp.condition(x, torch.ones(40, dtype=F64), approximation=approximation).predict(x[:20] + 0.01)
    assert bool((p.sample(3, seed=0) - 1.0).abs().max() < 1e-3)  # ten times the floor of inducing values


def test_more_neighbours_lose_less_and_what_is_lost_is_told() -> None:
    """(M-156); the estimate is of the divergence, within a factor of two here, where the truth is known."""
    x, y = data(400)
    gp = fgp.GP(k.Matern(1.5, 0.8), likelihood=lik.Gaussian(0.01))
    exact = gp.condition(x, y)
    lost = []
    for neighbours in (6, 12, 24, 48):
        found = approximate(gp, x, y, 10, neighbours)
        lost.append(found.lost.nats)
        precise = torch.stack(
            [approximate(gp, x, one, 10, neighbours).log_marginal_likelihood() for one in _draws(gp, x)]
        )
        true = torch.stack([gp.condition(x, one).log_marginal_likelihood() for one in _draws(gp, x)])
        divergence = float((true - precise).mean()) / 400
        assert found.lost.nats > 0.3 * divergence - 3 * found.lost.standard_error
    assert lost == sorted(lost, reverse=True)
    assert "nats a row" in str(approximate(gp, x, y).lost)
    assert exact.count == 400


def _draws(gp: fgp.GP, x: Tensor) -> list[Tensor]:
    with torch.no_grad():
        lower = torch.linalg.cholesky(gp.kernel.operator(x).to_dense() + 0.01 * torch.eye(len(x), dtype=F64))
    normal = torch.randn(len(x), 8, generator=torch.Generator().manual_seed(0), dtype=F64)
    return list((lower @ normal).mT)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (
            {"approximation": "dense"},
            DomainError,
            "`approximation` must be None or one of fourier, full_scale, sparse, auto, got 'dense'",
        ),
        ({"approximation": None, "inducing": 5}, DomainError, "`inducing` is of an approximation"),
        ({"inducing": 121}, DomainError, "`inducing` must be at most the 120 rows, got 121"),
        ({"neighbours": 121}, DomainError, "`neighbours` must be at most the 120 rows, got 121"),
        ({"neighbours": -1}, DomainError, "`neighbours`"),
        ({"inducing": "many"}, DomainError, "`inducing` must be a number or 'auto'"),
        ({"inducing": torch.zeros(3, 5)}, ShapeError, "`inducing`"),
        ({"memory": "1MiB"}, MemoryBudgetError, "of 120 rows need"),
    ],
)
def test_bad_input_names_the_argument(options: dict[str, Any], error: type[Exception], text: str) -> None:
    x, y, _ = table()
    given = {"approximation": "full_scale", **options}
    for call in (model().condition, lambda *a, **o: fgp.fit(model(), *a, **o)):
        with pytest.raises(error, match=text):
            call(x, y, **given)


def test_batches_are_refused() -> None:
    x, y, _ = table()
    with pytest.raises(DomainError, match="of one table and one model"):
        approximate(model(), x.expand(2, *x.shape), y.expand(2, *y.shape))


k, lik = fgp.kernels, fgp.likelihoods


def at_once(post: fgp.Posterior) -> fgp.Posterior:
    """All rows conditioned at once with the layout that appending has made, by what makes every state."""
    state, prior = post.state, post.state.prior
    replicates = state.replicates
    of_rows = prior if replicates is None else prior.with_likelihood(replicates.likelihood)
    x, y = (state.x, state.y) if replicates is None else (replicates.x, replicates.y)
    with torch.no_grad():
        residual, noise, rows, theta = of_rows.likelihood_inputs(x, y)
        function = Basis.of(prior.kernel.form, theta, prior.kernel.rows(state.layout.inducing), Workspace())
        factor = FullScaleFactor.of(function, rows, state.layout.near, residual, noise)
        sums = factor.sums_of_each()[0]
    made = dataclasses.replace(
        state, rows=rows, residual=residual, noise=noise, theta=tuple(theta), function=function, sums=sums, tables=None
    )
    return fgp.Posterior(made)


def agree(found: fgp.Posterior, wanted: fgp.Posterior, at: Tensor, off: float = 1e-9) -> None:
    p, q = found.predict(at), wanted.predict(at)
    assert close(p.mean, q.mean, off)
    assert close(p.variance, q.variance, off)
    assert close(p.covariance(), q.covariance(), off)
    assert close(found.log_marginal_likelihood(), wanted.log_marginal_likelihood(), off)
    assert close(found.representer_weights, wanted.representer_weights, off)
    for name in ("mean", "variance", "log_prob"):
        assert close(getattr(found.leave_one_out(), name), getattr(wanted.leave_one_out(), name), off)
    assert close(found.paths(3, seed=0)(at), wanted.paths(3, seed=0)(at), off)
    assert found.lost.nats == pytest.approx(wanted.lost.nats, rel=1e-6, abs=1e-12)


def every_row_after_its_neighbours(post: fgp.Posterior) -> None:
    near = post.state.layout.near
    place = torch.empty(post.distinct, dtype=torch.int64)
    inside = near.blocks >= 0
    place[near.blocks[inside]] = torch.arange(len(near.blocks)).unsqueeze(1).expand_as(near.blocks)[inside]
    assert torch.equal(near.blocks[inside].sort().values, torch.arange(post.distinct))
    for number, row in enumerate(near.neighbours):
        row = row[row >= 0]
        assert len(row.unique()) == len(row)
        assert bool((place[row] < number).all())


@pytest.mark.parametrize("sizes", [(40,), (1,) * 40, (3, 0, 30, 7), (240,)])
@pytest.mark.parametrize("inducing", [0, 10])
def test_appending_is_conditioning_with_the_same_layout(sizes: tuple[int, ...], inducing: int) -> None:
    x, y, t = table(100 + sum(sizes))
    before = approximate(model(), x[:100], y[:100], inducing, 12)
    found, mean, likelihood = before, before.predict(t).mean, before.log_marginal_likelihood()
    for part in zip(x[100:].split(list(sizes)), y[100:].split(list(sizes)), strict=True):
        found = found.append(*part)
    assert found.count == len(x)
    assert torch.equal(found.x, x)
    assert torch.equal(found.y, y)
    every_row_after_its_neighbours(found)
    agree(found, at_once(found), t)
    assert (before.count, before.log_marginal_likelihood()) == (100, likelihood)
    assert torch.equal(before.predict(t).mean, mean)
    (event,) = of_kind(found.report.events, EventKind.UPDATED)
    assert event.fields["appended"] == sum(sizes)
    assert found.append(x[:0], y[:0]) is found


def test_rows_with_noise_of_their_own_and_rows_that_repeat(tmp_path: Path) -> None:
    x, y, t = table(60)
    x[30:40] = x[:10]
    noise = lik.Gaussian(0.07, row_variance=torch.linspace(0.0, 0.2, 40))
    given = {"row_variance": torch.linspace(0.3, 0.4, 20), "row_weight": torch.full((20,), 2.0)}
    for gp, options in ((model(), {}), (model(), {"row_weight": torch.full((20,), 3.0)}),
                        (fgp.GP(model().kernel, likelihood=noise), given)):  # fmt: skip
        before, exact = approximate(gp, x[:40], y[:40], 5, 40), gp.condition(x[:40], y[:40])
        assert before.distinct == (30 if options != given else 40)
        x[50] = x[3]
        found, exact = (post.append(x[40:], y[40:], **options) for post in (before, exact))
        agree(found, at_once(found), t)
        assert close(found.predict(t).mean, exact.predict(t).mean)
        assert close(found.leave_one_out().mean, exact.leave_one_out().mean)
        assert close(found.log_marginal_likelihood(), exact.log_marginal_likelihood())
        assert found.distinct == exact.distinct
        fgp.save(found, tmp_path / "m.safetensors")
        assert close(fgp.load(tmp_path / "m.safetensors").leave_one_out().mean, found.leave_one_out().mean, 1e-11)


def test_covariances_that_are_no_numbers_are_refused() -> None:
    """Of a function of the caller's own, which overflows far out."""
    x, y, _ = table(60)

    def own(a: Tensor, b: Tensor, scale: Tensor) -> Tensor:
        return torch.exp(-((a - b) / scale).square().sum()) * (1.0 + a.square().sum() * b.square().sum())

    gp = fgp.GP(k.Custom(own, scale=1.0, columns=x.shape[1]), likelihood=lik.Gaussian(0.1))
    post = approximate(gp, x, y, 5, 6)
    with pytest.raises(fgp.NotPositiveDefiniteError, match="with the new rows must be finite"):
        post.append(x[:1] * 1e100, y[:1])


@pytest.mark.parametrize(("noise", "fewer"), [(1.0, True), (1e-5, False)])
def test_points_take_as_many_neighbours_as_observations_need(noise: float, fewer: bool) -> None:
    """(M-309): fewer where the noise hides what the others would add, and then near to what all of them say."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(900, 3, generator=generator, dtype=torch.float64)
    y = torch.sin(6.0 * x[:, 0]) + noise**0.5 * torch.randn(900, generator=generator, dtype=torch.float64)
    kernel = fgp.kernels.Matern(nu=2.5, lengthscale=1.0)
    gp = fgp.GP(kernel, likelihood=fgp.likelihoods.Gaussian(noise))
    post = gp.condition(x, y, approximation="full_scale", inducing=5, neighbours=20)
    z = torch.rand(40, 3, generator=generator, dtype=torch.float64)
    found = post.predict(z)
    assert found.mean.shape == (40,)
    assert bool(of_kind(found.report.events, EventKind.NEAR_ENOUGH)) == fewer
    exact = gp.condition(x, y).predict(z)
    loss = 0.5 * ((found.variance + noise) / (exact.variance + noise)).log().mean()
    assert float(loss) < (0.01 if fewer else 0.2)
    assert close(post.predict(z[:1]).mean, found.mean[:1])


def test_labels_take_neighbours_until_less_is_lost() -> None:
    """(M-309): half of them lose more than a thousandth of a nat here, less than regression would pass over."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(900, 2, generator=generator, dtype=torch.float64)
    y = (torch.sin(9.0 * x[:, 0]) * torch.sin(9.0 * x[:, 1]) > 0.0).double()
    gp = fgp.GP(9.0 * fgp.kernels.Matern(nu=1.5, lengthscale=1.0), likelihood=fgp.likelihoods.Bernoulli())
    state = gp.condition(x, y, approximation="full_scale", inducing=5, neighbours=20).state
    assert predictor.near_enough(state).count == 80
