"""Inputs that break other libraries: repeats without noise, tiny noise, NaN, every dtype, every switch of size."""

import math

import numpy
import pytest
import torch

import flashgp as fgp
from flashgp.foundations.events import Event, EventKind
from flashgp.pairwise.numpy_pairs import MAX_NUMPY_ROWS
from flashgp.pairwise.torch.tile_job import TILE_PAIRS, TileSettings
from inference.plain_gp import F64, data, model, relative

k, m, lik = fgp.kernels, fgp.means, fgp.likelihoods


# -- repeats and noise -----------------------------------------------------------------------------------------------
def test_repeats_that_disagree_without_noise() -> None:
    """CONTRACTS' case 2: an error, never NaN, unless the caller asks for a jitter."""
    x, y = torch.zeros(4, 1, dtype=F64), torch.arange(4.0, dtype=F64)
    gp = fgp.GP(2.0 * k.RBF(), m.Zero(), lik.Gaussian(0.0))
    for call in (gp.condition, gp.log_marginal_likelihood):
        with pytest.raises(
            fgp.NotPositiveDefiniteError, match="rows repeat with different targets and no noise"
        ) as caught:
            call(x, y)
        assert caught.value.smallest_pivot <= 0.0
        assert caught.value.indices == ()
    found = gp.condition(x, y, jitter=1e-4)
    assert found.report.jitter == pytest.approx(2e-4)
    assert relative(found.predict(x[:1]).mean, torch.tensor([1.5 * 2.0 / (2.0 + 0.5e-4)], dtype=F64)) < 1e-9


# -- values and types that are not numbers ----------------------------------------------------------------------------
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_named(bad: float) -> None:
    """CONTRACTS' case 6."""
    x, y = data(5)
    x_bad, y_bad = x.clone(), y.clone()
    x_bad[3, 1] = bad
    y_bad[4] = bad
    gp = model()
    text = "NaN" if bad != bad else "inf" if bad > 0 else "-inf"
    for call in (gp.condition, gp.log_marginal_likelihood, gp.log_joint, lambda a, b: fgp.fit(gp, a, b)):
        with pytest.raises(fgp.DomainError, match=rf"`x` must be finite, got {text} at row 3 and column 1"):
            call(x_bad, y)
        with pytest.raises(fgp.DomainError, match=rf"`y` must be finite, got {text} at row 4"):
            call(x, y_bad)
    posterior = gp.condition(x, y)
    with pytest.raises(ValueError, match="`x_test` must be finite"):
        posterior.predict(x_bad)
    with pytest.raises(ValueError, match="`y` must be finite"):
        posterior.predict(x).log_prob(y_bad)
    for name in ("row_variance", "row_weight"):
        with pytest.raises(ValueError, match=rf"`{name}` must be finite, got {text} at row 4"):
            lik.Gaussian(0.1, **{name: y_bad})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int32, torch.uint8, torch.bool])
def test_other_dtypes_are_promoted(dtype: torch.dtype) -> None:
    """CONTRACTS' case 9: half becomes float32, integers float64; the covariance is never computed in half."""
    x = torch.tensor([[0, 1], [1, 0], [1, 1], [0, 0]]).to(dtype)
    y = torch.tensor([0, 1, 1, 0]).to(dtype)
    found = model().condition(x, y).predict(x)
    wanted = model().condition(x.double(), y.double()).predict(x.double())
    assert found.mean.dtype == found.variance.dtype == (torch.float32 if dtype.is_floating_point else F64)
    assert relative(found.mean, wanted.mean) < 1e-7
    assert relative(found.variance, wanted.variance) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_said_in_every_report(dtype: torch.dtype) -> None:
    x, y = (value.float() for value in data(30))
    kind = str(dtype).removeprefix("torch.")

    def said(argument: str) -> Event:
        return Event(EventKind.HALF_PRECISION, argument=argument, dtype=kind)

    gp, half = model(), x.to(dtype)
    post = gp.condition(half, y.to(dtype))
    assert post.report.events[:2] == [said("x"), said("y")]
    assert post.predict(half).report.events == [said("x_test")]
    assert post.predict(x).report.events == []
    for way in ({}, {"approximation": "full_scale", "inducing": 8, "neighbours": 8}):
        trained = fgp.fit(gp, half, y, starts=1, max_iterations=2, **way)
        assert trained.report.events.count(said("x")) == 1
    assert gp.condition(x, y).report.events == []

    operator = gp.kernel.operator(x, half)
    operator @ y
    assert operator.report.events == [said("x2")]
    both = (operator + gp.kernel.operator(half, x)).product(y).report
    assert both.events == [said("x2"), said("x1")]


