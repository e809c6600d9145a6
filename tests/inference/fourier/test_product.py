"""Certified solves by products of Fourier series: laws of the products, of answers and bounds, and what is refused."""

import math
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.events import EventKind, of_kind
from flashgp.inference.choice import Choice
from flashgp.inference.fourier.product import ProductSettings, SplitSettings, fourier_products
from flashgp.inference.fourier.spectrum import GridSettings, product_grid
from flashgp.inference.plan_settings import RowCounts
from flashgp.inference.run import Run
from flashgp.planner.fourier_price import ProductPrice
from flashgp.planner.plan import Plan
from flashgp.planner.problem import PlanSettings
from flashgp.solvers.iterative.refinement import RefinementSettings
from flashgp.solvers.preconditioners.full_scale import making_bytes

F64 = torch.float64
k = fgp.kernels


def _rows(n: int, d: int, seed: int = 0) -> Tensor:
    return torch.rand(n, d, dtype=F64, generator=torch.Generator().manual_seed(seed))


def _gp(kernel: k.Kernel, noise: float) -> fgp.GP:
    return fgp.GP(kernel, fgp.means.Zero(), fgp.likelihoods.Gaussian(noise))


def _slow(gp: fgp.GP, n: int, d: int) -> Plan:
    """The plan of a machine on which pairs take long."""
    return replace(fgp.plan(gp, n=n, d=d, route="recomputed", device="cpu"), seconds=100.0)


CASES = [
    (1, 0.01, k.Matern(nu=1.5, lengthscale=0.1)),
    (1, 0.1, 1.3 * k.Matern(nu=0.5, lengthscale=0.3) + k.Periodic(period=0.2)),
    (2, 0.05, k.Matern(nu=2.5, lengthscale=torch.tensor([0.2, 0.4], dtype=F64))),
    (3, 0.05, k.RBF(0.5)),
]


@pytest.mark.parametrize(("d", "noise", "kernel"), CASES)
def test_an_answer_lies_within_its_bound(d: int, noise: float, kernel: k.Kernel) -> None:
    """Of dense float64, (M-76): the bound that all pairs have to meet, by few exact products, (M-440)."""
    n, x_test = 600, _rows(40, d, 1)
    x = _rows(n, d)
    y = torch.sin(6.0 * x.sum(1)) + noise**0.5 * torch.randn(n, dtype=F64, generator=torch.Generator().manual_seed(2))
    gp = _gp(kernel, noise)
    plan = _slow(gp, n, d)
    refined, pairs = gp.condition(x, y, plan=plan), gp.condition(x, y, plan=replace(plan, seconds=0.0))
    assert of_kind(refined.report.events, EventKind.APPROXIMATE_PRODUCTS)
    assert not of_kind(pairs.report.events, EventKind.APPROXIMATE_PRODUCTS)
    dense = kernel.operator(x).to_dense().detach() + noise * torch.eye(n, dtype=F64)
    exact = kernel.operator(x_test, x).to_dense().detach() @ torch.linalg.solve(dense, y)
    for post in (refined, pairs):
        assert post.report.error_bound is not None
        assert float((post.predict(x_test).mean - exact).abs().max()) <= post.report.error_bound
        assert post.report.error_bound <= 1e-3 * noise**0.5
    (solved,), (other,) = (of_kind(post.report.events, EventKind.SOLVED) for post in (refined, pairs))
    assert solved.fields["passes"] <= min(6.0, 0.7 * other.fields["passes"])


