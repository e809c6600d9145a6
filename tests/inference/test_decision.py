"""approximation="auto", sizes by limits, what an exact fit offers, and what is lost in words."""

import dataclasses

import numpy
import pytest
import torch

import flashgp as fgp
from flashgp.foundations.events import ApproximationReason, EventKind, NoSeries, of_kind
from flashgp.foundations.profile import BUILT_IN
from flashgp.inference.approximation import Approximation
from flashgp.inference.choice import Choice
from flashgp.inference.plan_settings import RowCounts
from flashgp.planner.plan import Plan
from flashgp.planner.problem import PlanSettings
from inference.plain_gp import data, model

SMALL = {"inducing": 12, "neighbours": 9}


def choice(gp: fgp.GP, n: int, limit: float | None = None, **options: object) -> tuple[str, ApproximationReason]:
    settings = PlanSettings(**{"memory": "64GiB", "profile": BUILT_IN, **options})
    rows = RowCounts(n, 2)
    taken, plan, event = Choice(gp, rows, settings, limit).decided(Approximation("auto", series=False))
    assert plan.approximation == ("" if taken is None else taken.kind)
    assert event.fields["chosen"] == ("exact" if taken is None else taken.kind)
    if taken is not None:
        assert taken.sizes(n) == plan.sizes
    str(event)
    return event.fields["chosen"], ApproximationReason(event.fields["reason"])


def test_what_auto_takes() -> None:
    """Exact while it keeps to the limits, then full scale, whose fit tries points; points where plans alone decide."""
    gp = fgp.GP(1.0 * fgp.kernels.Matern(nu=1.5))
    assert choice(gp, 3000) == ("exact", ApproximationReason.FITS)
    assert choice(gp, 300_000) == ("exact", ApproximationReason.FITS)  # no limit: the default stays
    assert choice(gp, 300_000, 600.0) == ("full_scale", ApproximationReason.TIME)
    assert choice(gp, 3_000_000, 300.0) == ("full_scale", ApproximationReason.TIME)
    assert choice(gp, 3_000_000, 300.0, whole=True) == ("sparse", ApproximationReason.TIME)
    assert choice(gp, 30_000_000, 1.0, whole=True)[0] == "sparse"  # the quickest of what fits
    noisy = fgp.GP(fgp.kernels.Matern(), likelihood=fgp.likelihoods.Gaussian(row_weight=torch.ones(3_000_000) * 0.1))
    assert choice(noisy, 3_000_000, 300.0)[0] == "full_scale"
    two = fgp.GP(fgp.kernels.Matern(), outputs=2)
    assert choice(two, 300_000, 100.0) == ("full_scale", ApproximationReason.TIME)


def test_auto_takes_series_where_they_are_much_quicker() -> None:
    """(M-437): by price, with the smoothness of the kernel; else the plan has the reason."""
    k, settings = fgp.kernels, PlanSettings(memory="64GiB", profile=BUILT_IN)

    def of(kernel: fgp.kernels.Kernel, n: int, d: int, asked: Approximation, limit: float | None = None) -> Plan:
        taken, plan, event = Choice(fgp.GP(kernel), RowCounts(n, d), settings, limit).decided(asked)
        assert (plan.no_series is None) == (taken is not None and taken.kind == "fourier")
        assert event.fields["chosen"] in str(event).lower() or taken is not None
        return Plan.from_json(plan.to_json())

    auto, rough, smooth = Approximation("auto"), k.Matern(nu=0.5), k.RBF()
    assert of(smooth, 300_000, 1, auto).approximation == of(smooth, 300_000, 2, auto).approximation == "fourier"
    assert of(smooth, 300_000, 3, auto).no_series == NoSeries.SLOWER  # no factor: exact inference keeps to no limit
    assert of(smooth, 300_000, 3, auto, 600.0).approximation == "fourier"
    assert of(smooth, 500, 2, auto).no_series == of(rough, 300_000, 2, auto, 600.0).no_series == NoSeries.SLOWER
    assert of(k.Linear() + smooth, 300_000, 1, auto).no_series == NoSeries.KERNEL
    assert of(smooth, 300_000, 4, auto).no_series == NoSeries.COLUMNS
    assert of(smooth, 300_000, 1, Approximation("auto", inducing=64)).no_series == NoSeries.SIZES
    assert of(smooth, 300_000, 1, Approximation("auto", series=False)).no_series == NoSeries.FREQUENCIES
    kernels, named = (smooth, k.Matern()), {"approximation": "fourier", "profile": BUILT_IN}
    plans = [fgp.plan(fgp.GP(one), n=10**5, d=2, **named) for one in kernels]
    assert plans[0].fit_step_seconds < 0.1 * plans[1].fit_step_seconds


