"""Learning online without a float64 factor equals conditioning on the same rows, to the tolerance of conditioning."""

import dataclasses
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import DomainError, FlashGPWarning, NotPositiveDefiniteError
from flashgp.foundations.events import EventKind, of_kind
from flashgp.inference.predict.plan import price_of
from flashgp.solvers.preconditioners.low_rank import LowRank
from inference.plain_gp import data, model

F64 = torch.float64
Posterior = Any
TOLERANCE = 1e-5  # standard deviations of an observation
ROUTES = {
    "stored": ("stored", "cg"),
    "recomputed": ("recomputed", "cg"),
    "refined": ("refined", "cholesky"),
}


def conditioned(gp: fgp.GP, x: Tensor, y: Tensor, way: str, **options: Any) -> Posterior:
    route, solver = ROUTES[way]
    distinct = len(torch.unique(x, dim=0))
    plan = fgp.plan(gp, n=len(x), d=x.shape[1], distinct=distinct, route=route, solver=solver)
    return gp.condition(x, y, plan=plan, **({"tolerance": TOLERANCE} | options))


def agree(post: Posterior, gp: fgp.GP | None = None) -> None:
    """All that a posterior answers, against a float64 factor of the same rows."""
    wanted = (post.gp if gp is None else gp).condition(post.x, post.y, dtype=F64)
    at = post.x[:1] + torch.linspace(0.05, 0.9, 7, dtype=F64)[:, None]
    noise = float(post.noise.min()) ** 0.5
    assert post.report.error_bound <= 1.001 * TOLERANCE * noise
    p, q = post.predict(at), wanted.predict(at)
    assert float((p.mean - q.mean).abs().max()) <= post.report.error_bound
    short = (p.variance - q.variance) / q.variance
    assert float(short.min()) > -1e-6
    assert float(short.max()) <= 0.011, "too large by a hundredth at most, M-101"
    value, truth = float(post.log_marginal_likelihood()), float(wanted.log_marginal_likelihood())
    error = post.report.standard_error
    assert abs(value - truth) <= (1e-4 * abs(truth) if error is None else 5.0 * error + 1e-4)
    if all(one.factor is not None for one in post.by_output or (post,)):
        a, b = post.leave_one_out(), wanted.leave_one_out()
        assert float((a.mean - b.mean).abs().max()) < 1e-3 * noise
        assert float((a.variance / b.variance - 1.0).abs().max()) < 1e-3
    else:
        with pytest.raises(DomainError, match="`leave_one_out` needs a factor"):
            post.leave_one_out()


UPDATES: dict[str, Callable[[Posterior, Tensor, Tensor], Posterior]] = {
    "append one": lambda post, x, y: post.append(x[:1], y[:1]),
    "append sixteen": lambda post, x, y: post.append(x[:16], y[:16]),
    "drop the first": lambda post, x, y: post.drop([0]),
    "drop some": lambda post, x, y: post.drop([3, 50, 51, 52, 149]),
    "slide": lambda post, x, y: post.slide(x[:5], y[:5]),
    "replace": lambda post, x, y: post.replace([140, 7], x[:2], y[:2]),
}


@pytest.mark.parametrize("way", ["recomputed", "refined"])
@pytest.mark.parametrize("kind", UPDATES)
def test_updates_equal_conditioning(way: str, kind: str) -> None:
    x, y = data(180)
    post = conditioned(model(), x[:150], y[:150], way)
    before = post.predict(x[150:]).mean
    found = UPDATES[kind](post, x[150:], y[150:])
    agree(found)
    assert found.report.iterations is not None
    assert found.report.seconds > 0.0
    (line,) = of_kind(found.report.events, EventKind.UPDATED)
    assert line.stage == "update"
    assert line.fields["refactorised"] is None
    assert line.fields["iterations"] == found.report.iterations
    assert line.fields["bound"] == found.report.error_bound
    assert (found.factor is None) == (way != "refined")
    assert torch.equal(post.predict(x[150:]).mean, before), "older posteriors stay as they were"
    assert (post.count, post.state.online.appended, post.state.online.dropped) == (150, 0, 0)


