"""Networks whose features have collapsed are an event and a warning, wherever they are met."""

import warnings

import pytest
import torch
from torch import Tensor, nn

import flashgp as fgp
from flashgp.foundations.events import Event, EventKind, of_kind
from flashgp.kernels.warped import collapsed_features

k = fgp.kernels


def network(*scales: float) -> nn.Module:
    """Two columns to as many features as there are scales."""
    torch.manual_seed(0)
    layer = nn.Linear(2, len(scales)).double()
    with torch.no_grad():
        layer.weight.mul_(torch.tensor(scales).unsqueeze(-1))
    return layer


def points(n: int = 40) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return x, torch.sin(x.sum(-1))


def said(dead: int, features: int) -> Event:
    return Event(EventKind.FEATURES_COLLAPSED, dead=dead, features=features, all=dead == features)


def test_features_that_collapse_are_told_apart() -> None:
    """Wherever the network stands in the kernel, and in units of its lengthscales."""
    x, _ = points()
    inner = k.Matern(nu=1.5, lengthscale=torch.ones(3))
    for scales, dead in (((1.0, 1.0, 1.0), 0), ((1.0, 0.0, 1.0), 1), ((1e-4, 0.0, 1e-4), 3)):
        warped = k.Warped(network(*scales), inner)
        for kernel in (warped, 2.0 * warped, k.Linear() + k.Matern() * k.Periodic() + 0.5 * warped):
            with warnings.catch_warnings(record=True) as given:
                warnings.simplefilter("always")
                found = collapsed_features(kernel, x)
            assert found == ([said(dead, 3)] if dead else [])
            assert len(given) == len(found)
    tiny = k.Warped(network(1e-4, 1e-4), k.Matern(lengthscale=torch.full((2,), 1e-4)))
    assert collapsed_features(tiny, x) == []


def test_rows_that_are_equal_say_nothing() -> None:
    x, _ = points()
    warped = k.Warped(network(0.0, 0.0), k.Matern(lengthscale=torch.ones(2)))
    assert collapsed_features(warped, x[:1]) == collapsed_features(warped, x[:1].repeat(9, 1)) == []
    assert collapsed_features(k.Matern(lengthscale=1e9), x) == []


def test_loops_and_posteriors_say_it() -> None:
    x, y = points()
    gp = fgp.GP(k.Warped(network(1.0, 0.0), k.Matern(lengthscale=torch.ones(2))))
    with pytest.warns(fgp.FlashGPWarning, match="1 feature of 2 of a network"):
        gp.collapsed_bound(x, y, inducing=x[:5])
    with pytest.warns(fgp.FlashGPWarning):
        step = gp.minibatch_bound(x, y, count=40, inducing=x[:5])
    assert step.events == [said(1, 2)]
    for given in ((x, y), (step.q,), ([(x, y)],)):
        with pytest.warns(fgp.FlashGPWarning):
            post = gp.condition(*given)
        assert of_kind(post.report.events, EventKind.FEATURES_COLLAPSED) == [said(1, 2)]
