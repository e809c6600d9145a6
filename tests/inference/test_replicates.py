"""Rows of equal x are joined, and no answer changes: against a GP of all rows, written a second time."""

import copy
import dataclasses
import math

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp import kernels as k
from flashgp import likelihoods as lik
from flashgp import means as m
from flashgp.foundations.events import Event, EventKind
from flashgp.inference.replicates import equal_rows, join
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


# -- which rows are joined ------------------------------------------------------------------------------------------
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
