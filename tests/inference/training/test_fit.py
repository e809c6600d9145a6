"""fit: what it reaches, what it leaves alone, what it says; its repeatability is in test_resume.py."""

import contextlib
import copy
import dataclasses
import math
import signal
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import flashgp as fgp
from flashgp.foundations.events import Event, EventKind
from flashgp.inference.settings import TimeSettings
from flashgp.inference.training.objective import LogJoint
from flashgp.inference.training.options import FitSettings
from flashgp.inference.training.settings import SearchSettings
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
    mean = m.Constant(fgp.Parameter(0.2, prior=prior(torch.distributions.Normal, 0.0, 2.0)))
    gp = fgp.GP(k.RBF(fgp.Parameter(torch.tensor([0.9, 1.4]), domain, density)), mean, lik.Gaussian(0.1))
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
    centres = spread.log() + math.sqrt(2.0) + 0.5 * math.log(3)
    columns = torch.eye(3, dtype=F64) + 2.0  # a third of the variance is a column's own
    wanted += float(torch.distributions.MultivariateNormal(centres, columns).log_prob((spread * math.sqrt(3)).log()))
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


@pytest.mark.parametrize("y", [0.0, 3.0, -1e15])
@pytest.mark.parametrize("n", [1, 2, 7])
def test_a_constant_target(n: int, y: float) -> None:
    """CONTRACTS' case 3: it converges, predicts the constant, and the standard deviation is finite."""
    x, _ = data(n, 3)
    fit = fgp.fit(model(3), x, torch.full((n,), y, dtype=F64))
    found = fit.posterior.predict(torch.randn(4, 3, dtype=F64))
    assert found.observation_variance.isfinite().all()
    assert relative(found.mean, torch.full((4,), y, dtype=F64)) <= 1e-3 if y else found.mean.abs().max() < 1e-3


def test_starts() -> None:
    x, y = data(15)
    for starts in (1, 3):
        fit = fgp.fit(model(), x, y, starts=starts, max_iterations=3)
        assert {e.start for e in fit.history} == {f"start {i}" for i in range(starts)}
    given = fgp.fit(model(), x, y, starts=1, initial="given", max_iterations=1).history[0]
    assert given.theta == tuple(torch.cat([p.detach().reshape(-1) for p in model().parameters()]).tolist())


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


@pytest.mark.parametrize("approximation", [None, "full_scale", "sparse", "fourier"])
def test_after_an_interrupt_the_posterior_is_of_what_there_is_time_for(approximation: str | None) -> None:
    """In place of minutes that nobody who pressed Ctrl-C waits for."""
    if approximation == "fourier":
        pytest.importorskip("finufft")
    x, y = data(160)
    options: dict[str, Any] = {"starts": 1, "approximation": approximation}
    if approximation in ("full_scale", "sparse"):
        options["inducing"] = 10

    def stop(_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    def within(seconds: float) -> FitSettings:
        none = TimeSettings(30, grace_share=0.0, grace_seconds=0.0, negligible_seconds=0.0, interrupt_seconds=seconds)
        return FitSettings(time=none)

    def fitted(settings: FitSettings, **more: Any) -> fgp.Fit:
        return fgp.fit(model(), x[:, :2], y, settings=settings, **options, **more)

    told: Any = contextlib.nullcontext()
    if approximation != "fourier":  # whose sample has all of so few rows
        told = pytest.warns(fgp.FlashGPWarning, match="Ctrl-C left no time for the planned posterior of 160 rows: this")
    with told:
        cut = fitted(within(0.0), progress=stop)
    assert cut.interrupted
    assert cut.posterior.count == (160 if approximation == "fourier" else 30)
    assert fitted(within(0.0), max_iterations=1).posterior.count == 160
    assert fitted(within(60.0), progress=stop).posterior.count == 160


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


def test_nothing_positive_definite() -> None:
    """Conflicting duplicates and no noise to train: no start can be evaluated, and the error says so."""
    gp = fgp.GP(k.RBF(), m.Zero(), lik.Gaussian(0.0))
    with pytest.raises(fgp.NotPositiveDefiniteError, match="no start"):
        fgp.fit(gp, torch.zeros(3, 1, dtype=F64), torch.arange(3.0, dtype=F64))
