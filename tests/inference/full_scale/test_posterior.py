"""Full-scale posteriors: with every row as neighbour the exact one, and else one consistent Gaussian process."""

from typing import Any

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import DomainError, MemoryBudgetError, ShapeError
from flashgp.foundations.events import EventKind, of_kind
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


def with_repeats() -> tuple[Tensor, Tensor]:
    x, y = data(60)
    x[40:] = x[:20]
    return x, y


@pytest.mark.parametrize("inducing", [0, 15])
def test_with_every_row_as_neighbour_every_answer_is_the_exact_one(inducing: int) -> None:
    """(M-154)"""
    x, y, z = table(60)
    exact, found = model().condition(x, y), approximate(model(), x, y, inducing, 60)
    p, q = exact.predict(z), found.predict(z)
    assert close(q.mean, p.mean)
    assert close(q.variance, p.variance)
    assert close(q.covariance(), p.covariance())
    assert close(q.log_prob(z[:, 0]), p.log_prob(z[:, 0]))
    assert close(found.log_marginal_likelihood(), exact.log_marginal_likelihood())
    for name in ("mean", "variance", "log_prob"):
        assert close(getattr(found.leave_one_out(), name), getattr(exact.leave_one_out(), name))
    assert close(found.representer_weights, exact.representer_weights)
    assert found.lost.nats == 0.0


def test_rows_that_repeat_are_joined_as_in_exact_posteriors() -> None:
    (x, y), z = with_repeats(), data(9, seed=5)[0]
    exact, found = model().condition(x, y), approximate(model(), x, y, 5, 40)
    assert (found.count, found.distinct) == (60, 40)
    assert close(found.predict(z).mean, exact.predict(z).mean)
    assert close(found.leave_one_out().mean, exact.leave_one_out().mean)
    assert close(found.log_marginal_likelihood(), exact.log_marginal_likelihood())


def test_several_outputs_that_share_their_noise() -> None:
    x, y, z = table(50)
    gp = fgp.GP(model().kernel, likelihood=lik.Gaussian(0.07, shared=True), outputs=2)
    targets = torch.stack([y, y.exp()], 1)
    exact, found = gp.condition(x, targets), approximate(gp, x, targets, 5, 50)
    assert close(found.predict(z).mean, exact.predict(z).mean)
    assert close(found.predict(z).variance, exact.predict(z).variance)
    assert close(found.leave_one_out().log_prob, exact.leave_one_out().log_prob)
    assert found.paths(3, seed=0)(z).shape == (3, 9, 2)


def test_an_answer_is_of_its_point_alone_and_moments_agree_with_each_other() -> None:
    x, y, z = table()
    found = approximate(model(), x, y)
    whole, few = found.predict(z), found.predict(z[:4])
    assert close(few.mean, whole.mean[:4], 1e-12)
    assert close(few.variance, whole.variance[:4], 1e-12)
    joint = whole.covariance()
    assert close(few.covariance(), joint[:4, :4], 1e-10)
    assert close(joint.diagonal(), whole.variance, 1e-12)
    assert float(torch.linalg.eigvalsh(joint)[0]) > -1e-12


def test_many_rows_are_looked_up_by_their_blocks() -> None:
    """Beyond so many rows a point's neighbours are those of near blocks, which change no answer of an easy table."""
    from flashgp.solvers.preconditioners.near_rows import blocks_of_near_rows, nearest_rows

    x, z = data(3000)[0], data(20, seed=1)[0]
    blocks = blocks_of_near_rows(x, 32, 0)
    brute = nearest_rows(z, x, blocks, 16)
    assert torch.equal(brute, nearest_rows(z, x, blocks, 16, candidates=1500))
    one_by_one = torch.cat([nearest_rows(p.unsqueeze(0), x, blocks, 16, candidates=1500) for p in z])
    assert torch.equal(brute, one_by_one)