def test_auto_takes_series_for_labels_where_these_have_a_factor() -> None:
    """By the price of their steps: factors, variances and expectations of all rows."""
    smooth = fgp.kernels.Matern(nu=1.5)
    gp, settings = fgp.GP(smooth, likelihood=fgp.likelihoods.Bernoulli()), PlanSettings(profile=BUILT_IN)
    settings = dataclasses.replace(settings, memory="640GiB", factored=True)

    def of(n: int, d: int, prior: fgp.GP = gp) -> tuple[str, NoSeries | None, str]:
        taken, plan, event = Choice(prior, RowCounts(n, d), settings).decided(Approximation("auto"))
        return "" if taken is None else taken.kind, plan.no_series, event.fields["reason"]

    assert of(100_000, 2) == ("fourier", None, ApproximationReason.SITES)
    assert of(1000, 2) == ("", NoSeries.SLOWER, ApproximationReason.FITS)
    assert of(100_000, 3) == ("full_scale", NoSeries.SLOWER, ApproximationReason.SITES)
    rough = fgp.GP(fgp.kernels.Matern(nu=0.5), likelihood=fgp.likelihoods.Bernoulli())
    assert of(100_000, 3, rough)[:2] == ("full_scale", NoSeries.FREQUENCIES)  # no factor
    regression = fgp.plan(fgp.GP(smooth), n=10**5, d=2, approximation="fourier", profile=BUILT_IN)
    labels = fgp.plan(gp, n=10**5, d=2, approximation="fourier", profile=BUILT_IN)
    assert labels.fit_step_seconds > regression.fit_step_seconds


@pytest.mark.parametrize("n", [1800, 2400, 3000])
def test_exact_inference_is_late_only_where_all_are(n: int) -> None:
    """Seen red: exact inference past the limit, quicker than full scale, though points kept to it."""
    gp = fgp.GP(fgp.kernels.RBF(lengthscale=[1.0, 1.0, 1.0]))
    settings = PlanSettings(memory="64GiB", profile=BUILT_IN)
    for limit in (1.0, 2.0, 3.0, 4.0, 6.0, 9.0):
        taken, _, event = Choice(gp, RowCounts(n, 3), settings, limit).decided(Approximation("auto"))
        others = [event.fields.get(f"{kind}_seconds") for kind in ("full_scale", "sparse")]
        late = event.fields["exact_seconds"] > limit
        assert taken is not None or not late or all(seconds > limit for seconds in others if seconds is not None)


def test_auto_by_memory() -> None:
    gp = fgp.GP(1.0 * fgp.kernels.Matern(nu=1.5))
    exact = fgp.plan(gp, n=20_000, d=2, memory="64GiB", profile=BUILT_IN)
    assert exact.peak_bytes > 10**8
    settings = PlanSettings(memory="60MiB", profile=BUILT_IN, solver="cholesky")
    choice = Choice(gp, RowCounts(20_000, 2), settings)
    taken, plan, event = choice.decided(Approximation("auto"))
    assert taken is not None
    assert event.fields["reason"] == ApproximationReason.MEMORY
    assert event.fields["exact_seconds"] is None
    assert plan.training_bytes <= 60 * 2**20
    with pytest.raises(fgp.MemoryBudgetError):
        smaller = dataclasses.replace(settings, memory="1MiB")
        dataclasses.replace(choice, settings=smaller).decided(Approximation("auto"))


