"""Rows of equal x are joined, and no answer changes: against a GP of all rows, written a second time."""

import copy
import dataclasses
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp import kernels as k
from flashgp import likelihoods as lik
from flashgp import means as m
from flashgp.foundations.events import Event, EventKind
from flashgp.inference.replicates import equal_rows, join
from flashgp.inference.training.options import FitSettings
from flashgp.inference.training.settings import SearchSettings
from flashgp.likelihoods.gaussian import repeated
from inference.plain_gp import F64, PlainGP, data, relative

PLACES = torch.tensor([0, 1, 2, 3, 4, 5, 6, 0, 0, 3, 5, 3])  # of twelve rows, in seven places


def table(outputs: int | None = None) -> tuple[Tensor, Tensor]:
    x, _ = data(7)
    generator = torch.Generator().manual_seed(5)
    y = torch.randn(12, *(() if outputs is None else (outputs,)), generator=generator, dtype=F64)
    return x[PLACES].clone(), y


def weights(seed: int = 7) -> Tensor:
    return 0.5 + torch.rand(12, generator=torch.Generator().manual_seed(seed), dtype=F64)


LIKELIHOODS = {
    "noise": (lambda: lik.Gaussian(0.3), 7),
    "weights": (lambda: lik.Gaussian(0.3, row_weight=weights()), 7),
    "known variances alone": (lambda: lik.Gaussian(None, row_variance=weights(8)), 7),
    "one ratio": (lambda: lik.Gaussian(0.3, row_variance=0.5 / PLACES.double().exp2(), row_weight=PLACES.exp2()), 7),
    "no common ratio": (lambda: lik.Gaussian(0.3, row_variance=weights(8), row_weight=weights()), 12),
    "some in one ratio": (lambda: lik.Gaussian(0.3, row_variance=(torch.arange(12) == 8).double()), 8),
}


def model(likelihood: lik.Gaussian, outputs: int | None = None) -> fgp.GP:
    return fgp.GP(1.3 * k.Matern(2.5, torch.tensor([0.7, 1.1])), m.Constant(0.2), likelihood, outputs)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_every_answer_is_that_of_all_rows(name: str) -> None:
    """Eqs. (M-86), (M-87), (M-88): likelihood, mean, covariance, leave-one-out in the order of the table."""
    build, distinct = LIKELIHOODS[name]
    x, y = table()
    gp = model(build())
    posterior, plain = gp.condition(x, y), PlainGP(gp, x, y)
    assert (posterior.count, posterior.distinct) == (12, distinct)
    assert torch.equal(posterior.x, x)
    assert torch.equal(posterior.y, y)
    assert posterior.representer_weights.shape == (distinct, 1)
    assert relative(posterior.log_marginal_likelihood(), plain.log_marginal_likelihood()) < 1e-13
    x_test, _ = data(5, seed=3)
    mean, covariance = plain.predict(x_test)
    found = posterior.predict(x_test)
    assert relative(found.mean, mean) < 1e-12
    assert relative(found.covariance(), covariance) < 1e-12
    assert relative(found.variance, covariance.diagonal()) < 1e-12
    left_out, (means, variances) = posterior.leave_one_out(), plain.leave_one_out()
    assert relative(left_out.mean, means) < 1e-12
    assert relative(left_out.variance, variances) < 1e-12
    log_prob = -0.5 * ((y - means).square() / variances + variances.log() + math.log(2 * math.pi))
    assert relative(left_out.log_prob, log_prob) < 1e-12