@pytest.mark.parametrize("way", ["stored", "refined"])
def test_a_sequence_of_updates(way: str) -> None:
    x, y = data(180, 3)
    x[150:] += 1.5  # some of what comes lies where no pivot is
    gp = fgp.GP(1.3 * fgp.kernels.Matern(1.5, torch.tensor([0.8, 1.0, 1.5])), fgp.means.Linear(torch.ones(3), 0.2))
    post = conditioned(gp, x[:120], y[:120], way)
    rows = list(range(120))
    for start in range(120, 168, 6):
        new = list(range(start, start + 6))
        if start % 4 == 0:
            post, rows = post.slide(x[new], y[new]), rows[6:] + new
        else:
            gone = [5, 17, 18]
            post, rows = post.append(x[new], y[new]).drop(gone), [r for i, r in enumerate(rows + new) if i not in gone]
    assert torch.equal(post.x, x[rows])
    agree(post)
    kinds = [event.kind for event in post.report.events if event.stage == "update"]
    assert kinds.count(EventKind.UPDATED) == 1, "each update replaces the events of the last"
    assert kinds.count(EventKind.SOLVED) == 1


@pytest.mark.parametrize("way", ["recomputed", "refined"])
@pytest.mark.parametrize("shared", [True, False])
def test_noise_of_each_row_and_several_outputs(way: str, shared: bool) -> None:
    x, y = data(140)
    variance, weight = torch.linspace(0.05, 0.5, 140, dtype=F64), torch.linspace(1.0, 3.0, 140, dtype=F64)
    targets = torch.stack([y, y.square(), -y], -1)
    relative = weight / weight[:120].log().mean().exp()  # to those of the rows that were there first, (M-251)

    def gp(rows: list[int]) -> fgp.GP:
        own = fgp.likelihoods.Gaussian(0.1, shared=shared).with_rows(variance[rows], relative[rows])
        return fgp.GP(fgp.kernels.RBF(), fgp.means.Constant(torch.tensor([0.1, 0.2, 0.3]), outputs=3), own, outputs=3)

    first = list(range(120))
    likelihood = fgp.likelihoods.Gaussian(0.1, variance[first], weight[first], shared=shared)
    post = conditioned(gp(first).with_likelihood(likelihood.for_outputs(3)), x[first], targets[first], way)
    post = post.append(x[120:], targets[120:], row_variance=variance[120:], row_weight=weight[120:]).drop([4, 100])
    agree(post, gp([i for i in range(140) if i not in (4, 100)]))


def repeated() -> tuple[Tensor, Tensor]:
    x, y = data(120)
    x[80:85], x[85:88] = x[3], x[7]
    return x, y


@pytest.mark.parametrize("way", ["recomputed", "refined"])
@pytest.mark.parametrize("gone", [[3], [3, 80, 81, 82, 83, 84], [0, 7, 119]], ids=str)
def test_members_of_a_joined_row_leave(way: str, gone: list[int]) -> None:
    """The noise of the others' mean grows, M-86 to M-88: a row that is another one to the factor."""
    x, y = repeated()
    post = conditioned(model(), x, y, way)
    assert post.distinct == 112
    found = post.drop(gone)
    agree(found)
    ready = found.state.solves.method.ready
    first = getattr(ready.preconditioner, "first", ready.preconditioner)  # without the candidate beside it
    if isinstance(first, LowRank):
        assert torch.equal(first.noise, found.noise)
    else:
        lower = ready.preconditioner.lower
        assert torch.allclose(lower.square().sum(1) - found.state.solves.system.diagonal(), found.noise, atol=1e-5)
    agree(post.append(x[3:4], y[5:6]).drop(gone))


def test_tiles_that_do_not_fit_are_recomputed(set_free_memory: Callable[[int], int]) -> None:
    x, y = data(200)
    post = conditioned(model(), x[:150], y[:150], "stored")
    free = set_free_memory(10_000)
    found = post.append(x[150:], y[150:])
    assert not found.state.solves.system.stored
    (event,) = of_kind(found.report.events, EventKind.TILES_NOT_STORED)
    assert event.fields["free"] == free
    set_free_memory(2**34)
    agree(found)