@pytest.mark.parametrize("limit", [None, 1e-6])
def test_auto_in_every_door(limit: float | None) -> None:
    """A fit, conditioning, the estimator and the model of a table choose alike and say so."""
    x, y = data(150)
    fit = fgp.fit(model(), x, y, approximation="auto", time_limit=limit, starts=1)
    post = model().condition(x, y, approximation="auto", time_limit=limit)
    estimator = fgp.GPRegressor(
        approximation="auto", time_limit=limit, starts=1, target_transform="none"
    ).fit(x.numpy(), y.numpy())  # fmt: skip
    table = fgp.TableModel(approximation="auto", time_limit=limit, starts=1, target_transform="none").fit(
        {"a": x[:, 0].numpy(), "b": x[:, 1].numpy(), "y": y.numpy()}, target="y"
    )
    for report in (fit.report, post.report, estimator.report_, table.report):
        (event,) = of_kind(report.events, EventKind.APPROXIMATION_CHOSEN)
        assert event.fields["chosen"] == "exact" or limit is not None
    for found in (fit.posterior, post, estimator.posterior_, table.posterior):
        assert bool(found.predict(x[:5]).mean.isfinite().all())


def test_estimators_take_inducing_points_alone() -> None:
    x, y = (t.numpy() for t in data(150))
    options = {"approximation": "sparse", "inducing": 30, "starts": 1, "target_transform": "none"}
    mean, std = fgp.GPRegressor(**options).fit(x, y).predict(x[:20], return_std=True)
    wanted = fgp.GPRegressor(starts=1, target_transform="none").fit(x, y).predict(x[:20])
    assert numpy.abs(mean - wanted).max() < 0.3 * y.std()
    assert (std > 0).all()
    table = fgp.TableModel(**options).fit({"a": x[:, 0], "b": x[:, 1], "y": y}, target="y")
    assert numpy.isfinite(table.predict({"a": x[:3, 0], "b": x[:3, 1]}).mean).all()
    assert [*table.importance().names] == ["a", "b"]


def test_settings_of_exact_inference_are_refused_beside_auto() -> None:
    x, y = data(30)
    with pytest.raises(fgp.DomainError, match="`solver` is of exact inference"):
        model().condition(x, y, approximation="auto", solver="cg")
    with pytest.raises(fgp.DomainError, match="`jitter` is of exact inference"):
        fgp.fit(model(), x, y, approximation="auto", jitter=1e-6)


def test_full_scale_without_neighbours_is_the_collapsed_bound() -> None:
    x, y = data(120)
    found = model().condition(x, y, approximation="full_scale", inducing=15, neighbours=0)
    alone = model().condition(x, y, approximation="sparse", inducing=15)
    assert found.can("bound") is None
    assert torch.equal(found.predict(x).mean, alone.predict(x).mean)
    assert found.bound == alone.bound
    fit = fgp.fit(model(), x, y, approximation="full_scale", inducing=15, neighbours=0, starts=1)
    assert fit.posterior.can("bound") is None
    with pytest.raises(fgp.DomainError, match="`inducing` must be at least 1"):
        model().condition(x, y, approximation="full_scale", inducing=0, neighbours=0)


def test_an_exact_fit_past_its_limit_names_both_costs() -> None:
    x, y = data(400)
    fit = fgp.fit(model(), x, y, time_limit=1e-3)
    events = of_kind(fit.report.events, EventKind.APPROXIMATION_OFFERED)
    plan = fit.report.plan
    assert fit.posterior.can("lost") is not None
    for event in events:
        assert event.fields["exact_seconds"] == plan.fit_seconds
        assert "the report says what it loses" in str(event)
    assert not of_kind(fgp.fit(model(), x, y).report.events, EventKind.APPROXIMATION_OFFERED)


@pytest.mark.parametrize("kind", ["full_scale", "sparse"])
def test_reports_carry_the_plan_and_what_is_lost(kind: str) -> None:
    x, y = data(300)
    sizes = SMALL if kind == "full_scale" else {"inducing": 12}
    fit = fgp.fit(model(), x, y, approximation=kind, starts=1, **sizes)
    plan = fit.report.plan
    assert isinstance(plan, Plan)
    assert (plan.n, plan.inducing, plan.approximation) == (300, 12, kind)
    assert fit.report.predicted_seconds == plan.fit_seconds
    assert fit.report.predicted_bytes == plan.training_bytes
    lost = fit.posterior.lost
    if kind == "full_scale":
        (event,) = of_kind(fit.report.events, EventKind.LOST)
        assert event.fields["nats"] == lost.nats
        assert lost.seconds == plan.more_seconds
        assert "twice the neighbours would take" in str(lost)
    else:
        (event,) = of_kind(fit.report.events, EventKind.BRACKET)
        assert event.fields["lower"] == lost.lower / 300
    assert "nats a row" in str(fit.report)
    assert "nats a row" in repr(fit.posterior)
    conditioned = fit.gp.condition(x, y, approximation=kind, **sizes)
    assert isinstance(conditioned.report.plan, Plan)
    assert conditioned.report.predicted_seconds == conditioned.report.plan.seconds


