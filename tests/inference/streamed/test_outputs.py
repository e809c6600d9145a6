"""Outputs with noise of their own, and classes, by inducing points: sums of each over one A of the rows, (M-400)."""

from dataclasses import replace
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import DomainError
from flashgp.foundations.workspace import Workspace
from flashgp.inference.exact.likelihood import DirectSettings
from flashgp.inference.sites import IteratedSites, SiteSettings
from flashgp.inference.streamed.bound import BoundSums, StreamedBound
from flashgp.inference.streamed.objective import StreamedLogJoint
from flashgp.inference.streamed.steps import InducingValues
from flashgp.inference.training.objective import Problem
from flashgp.pairwise.torch.tiles import TorchTiles
from flashgp.sources.source import Held
from flashgp.sources.survey import surveyed
from inference.full_scale.test_outputs import AT, apart, classes, kernel, numbers

F64 = torch.float64


def scattered() -> tuple[fgp.GP, Tensor, Tensor]:
    """One number of two latent functions."""
    _, x, y = numbers()
    return fgp.GP(kernel(), likelihood=fgp.likelihoods.HeteroscedasticGaussian()), x, y[:, 1]


ALL = [(numbers, 1e-3), (classes, 5e-3), (scattered, 2e-2)]  # as near as sites are, and inducing points that are seen


def by_points(gp: fgp.GP, x: Tensor, y: Tensor, points: Any) -> fgp.Posterior:
    return gp.condition(x, y, approximation="sparse", inducing=points)


@pytest.mark.parametrize(("made", "tolerance"), ALL)
def test_all_rows_as_inducing_points_are_exact(made: Any, tolerance: float) -> None:
    gp, x, y = made()
    found, wanted = by_points(gp, x, y, x), gp.condition(x, y)
    p, q = found.predict(AT), wanted.predict(AT)
    for name in ("mean", "variance", "observation_mean"):
        assert apart(getattr(p, name), getattr(q, name)) < tolerance
    assert apart(p.covariance(), q.covariance()) < tolerance
    evidence = float(wanted.log_marginal_likelihood())
    assert float(found.log_marginal_likelihood()) == pytest.approx(evidence, rel=1e-5)
    assert apart(found.leave_one_out().log_prob, wanted.leave_one_out().log_prob) < tolerance
    assert len(found.by_output) == gp.outputs
    assert apart(found.by_output[1].predict(AT).mean, q.mean[:, 1]) < tolerance


@pytest.mark.parametrize("made", [numbers, classes])
def test_fits_are_exact_too(made: Any) -> None:
    gp, x, y = made()
    found = fgp.fit(gp, x, y, approximation="sparse", inducing=x, starts=1).gp.state_dict()
    for name, value in fgp.fit(gp, x, y, starts=1).gp.state_dict().items():
        assert apart(found[name], value) < 2e-3 * (1.0 + float(value.abs().max())), name


@pytest.mark.parametrize("made", [numbers, classes])
def test_the_gradient_agrees_with_differences(made: Any) -> None:
    """Of few points, and of rows that stand for others."""
    gp, x, y = made()
    x, y = x[:25], gp.checked_targets(y[:25], x[:25])
    sites = IteratedSites.of(gp, x, y, SiteSettings(search=1e-10))
    problem = Problem(gp, x, y, DirectSettings(TorchTiles()), sites=sites)
    of = StreamedLogJoint(problem, surveyed(Held(x, y), gp.outputs, 25, 0), x[:6], 75)
    theta = of.parameters.values()
    way = 1e-3 * numpy.linspace(1.0, -0.5, len(theta))
    found, ahead, back = (of(place) for place in (theta, theta + way, theta - way))
    assert found.gradient @ way == pytest.approx(0.5 * (ahead.value - back.value), rel=1e-4)


def test_sums_of_outputs_are_those_of_each_alone() -> None:
    gp, x, y = numbers()
    post, at = by_points(gp, x, y, x[:9]), AT
    alone = [by_points(gp.output(j), x, y[:, j], x[:9]) for j in range(3)]
    assert post.bound.lower == pytest.approx(sum(one.bound.lower for one in alone), rel=1e-12)
    assert post.bound.upper == pytest.approx(sum(one.bound.upper for one in alone), rel=1e-12)
    assert post.bracket().upper == pytest.approx(sum(one.bracket().upper for one in alone), rel=1e-12)
    for j, one in enumerate(alone):
        assert apart(post.predict(at).variance[:, j], one.predict(at).variance) < 1e-12
        assert apart(post.leave_one_out().mean[:, j], one.leave_one_out().mean) < 1e-12