@pytest.mark.parametrize("name", LIKELIHOODS)
@pytest.mark.parametrize("mean", [m.Constant(0.2), m.Linear([0.3, -0.1])], ids=["small path", "general path"])
def test_the_objective_of_fit_is_that_of_all_rows(name: str, mean: torch.nn.Module) -> None:
    """Value and gradient by every parameter, eq. (M-87); a linear mean takes the general path, a constant the small."""
    from flashgp.inference.exact.likelihood import DirectSettings
    from flashgp.inference.training.objective import LogJoint, Problem
    from flashgp.pairwise.torch.tiles import TorchTiles

    x, y = table()
    likelihood = LIKELIHOODS[name][0]()
    gp = fgp.GP(1.3 * k.Matern(2.5, torch.tensor([0.7, 1.1])), copy.deepcopy(mean), likelihood)
    group = equal_rows(gp, x, y)
    if group is None:
        assert name == "no common ratio"
        return
    rows = join(gp, x, y, group)
    part = fgp.GP(gp.kernel, gp.mean, rows.likelihood)
    objective = LogJoint(Problem(part, rows.x, rows.y, DirectSettings(TorchTiles())))
    found = objective(objective.parameters.values())
    exact = PlainGP(gp, x, y).log_marginal_likelihood()
    wanted = torch.autograd.grad(exact, objective.parameters.tensors)
    assert found.value == pytest.approx(-exact.item(), rel=1e-12)
    assert relative(torch.from_numpy(found.gradient), -torch.cat([g.reshape(-1) for g in wanted])) < 1e-11


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("shared", [True, False])
def test_several_outputs(outputs: int, shared: bool) -> None:
    x, y = table(outputs)
    noise = lik.Gaussian(0.3, row_weight=weights(), shared=shared)
    if not shared:
        noise = lik.Gaussian(torch.linspace(0.1, 0.5, outputs), row_weight=weights(), outputs=outputs)
    gp = model(noise, outputs)
    posterior = gp.condition(x, y)
    assert posterior.distinct == 7
    alone = [PlainGP(gp.output(i), x, y[:, i]) for i in range(outputs)]
    total = sum(plain.log_marginal_likelihood() for plain in alone)
    assert relative(posterior.log_marginal_likelihood(), total) < 1e-13
    left_out = posterior.leave_one_out()
    assert left_out.mean.shape == y.shape
    for i, plain in enumerate(alone):
        assert relative(left_out.mean[:, i], plain.leave_one_out()[0]) < 1e-12
        assert relative(left_out.variance[:, i], plain.leave_one_out()[1]) < 1e-12


def test_fit_finds_the_optimum_of_all_rows() -> None:
    """The same starts, the same weak priors, the same objective: the same parameters, joined or not."""
    x, y = table()
    gp = model(lik.Gaussian(0.3, row_weight=weights()))
    found = fgp.fit(gp, x, y, starts=1)
    assert found.posterior.distinct == 7
    assert type(found.gp.likelihood) is lik.Gaussian
    assert found.gp.likelihood.row_weight.shape == (12,)
    assert Event(EventKind.ROWS_JOINED, rows=12, distinct=7) in found.report.events
    assert (found.report.plan.n, found.report.plan.distinct) == (12, 7)
    apart = x + 1e-14 * torch.arange(12.0, dtype=F64)[:, None]  # no two rows are equal
    full = fgp.fit(gp, apart, y, starts=1)
    assert full.posterior.distinct == 12
    assert found.history[0].value == pytest.approx(full.history[0].value, rel=1e-12)
    assert found.history[-1].value == pytest.approx(full.history[-1].value, abs=1e-3)


def test_a_start_chosen_on_some_rows_keeps_what_they_say() -> None:
    generator = torch.Generator().manual_seed(1)
    places = torch.rand(40, 1, generator=generator, dtype=F64)
    x = torch.cat([places] * 4)
    y = torch.sin(6 * x[:, 0]) + 0.3 * torch.randn(160, generator=generator, dtype=F64)
    settings = FitSettings(search=SearchSettings(start_rows=30))
    found = fgp.fit(fgp.GP(1.0 * k.RBF()), x, y, starts=3, max_iterations=15, settings=settings)
    assert Event(EventKind.SUBSET_FIT, starts=3, subset=30, rows=40) in found.report.events
    assert 0.05 < found.gp.likelihood.noise_variance.value.item() < 0.15


