"""Verdicts: what is explained and held, beside sums written out; every planted fault is found, and none in noise."""

import dataclasses

import numpy as np
import pytest
import torch

import flashgp as fgp
from flashgp.foundations.estimate import Estimate, Measure
from flashgp.foundations.events import EventKind, of_kind
from flashgp.inference.judgement.residuals import drifting, order_left, period_left, tails
from flashgp.inference.judgement.scored import Calibration, Scored, of_classes
from flashgp.inference.judgement.verdict import How, VerdictSettings, Word, judged
from flashgp.inference.judging import Told, judged_unasked, out_of_range, verdict_of

ROWS = 90


def table(seed: int = 0, rows: int = ROWS) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = 4.0 * torch.rand(rows, 2, generator=generator, dtype=torch.float64)
    return x, torch.sin(2.0 * x[:, 0]) + 0.2 * torch.randn(rows, generator=generator, dtype=torch.float64)


def model(likelihood: fgp.likelihoods.Likelihood | None = None, **options: object) -> fgp.GP:
    kernel = 1.0 * fgp.kernels.Matern(nu=2.5, lengthscale=[0.8, 6.0])
    return fgp.GP(kernel, likelihood=likelihood or fgp.likelihoods.Gaussian(0.04), **options)


def scored(z: np.ndarray, held: int | None = None) -> Scored:
    """Rows whose errors are z standard deviations of 1, beside a constant model whose errors are twice as large."""
    inside = int((np.abs(z) < 1.96).sum()) if held is None else held
    n = len(z)
    calibration = Calibration(n, inside, 0.95 * n, (0.05 * 0.95 * n) ** 0.5)
    return Scored(Measure.VARIANCE, z**2, 4.0 * np.ones(n), calibration, z)


def kinds(verdict: fgp.Verdict) -> set[EventKind]:
    return {event.kind for event in verdict.findings}


@pytest.mark.filterwarnings("error")
def test_no_rows_have_no_share_explained() -> None:
    assert scored(np.empty(0), 0).explained is None


# -- figures -----------------------------------------------------------------------------------------------------------
def test_what_is_explained_is_a_ratio_of_sums() -> None:  # (M-420)
    x, y = table()
    post = model().condition(x, y)
    left, verdict = post.leave_one_out(), post.judge()
    others = torch.stack([torch.cat([y[:i], y[i + 1 :]]).mean() for i in range(ROWS)])
    share = 1.0 - (y - left.mean).square().sum() / (y - others).square().sum()
    assert verdict.explained is not None
    assert verdict.calibration is not None
    assert verdict.explained.value == pytest.approx(float(share), rel=1e-10)
    inside = ((y - left.mean).abs() <= 1.959963984540054 * left.variance.sqrt()).sum()
    assert (verdict.rows, verdict.calibration.held) == (ROWS, int(inside))
    assert verdict.explained.low < verdict.explained.value < verdict.explained.high


def test_the_interval_of_what_is_explained_holds_it() -> None:  # (M-420)
    generator, held = np.random.default_rng(1), 0
    for _ in range(200):
        plain = generator.normal(size=300)
        error = 0.5 * generator.normal(size=300)
        found = Scored(Measure.VARIANCE, error**2, (plain + error) ** 2, Calibration(1, 1, 1.0, 0.0)).explained
        assert found is not None
        held += found.low <= 1.0 - 0.25 / 1.25 <= found.high
    assert 180 <= held <= 198  # 190 of 200 expected, with a standard deviation of 3


def test_classes_are_scored_by_log_loss() -> None:  # (M-420)
    codes = np.array([0, 1, 1, 2, 1])
    logs = np.log(np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.1, 0.6, 0.3]]))
    found = of_classes(codes, logs)
    np.testing.assert_allclose(found.loss, -np.log([0.7, 0.8, 0.3, 0.6, 0.6]))
    # Shares of the four others, with one more of each class.
    np.testing.assert_allclose(found.plain, -np.log([1 / 7, 3 / 7, 3 / 7, 1 / 7, 3 / 7]))
    assert of_classes(codes[1:3], logs[1:3]).explained is None  # one class alone
    assert of_classes(codes[1:3], logs[1:3], codes[1:2]).explained is None
    assert (found.calibration.held, found.calibration.expected) == (4, pytest.approx(0.7 + 0.8 + 0.5 + 0.6 + 0.6))