def test_rows_that_are_read_are_rows_that_are_held_in_any_order() -> None:
    """Labels are numbers there too; permuted classes change nothing."""
    gp, x, y = classes()
    held = by_points(gp, x, y, x[:9]).predict(AT).probability
    order, renamed = torch.randperm(60, generator=torch.Generator().manual_seed(0)), torch.tensor([2, 0, 1])
    batches = [(x[part], renamed[y[part]]) for part in order.split(25)]
    read = gp.condition(batches, inducing=x[:9])
    assert apart(read.predict(AT).probability[:, renamed], held) < 1e-6
    assert torch.allclose(read.predict(AT).probability.sum(1), torch.ones(7, dtype=F64))
    with pytest.raises(DomainError, match="`y of batch 0` must be whole numbers from 0 to 2"):
        gp.condition([(x, y + 1)], inducing=9)


def test_a_fit_of_labels_that_are_read() -> None:
    gp, x, y = classes()
    how: dict[str, Any] = {"inducing": x[:6], "starts": 1, "max_iterations": 1}
    read = fgp.fit(gp, [(x[:40], y[:40]), (x[40:], y[40:])], **how)
    held = fgp.fit(gp, x, y, approximation="sparse", **how)
    evidence = float(held.posterior.log_marginal_likelihood())
    assert float(read.posterior.log_marginal_likelihood()) == pytest.approx(evidence, abs=1e-4)


def test_weights_of_classes_are_repeated_rows() -> None:
    gp, x, y = classes()
    weight = 1 + torch.arange(60) % 3
    weighted = fgp.GP(kernel(), likelihood=fgp.likelihoods.Categorical(3, row_weight=weight))
    found = by_points(weighted, x, y, x[:9])
    repeated = by_points(gp, x.repeat_interleave(weight, 0), y.repeat_interleave(weight), x[:9])
    assert apart(found.predict(AT).probability, repeated.predict(AT).probability) < 2e-2  # c_i of (M-273) is of a row


@pytest.mark.parametrize("made", [numbers, classes])
def test_rows_join_files_keep_and_paths_are_of_the_posterior(made: Any, tmp_path: Any) -> None:
    gp, x, y = made()
    post = by_points(gp, x[:57], y[:57], x[:20])
    longer, path = post.append(x[57:], y[57:]), tmp_path / "m.safetensors"
    whole = by_points(gp, x, y, x[:20])
    assert apart(longer.predict(AT).mean, whole.predict(AT).mean) < (1e-9 if made is numbers else 0.2)
    for one in (post, longer):
        fgp.save(one, path)
        again = fgp.load(path)
        assert apart(again.predict(AT).mean, one.predict(AT).mean) < 1e-12
        assert again.state.sums.lower == one.state.sums.lower
    drawn, p = longer.paths(400, seed=0)(AT), longer.predict(AT)
    assert bool(((drawn.mean(0) - p.mean).abs() < 5.0 * (p.variance / 400).sqrt() + 0.02).all())
    assert apart(torch.corrcoef(drawn[:, 0].T), torch.eye(3, dtype=F64)) < 0.25, "outputs are independent"
    if made is classes:
        with pytest.raises(DomainError, match="save the posterior itself"):
            fgp.save(post.by_output[0], path)


def test_what_points_leave_of_functions_that_share_a_row_is_found_together() -> None:
    """c_ij of (M-273), where each moves the other's."""
    _, x, y = classes()
    gp = fgp.GP(25.0 * kernel(), likelihood=fgp.likelihoods.Categorical(3, row_weight=torch.full((60,), 30.0)))
    with torch.no_grad():
        bound = StreamedBound(gp, gp.kernel.rows(x[:5]), 60, Workspace())
        none = BoundSums.none(5, (3, 1), x.device)
        projected = 10.0 * torch.randn(3, 5, 1, generator=torch.Generator().manual_seed(0), dtype=F64)
        q = InducingValues(bound.basis, replace(none, projected=projected), bound.floor)
        sites, at, (a, left) = q.sites(gp, x, gp.checked_targets(y, x), gp.kernel.rows(x))
        spread = a.square().sum(-1, keepdim=True)
        found = (at.variance - spread) * (1.0 / left.unsqueeze(-1) + 1.0 / sites.variance)
    assert apart(found, torch.ones(60, 3, dtype=F64)) < 1e-3