def test_shapes_and_types_that_are_refused() -> None:
    x, y = data(5)
    gp = model()
    refused = [
        (x.to(torch.complex128), y, fgp.DomainError, "`x` must be real"),
        (x, y.to(torch.complex64), fgp.DomainError, "`y` must be real"),
        (x[:, 0], y, fgp.ShapeError, r"`x` must have shape \(\*batch, n, d\)"),
        (x[:, :0], y, fgp.ShapeError, "`x` must have at least one column"),
        (x, y[:4], fgp.ShapeError, r"`y` must have shape \(\*batch, n\) with n = 5 like `x`"),
        (x, y[:, None], fgp.ShapeError, r"use y\[:, 0\] for one target"),
        (x.expand(3, 5, 2), y.expand(2, 5), fgp.ShapeError, "does not broadcast"),
        (numpy.array([["a", "b"]]), y[:1], fgp.DomainError, "`x` must be a tensor or an array of real numbers"),
        ("text", y, fgp.DomainError, "`x` must be"),
    ]
    for bad_x, bad_y, error, message in refused:
        for call in (gp.condition, gp.log_marginal_likelihood, lambda a, b: fgp.fit(gp, a, b)):
            with pytest.raises(error, match=message):
                call(bad_x, bad_y)
    posterior = gp.condition(x, y)
    with pytest.raises(fgp.ShapeError, match=r"`x_test` must have 2 columns like `x`, got shape \(5, 1\)"):
        posterior.predict(x[:, :1])
    with pytest.raises(fgp.ShapeError, match="one entry per training row"):
        fgp.GP(k.RBF(), likelihood=lik.Gaussian(0.1, row_variance=torch.ones(4))).condition(x, y)
    with pytest.raises(fgp.ShapeError, match=r"GP\(\.\.\., outputs=2\)"):
        gp.condition(x, torch.stack([y, y], -1))
    with pytest.raises(fgp.DomainError, match="`jitter` must be a finite number"):
        gp.condition(x, y, jitter=-1.0)
    with pytest.raises(fgp.DomainError, match="`device` must be None, 'auto' or a torch device"):
        gp.condition(x, y, device="nowhere")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kernel": 3.0}, "`kernel` must be a covariance function, got float"),
        ({"mean": 0.0}, r"`mean` must be a torch\.nn\.Module, got float"),
        ({"likelihood": 0.1}, r"`likelihood` must be a flashgp\.likelihoods\.Likelihood, got float"),
        ({"outputs": 0}, "`outputs` must be a whole number, 1 or more, got 0"),
        ({"outputs": True}, "`outputs` must be a whole number, 1 or more, got True"),
    ],
)
def test_a_gp_of_the_wrong_parts(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(fgp.DomainError, match=message):
        fgp.GP(**{"kernel": k.RBF(), **arguments})


def test_likelihoods_of_the_wrong_numbers() -> None:
    for arguments, message in (
        ({"noise_variance": -0.1}, "`noise_variance` must be finite and positive"),
        ({"row_variance": [0.1, -0.2]}, "`row_variance` must be 0 or more, got -0.2 at row 1"),
        ({"row_weight": [1.0, 0.0]}, "`row_weight` must be positive, got 0 at row 1"),
    ):
        with pytest.raises(fgp.DomainError, match=message):
            lik.Gaussian(**arguments)
    with pytest.raises(fgp.ShapeError, match="use noise_variance for one variance"):
        lik.Gaussian(0.1, row_variance=0.2)


def test_means_of_the_wrong_shape() -> None:
    class Wrong(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x  # (n, d)

    x, y = data(5)
    with pytest.raises(fgp.ShapeError, match=r"`mean` must return shape \(\*batch, 5\)"):
        fgp.GP(k.RBF(), Wrong()).condition(x, y)
    with pytest.raises(fgp.ShapeError, match="`slope` must have 2 entries"):
        fgp.GP(k.RBF(), m.Linear(torch.zeros(3))).condition(x, y)


# -- sizes -----------------------------------------------------------------------------------------------------------
SIZES = TileSettings()
SWITCHES = [
    MAX_NUMPY_ROWS,
    *(math.isqrt(pairs) for pairs in (SIZES.direct_pairs, TILE_PAIRS["cpu"], SIZES.taped_pairs)),
]


@pytest.mark.parametrize("n", sorted({801, *(s + step for s in SWITCHES for step in (0, 1))}))
def test_nothing_jumps_at_a_switch(n: int) -> None:
    """CONTRACTS' case 11: on both sides of every internal switch, value and gradient are those of plain torch."""
    x, y = data(n, 2)
    gp = model()
    raw = [p.detach().clone().requires_grad_() for p in gp.parameters()]
    variance, lengthscale, mean, noise = raw[0].exp(), raw[1].exp(), raw[2], raw[3].exp()
    difference = ((x[:, None] - x) / lengthscale).square().sum(-1)
    r = (difference + torch.eye(n, dtype=F64)).sqrt() - torch.eye(n, dtype=F64)
    c = math.sqrt(5.0) * r
    K_xx = variance * (1 + c + c * c / 3) * torch.exp(-c) + noise * torch.eye(n, dtype=F64)
    L = torch.linalg.cholesky(K_xx)
    residual = (y - mean)[:, None]
    fit = (residual * torch.cholesky_solve(residual, L)).sum()
    wanted = -0.5 * (fit + n * math.log(2 * math.pi)) - L.diagonal().log().sum()
    slopes = torch.autograd.grad(wanted, raw)
    found = gp.log_marginal_likelihood(x, y)
    assert relative(found, wanted) < 1e-11
    assert relative(gp.condition(x, y).log_marginal_likelihood(), wanted) < 1e-11
    for one, two in zip(torch.autograd.grad(found, list(gp.parameters())), slopes, strict=True):
        assert relative(one, two) < 1e-8


# -- extreme lengthscales --------------------------------------------------------------------------------------------