def test_some_of_the_rows_keep_their_factor() -> None:
    """What rows add to the likelihood, (M-87), is a sum over them: for parts of the rows it is that of the parts."""
    x, y = table()
    gp = model(lik.Gaussian(0.3, row_weight=weights()))
    group = equal_rows(gp, x, y)
    assert group is not None
    likelihood = join(gp, x, y, group).likelihood
    part, rest = torch.tensor([0, 3, 4]), torch.tensor([1, 2, 5, 6])
    device = torch.device("cpu")
    total = sum(likelihood.rows(index).log_scale(device, 1) for index in (part, rest))
    assert relative(total, likelihood.log_scale(device, 1)) < 1e-14
    assert abs(float(total)) > 1.0


# -- which rows are joined ------------------------------------------------------------------------------------------
def test_minus_zero_and_single_precision() -> None:
    x = torch.tensor([[1.0, -0.0], [2.0, 0.5], [1.0, 0.0]], dtype=torch.float32)
    y = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float32)
    gp = model(lik.Gaussian(0.3))
    posterior = gp.condition(x, y)
    assert posterior.distinct == 2
    assert posterior.x.dtype == torch.float32
    assert posterior.leave_one_out().mean.dtype == torch.float32
    plain = PlainGP(gp, x.double(), y.double())
    assert relative(posterior.log_marginal_likelihood(), plain.log_marginal_likelihood()) < 1e-12
    near = torch.tensor([[1.0], [1.0 + 2.0**-52]], dtype=F64)
    assert equal_rows(fgp.GP(k.RBF()), near, near[:, 0]) is None


@pytest.mark.parametrize("n", [6, 1500])
def test_rows_that_differ_stay(n: int) -> None:
    """Also where the first column repeats, so that a look at it is not enough."""
    x = torch.stack([torch.arange(n) % 3, torch.arange(n)], dim=-1).double()
    gp = fgp.GP(k.RBF())
    assert equal_rows(gp, x, x[:, 1]) is None
    assert equal_rows(gp, x[:0], x[:0, 1]) is None
    x[-1] = x[1]
    group = equal_rows(gp, x, x[:, 1])
    assert group is not None
    assert group[-1] == group[1]
    assert int(group.max()) == n - 2


def test_one_row_two_rows_and_all_rows_equal() -> None:
    gp = model(lik.Gaussian(0.3))
    x, y = table()
    for n in (1, 2, 12):
        same = x[:1].expand(n, 2)
        posterior, plain = gp.condition(same, y[:n]), PlainGP(gp, same, y[:n])
        assert (posterior.count, posterior.distinct) == (n, 1)
        assert relative(posterior.log_marginal_likelihood(), plain.log_marginal_likelihood()) < 1e-12
        if n > 1:
            left_out = posterior.leave_one_out()
            assert relative(left_out.mean, plain.leave_one_out()[0]) < 1e-12
            assert relative(left_out.variance, plain.leave_one_out()[1]) < 1e-12
        assert math.isfinite(fgp.fit(gp, same, y[:n], starts=1, max_iterations=5).history[-1].value)


def test_the_order_of_rows_does_not_matter() -> None:
    x, y = table()
    order = torch.randperm(12, generator=torch.Generator().manual_seed(2))
    gp = model(lik.Gaussian(0.3))
    one, two = gp.condition(x, y), gp.condition(x[order], y[order])
    assert torch.equal(one.factor.lower, two.factor.lower)
    assert relative(two.representer_weights, one.representer_weights) < 1e-12
    assert relative(two.leave_one_out().mean, one.leave_one_out().mean[order]) < 1e-12


def test_a_batch_and_a_graph_stay_as_they_are() -> None:
    x, y = table()
    gp = model(lik.Gaussian(0.3))
    assert gp.condition(x.expand(2, 12, 2), y.expand(2, 12)).distinct == 12
    posterior = gp.condition(x, y.clone().requires_grad_(), differentiable=True)
    assert posterior.distinct == 12
    joined = gp.condition(x, y)
    assert relative(posterior.log_marginal_likelihood(), joined.log_marginal_likelihood()) < 1e-12