@pytest.mark.parametrize("kind", ["full_scale", "sparse"])
def test_nothing_is_allocated_that_does_not_fit(kind: str) -> None:
    x, y = data(3000)
    for call in (
        lambda: model().condition(x, y, approximation=kind, inducing=700, memory="20MiB"),
        lambda: fgp.fit(model(), x, y, approximation=kind, inducing=700, memory="20MiB"),
    ):
        with pytest.raises(fgp.MemoryBudgetError, match="rows need") as refused:
            call()
        assert refused.value.needed_bytes > 20 * 2**20 >= refused.value.available_bytes


def test_fewer_points_than_asked_are_an_event() -> None:
    """Pivots end at rounding: a smooth function of few distinct values has no more of them."""
    x = torch.linspace(0, 1, 400, dtype=torch.float64)[:, None]
    gp = fgp.GP(fgp.kernels.RBF(lengthscale=2.0), likelihood=fgp.likelihoods.Gaussian(0.1))
    for kind in ("full_scale", "sparse"):
        found = gp.condition(x, x[:, 0].sin(), approximation=kind, inducing=100)
        (event,) = of_kind(found.report.events, EventKind.FEWER_POINTS)
        assert 0 < event.fields["found"] < 100 == event.fields["asked"]
        assert event.fields["found"] == len(found.state.layout.inducing if kind == "full_scale" else found.inducing)


def test_a_limit_gives_the_sizes_of_its_plan() -> None:
    x, y = data(200)
    found = fgp.fit(model(), x, y, approximation="full_scale", time_limit=1e-9)
    assert found.report.plan.inducing == 64
    assert numpy.isclose(found.posterior.state.sizes.inducing, 64)


BAD_SIZES = [-1, 1.5, True, None, numpy.float64(5.0), numpy.array([1, 2]), torch.tensor([1, 2]), {}, b"x"]


@pytest.mark.parametrize("kind", ["full_scale", "sparse", "auto"])
@pytest.mark.parametrize("name", ["inducing", "neighbours"])
@pytest.mark.parametrize("bad", BAD_SIZES, ids=repr)
def test_sizes_that_are_none_are_refused_whatever_is_chosen(kind: str, name: str, bad: object) -> None:
    x, y = data(30)
    for call in (
        lambda: model().condition(x, y, approximation=kind, **{name: bad}),
        lambda: fgp.plan(model(), 30, 2, approximation=kind, **{name: bad}),
    ):
        with pytest.raises((fgp.DomainError, fgp.ShapeError), match=f"`{name}`"):
            call()


def test_points_of_other_columns_are_refused_whatever_is_chosen() -> None:
    x, y = data(30)
    for kind in ("full_scale", "sparse", "auto"):
        with pytest.raises(fgp.ShapeError, match="`inducing` must have 2 columns"):
            model().condition(x, y, approximation=kind, inducing=torch.zeros(3, 3))
        with pytest.raises(fgp.ShapeError, match="`inducing` must have 2 columns"):
            fgp.plan(model(), 30, 2, approximation=kind, inducing=torch.zeros(3, 3))
    with pytest.raises(fgp.DomainError, match="`inducing` must be at least 1"):
        model().condition(x, y, approximation="sparse", inducing=x[:0])


@pytest.mark.parametrize("kind", ["full_scale", "sparse"])
def test_a_size_may_be_a_tensor_of_no_dimensions(kind: str) -> None:
    x, y = data(60)
    found = model().condition(x, y, approximation=kind, inducing=torch.tensor(7))
    assert found.report.plan.inducing == 7
    assert model().condition(x, y, approximation=kind, inducing=numpy.array(7)).report.plan.inducing == 7


