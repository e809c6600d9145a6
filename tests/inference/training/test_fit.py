"""fit: what it reaches, what it leaves alone, what it says; its repeatability is in test_resume.py."""

import copy
import dataclasses
import itertools
import math
import time
from pathlib import Path

import numpy
import pytest
import torch

import flashgp as fgp
from flashgp.foundations.errors import DomainError
from flashgp.foundations.events import Event, EventKind
from flashgp.inference.training.objective import LogJoint
from flashgp.inference.training.options import FitSettings
from flashgp.inference.training.settings import SearchSettings
from flashgp.kernels.default import DEFAULT
from inference.plain_gp import F64, data, model, relative
from inside_torch import InsideTorch, factorises, product_of, raising

k, m, lik = fgp.kernels, fgp.means, fgp.likelihoods


def prior(kind: type[torch.distributions.Distribution], *numbers: float) -> torch.distributions.Distribution:
    return kind(*(torch.tensor(number, dtype=F64) for number in numbers))


def state(gp: fgp.GP) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in gp.state_dict().items()}


def test_reaches_the_optimum_of_scikit_learn() -> None:
    """priors="given" without any is maximum likelihood: from where we end, scikit-learn finds nothing better."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    x, y = data(25, 2, seed=2)
    gp = fgp.GP(1.0 * k.RBF(torch.ones(2)), m.Zero(), lik.Gaussian(0.1))
    fit = fgp.fit(gp, x, y, priors="given")
    variance, lengthscale, noise = (p.value.detach().numpy() for p in fit.gp.modules() if isinstance(p, fgp.Parameter))
    kernel = ConstantKernel(float(variance), (1e-9, 1e9)) * RBF(lengthscale, (1e-9, 1e9))
    kernel = kernel + WhiteKernel(float(noise), (1e-12, 1e2))
    theirs = GaussianProcessRegressor(kernel, alpha=0.0).fit(x.numpy(), y.numpy())
    assert float(fit.posterior.log_marginal_likelihood()) > theirs.log_marginal_likelihood_value_ - 1e-4
    assert not fit.interrupted


def test_history_is_the_objective() -> None:
    """Every evaluation is minus eq. (M-38) at its vector: weak priors aside, gp.log_joint says the same."""
    x, y = data(15)
    gp = fgp.GP(
        1.0 * k.Matern(2.5, fgp.Parameter(torch.ones(2), prior=prior(torch.distributions.Gamma, 3.0, 2.0))),
        m.Constant(fgp.Parameter(0.0, prior=prior(torch.distributions.Normal, 0.0, 2.0))),
        lik.Gaussian(fgp.Parameter(0.1, prior=prior(torch.distributions.LogNormal, -2.0, 1.0))),
    )
    fit = fgp.fit(gp, x, y, priors="given", starts=2)
    names = [name for name, _ in gp.named_parameters()]
    for evaluation in (fit.history[0], fit.history[-1]):
        values = torch.tensor(evaluation.theta, dtype=F64).split([p.numel() for p in gp.parameters()])
        theta = {n: v.view(p.shape).requires_grad_() for n, v, p in zip(names, values, gp.parameters(), strict=True)}
        joint = gp.log_joint(x, y, theta=theta)
        gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(joint, list(theta.values()))])
        assert evaluation.value == pytest.approx(joint.item(), rel=1e-11)
        assert evaluation.gradient_norm == pytest.approx(float(gradient.abs().max()), rel=1e-6, abs=1e-9)
    runs = {e.start for e in fit.history}
    assert runs >= {"start 0", "start 1"}
    for run in runs:
        assert [e.index for e in fit.history if e.start == run] == list(range(sum(e.start == run for e in fit.history)))
    seconds = [e.seconds for e in fit.history]
    assert seconds == sorted(seconds)
    assert fit.report.iterations == len(fit.history)
    best = max(fit.history, key=lambda e: e.value)
    found = torch.cat([p.detach().reshape(-1) for p in fit.gp.parameters()])
    assert torch.equal(found, torch.tensor(best.theta, dtype=F64))
    assert best.value >= gp.log_joint(x, y).item()


@pytest.mark.parametrize(
    ("domain", "density"),
    [
        (None, prior(torch.distributions.LogNormal, 0.3, 0.7)),
        (None, prior(torch.distributions.Gamma, 2.5, 1.5)),
        (None, prior(torch.distributions.HalfNormal, 2.0)),
        (torch.distributions.constraints.greater_than(0.2), prior(torch.distributions.LogNormal, 0.3, 0.7)),
        (torch.distributions.constraints.greater_than(0.2), prior(torch.distributions.Gamma, 2.5, 1.5)),
        (torch.distributions.constraints.interval(0.1, 5.0), prior(torch.distributions.Normal, 1.0, 2.0)),
    ],
)
def test_priors_of_every_kind(domain: object, density: torch.distributions.Distribution) -> None:
    """Closed forms on the flat vector, eq. (M-47), and the slow path, against torch.distributions through autograd."""
    x, y = data(8)
    gp = fgp.GP(k.RBF(fgp.Parameter(torch.tensor([0.9, 1.4]), domain, density)), m.Zero(), lik.Gaussian(0.1))
    first = fgp.fit(gp, x, y, initial="given", priors="given", max_iterations=1).history[0]
    joint = gp.log_joint(x, y)
    gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(joint, list(gp.parameters()))])
    assert first.value == pytest.approx(joint.item(), rel=1e-12)
    assert first.gradient_norm == pytest.approx(float(gradient.abs().max()), rel=1e-9)


def test_weak_priors_are_these() -> None:
    """Eqs. (M-44), (M-45) and (M-46), written out: the first evaluation minus the likelihood at its vector."""
    x, y = data(20, 3)
    gp = fgp.GP(1.0 * k.RBF(torch.ones(3)), m.Constant(), lik.Gaussian(0.5))
    first = fgp.fit(gp, x, y, starts=1, max_iterations=1).history[0]
    spread, v = x.std(0, correction=0), float(y.var(correction=0))
    ends = torch.tensor([math.log(v), float(y.mean()), math.log(v / 10)], dtype=F64)
    start = torch.cat([ends[:1], (spread * math.sqrt(3)).log(), ends[1:]])
    order = [name for name, _ in gp.named_parameters()]
    assert order == [
        "kernel.variance.raw",
        "kernel.kernel.lengthscale.raw",
        "mean.value.raw",
        "likelihood.noise_variance.raw",
    ]
    theta = torch.tensor(first.theta, dtype=F64)
    assert relative(theta, start) < 1e-14

    def normal(value: float, mean: float, sd: float) -> float:
        return -0.5 * ((value - mean) / sd) ** 2 - math.log(sd) - 0.5 * math.log(2 * math.pi)

    wanted = normal(math.log(v), math.log(v), 2.0) + normal(math.log(v / 10), math.log(v) - 4.0, 2.0)
    for s in spread.tolist():
        centre = math.log(s) + math.sqrt(2.0) + 0.5 * math.log(3)
        wanted += normal(math.log(s * math.sqrt(3)), centre, math.sqrt(3.0))
    parts = theta.split([1, 3, 1, 1])
    shapes = [p.shape for p in gp.parameters()]
    named = {n: part.view(s) for n, part, s in zip(order, parts, shapes, strict=True)}
    assert first.value == pytest.approx(gp.log_marginal_likelihood(x, y, theta=named).item() + wanted, rel=1e-12)


def test_long_lengthscales_are_reset() -> None:
    """Both runs begin where the likelihood is flat in the second lengthscale; the last run starts it afresh."""
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(60, 2, generator=generator, dtype=F64)
    y = torch.sin(7 * x[:, 0]) + torch.sin(5 * x[:, 1]) + 0.05 * torch.randn(60, generator=generator, dtype=F64)
    gp = fgp.GP(1.0 * k.RBF(torch.tensor([0.3, 1e5])), m.Zero(), lik.Gaussian(0.5))
    stuck = fgp.fit(gp, x, y, initial="given", priors="given", starts=1)
    assert not any("reset" in e.start for e in stuck.history)
    fit = fgp.fit(gp, x, y, initial="given", priors="given", starts=2)
    reached = fgp.fit(gp, x, y, priors="given", starts=1).posterior.log_marginal_likelihood().item()
    assert fit.posterior.log_marginal_likelihood().item() == pytest.approx(reached, abs=0.01)
    assert reached > stuck.posterior.log_marginal_likelihood().item() + 50
    (event,) = [event for event in fit.report.events if event.kind is EventKind.LENGTHSCALES_RESET]
    assert event.fields["lengthscales"] == 1
    assert event.fields["gain"] > 50
    coarse = FitSettings(search=SearchSettings(min_decrease=event.fields["gain"]))
    fit = fgp.fit(gp, x, y, initial="given", priors="given", starts=2, settings=coarse)
    assert any("reset" in e.start for e in fit.history)
    assert not any(one.kind is EventKind.LENGTHSCALES_RESET for one in fit.report.events), "less than ten steps' worth"
    assert fit.report.iterations == len(fit.history)


def test_the_argument_is_not_changed() -> None:
    x, y = data(12)
    x.requires_grad_()
    gp = model()
    before, x_before, y_before = state(gp), x.detach().clone(), y.clone()
    rng = torch.get_rng_state()
    numpy_state = numpy.random.get_state()[1].copy()  # noqa: NPY002 - the global generator is what is watched
    fit = fgp.fit(gp, x, y, max_iterations=5)
    assert all(torch.equal(before[name], value) for name, value in gp.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in gp.parameters())
    assert torch.equal(x, x_before)
    assert torch.equal(y, y_before)
    assert torch.equal(torch.get_rng_state(), rng)
    assert (numpy.random.get_state()[1] == numpy_state).all()  # noqa: NPY002
    fitted = list(fit.gp.parameters())
    assert all(p.requires_grad and p.is_leaf for p in fitted)
    assert len({p.untyped_storage().data_ptr() for p in fitted}) == len(fitted), "parameters must own their memory"
    again = fgp.fit(fit.gp, x, y, initial="given", max_iterations=5)  # a fitted gp is a gp
    assert again.history[0].value >= fit.history[0].value


def test_fixed_and_shared_parameters() -> None:
    x, y = data(15)
    shared = fgp.Parameter(0.8)
    fixed = fgp.Parameter(0.05, trainable=False)
    gp = fgp.GP(k.RBF(shared, active_dims=[0]) * k.Matern(1.5, shared, active_dims=[1]), m.Zero(), lik.Gaussian(fixed))
    fit = fgp.fit(gp, x, y)
    assert fit.gp.likelihood.noise_variance.value.item() == fixed.value.item()
    assert not fit.gp.likelihood.noise_variance.trainable
    assert len(fit.history[0].theta) == 1
    one, two = (part.lengthscale for part in fit.gp.kernel.parts)
    assert one is two
    assert one is not shared
    frozen = copy.deepcopy(gp).requires_grad_(False)
    nothing = fgp.fit(frozen, x, y)
    assert relative(nothing.posterior.log_marginal_likelihood(), gp.log_marginal_likelihood(x, y)) < 1e-13


def test_a_batch_of_models_is_a_sum() -> None:
    """Two data sets, two sets of parameters: each ends where it ends alone."""
    (x1, y1), (x2, y2) = data(12, seed=1), data(12, seed=2)
    x, y = torch.stack([x1, x2]), torch.stack([y1, y2])
    both = fgp.GP(
        torch.ones(2) * k.RBF(torch.ones(2, 2)), m.Constant(torch.zeros(2)), lik.Gaussian(torch.full((2,), 0.1))
    )
    together = fgp.fit(both, x, y, priors="given", initial="given", max_iterations=400)
    assert together.posterior.log_marginal_likelihood().shape == (2,)
    for member, (one_x, one_y) in enumerate([(x1, y1), (x2, y2)]):
        alone = fgp.GP(1.0 * k.RBF(torch.ones(2)), m.Constant(), lik.Gaussian(0.1))
        alone = fgp.fit(alone, one_x, one_y, priors="given", initial="given")
        found = together.posterior.log_marginal_likelihood()[member]
        assert float(found) == pytest.approx(float(alone.posterior.log_marginal_likelihood()), abs=2e-3)


def test_several_outputs() -> None:
    x, y = data(15)
    targets = torch.stack([y, 5.0 + 3.0 * y], -1)
    fit = fgp.fit(fgp.GP(1.0 * k.RBF(), outputs=2), x, targets, max_iterations=30)
    assert fit.gp.mean.value.value.shape == (2,)
    assert fit.posterior.predict(x).mean.shape == (15, 2)
    assert fit.gp.mean.value.value[1].item() == pytest.approx(5.0 + 3.0 * fit.gp.mean.value.value[0].item(), abs=0.5)


@pytest.mark.parametrize("y", [0.0, 3.0, -1e15])
@pytest.mark.parametrize("n", [1, 2, 7])
def test_a_constant_target(n: int, y: float) -> None:
    """CONTRACTS' case 3: it converges, predicts the constant, and the standard deviation is finite."""
    x, _ = data(n, 3)
    fit = fgp.fit(model(3), x, torch.full((n,), y, dtype=F64))
    found = fit.posterior.predict(torch.randn(4, 3, dtype=F64))
    assert found.observation_variance.isfinite().all()
    assert relative(found.mean, torch.full((4,), y, dtype=F64)) <= 1e-3 if y else found.mean.abs().max() < 1e-3