def test_several_models_of_one_table() -> None:
    x, y = table()
    kernel = 1.3 * k.Matern(2.5, torch.tensor([[0.7, 1.1], [0.4, 2.0]]))
    posterior = fgp.GP(kernel, m.Zero(), lik.Gaussian(torch.tensor([0.3, 0.1]))).condition(x, y)
    assert posterior.distinct == 7
    for i, (scales, noise) in enumerate((([0.7, 1.1], 0.3), ([0.4, 2.0], 0.1))):
        gp = fgp.GP(1.3 * k.Matern(2.5, torch.tensor(scales)), m.Zero(), lik.Gaussian(torch.tensor(noise)))
        plain = PlainGP(gp, x, y)
        assert relative(posterior.log_marginal_likelihood()[i], plain.log_marginal_likelihood()) < 1e-12
        assert relative(posterior.leave_one_out().mean[i], plain.leave_one_out()[0]) < 1e-12


def test_no_noise() -> None:
    """Equal rows that agree are one observation and need no jitter; those that do not are refused as before."""
    x, y = table()
    agreeing = torch.sin(x.sum(-1))
    gp = model(lik.Gaussian(0.0))
    posterior, once = gp.condition(x, agreeing), gp.condition(x[:7], agreeing[:7])
    assert posterior.distinct == 7
    assert posterior.report.jitter is None
    assert relative(posterior.log_marginal_likelihood(), once.log_marginal_likelihood()) < 1e-12
    left_out, alone = posterior.leave_one_out(), once.leave_one_out()
    for row in range(12):
        if int((PLACES[row] == PLACES).sum()) == 1:
            assert float(left_out.mean[row]) == pytest.approx(float(alone.mean[PLACES[row]]), rel=1e-10)
        else:
            assert left_out.mean[row] == agreeing[row]
            assert (left_out.variance[row], left_out.log_prob[row]) == (0.0, math.inf)
    with pytest.raises(fgp.NotPositiveDefiniteError):
        gp.condition(x, y)
    mixed = lik.Gaussian(None, row_variance=torch.where(PLACES == 3, 0.2, 0.0))
    assert model(mixed).condition(x, torch.where(PLACES == 3, y, agreeing)).distinct == 7


@pytest.mark.parametrize("least", [2.0**-1000, 2.0**-1040, 2.0**1000])
def test_known_variances_join_where_their_reciprocals_are_beyond_float64(least: float) -> None:
    """Means, shares and, in units of the smallest, variances are those of a table in other units."""
    x, y = table()
    known = 1.0 + (PLACES % 3).double() + torch.arange(12) % 2
    gps = [model(lik.Gaussian(None, row_variance=known * unit)) for unit in (1.0, least)]
    one, other = (join(gp, x, y, equal_rows(gp, x, y)) for gp in gps)
    assert torch.equal(one.y, other.y)
    assert torch.equal(one.share, other.share)
    assert relative(other.likelihood.row_variance / least, one.likelihood.row_variance) < 1e-9
    assert torch.equal(one.likelihood.offset, other.likelihood.offset)
    assert gps[1].condition(x, y).distinct == 7


def test_beside_a_row_that_is_sure_another_tells_nothing() -> None:
    x = torch.zeros(2, 1, dtype=F64)
    gp = fgp.GP(k.Matern(), likelihood=lik.Gaussian(None, row_variance=torch.tensor([1e300, 1e-300], dtype=F64)))
    posterior = gp.condition(x, torch.tensor([5.0, 1.0], dtype=F64))
    assert (posterior.distinct, float(posterior.predict(x[:1]).mean)) == (1, 1.0)
    assert float(posterior.log_marginal_likelihood()) == pytest.approx(  # of N(y_1; 0, 1) and N(y_0; y_1, 1e300)
        -0.5 * (1.0 + 2 * math.log(2 * math.pi) + 300 * math.log(10)), rel=1e-14
    )


