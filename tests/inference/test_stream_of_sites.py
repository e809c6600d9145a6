"""Streams of labels and classes: each row's own site, and all of them anew where rows have moved q(f), (M-275)."""

import warnings

import pytest
import torch

import flashgp as fgp
from flashgp.foundations.errors import DomainError, FlashGPWarning
from flashgp.foundations.events import EventKind, of_kind

F64 = torch.float64


def table(rows: int = 48) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.rand(rows, 2, generator=torch.Generator().manual_seed(0), dtype=F64)
    return x, torch.bucketize(3.0 * x[:, 0], torch.tensor([1.0, 2.0], dtype=F64))


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("window", [None, 45])
def test_sites_found_anew_are_those_of_all_rows_together(classes: int, window: int | None) -> None:
    x, y = table()
    y = y.clamp(max=classes - 1).double()
    likelihood = fgp.likelihoods.Bernoulli() if classes == 2 else fgp.likelihoods.Categorical(classes)
    gp = fgp.GP(4.0 * fgp.kernels.Matern(nu=2.5, lengthscale=0.5), likelihood=likelihood)
    start = gp.condition(x[:40], y[:40])
    stream, lazy = (fgp.Stream(start, window=window, settle_nats=nats) for nats in (1e-9, None))
    for i in range(40, 48):
        one, other = (each.step(x[i], y[i]) for each in (stream, lazy))
        assert (one.refining_seconds > 0.0) > (other.refining_seconds > 0.0)
        assert other.mean.shape == one.mean.shape == torch.Size([1] if classes == 2 else [1, classes])
    first = 48 - (window or 48)
    wanted = gp.condition(x[first:], y[first:]).predict(x).mean
    found, drifted = (each.posterior.predict(x).mean for each in (stream, lazy))
    torch.testing.assert_close(found, wanted, rtol=0.0, atol=1e-6)
    assert float((drifted - wanted).abs().max()) > 1e-3
    (event,) = of_kind(stream.posterior.report.events, EventKind.SITES_AGAIN)
    assert event.fields["rows"] == stream.posterior.count
    assert event.fields["moved"] > 0.0
    assert not of_kind(lazy.posterior.report.events, EventKind.SITES_AGAIN)
    assert stream.posterior.can("leave_one_out") is None
    assert stream.metrics.rows == 8
    assert 0.0 < stream.metrics.nll < 1.5


def test_sites_are_left_until_rows_have_moved_them() -> None:
    x, y = table(60)
    gp = fgp.GP(4.0 * fgp.kernels.Matern(nu=2.5, lengthscale=0.5), likelihood=fgp.likelihoods.Bernoulli())
    y = (y + torch.randn(60, generator=torch.Generator().manual_seed(1)) > 1.0).double()
    stream = fgp.Stream(gp.condition(x[:40], y[:40]), settle_nats=0.02)
    settled = [stream.step(x[i], y[i]).refining_seconds > 0.0 for i in range(40, 60)]
    assert 0 < sum(settled) < 10
    with pytest.raises(DomainError, match="`settle_nats` must be positive, got -1; None leaves"):
        fgp.Stream(stream.posterior, settle_nats=-1)


class Broken(fgp.likelihoods.Bernoulli):
    """Labels whose expectations over several rows are none once it is broken."""

    broken = False

    def expected_log_prob(self, y: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
        value = super().expected_log_prob(y, mean, variance)
        return value + torch.nan if Broken.broken and len(y) > 1 else value


def test_sites_that_are_not_found_anew_go_on() -> None:
    x, y = table()
    y = y.clamp(max=1).double()
    gp = fgp.GP(4.0 * fgp.kernels.Matern(lengthscale=0.5), likelihood=Broken(method="variational"))
    stream = fgp.Stream(gp.condition(x[:40], y[:40]), settle_nats=1e-9)
    Broken.broken = True
    try:
        with pytest.warns(FlashGPWarning, match="the sites of 41 rows could not be found anew, they go on"):
            stream.step(x[40], y[40])
        wanted = stream.posterior.predict(x).mean
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            stream.step(x[40], y[40])  # of which less is learned
        assert not told
    finally:
        Broken.broken = False
    assert stream.metrics.steps == 2
    assert float((stream.posterior.predict(x).mean - wanted).abs().max()) < 0.5
    settled = [stream.step(x[i], y[i]).refining_seconds > 0.0 for i in range(41, 46)]
    assert any(settled)
    for wrong in ("often", True):
        with pytest.raises(DomainError, match="`settle_nats` must be positive, got"):
            fgp.Stream(stream.posterior, settle_nats=wrong)  # type: ignore[arg-type]