@pytest.mark.parametrize(("n", "d"), [(1, 1), (1, 5), (2, 1), (2, 5), (5, 40)])
def test_few_rows(n: int, d: int) -> None:
    x, y = data(n, d)
    fit = fgp.fit(model(d), x, y)
    found = fit.posterior.predict(x)
    assert found.mean.isfinite().all()
    assert (found.variance >= 0).all()
    assert math.isfinite(fit.history[-1].value)


@pytest.mark.parametrize("repeat", [False, True])
def test_scales_do_not_matter(repeat: bool) -> None:
    """CONTRACTS' case 4: columns scaled 1e-8 to 1e8 and y moved and scaled give the same predictions, moved back."""
    x, y = data(20, 3)
    x_test, _ = data(5, 3, seed=8)
    scales = torch.tensor([1e-8, 1.0, 1e8], dtype=F64)
    scale, shift = (1e12, 1e15) if not repeat else (1e-8, 0.0)
    gp = fgp.GP(1.0 * k.Matern(2.5, torch.ones(3)), m.Constant(), lik.Gaussian(0.1))
    plain = fgp.fit(gp, x, y, starts=1).posterior.predict(x_test)
    moved = fgp.fit(gp, x * scales, y * scale + shift, starts=1).posterior.predict(x_test * scales)
    # The optimum is where the gradient is below 1e-3 nats: parameters agree to about that, predictions to its square.
    assert relative((moved.mean - shift) / scale, plain.mean) < 1e-3
    assert relative(moved.observation_variance / scale**2, plain.observation_variance) < 5e-3