def test_tiles_that_cannot_be_had_are_recomputed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where enough memory is said to be free: it may be in pieces, or another process may take it meanwhile."""
    x, y = data(820)
    post = conditioned(model(), x[:800], y[:800], "stored")
    empty = torch.empty

    def exhausted(shape: Any, *, dtype: torch.dtype = torch.float32, **options: Any) -> Tensor:
        if dtype == torch.float32 and len(shape) == 1 and shape[0] > 800**2 // 2:
            raise RuntimeError("can't allocate memory")
        return empty(shape, dtype=dtype, **options)

    monkeypatch.setattr(torch, "empty", exhausted)
    found = post.append(x[800:], y[800:])
    monkeypatch.undo()
    assert not found.state.solves.system.stored
    (event,) = of_kind(found.report.events, EventKind.TILES_NOT_STORED)
    assert event.fields["free"] == 0
    agree(found)


def test_the_tolerance_goes_on(tmp_path: Path) -> None:
    x, y = data(180)
    post = conditioned(model(), x[:150], y[:150], "recomputed", tolerance=0.03)
    found = post.append(x[150:], y[150:])
    noise = float(post.noise.min()) ** 0.5
    assert 1e-3 * TOLERANCE < found.report.error_bound / noise <= 0.03
    fgp.save(post, tmp_path / "m.safetensors")
    assert fgp.load(tmp_path / "m.safetensors").state.run.tolerance == 0.03


@pytest.mark.parametrize("way", ["stored", "refined"])
def test_loaded_posteriors_learn(way: str, tmp_path: Path) -> None:
    x, y = data(180)
    for post in (
        conditioned(model(), x[:150], y[:150], way),
        conditioned(model(), x[:150], y[:150], way).append(x[150:160], y[150:160]).drop([0, 9]),
    ):
        fgp.save(post, tmp_path / "m.safetensors")
        loaded = fgp.load(tmp_path / "m.safetensors").append(x[160:], y[160:])
        agree(loaded)
        assert loaded.state.online.appended == post.state.online.appended + 20


@pytest.mark.parametrize("way", ["recomputed", "refined"])
def test_a_stream(way: str) -> None:
    x, y = data(180)
    stream = fgp.Stream(conditioned(model(), x[:150], y[:150], way), window=153)
    steps = list(stream.consume(zip(x[150:156], y[150:156], strict=True)))
    assert [step.count for step in steps][-1] == stream.posterior.count == 153
    assert torch.equal(stream.posterior.x, x[3:156])
    agree(stream.posterior)


@pytest.mark.parametrize("way", ["stored", "refined"])
def test_wrong_rows_leave_the_posterior_as_it_is(way: str) -> None:
    x, y = data(100)
    post = conditioned(model(), x[:90], y[:90], way)
    before, nan = post.representer_weights.clone(), torch.full((1, 2), torch.nan, dtype=F64)
    for update in (post.append, post.slide, lambda *rows: post.replace([0], *rows)):
        with pytest.raises(DomainError, match="`x` must be finite, got NaN"):
            update(nan, y[:1])
        with pytest.raises(DomainError, match="`y` must be finite"):
            update(x[:1], nan[0, :1])
    assert torch.equal(post.representer_weights, before)
    agree(post.append(x[90:], y[90:]))


@pytest.mark.parametrize("way", ROUTES)
def test_numbers_too_large_to_square_are_named(way: str) -> None:
    x, y = data(30)
    post = conditioned(model(), x[:20], y[:20], way)
    wrong = torch.cat([x[20:21], x[21:22] * 1e200])
    with pytest.raises(NotPositiveDefiniteError, match=r"must be finite.*new row 1 .*too large to square"):
        post.append(wrong, y[:2])
    agree(post.append(x[20:], y[20:]))


def test_a_duplicate_without_noise_is_refused() -> None:
    x, y = data(60)
    variance = torch.full((60,), 0.1, dtype=F64)
    variance[3] = 0.0
    gp = fgp.GP(fgp.kernels.RBF(), likelihood=fgp.likelihoods.Gaussian(None, row_variance=variance))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FlashGPWarning)  # without noise somewhere no bound is known
        post = gp.condition(x, y, solver="cg")
        for rows in (x[3:4], torch.cat([x[16:17] + 0.5, x[16:17] + 0.5])):
            with pytest.raises(NotPositiveDefiniteError, match="repeats another one without noise"):
                post.append(rows, y[: len(rows)], row_variance=torch.zeros(len(rows), dtype=F64))
        found = post.append(x[5:6], y[5:6], row_variance=torch.zeros(1, dtype=F64))
    assert abs(float(found.predict(x[5:6]).mean) - float(y[5])) < 1e-6


@pytest.mark.parametrize("way", ["recomputed", "refined"])
def test_nothing_left_is_the_prior_and_all_rows_may_be_replaced(way: str) -> None:
    x, y = data(120)
    post = conditioned(model(), x[:60], y[:60], way)
    assert post.drop(range(60)).count == 0
    other = post.slide(x[60:], y[60:])
    agree(other)
    assert other.report.route == ("refined" if way == "refined" else other.report.route)
    assert (other.state.online.appended, other.state.online.dropped) == (60, 60)


def test_a_warm_start_takes_fewer_iterations() -> None:
    x, y = data(600, 3)
    gp = fgp.GP(fgp.kernels.Matern(1.5, torch.full((3,), 0.5)), likelihood=fgp.likelihoods.Gaussian(0.1))
    post = conditioned(gp, x[:590], y[:590], "recomputed")
    found, fresh = post.append(x[590:591], y[590:591]), conditioned(gp, x[:591], y[:591], "recomputed")
    assert found.report.iterations < fresh.report.iterations


def test_variances_are_priced_by_solves_that_begin_at_zero() -> None:
    # M-107: a warm start says nothing of the solves that a variance takes.
    x, y = data(151)
    post = conditioned(model(), x[:150], y[:150], "recomputed")
    found = post.append(x[150:], y[150:])
    assert found.report.iterations < post.report.iterations
    before, after = (price_of(one.state, 10**5, "exact", True).seconds for one in (post, found))
    assert 0.95 * before < after < 1.05 * before


def test_a_solve_that_was_ended_early_is_finished_by_the_next_update() -> None:
    x, y = data(151)
    with pytest.warns(FlashGPWarning, match="time limit ended the solve"):
        post = conditioned(model(), x[:150], y[:150], "recomputed", time_limit=0.0)
    found = post.append(x[150:], y[150:])
    agree(found)
    assert not of_kind(found.report.events, EventKind.SOLVE_ENDED), "nothing of it is true any more"
    assert found.state.online.usual_iterations == found.report.iterations


def test_float64_factor_is_what_answers_alone() -> None:
    x, y = data(40)
    exact = model().condition(x, y)
    assert exact.state.float64_factor is exact.factor is not None
    assert conditioned(model(), x, y, "refined").state.float64_factor is None
    assert conditioned(model(), x, y, "recomputed").state.float64_factor is None
    assert exact.drop(range(40)).state.float64_factor is None


def test_a_solve_at_rounding_stays_without_a_factor() -> None:
    x = 0.8 * torch.rand(90, 3, generator=torch.Generator().manual_seed(0), dtype=F64)
    y = (3.0 * x.sum(1)).sin()
    gp = fgp.GP(fgp.kernels.SquaredExponential(2.0), likelihood=fgp.likelihoods.Gaussian(1e-12))
    plan = fgp.plan(gp, n=80, d=3, route="recomputed", solver="cg")
    with pytest.warns(FlashGPWarning, match="rounding of float64, before its tolerance"):
        post = gp.condition(x[:80], y[:80], plan=dataclasses.replace(plan, alternatives=()))
    with pytest.warns(FlashGPWarning, match="rounding of float64, before its tolerance"):
        found = post.append(x[80:], y[80:])
    assert found.report.route == "recomputed", "no factor would be more exact"


def test_iterations_in_the_report_are_those_of_the_last_update() -> None:
    x = torch.rand(120, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = (3.0 * x.sum(1)).sin()
    gp = fgp.GP(fgp.kernels.Matern(1.5, 0.3), likelihood=fgp.likelihoods.Gaussian(1e-2))
    before = gp.condition(x[:100], y[:100], solver="cg")
    assert len(of_kind(before.report.events, EventKind.SOLVED)) == 1
    after = before.append(x[100:], y[100:]).report
    (passed,) = of_kind(after.events, EventKind.SOLVED)
    assert (passed.stage, passed.fields["iterations"]) == ("update", after.iterations)
    (event,) = of_kind(after.events, EventKind.UPDATED)
    assert event.fields["iterations"] == after.iterations