@pytest.mark.parametrize(
    ("explained", "word"),
    [(-0.1, Word.USELESS), (0.2, Word.WEAK), (0.5, Word.FAIR), (0.8, Word.GOOD), (0.95, Word.EXCELLENT)],
)
def test_the_word(explained: float, word: Word) -> None:
    noise = np.random.default_rng(0).normal(size=2_000)
    loss = (1.0 - explained) * noise**2
    found = judged(Scored(Measure.VARIANCE, loss, noise**2, Calibration(2_000, 1_900, 1_900.0, 10.0)), How.HELD_OUT)
    assert found.word is word
    assert found.sentence.startswith(word.capitalize())
    assert (EventKind.NO_BETTER in kinds(found)) == (word is Word.USELESS)


# -- planted faults, and none ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(30))
def test_noise_has_no_finding(seed: int) -> None:
    z = np.random.default_rng(seed).normal(size=150)
    rows = scored(z)
    assert not [*tails(rows), *order_left(rows), *period_left(rows, np.arange(150.0), "t")]
    assert kinds(judged(rows, How.LEFT_OUT)) == set()


@pytest.mark.parametrize("seed", range(5))
def test_faults_of_errors_are_found(seed: int) -> None:  # (M-422)
    generator, n = np.random.default_rng(seed), 300
    z, time = generator.normal(size=n), np.sort(generator.uniform(0.0, 90.0, n))
    (heavy,) = tails(scored(generator.standard_cauchy(n)))[-1:]
    assert heavy.kind is EventKind.HEAVY_TAILS
    few = z.copy()
    few[:3] = 40.0
    assert EventKind.DOMINATED in {event.kind for event in tails(scored(few))}
    smooth = np.convolve(generator.normal(size=n + 5), np.ones(6) / 6**0.5, "valid")
    assert [event.kind for event in order_left(scored(smooth))] == [EventKind.ORDER_LEFT]
    (wave,) = period_left(scored(z + 1.2 * np.sin(2.0 * np.pi * time / 7.0)), time, "day")
    assert wave.fields["period"] == pytest.approx(7.0, rel=0.05)
    assert wave.fields["column"] == "day"


def test_intervals_that_hold_too_few_or_too_many() -> None:  # (M-421)
    z = np.random.default_rng(0).normal(size=200)
    narrow = judged(scored(z, held=166), How.HELD_OUT)
    assert EventKind.INTERVALS_NARROW in kinds(narrow)
    assert "hold 83 of 100, 92 to 98 expected: too narrow" in narrow.sentence
    assert EventKind.INTERVALS_WIDE in kinds(judged(scored(z, held=200), How.HELD_OUT))
    rounding = dataclasses.replace(scored(z, held=200), loss=1e-9 * z**2)
    assert EventKind.INTERVALS_WIDE not in kinds(judged(rounding, How.HELD_OUT)), "of errors that are none"
    little = judged(scored(z, held=180), How.HELD_OUT)
    assert not kinds(little)
    assert "92 to 98 expected: a little narrow" in little.sentence
    assert "as they should" in judged(scored(z, held=187), How.HELD_OUT).sentence


def test_new_rows_outside_their_intervals_drift() -> None:
    assert drifting([True] * 95 + [False] * 5) is None
    assert drifting([False] * 10) is None, "too few to tell"
    event = drifting([True] * 500 + [True, True, True, False] * 25)
    assert event is not None
    assert (event.fields["rows"], event.fields["outside"]) == (100, 25)