def test_a_bound_is_reported() -> None:
    """A column that plays no part drives its lengthscale up; without noise in y the noise goes to its floor."""
    x = torch.linspace(0, 1, 12, dtype=F64)[:, None]
    fit = fgp.fit(fgp.GP(1.0 * k.RBF(), m.Zero(), lik.Gaussian(0.1)), x, torch.sin(3 * x[:, 0]), priors="given")
    floor = 1e-10 * float(torch.sin(3 * x[:, 0]).var(correction=0))
    at_bound = fit.gp.likelihood.noise_variance.value.item() <= floor * (1 + 1e-12)
    assert at_bound == (Event(EventKind.ON_BOUND, parameter="likelihood.noise_variance") in fit.report.events)
    assert at_bound


def test_iterations_are_limited() -> None:
    x, y = data(15)
    short = fgp.fit(model(), x, y, starts=1, max_iterations=2)
    long = fgp.fit(model(), x, y, starts=1)
    assert len(short.history) < len(long.history)
    assert not short.interrupted
    assert [e.theta for e in short.history[:3]] == [e.theta for e in long.history[:3]]


def test_starts() -> None:
    x, y = data(15)
    for starts in (1, 3):
        fit = fgp.fit(model(), x, y, starts=starts, max_iterations=3)
        assert {e.start for e in fit.history} == {f"start {i}" for i in range(starts)}
    given = fgp.fit(model(), x, y, starts=1, initial="given", max_iterations=1).history[0]
    assert given.theta == tuple(torch.cat([p.detach().reshape(-1) for p in model().parameters()]).tolist())


