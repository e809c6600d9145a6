"""What the text of a fit says: what was maximised, priors, columns, whether it explains anything, and what ended it."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.events import Event, EventKind, of_kind
from flashgp.inference.findings import Unfinished, UnfinishedSettings, why_unfinished
from flashgp.inference.fit import Fit
from flashgp.kernels import RBF, Kernel, Linear, Matern, Periodic

F64 = torch.float64


def rows(n: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n, 2, dtype=F64, generator=generator)
    return x, torch.sin(5.0 * x[:, 0]) + 0.1 * torch.randn(n, dtype=F64, generator=generator)


def fitted(lengthscale: object = (1.0, 1.0), priors: str = "weak", **options: object) -> Fit:
    value = torch.tensor(lengthscale) if isinstance(lengthscale, tuple) else lengthscale
    kernel = 1.0 * fgp.kernels.Matern(nu=2.5, lengthscale=value)  # type: ignore[arg-type]
    return fgp.fit(fgp.GP(kernel), *rows(), starts=1, priors=priors, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("priors", ["weak", "given"])
def test_what_was_maximised_is_likelihood_plus_priors(priors: str) -> None:
    fit = fitted(priors=priors)
    best = max(entry.value for entry in fit.history)
    evidence = float(fit.posterior.log_marginal_likelihood())
    assert fit.log_prior is not None
    assert evidence + fit.log_prior == pytest.approx(best, rel=1e-8, abs=1e-8)
    assert (fit.log_prior == 0.0) == (priors == "given")
    text = dict(fit.summary())
    assert text["log marginal likelihood"] == f"{evidence:.6g} nats"
    assert text["maximised"].startswith(f"{best:.6g} nats")
    for name, value in text.items():
        assert f"{name:<24} {value}" in repr(fit)
        assert value in fit._repr_html_()


def test_every_prior_in_force_stands_beside_its_parameter() -> None:
    mine = torch.distributions.LogNormal(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0]))
    fit = fitted(fgp.Parameter(torch.ones(2), prior=mine))
    said = {(row.place, row.of): row.prior for row in fit.rows()}
    assert said["kernel.kernel.lengthscale[0]", "x1"] == "LogNormal(0, 1)"
    assert said["kernel.kernel.lengthscale[1]", "x2"] == "LogNormal(1, 2)"
    variance = float(rows()[1].var(correction=0).log())
    assert said["kernel.variance", ""] == f"log variance ~ Normal({variance:.3g}, 2), weak"
    assert said["likelihood.noise_variance", ""] == f"log noise_variance ~ Normal({variance - 4.0:.3g}, 2), weak"
    assert said["mean.value", ""] == "none"
    given = fitted(fgp.Parameter(torch.ones(2), trainable=False), priors="given")
    assert {row.place: row.prior for row in given.rows()}["kernel.variance"] == "none"
    assert {row.place: row.prior for row in given.rows()}["kernel.kernel.lengthscale[0]"] == "fixed"


def test_a_table_names_its_columns() -> None:
    x, y = rows()
    table = {"cement": x[:, 0].numpy(), "water": x[:, 1].numpy(), "strength": y.numpy()}
    model = fgp.TableModel(starts=1).fit(table, target="strength")
    assert model.training is not None
    for text in (repr(model), repr(model.training)):
        line = next(line for line in text.splitlines() if "lengthscale[0]" in line)
        assert line.split()[1] == "cement"
        assert "weak" in line
        assert "maximised" in text


f64 = torch.float64
X = 10 * torch.rand(60, 1, generator=torch.Generator().manual_seed(1), dtype=f64)
NOISE = torch.randn(60, generator=torch.Generator().manual_seed(2), dtype=f64)
SIGNAL = torch.sin(2 * math.pi * X[:, 0] / 1.7)


def said(kernel: Kernel, y: Tensor, outputs: int | None = None, **options: object) -> bool:
    fit = fgp.fit(fgp.GP(kernel, outputs=outputs), X, y, **options)
    return bool(of_kind(fit.report.events, EventKind.NOTHING_EXPLAINED))


@pytest.mark.parametrize("kernel", [1.0 * Matern(1.5) + Linear(), 1.0 * Periodic()], ids=["trend", "periodic"])
def test_noise_is_not_explained_and_a_signal_is(kernel: Kernel) -> None:
    assert said(kernel, NOISE)
    assert said(kernel, 1e6 * NOISE + 1e8)  # in any unit
    assert not said(kernel, SIGNAL + 0.5 * NOISE)


def test_a_period_that_is_missed_is_told_by_how_little_it_explains() -> None:
    """From 4 the search ends at 2.3, 1.4 nats above a constant; from periods near 1 rounding decides where."""
    assert said(1.0 * Periodic(4.0), SIGNAL + 0.1 * NOISE, initial="given", starts=1)
    assert not said(1.0 * Periodic(1.0), SIGNAL + 0.1 * NOISE)


def test_outputs_and_approximations_say_so_too() -> None:
    both = torch.stack([NOISE, NOISE.flip(0)], 1)
    assert said(1.0 * RBF(), both, outputs=2)
    both[3, 0] = both[4:20, 1] = torch.nan  # missing cells
    assert said(1.0 * RBF(), both, outputs=2)
    assert not said(1.0 * RBF(), both + 2 * SIGNAL[:, None], outputs=2)
    assert said(1.0 * RBF(), NOISE, approximation="full_scale", inducing=8, neighbours=8)


def test_nothing_is_said_of_a_constant_target_or_of_noise_that_is_known() -> None:
    assert not said(1.0 * RBF(), torch.ones(60, dtype=f64))
    gp = fgp.GP(1.0 * RBF(), likelihood=fgp.likelihoods.Gaussian(fgp.Parameter(1.0, trainable=False)))
    assert not of_kind(fgp.fit(gp, X, NOISE).report.events, EventKind.NOTHING_EXPLAINED)


LOST = {"standard_error": 0.01, "seconds": None}


@pytest.mark.parametrize(
    ("events", "interrupted", "wanted"),
    [
        ([], False, None),
        ([Event(EventKind.SUBSET_FIT, starts=4, subset=400, rows=900)], False, None),
        ([Event(EventKind.FIT_TIME_UP, limit=3.0)], True, Unfinished.TIME),
        ([Event(EventKind.FIT_INTERRUPTED)], True, Unfinished.INTERRUPT),
        ([Event(EventKind.LOST, nats=2.0, **LOST), Event(EventKind.FIT_TIME_UP, limit=3.0)], True, Unfinished.TIME),
        ([Event(EventKind.SEARCH_UNFINISHED, evaluations=9, expected=3.0)], False, Unfinished.SEARCH),
        ([], True, Unfinished.SEARCH),
        ([Event(EventKind.LOST, nats=0.2, **LOST)], False, None),
        ([Event(EventKind.LOST, nats=0.4, **LOST)], False, Unfinished.LOST),
        ([Event(EventKind.BRACKET, lower=-2.0, upper=-1.0, nats=1.0)], False, Unfinished.LOST),
        ([Event(EventKind.ROWS_LEARNED, gap=0.9)], False, Unfinished.LOST),
        ([Event(EventKind.ROWS_LEARNED, gap=None)], False, None),
    ],
)
def test_what_ended_it_comes_first_then_what_is_lost(events: list[Event], interrupted: bool, wanted: Any) -> None:
    assert why_unfinished(events, interrupted=interrupted) is wanted


def test_how_much_may_be_lost_is_a_setting() -> None:
    events = [Event(EventKind.LOST, nats=0.4, **LOST)]
    assert why_unfinished(events, interrupted=False, settings=UnfinishedSettings(max_lost=0.5)) is None