def test_the_posterior_of_a_fit_takes_them_before_any_model_was_conditioned() -> None:
    """In a process of its own: what a fit takes may not depend on calls before it."""
    script = (
        "import dataclasses, sys, torch, flashgp as fgp\n"
        "x = torch.rand(300, 2, dtype=torch.float64)\n"
        "gp = fgp.GP(fgp.kernels.Matern(nu=1.5, lengthscale=0.1))\n"
        "plan = fgp.plan(gp, n=300, d=2, route='recomputed', device='cpu')\n"
        "plan = dataclasses.replace(plan, seconds=100.0)\n"
        "fit = fgp.fit(gp, x, x.sum(1).sin(), plan=plan, progress=False, starts=1, max_iterations=2)\n"
        "sys.stdout.write(' '.join(event.kind.name for event in fit.posterior.report.events))"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert EventKind.APPROXIMATE_PRODUCTS.name in found.stdout.split()


@pytest.mark.parametrize("lengthscale", [0.1, 0.5])
@pytest.mark.parametrize("share", [1e-2, 1e-3, 1e-4])
def test_products_are_near_those_of_all_pairs(share: float, lengthscale: float) -> None:
    """A^-1/2 (A - A~) A^-1/2 is no larger than a few times the share, and sqrt(1 + M / n) times that, (M-441)."""
    kernel, x, noise = k.Matern(nu=1.5, lengthscale=lengthscale), _rows(400, 2), torch.tensor([0.05], dtype=F64)
    plan = _slow(_gp(kernel, 0.05), 400, 2)
    settings = ProductSettings(shares=(share,), split=SplitSettings(radii=()))
    found, _ = fourier_products(kernel, x, noise, plan, Run(), settings)
    assert found is not None
    one = torch.eye(400, dtype=F64)
    K = kernel.operator(x).to_dense().detach()
    L = torch.linalg.cholesky(K + 0.05 * one)
    error = torch.linalg.solve_triangular(L, K - found @ one - found.left_out * one, upper=False)
    error = torch.linalg.solve_triangular(L, error.mT, upper=False)
    assert float(torch.linalg.matrix_norm(error, 2)) <= 5.0 * share * (1.0 + found.grid.size / 400) ** 0.5


def test_finer_grids_take_fewer_exact_products() -> None:
    """(M-442): and each has more frequencies, beyond which no coefficient is above the share."""
    gp, n = _gp(k.Matern(nu=1.5, lengthscale=0.2), 0.01), 200_000
    corners = torch.zeros(2, dtype=F64), torch.ones(2, dtype=F64)
    plan, before = replace(_slow(gp, n, 2), seconds=200.0), (0, 1e9)
    for share in (1e-2, 1e-3, 1e-5):
        grid = product_grid(gp.kernel, *corners, share * 0.01 / n, GridSettings(beyond=(0.0, 0.0, 0.0)))
        price = ProductPrice(plan, n, grid.d, grid.size, share, 1e-7)
        assert grid.size > before[0]
        assert price.exact_products < before[1]
        before = grid.size, price.exact_products


REFUSED = [
    (2, {}, k.Matern() * k.Linear(), "stationary"),
    (4, {}, k.Matern(), "one to 3 columns"),
    (2, {"deterministic": True}, k.Matern(), "deterministic"),
    (2, {"available_bytes": 10**6}, k.Matern(nu=0.5, lengthscale=0.01), "available"),
]


@pytest.mark.parametrize(("d", "changes", "kernel", "why"), REFUSED)
def test_what_has_no_series_is_solved_by_all_pairs(d: int, changes: dict[str, int], kernel: k.Kernel, why: str) -> None:
    x, noise, gp = _rows(200, d), torch.tensor([0.1], dtype=F64), _gp(kernel, 0.1)
    run = Run(deterministic=bool(changes.pop("deterministic", False)))
    found, events = fourier_products(kernel, x, noise, replace(_slow(gp, 200, d), **changes), run)
    assert found is None
    (event,) = of_kind(events, EventKind.APPROXIMATE_PRODUCTS_REFUSED)
    assert why in str(event)


def test_exact_and_approximate_products_fit_together() -> None:
    """Both stand beside the preconditioner: of the memory left by it exact ones take a half at most."""
    n, least = 20_000, torch.tensor([0.01], dtype=F64)
    kernel, x, split = k.Matern(nu=1.5, lengthscale=0.6), _rows(n, 3), SplitSettings()
    plan, taken = _slow(_gp(kernel, 0.01), n, 3), list[float]()
    for available in (10**11, 130 * 10**6):
        found, _ = fourier_products(kernel, x, least, replace(plan, available_bytes=available), Run())
        assert found is not None
        assert found.finer is not None
        numbers = sum(math.prod(one.waves.grid.shape) for one in (found.finer, found.products))
        taken.append(split.number_bytes * numbers + 2 * 8 * n * split.row_numbers)
    whitening = making_bytes(n, 128, RefinementSettings().solves.full_scale[0])
    assert taken[1] < 130 * 10**6 - whitening < taken[0]


def test_small_gains_are_left() -> None:
    """A gain below the least is said; of solves that take no time there is nothing to say."""
    kernel, x, noise = k.Matern(nu=0.5, lengthscale=0.05), _rows(300, 3), torch.tensor([0.01], dtype=F64)
    plan = _slow(_gp(kernel, 0.01), 300, 3)
    found, events = fourier_products(kernel, x, noise, plan, Run(), ProductSettings(min_gain=50.0))
    assert found is None
    assert of_kind(events, EventKind.APPROXIMATE_PRODUCTS_DEARER)
    assert fourier_products(kernel, x, noise, replace(plan, seconds=1.0), Run()) == (None, [])


def test_a_plan_expects_the_products_that_solves_run_on() -> None:
    """(M-461): of uniform rows it says by how much they are quicker; limits and choices go by these seconds."""
    n, gp = 50_000, _gp(k.Matern(nu=1.5, lengthscale=0.2), 0.01)
    asked = {"n": n, "d": 3, "route": "recomputed", "device": "cpu"}
    plan = fgp.plan(gp, **asked)
    products, _ = fourier_products(gp.kernel, _rows(n, 3), torch.tensor([0.01], dtype=F64), plan, Run())
    assert products is not None
    assert plan.pairs_seconds / plan.seconds == pytest.approx(products.event.fields["gain"], rel=0.2)
    assert plan.fit_seconds > plan.seconds
    assert plan.notes[-1].startswith("products by Fourier series are expected")
    assert Plan.from_json(plan.to_json()) == plan
    by_pairs = replace(
        plan, seconds=plan.pairs_seconds, fit_seconds=plan.fit_seconds + plan.pairs_seconds - plan.seconds
    )
    some, all_pairs = plan.repeated(3, 2.0), replace(by_pairs, pairs_seconds=0.0).repeated(3, 2.0)  # which sites take
    assert some.seconds_by_pairs == all_pairs.seconds
    assert some.fit_seconds - some.seconds == pytest.approx(all_pairs.fit_seconds - all_pairs.seconds)
    limited = fgp.plan(gp, **asked, time_limit=1.01 * plan.fit_seconds).largest_fit
    assert limited is not None
    assert limited.rows >= n
    for other in (
        fgp.plan(gp, **asked, ranks=2), fgp.plan(gp, **asked, deterministic=True), fgp.plan(gp, **asked | {"n": 5000}),
        fgp.plan(_gp(k.Matern(nu=1.5, lengthscale=0.2) + k.Linear(), 0.01), **asked),
    ):  # fmt: skip
        assert other.pairs_seconds == 0.0
        assert other.seconds_by_pairs == other.seconds
    far = RowCounts(n, 3, extent=(math.inf, 1.0, 1.0))  # which is refused where rows are looked at
    settings = PlanSettings(route="recomputed", device="cpu")
    assert Choice(gp, far, settings, training=False).exact().pairs_seconds == 0.0