def test_given_values_that_the_data_suggest_too_are_no_start_of_their_own() -> None:
    x, _ = data(30)
    x = (x - x.mean(dim=0)) / x.std(dim=0, correction=0)
    y = x[:, 0].sin()
    y = (y - y.mean()) / y.std(correction=0)
    fit = fgp.fit(fgp.GP(DEFAULT.build(2), m.Constant(), lik.Gaussian(0.1)), x, y, max_iterations=1)
    first = [next(e.theta for e in fit.history if e.start == f"start {i}") for i in range(4)]
    apart = [max(abs(a - b) for a, b in zip(one, two, strict=True)) for one, two in itertools.combinations(first, 2)]
    assert min(apart) > 0.1  # of a spread of 1


def test_runs_of_several_starts_are_the_runs_alone() -> None:
    """The trajectory of a start does not depend on how many others there are."""
    x, y = data(10)
    many, one = fgp.fit(model(), x, y, starts=3), fgp.fit(model(), x, y, starts=1)
    own = [(e.value, e.theta) for e in many.history if e.start == "start 0"]
    assert own[:8] == [(e.value, e.theta) for e in one.history][:8]


def on_subset(rows: int) -> FitSettings:
    """Starts are chosen on so many rows."""
    return FitSettings(search=SearchSettings(start_rows=rows))