def test_a_repetition_of_a_weight() -> None:
    """A row that stands there w times, and a table with w such rows: the same bits of matrix, weights and factor."""
    x, y = data(5)
    counts = torch.tensor([2, 1, 3, 1, 2])
    gp = model(lik.Gaussian(0.3))
    weighted = model(repeated(gp.likelihood, counts.double()))
    one, two = weighted.condition(x, y), gp.condition(x.repeat_interleave(counts, 0), y.repeat_interleave(counts))
    assert torch.equal(one.representer_weights, two.representer_weights)
    assert torch.equal(one.factor.lower, two.factor.lower)
    assert relative(one.log_marginal_likelihood(), two.log_marginal_likelihood()) < 1e-13


# -- plans, files ---------------------------------------------------------------------------------------------------
def test_the_plan_counts_distinct_rows() -> None:
    """Eq. (M-89): the price is that of the distinct rows, as long as joining them is not more."""
    gp = model(lik.Gaussian(0.3))
    plan, small = fgp.plan(gp, n=48_827, d=2, distinct=1581), fgp.plan(gp, n=1581, d=2)
    assert (plan.n, plan.distinct) == (48_827, 1581)
    assert "n = 48,827 rows, 1,581 distinct, d = 2" in str(plan)
    assert "distinct" not in str(small)
    assert (plan.seconds, plan.fit_step_seconds) == (small.seconds, small.fit_step_seconds)
    assert plan.peak_bytes == small.peak_bytes + 8 * 48_827
    few = fgp.plan(gp, n=10**6, d=2, distinct=10)
    assert few.peak_bytes == 8 * 10**6 * (2 * 2 + 2 + 8 + 1)
    assert fgp.Plan.from_json(plan.to_json()) == plan
    assert fgp.plan(gp, n=48_827, d=2, distinct=1581, n_test=100).m == 1581
    for wrong in (0, 13):
        with pytest.raises(fgp.DomainError, match="`distinct` must be"):
            fgp.plan(gp, n=12, d=2, distinct=wrong)


def test_a_plan_of_other_distinct_rows_is_refused() -> None:
    x, y = table()
    gp = model(lik.Gaussian(0.3))
    plan = fgp.plan(gp, n=12, d=2, distinct=7)
    assert gp.condition(x, y, plan=plan).report.plan is plan
    assert fgp.fit(gp, x, y, plan=plan, max_iterations=1).report.plan is plan
    for call in (gp.condition, lambda *a, **o: fgp.fit(gp, *a, **o)):
        with pytest.raises(fgp.DomainError, match=r"12 distinct rows of 12, got data with 7; .*=7"):
            call(x, y, plan=fgp.plan(gp, n=12, d=2))
        with pytest.raises(fgp.DomainError, match="7 distinct rows of 12, got data with 12"):
            call(data(12)[0], y, plan=dataclasses.replace(plan, distinct=7))
    posterior = gp.condition(x, y)
    x_test, _ = data(5, seed=3)
    told = fgp.plan(gp, n=12, d=2, distinct=7, n_test=5)
    assert relative(posterior.predict(x_test, plan=told).mean, posterior.predict(x_test).mean) < 1e-12


@pytest.mark.parametrize("outputs", [None, 2])
def test_a_file_keeps_the_joined_rows(tmp_path: Path, outputs: int | None) -> None:
    x, y = table(outputs)
    posterior = model(lik.Gaussian(0.3, row_weight=weights()), outputs).condition(x, y)
    fgp.save(posterior, tmp_path / "model.safetensors")
    again = fgp.load(tmp_path / "model.safetensors")
    assert (again.count, again.distinct) == (12, 7)
    x_test, _ = data(5, seed=3)
    assert torch.equal(again.predict(x_test).mean, posterior.predict(x_test).mean)
    assert torch.equal(again.predict(x_test).variance, posterior.predict(x_test).variance)
    assert torch.equal(again.log_marginal_likelihood(), posterior.log_marginal_likelihood())
    for one, two in zip(
        dataclasses.astuple(again.leave_one_out()), dataclasses.astuple(posterior.leave_one_out()), strict=True
    ):
        assert torch.equal(one, two)
    assert again.report.plan == posterior.report.plan