def test_auto_keeps_to_sizes_that_leave_one_approximation() -> None:
    """Without points it is block Vecchia, without neighbours inducing points alone, whatever else would be quicker."""
    x, y = data(150)
    by_points = model().condition(x, y, approximation="auto", time_limit=1e-9, neighbours=0)
    by_blocks = model().condition(x, y, approximation="auto", time_limit=1e-9, inducing=0, neighbours=5)
    assert by_points.can("bound") is None
    assert by_blocks.can("bound") is not None
    for post, fields in ((by_points, {"sparse_seconds"}), (by_blocks, {"full_scale_seconds"})):
        (event,) = of_kind(post.report.events, EventKind.APPROXIMATION_CHOSEN)
        assert fields == {name for name in event.fields if name in ("sparse_seconds", "full_scale_seconds")}
    gp = fgp.GP(fgp.kernels.Matern())
    assert fgp.plan(gp, 10**6, 2, approximation="auto", time_limit=1200.0, inducing=0).approximation == "full_scale"
    assert fgp.plan(gp, 10**6, 2, approximation="auto", time_limit=1200.0, neighbours=0).approximation == "sparse"
    with pytest.raises(fgp.DomainError, match="`inducing` must be at least 1"):
        model().condition(x, y, approximation="auto", inducing=0, neighbours=0)


def test_progress_of_iterations_beside_approximations() -> None:
    """Of one that was asked for it is refused; "auto" may come to exact inference, and takes it."""
    x, y = data(60)
    for kind in ("full_scale", "sparse"):
        with pytest.raises(fgp.DomainError, match="`progress` is of exact inference"):
            model().condition(x, y, approximation=kind, progress=lambda step: None)
    found = model().condition(x, y, approximation="auto", time_limit=1e-9, neighbours=0, progress=lambda step: None)
    assert found.can("bound") is None


@pytest.mark.parametrize("kind", ["full_scale", "sparse", "auto"])
def test_approximations_know_the_device(kind: str) -> None:
    x, y = data(30)
    with pytest.raises(fgp.DomainError, match="`device` must be"):
        model().condition(x, y, approximation=kind, device="mps")


@pytest.mark.parametrize("kind", ["full_scale", "sparse", "auto"])
def test_plans_refuse_what_only_exact_inference_has(kind: str) -> None:
    gp = model()
    wanted = fgp.plan(gp, 30, 2, approximation=kind, memory="1GiB", profile=BUILT_IN)
    same = fgp.plan(gp, 30, 2, approximation=kind, memory="1GiB", profile=BUILT_IN, dtype=torch.float64)
    assert (same.peak_bytes, same.seconds) == (wanted.peak_bytes, wanted.seconds)
    for name, value in {"dtype": torch.float32, "solver": "cg", "route": "direct", "factored": True}.items():
        with pytest.raises(fgp.DomainError, match=f"`{name}` is of exact inference"):
            fgp.plan(gp, 30, 2, approximation=kind, **{name: value})


def test_what_is_chosen_reads_as_a_sentence() -> None:
    x, y = data(60)
    post = model().condition(x, y, approximation="auto", time_limit=1e-9, neighbours=0)
    said, streamed = map(str, post.report.events[:2])
    assert said.startswith("An approximation by inducing points was chosen, since ")
    assert "not held" not in streamed  # the rows are
    assert post.x.shape == x.shape
    read = model().condition([(x, y)], inducing=10)
    assert "which are read and not held" in str(read.report.events[0])


def test_a_refusal_offers_what_has_room_for_the_same_call() -> None:
    """A whole fit takes more than conditioning: its refusal does not offer what only the latter has room for."""
    x, y = data(900)
    with pytest.raises(fgp.MemoryBudgetError) as of_fit:
        fgp.fit(model(), x, y, memory="12MiB")
    assert of_fit.value.offers == ()
    for kind in ("full_scale", "sparse"):
        with pytest.raises(fgp.MemoryBudgetError):
            fgp.fit(model(), x, y, memory="12MiB", approximation=kind)
    with pytest.raises(fgp.MemoryBudgetError) as of_condition:
        model().condition(x, y, memory="12MiB")
    for offer in of_condition.value.offers:
        model().condition(x, y, memory="12MiB", approximation=offer.approximation)
    assert of_condition.value.offers


def test_labels_of_more_rows_than_a_minute_is_enough_for_are_approximate() -> None:
    kernel = fgp.kernels.Matern(nu=1.5)
    gp = fgp.GP(kernel, likelihood=fgp.likelihoods.Bernoulli())
    assert fgp.plan(gp, 10**4, 8, approximation="auto").approximation == "full_scale"
    assert not fgp.plan(fgp.GP(kernel), 10**4, 8, approximation="auto").approximation
    assert not fgp.plan(gp, 1000, 8, approximation="auto").approximation