def test_a_large_problem_chooses_its_start_on_a_subset() -> None:
    x, y = data(14)
    gp = fgp.GP(1.0 * k.RBF(), m.Constant(), lik.Gaussian(0.1, row_variance=torch.linspace(0.1, 0.2, 14)))
    fit = fgp.fit(gp, x, y, settings=on_subset(8))
    assert {e.start for e in fit.history} == {*(f"subset {i}" for i in range(4)), "start 0"}
    assert Event(EventKind.SUBSET_FIT, starts=4, subset=8, rows=14) in fit.report.events
    assert fit.gp.likelihood.row_variance.shape == (14,)
    ends = {e.start: e.theta for e in sorted(fit.history, key=lambda e: e.value) if e.start.startswith("subset")}
    assert next(e for e in fit.history if e.start == "start 0").theta in ends.values()


def test_what_follows_the_subset_moves_the_model_that_is_returned() -> None:
    """Seen red when the subset's objective took the parameters over: all later evaluations were equal."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(60, 2, generator=generator, dtype=F64)
    y = torch.sin(5 * x[:, 0]) + 0.1 * torch.randn(60, generator=generator, dtype=F64)
    gp = fgp.GP(1.0 * k.Matern(nu=2.5, lengthscale=torch.ones(2)))
    large = fgp.fit(gp, x, y, starts=3, priors="given", settings=on_subset(12))
    values = [e.value for e in large.history if e.start.startswith("start")]
    assert max(values) > values[0]
    assert large.gp.log_joint(x, y).item() == pytest.approx(max(values), rel=1e-9)
    whole = fgp.fit(gp, x, y, priors="given")
    assert abs(float((large.gp.log_joint(x, y) - whole.gp.log_joint(x, y)).detach())) < 0.01


def test_a_prior_on_part_of_the_domain_is_refused_before_the_search_leaves_it() -> None:
    """Seen red as torch's own ValueError from the middle of a line search."""
    x = torch.linspace(0, 1, 9, dtype=F64)[:, None]
    uniform = prior(torch.distributions.Uniform, 0.9, 1.1)
    gp = fgp.GP(k.RBF(fgp.Parameter(1.0, prior=uniform)))
    with pytest.raises(fgp.DomainError, match=r"`prior` of kernel.lengthscale .*interval\(0.9, 1.1\)"):
        fgp.fit(gp, x, torch.sin(x[:, 0]), starts=1)
    inside = fgp.Parameter(1.0, torch.distributions.constraints.interval(0.9, 1.1), uniform)
    fitted = fgp.fit(fgp.GP(k.RBF(inside)), x, torch.sin(x[:, 0]), starts=1)
    assert 0.9 < fitted.gp.kernel.lengthscale.value.item() < 1.1