def test_paths_have_the_moments_of_predictions() -> None:
    """(M-155); 4,000 draws, within five standard errors and the error of random features."""
    x, y, z = table()
    found = approximate(fgp.GP(k.SquaredExponential(1.1), likelihood=lik.Gaussian(0.07)), x, y)
    f, p = found.paths(4000, seed=1), found.predict(z)
    values = f(z)
    assert close(values[:, :3], f(z[:3]), 1e-12)
    off = (values.mean(0) - p.mean).abs() / (p.variance / 4000).sqrt()
    assert float(off.max()) < 5.0
    joint = p.covariance()
    scale = joint.diagonal().sqrt()
    assert float(((torch.cov(values.mT) - joint) / scale / scale.unsqueeze(-1)).abs().max()) < 0.12


@pytest.mark.parametrize("approximation", ["full_scale", "sparse"])
def test_what_is_all_but_certain_is_drawn_too(approximation: str) -> None:
    """Where a joint covariance is rounding of the prior's, which a jitter relative to itself does not reach."""
    x = torch.linspace(0.0, 1.0, 40, dtype=F64)[:, None]
    gp = fgp.GP(k.SquaredExponential(2.0), likelihood=lik.Gaussian(1e-14))
    p = gp.condition(x, torch.ones(40, dtype=F64), approximation=approximation).predict(x[:20] + 0.01)
    assert bool((p.sample(3, seed=0) - 1.0).abs().max() < 1e-3)  # ten times the floor of inducing values


def test_predictions_are_differentiable_in_the_points() -> None:
    x, y, z = table()
    found = approximate(model(), x, y)
    z = z.requires_grad_()
    p = found.predict(z)
    for answer in (lambda q: q.mean, lambda q: q.variance):
        (slope,) = torch.autograd.grad(answer(p).sum(), z, retain_graph=True)
        step = 1e-6 * torch.ones_like(z)
        with torch.no_grad():
            ahead, behind = answer(found.predict(z + step)), answer(found.predict(z - step))
        assert close(slope.sum(-1), (ahead - behind) / 2e-6, 1e-5)
    (slope,) = torch.autograd.grad(found.paths(2, seed=0)(z).sum(), z)
    assert bool(slope.isfinite().all())


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


def test_one_row_and_points_of_ones_own() -> None:
    x, y, z = table(1)
    assert close(
        approximate(model(), x, y, "auto", "auto").predict(z).mean, model().condition(x, y).predict(z).mean, 1e-7
    )
    x, y, z = table()
    own = approximate(model(), x, y, x[:7] + 0.5, 8)
    assert torch.equal(own.state.layout.inducing, x[:7] + 0.5)


def test_the_report_says_what_was_done() -> None:
    x, y, _ = table()
    found = approximate(model(), x, y)
    assert found.report.route == "full scale"
    (event,) = of_kind(found.report.events, EventKind.FULL_SCALE)
    assert (event.fields["inducing"], event.fields["neighbours"]) == (10, 12)
    assert found.factor is None


def test_what_an_approximate_posterior_refuses() -> None:
    x, y, z = table()
    found = approximate(model(), x, y)
    for call in (
        lambda: found.drop([0]), lambda: found.slide(x[:1], y[:1]), lambda: found.replace([0], x[:1], y[:1]),
        lambda: found.fantasize(x[:1], y[:1]), lambda: found.refine(),
    ):  # fmt: skip
        with pytest.raises(DomainError, match="is of exact posteriors"):
            call()
    for option in ("window", "refine_every"):
        with pytest.raises(DomainError, match=f"`{option}` of a stream .* is of exact posteriors"):
            fgp.Stream(found, **{option: 50})
    with pytest.raises(DomainError, match="`variance`"):
        found.predict(z, variance="sampled")
    with pytest.raises(ShapeError, match="x_test"):
        found.predict(z.expand(2, *z.shape))


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (
            {"approximation": "dense"},
            DomainError,
            "`approximation` must be None or one of full_scale, sparse, auto, got 'dense'",
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


def test_batches_and_outputs_with_noise_of_their_own_are_refused() -> None:
    x, y, _ = table()
    with pytest.raises(DomainError, match="of one table and one model"):
        approximate(model(), x.expand(2, *x.shape), y.expand(2, *y.shape))
    with pytest.raises(DomainError, match="outputs that share their noise"):
        approximate(fgp.GP(k.Matern(), outputs=2), x, torch.stack([y, y], 1))