def test_faults_of_rows_are_found() -> None:
    x, y = table()
    assert not kinds(model().condition(x, y).judge())
    counting = torch.column_stack([x[:, 0], torch.arange(ROWS, dtype=torch.float64)])
    assert EventKind.COUNTS_ROWS in kinds(model().condition(counting, y).judge())
    twice = model().condition(x.repeat(2, 1), y.repeat(2))
    assert EventKind.ROWS_REPEATED in kinds(twice.judge())
    assert str(twice.judge()).startswith("Not judged: most rows repeat another one")
    new = x + 0.01
    assert twice.judge(new, y).word is not Word.UNJUDGED, "which are not among the rows"
    copies = torch.column_stack([x[:, 0], 3.0 - 100.0 * y])
    (event,) = [one for one in model().condition(copies, y).judge().findings if one.kind is EventKind.COPIES_TARGET]
    assert event.fields["column"] == "x2"
    almost = torch.column_stack([x[:, 0], y + 0.01 * y.std() * torch.sin(37.0 * x[:, 0])])
    assert EventKind.COPIES_TARGET not in kinds(model().condition(almost, y).judge())
    same = model().condition(x, torch.ones_like(y)).judge()
    assert same.word is Word.UNJUDGED
    assert EventKind.CONSTANT_TARGET in kinds(same)
    assert EventKind.FEW_ROWS in kinds(model().condition(x[:5], y[:5]).judge())
    noise = torch.randn(ROWS, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    assert EventKind.NO_BETTER in kinds(fgp.fit(model(), x, noise, starts=1).verdict)


def test_rows_outside_the_range_name_column_and_distance() -> None:
    x, y = table()
    state = model().condition(x, y).state
    assert out_of_range(state, x.numpy(), Told()) is None
    far = x[:5].numpy().copy()
    far[1, 1] += 8.0
    event = out_of_range(state, far, Told(columns=("lat", "lon")))
    assert event is not None
    assert (event.fields["rows"], event.fields["column"]) == (1, "lon")
    low, high = float(x[:, 1].min()), float(x[:, 1].max())
    assert event.fields["far"] == pytest.approx((far[1, 1] - high) / (high - low))
    assert out_of_range(state, far, Told(codes=(1,))) is None


# -- every kind of posterior -------------------------------------------------------------------------------------------
def test_a_verdict_of_every_likelihood_and_engine() -> None:
    x, y = table()
    counts = torch.poisson(torch.exp(1.0 + y), generator=torch.Generator().manual_seed(0))
    levels = (y > -0.5).double() + (y > 0.5)
    for likelihood, targets in (
        (fgp.likelihoods.Bernoulli(), (y > 0.0).double()),
        (fgp.likelihoods.Categorical(3), levels),
        (fgp.likelihoods.Ordinal(3), levels),
        (fgp.likelihoods.Poisson(), counts),
        (fgp.likelihoods.StudentT(), y),
    ):
        verdict = model(likelihood).condition(x, targets).judge()
        assert verdict.explained is not None, likelihood.name
        assert verdict.explained.value > 0.2, likelihood.name
        assert verdict.measure is likelihood.measure
    exact = model().condition(x, y).judge()
    full_scale = model().condition(x, y, approximation="full_scale", inducing=20, neighbours=ROWS).judge()
    sparse = model().condition(x, y, approximation="sparse", inducing=x).judge()
    for near in (full_scale, sparse):
        assert near.explained is not None
        assert exact.explained is not None
        assert near.explained.value == pytest.approx(exact.explained.value, abs=1e-4)
    assert model().condition([(x, y)], inducing=60).judge().how is How.SAMPLE


def test_the_worst_of_several_outputs_is_told() -> None:
    x, y = table()
    both = torch.stack([y, torch.randn(ROWS, generator=torch.Generator().manual_seed(5), dtype=torch.float64)], dim=-1)
    both[3, 0] = torch.nan
    gp = model(fgp.likelihoods.Gaussian([0.04, 1.0], outputs=2), outputs=2)
    verdict = gp.condition(x, both).judge()
    assert verdict.word is Word.USELESS
    assert "output 1, the worst of 2" in verdict.sentence


def test_findings_of_other_outputs_are_told_where_the_worst_has_them_not() -> None:
    x, y = table()
    noise = torch.randn(ROWS, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    far = y.clone()
    far[[7, 19]] += 60.0
    gp = model(fgp.likelihoods.Gaussian([1.0, 0.04, 1.0, 0.04], outputs=4), outputs=4)
    verdict = gp.condition(x, torch.stack([noise, y, noise + 0.1 * y, far], dim=-1)).judge()
    assert "output 3, the worst of 4" in verdict.sentence  # two rows make up all of its error
    own = [event for event in verdict.findings if not event.stage]
    others = [event for event in verdict.findings if event.stage]
    assert EventKind.DOMINATED in {event.kind for event in own}
    assert not {event.kind for event in own} & {event.kind for event in others}
    assert len(others) <= 4
    single = model().condition(x, noise).judge()
    alike = [event for event in others if event.stage == "output 0"]
    assert {event.kind for event in alike} <= {event.kind for event in single.findings} | {EventKind.INTERVALS_WIDE}
    assert all(str(event).startswith(event.stage) for event in others)


def test_outputs_that_are_held_out_are_judged_each_by_its_rows() -> None:
    x, y = table()
    both = torch.stack([y, 2.0 * y], dim=-1)
    both[60:, 0] = torch.nan
    for outputs, columns in ((2, both), (1, y[:, None])):
        likelihood = fgp.likelihoods.Gaussian([0.04] * outputs, outputs=outputs)
        post = model(likelihood, outputs=outputs).condition(x[:60], columns[:60])
        verdict, alone = post.judge(x[60:], columns[60:]), model().condition(x[:60], y[:60]).judge(x[60:], y[60:])
        assert verdict.explained is not None
        assert alone.explained is not None
        assert verdict.explained.value == pytest.approx(alone.explained.value, abs=0.05)
    spread = fgp.likelihoods.HeteroscedasticGaussian()
    assert model(spread).condition(x[:60], y[:60]).judge(x[60:], y[60:]).explained is not None
    without = fgp.likelihoods.Custom(lambda y, f: -0.5 * (y - f) ** 2 - 0.9189)
    assert "`mean` of Custom" in model(without).condition(x[:60], y[:60]).judge(x[60:], y[60:]).sentence


def test_rows_held_out_are_judged_with_their_exposures() -> None:
    x, y = table()
    exposure = torch.full_like(y, 50.0)
    counts = torch.poisson(exposure * torch.exp(y), generator=torch.Generator().manual_seed(0))
    post = model(fgp.likelihoods.Poisson(exposure=exposure)).condition(x, counts)
    assert "pass exposure=" in post.judge(x, counts).sentence
    assert post.judge(x, counts, exposure=exposure).word in (Word.GOOD, Word.EXCELLENT)
    with pytest.raises(fgp.DomainError, match="`y` must be given"):
        post.judge(x)


@pytest.mark.parametrize("seed", range(8))
def test_a_nearly_constant_model_explains_nothing(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.rand(30, 1, generator=generator).double(), torch.randn(30, generator=generator).double()
    gp = fgp.GP(fgp.kernels.RBF(lengthscale=1e4), likelihood=fgp.likelihoods.Gaussian(1.0))
    assert gp.condition(x, y).judge().word is Word.USELESS


def test_a_verdict_that_cannot_be_had_says_why() -> None:
    x, y = table()
    without = model().condition(x, y, solver="cg").judge()
    assert without.word is Word.UNJUDGED
    assert "judge(x, y)" in without.sentence
    assert "of 1 says nothing" in model().condition(x[:1], y[:1]).judge().sentence
    few = model().condition(x[:6], y[:6]).judge()
    assert few.sentence == "Not judged: too few rows, 6, to tell how others are predicted; 10 may do."
    batch = fgp.GP(fgp.kernels.RBF(lengthscale=torch.ones(2, 1, dtype=torch.float64)))
    assert "batch" in verdict_of(batch.condition(x[:, :1], y).state).sentence


def test_rows_held_out() -> None:
    x, y = table(rows=150)
    post = model().condition(x[:ROWS], y[:ROWS])
    verdict, found = post.judge(x[ROWS:], y[ROWS:]), post.predict(x[ROWS:])
    rest, seen = y[ROWS:], y[:ROWS].mean()
    share = 1.0 - (rest - found.mean).square().sum() / (rest - seen).square().sum()
    assert verdict.explained is not None
    assert verdict.explained.value == pytest.approx(float(share), rel=1e-10)
    assert verdict.how is How.HELD_OUT
    assert "rows held out" in verdict.sentence
    with pytest.raises(fgp.ShapeError):
        post.judge(x[ROWS:, :1], y[ROWS:])


def test_a_stream_says_when_its_rows_drift() -> None:
    x, y = table(rows=300)
    stream = fgp.Stream(model().condition(x[:ROWS], y[:ROWS]))
    for row in range(ROWS, 200):
        stream.step(x[row], y[row])
    assert stream.drift is None
    changed = y + 1.5 * (torch.arange(len(y)) % 2)  # half of the rows are of something else
    rows = zip(x[200:280], changed[200:280], strict=True)
    with pytest.warns(fgp.FlashGPWarning, match="lie outside their 95 % intervals") as told:
        list(stream.consume(rows))
    assert len(told) == 1
    assert stream.drift is not None
    assert str(stream.drift) in repr(stream)


# -- shown -------------------------------------------------------------------------------------------------------------
def test_a_fit_begins_with_its_verdict() -> None:
    x, y = table()
    fit = fgp.fit(model(), x, y, starts=1)
    assert repr(fit).startswith(fit.verdict.sentence)
    assert fit.verdict is fit.verdict
    assert fit._repr_html_().startswith(f"<p>{fit.verdict.sentence}</p>")
    assert repr(fit.verdict) == str(fit.verdict)
    assert repr(fit.verdict).startswith(fit.verdict.sentence)
    assert fit.verdict.to_json()["word"] == fit.verdict.word.value


def test_rows_that_were_fitted_are_said_to_be() -> None:
    x, y = table()
    post = model().condition(x[10:], y[10:])
    (event,) = of_kind(post.judge(x[:30], y[:30]).findings, EventKind.ROWS_FITTED)
    assert (event.fields["rows"], event.fields["of"]) == (20, 30)
    assert not of_kind(post.judge(x[:10], y[:10]).findings, EventKind.ROWS_FITTED)


def test_a_text_shows_a_verdict_that_takes_a_moment_or_was_asked_for() -> None:
    x, y = table()
    post = model().condition(x, y)
    assert judged_unasked(post.state)
    assert not judged_unasked(post.state, VerdictSettings(at_once=ROWS - 1))
    fit = fgp.fit(model(), x, y, starts=1, uncertainty="laplace")
    assert judged_unasked(fit.posterior.state, VerdictSettings(at_once=4 * ROWS))
    assert not judged_unasked(fit.posterior.state, VerdictSettings(at_once=3 * ROWS))  # of 32 draws
    long = torch.linspace(0.0, 60.0, 4_001, dtype=torch.float64)[:, None]
    flat = fgp.GP(fgp.kernels.RBF()).condition(long, long[:, 0].sin(), approximation="sparse", inducing=5)
    unseen = fgp.Fit(fit.gp, flat, [], fit.report)
    assert repr(unseen).splitlines()[0] == "Not judged: `verdict` says how good the predictions are, from all rows."
    told = unseen.verdict.sentence
    assert repr(unseen).startswith(told)


def test_a_share_close_to_one_keeps_the_digit_that_tells_it_apart() -> None:
    found = Estimate(0.9993, 0.9991, 1.0)
    verdict = fgp.Verdict(Word.EXCELLENT, How.HELD_OUT, 10, explained=found)
    assert verdict.sentence == "Excellent: predictions of rows held out explain 99.9 % of the variance (99.9 to 100)."
    verdict = dataclasses.replace(verdict, explained=Estimate(0.99999, 0.99998, 0.999995))
    assert verdict.sentence == "Excellent: predictions of rows held out explain more than 99.99 % of the variance."


# -- tables ------------------------------------------------------------------------------------------------------------
def test_a_table_is_judged_in_its_units() -> None:
    x, y = (t.numpy() for t in table())
    each = [
        fgp.TableModel(target_transform="none", starts=1).fit({"a": x[:, 0], "b": x[:, 1], "y": values}, target="y")
        for values in (y, 1e4 * y + 3e5)
    ]
    shares = [one.verdict.explained.value for one in each if one.verdict.explained is not None]
    assert shares[0] == pytest.approx(shares[1], rel=1e-6)
    assert repr(each[0]).startswith(each[0].verdict.sentence)


def test_estimators_are_judged() -> None:
    x, y = (t.numpy() for t in table())
    model = fgp.GPRegressor(starts=1, target_transform="none").fit(x, 1e3 * y)
    as_table = fgp.TableModel(target_transform="none", starts=1).fit({"a": x[:, 0], "b": x[:, 1], "y": y}, target="y")
    assert as_table.verdict.explained is not None
    assert model.verdict_.explained is not None
    assert model.verdict_.explained.value == pytest.approx(as_table.verdict.explained.value, abs=0.02)
    assert fgp.GPClassifier(starts=1).fit(x, y > 0.0).verdict_.measure is Measure.LOG_LOSS


def test_rows_of_a_table_that_were_fitted_are_not_judged() -> None:
    x, y = (t.numpy() for t in table(rows=120))
    columns = {"a": x[:, 0], "b": x[:, 1], "y": y}
    learned = {name: values[:ROWS] for name, values in columns.items()}
    made = fgp.TableModel(starts=1).fit(learned, target="y")
    verdict = made.judge(columns)
    assert verdict.rows == 120 - ROWS
    assert EventKind.ROWS_FITTED in kinds(verdict)
    assert made.judge(learned).word is Word.UNJUDGED
    with pytest.raises(fgp.ShapeError, match="target"):
        made.judge({"a": x[:, 0], "b": x[:, 1]})
    far = made.judge({**columns, "b": columns["b"] + 40.0})
    assert EventKind.OUT_OF_RANGE in kinds(far)


def test_a_period_that_is_left_is_in_units_of_the_table() -> None:
    rng, days = np.random.default_rng(0), np.arange(200)
    dates = [str(np.datetime64("2023-01-01") + day) for day in days]
    sales = 5e3 + 8e2 * np.sin(2.0 * np.pi * days / 7.0) + 2e2 * rng.normal(size=200)
    kernel = "Matern(nu=1.5, lengthscale=60)"
    verdict = fgp.TableModel(kernel, starts=1).fit({"date": dates, "sales": sales}, target="sales").verdict
    (found,) = [event for event in verdict.findings if event.kind is EventKind.PERIOD_LEFT]
    assert found.fields["period"] == pytest.approx(7.0, rel=0.02)
    assert found.fields["column"] == "date"


def test_many_columns_of_noise_are_called_useless() -> None:
    rng = np.random.default_rng(7)
    x, y = torch.from_numpy(rng.normal(size=(80, 60))), torch.from_numpy(rng.normal(size=80))
    gp = fgp.GP(1.0 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.ones(60)))
    assert fgp.fit(gp, x, y, starts=1).verdict.word is Word.USELESS


def test_more_weights_of_a_network_than_rows_are_not_judged_by_leaving_out() -> None:
    x, y = table()
    network = torch.nn.Linear(2, 64).double()
    deep = fgp.GP(1.0 * fgp.kernels.Warped(network, fgp.kernels.RBF()))
    verdict = deep.condition(x, y).judge()
    assert verdict.word is Word.UNJUDGED
    assert "192 weights of modules" in verdict.sentence