def test_progress_and_time_limit() -> None:
    x, y = data(15)
    seen: list[object] = []
    fit = fgp.fit(model(), x, y, progress=seen.append)
    assert [p.evaluation for p in seen] == list(range(1, len(fit.history) + 1))
    assert all(0.0 < p.fraction <= 1.0 for p in seen)
    assert [p.best for p in seen] == sorted(p.best for p in seen)
    assert seen[-1].best == max(e.value for e in fit.history)
    assert all(p.eta_seconds is None or p.eta_seconds >= 0 for p in seen)
    limited = fgp.fit(model(), x, y, time_limit=1e-9)
    assert limited.interrupted
    assert Event(EventKind.FIT_TIME_UP, limit=1e-9, unfitted=True) in limited.report.events
    assert limited.posterior.predict(x).mean.isfinite().all()


def by_iteration(gp: fgp.GP, n: int, d: int, **changes: object) -> fgp.Plan:
    return dataclasses.replace(fgp.plan(gp, n=n, d=d, route="recomputed"), training="exact", **changes)


@pytest.mark.filterwarnings("ignore::flashgp.FlashGPWarning")
def test_the_posterior_of_a_fit_has_its_seed_and_what_is_left_of_the_limit() -> None:
    """The search leaves a tenth, so that there is an answer; where time ends its solve too, it is labelled."""
    x, y = data(60)
    plan = by_iteration(model(), 60, x.shape[1], seconds=1e6)
    slow = fgp.fit(model(), x, y, plan=plan, seed=7, time_limit=0.5, progress=lambda p: time.sleep(0.02))
    assert slow.posterior.state.run.seed == 7
    assert slow.interrupted
    assert slow.history[-2].seconds <= 0.45
    with pytest.warns(fgp.FlashGPWarning, match="time limit") as caught:
        cut = fgp.fit(model(), x, y, plan=plan, time_limit=1e-9)
    assert len(caught) == 1
    (event,) = [event for event in cut.report.events if event.kind is EventKind.SOLVE_ENDED]
    assert event.fields["reason"] == "time"
    assert cut.report.error_bound == cut.posterior.report.error_bound == event.fields["bound"] > 0.0


def test_a_limit_costs_no_fit_its_answer() -> None:
    """No other method begins after a deadline, so that a float32 factor that fails then is no answer at all."""
    x, y = data(60)
    gp = fgp.GP(
        k.RBF(fgp.Parameter(3.0, trainable=False)), m.Zero(), lik.Gaussian(fgp.Parameter(1e-9, trainable=False))
    )
    plan = dataclasses.replace(fgp.plan(gp, n=60, d=x.shape[1], route="refined"), training="stored")
    with pytest.warns(fgp.FlashGPWarning, match="float64 Cholesky factor of all rows"):
        found = fgp.fit(gp, x, y, plan=plan, time_limit=1e-9)
    assert found.posterior.report.route == "direct"


def test_an_interrupt_returns_the_best_so_far() -> None:
    x, y = data(15)

    def stop_at(count: int) -> object:
        def progress(p: object) -> None:
            if p.evaluation == count:
                raise KeyboardInterrupt

        return progress

    whole = fgp.fit(model(), x, y)
    for starts, count in ((None, 1), (None, 9), (1, 4)):
        cut = fgp.fit(model(), x, y, starts=starts, progress=stop_at(count))
        assert cut.interrupted
        assert len(cut.history) >= count
        assert Event(EventKind.FIT_INTERRUPTED) in cut.report.events
        best = max(cut.history, key=lambda e: e.value)
        assert torch.equal(
            torch.cat([p.detach().reshape(-1) for p in cut.gp.parameters()]), torch.tensor(best.theta, dtype=F64)
        )
        assert relative(cut.posterior.log_marginal_likelihood(), cut.gp.log_marginal_likelihood(x, y)) < 1e-12
    assert not whole.interrupted


@pytest.mark.parametrize(("at", "again"), [(1, False), (4, False), (4, True)])
def test_an_interrupt_of_the_last_solve_keeps_its_weights(at: int, again: bool) -> None:
    """Ctrl-C in a product of the last solve, and a second one in the pass that measures what there is."""
    x, y = data(60)
    plan = dataclasses.replace(by_iteration(model(), 60, x.shape[1], rank=2), solver="cg")
    whole = fgp.fit(model(), x, y, plan=plan, tolerance=1e-8, starts=1)
    products = interrupted_products(60, *((at, at + 1) if again else (at,)))
    with products, pytest.warns(fgp.FlashGPWarning, match="Ctrl-C ended the solve"):
        cut = fgp.fit(model(), x, y, plan=plan, tolerance=1e-8, starts=1)
    assert products.count == (at + 1 if at > 1 else 1), "one more pass measures what was done, or is cut short itself"
    assert cut.interrupted
    assert Event(EventKind.FIT_SOLVE_INTERRUPTED) in cut.report.events
    assert [e.theta for e in cut.history] == [e.theta for e in whole.history]
    bound = cut.report.error_bound
    assert bound > whole.report.error_bound
    exact = cut.gp.condition(x, y, solver="cholesky").predict(x).mean
    assert float((cut.posterior.predict(x).mean - exact).abs().max()) <= bound
    if at > 1 and not again:
        assert cut.report.relative_residual < 1.0, "what was done counts"


def interrupted_products(n: int, *at: int) -> InsideTorch:
    """Inside, Ctrl-C comes in these products of an n x n covariance matrix, as the last solve makes them."""
    return InsideTorch(product_of(n), raising(KeyboardInterrupt, *at))


@pytest.mark.parametrize("route", ["direct", "refined", "recomputed"])
def test_an_interrupt_without_a_partial_answer_leaves_the_trained_model(route: str, tmp_path: Path) -> None:
    """In a factorisation, or while a solve is prepared: the gp, and a checkpoint from which the same call goes on."""
    x, y = data(40)
    plan = dataclasses.replace(fgp.plan(model(), n=40, d=x.shape[1], route=route), training="exact")
    checkpoint = tmp_path / "fit.checkpoint"
    whole = fgp.fit(model(), x, y, plan=plan, starts=1, checkpoint=checkpoint)

    class Done(LogJoint):
        def __call__(self, theta: numpy.ndarray) -> None:
            raise AssertionError("the search is done")

    options = {"plan": plan, "starts": 1, "checkpoint": checkpoint, "settings": FitSettings(objective=Done)}

    factorisation = InsideTorch(factorises, raising(KeyboardInterrupt, 1))
    told = r"the field `gp`.*checkpoint='.*fit.checkpoint'"
    with factorisation, pytest.raises(fgp.FitInterrupted, match=told) as caught:
        fgp.fit(model(), x, y, **options)
    stop = caught.value
    assert isinstance(stop.__cause__, KeyboardInterrupt)
    assert stop.history[-1].theta == whole.history[-1].theta
    for found, wanted in zip(stop.gp.parameters(), whole.gp.parameters(), strict=True):
        assert torch.equal(found, wanted)
    assert relative(stop.gp.condition(x, y).predict(x).mean, whole.posterior.predict(x).mean) < 1e-3
    resumed = fgp.fit(model(), x, y, **options)
    assert torch.equal(resumed.posterior.predict(x).mean, whole.posterior.predict(x).mean)


@pytest.mark.parametrize("what", ["condition", "variance"])
def test_other_solves_are_ended_by_an_interrupt(what: str) -> None:
    """Who asks for one solve, or for many, wants out."""
    x, y = data(60)
    gp = model()
    plan = by_iteration(gp, 60, x.shape[1])
    posterior = gp.condition(x, y, plan=plan)
    with interrupted_products(60, 2), pytest.raises(KeyboardInterrupt):
        gp.condition(x, y, plan=plan) if what == "condition" else posterior.predict(x).variance


def test_an_error_of_the_callback_is_the_callers() -> None:
    x, y = data(10)

    def broken(_: object) -> None:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        fgp.fit(model(), x, y, progress=broken)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"starts": 0}, "`starts`"),
        ({"starts": 1.5}, "`starts`"),
        ({"initial": "best"}, "`initial`"),
        ({"priors": "none"}, "`priors`"),
        ({"max_iterations": 0}, "`max_iterations`"),
        ({"time_limit": -1.0}, "`time_limit`"),
        ({"time_limit": math.nan}, "`time_limit`"),
    ],
)
def test_options(options: dict[str, object], message: str) -> None:
    x, y = data(5)
    with pytest.raises(fgp.DomainError, match=message):
        fgp.fit(model(), x, y, **options)


def test_no_rows() -> None:
    x, y = data(0)
    with pytest.raises(fgp.ShapeError, match="at least one row"):
        fgp.fit(model(), x, y)


def test_nothing_positive_definite() -> None:
    """Conflicting duplicates and no noise to train: no start can be evaluated, and the error says so."""
    gp = fgp.GP(k.RBF(), m.Zero(), lik.Gaussian(0.0))
    with pytest.raises(fgp.NotPositiveDefiniteError, match="no start"):
        fgp.fit(gp, torch.zeros(3, 1, dtype=F64), torch.arange(3.0, dtype=F64))


def test_a_jitter_beside_a_plan_without_a_factor_is_refused_before_training() -> None:
    x = torch.linspace(0, 1, 20, dtype=torch.float64)[:, None]
    gp = fgp.GP(fgp.kernels.RBF(1.0))
    plan = fgp.plan(gp, n=20, d=1, route="stored")
    seen: list[object] = []
    with pytest.raises(DomainError, match="jitter"):
        fgp.fit(gp, x, x[:, 0], plan=plan, jitter=1e-8, progress=seen.append)
    assert not seen


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_given_values_are_the_start_wherever_the_data_would_put_bounds(scale: float) -> None:
    """Of one row y has no variance, and bounds around a guess of it are far from the given values."""
    gp = fgp.GP(scale * k.Matern(2.5, 0.4), m.Constant(), lik.Gaussian(0.1 * scale))
    x, y = torch.ones(1, 1, dtype=F64), torch.full((1,), -0.36, dtype=F64)
    fit = fgp.fit(gp, x, y, initial="given", priors="given", max_iterations=1)
    assert fit.history[0].theta == pytest.approx(torch.cat([p.detach().reshape(-1) for p in gp.parameters()]).tolist())
    before, after = (float(one.log_joint(x, y).detach()) for one in (gp, fit.gp))
    assert after >= before - 1e-12 * (1 + abs(before))
