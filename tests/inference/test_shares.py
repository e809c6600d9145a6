"""Sobol indices of a posterior mean, eqs. (M-412) and (M-413): functions whose indices are known, laws, errors."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import DomainError
from flashgp.inference.predict.shares import Shares, ShareSettings, shares_of

F64 = torch.float64
k = fgp.kernels
LINE = (torch.arange(1000, dtype=F64) + 0.5) / 500 - 1  # even over (-1, 1)


def ishigami(x: Tensor) -> Tensor:
    return torch.sin(x[:, 0]) + 7 * torch.sin(x[:, 1]) ** 2 + 0.1 * x[:, 2] ** 4 * torch.sin(x[:, 0])


def of(function: Callable[[Tensor], Tensor], d: int, scale: float = 1.0, seed: int = 0) -> Shares:
    names = {f"x{j + 1}": (j,) for j in range(d)}
    x = scale * LINE.unsqueeze(1).repeat(1, d)
    found = shares_of(lambda at: function(at).unsqueeze(1), x, names, range(d), seed)
    assert found is not None
    return found


def near(value: Tensor, wanted: list[float], error: Tensor) -> bool:
    return bool(((value - torch.tensor(wanted, dtype=F64)).abs() <= 4.0 * error + 1e-3).all())


@pytest.mark.parametrize("seed", range(3))
def test_indices_of_ishigami(seed: int) -> None:
    """Ishigami & Homma (1990), a = 7, b = 0.1."""
    found = of(ishigami, 3, math.pi, seed)
    assert near(found.first, [0.3139, 0.4424, 0.0], found.first_error)
    assert near(found.total, [0.5576, 0.4424, 0.2437], found.total_error)
    value, error = found.interaction("x1", "x3")
    assert found.pairs == ((0, 2),)
    assert near(value, [0.2437], error)
    assert float(error) < 0.04


def test_it_shows_a_table() -> None:
    found = of(ishigami, 3, math.pi)
    head, second, first, third, pair = str(found).splitlines()[1:]
    assert head.split() == ["alone", "with", "others"]
    assert (first.split()[0], second.split()[0], third.split()[0]) == ("x2", "x1", "x3")
    assert f"{100 * float(found.first[0]):.3g} ±" in second
    assert pair.startswith("x1 and x3 together")
    assert "<th>with others</th>" in found._repr_html_()


def test_indices_of_a_product() -> None:
    """f = (1 + 3 z)(1 + 2 w) with variances s = 1/3 of both."""
    found, s = of(lambda x: (1 + 3 * x[:, 0]) * (1 + 2 * x[:, 1]), 2), 1 / 3
    whole = 9 * s + 4 * s + 36 * s * s
    assert near(found.first, [9 * s / whole, 4 * s / whole], found.first_error)
    value, error = found.interaction(1, "x1")
    assert near(value, [36 * s * s / whole], error)


def test_functions_of_one_observation_add_their_variances() -> None:
    """M-412: 3 z and 2 w with variances of one third, and 5 z w with one of a ninth."""
    names = {"z": (0,), "w": (1,)}
    x, s = LINE.unsqueeze(1).repeat(1, 2), 1 / 3

    def functions(at: Tensor) -> Tensor:
        return torch.stack([3 * at[:, 0], 2 * at[:, 1], 5 * at[:, 0] * at[:, 1]], dim=1)

    found = shares_of(functions, x, names, range(2), 0, as_one=True)
    assert found is not None
    whole = 9 * s + 4 * s + 25 * s * s
    assert near(found.first, [9 * s / whole, 4 * s / whole], found.first_error)
    assert near(found.together, [25 * s * s / whole], found.together_error)
    each = shares_of(functions, x, names, range(2), 0)
    assert each is not None
    assert each.first.shape == (2, 3)


def test_an_additive_posterior_has_shares_that_sum_to_one() -> None:
    x = torch.rand(200, 3, dtype=F64, generator=torch.Generator().manual_seed(0))
    y = torch.sin(5 * x[:, 0]) + x[:, 1] ** 2
    kernel = k.RBF(0.5, active_dims=[0]) + k.RBF(0.7, active_dims=[1])
    found = fgp.GP(kernel, likelihood=fgp.likelihoods.Gaussian(1e-3)).condition(x, y).importance().shares
    assert found is not None
    assert float((found.first.sum() - 1.0).abs()) < 4.0 * float(found.first_error.square().sum().sqrt())
    assert bool(((found.total - found.first).abs() < 4.0 * (found.total_error + found.first_error) + 1e-12).all())
    assert found.pairs == ()
    # As the parts of the posterior say, over rows of independent columns.
    post = fgp.GP(kernel, likelihood=fgp.likelihoods.Gaussian(1e-3)).condition(x, y)
    assert float(post.components[0].share) == pytest.approx(float(found.first[0]), abs=0.1)
    assert [float(one[2]) for one in (found.first, found.first_error, found.total, found.total_error)] == [0.0] * 4


def test_a_good_fit_has_the_indices_of_its_function() -> None:
    x = math.pi * (2 * torch.rand(600, 3, dtype=F64, generator=torch.Generator().manual_seed(1)) - 1)
    kernel = 30.0 * k.RBF(torch.tensor([1.8, 1.2, 1.8]))
    post = fgp.GP(kernel, likelihood=fgp.likelihoods.Gaussian(1e-3)).condition(x, ishigami(x))
    importance = post.importance()
    shares = importance.shares
    assert shares is not None
    assert torch.allclose(shares.first, torch.tensor([0.3139, 0.4424, 0.0], dtype=F64), atol=0.07)
    assert torch.allclose(shares.total, torch.tensor([0.5576, 0.4424, 0.2437], dtype=F64), atol=0.07)
    assert "alone" in repr(importance)
    shown = max(float(shares.total[1]), float(shares.first[1]))  # whose errors may put the first above the total
    assert f"{100 * shown:.3g} %" in repr(importance)
    assert torch.equal(post.importance().shares.first, shares.first)  # type: ignore[union-attr]


def test_errors_are_the_spread_over_seeds() -> None:
    many = [of(ishigami, 3, math.pi, seed) for seed in range(40)]
    for name in ("first", "total"):
        values = torch.stack([getattr(one, name) for one in many])
        claimed = torch.stack([getattr(one, f"{name}_error") for one in many]).square().mean(0).sqrt()
        ratio = values.std(0) / claimed
        assert bool(((ratio > 0.5) & (ratio < 1.8)).all()), (name, ratio)


def test_groups_are_drawn_together() -> None:
    x = torch.stack([LINE, LINE, LINE], 1)  # two columns that are one, as of a category

    def product(at: Tensor) -> Tensor:
        return (at[:, 0] * at[:, 1]).unsqueeze(1)

    found = shares_of(product, x, {"both": (0, 1), "other": (2,)}, [0], 0)
    assert found is not None
    assert near(found.first, [1.0, 0.0], found.first_error)
    assert float(found.total[1]) == 0.0


def test_a_mean_that_does_not_vary_has_none() -> None:
    x = torch.rand(20, 2, dtype=F64, generator=torch.Generator().manual_seed(0))
    post = fgp.GP(k.RBF(1.0)).condition(x, torch.zeros(20, dtype=F64))
    assert post.importance().shares is None


def test_outputs_have_shares_of_their_own() -> None:
    x = torch.rand(80, 2, dtype=F64, generator=torch.Generator().manual_seed(0))
    found = fgp.GP(k.RBF(0.7), outputs=2).condition(x, torch.stack([x[:, 0], x[:, 1]], 1)).importance().shares
    assert found is not None
    assert found.first.shape == (2, 2)
    assert bool((found.first.diagonal() > 0.9).all())


def test_an_unknown_pair_says_which_are_known() -> None:
    found = of(ishigami, 3, math.pi)
    with pytest.raises(DomainError, match=r"looked at \(\(x1, x3\)\), got 'x1' and 'x2'; total - first"):
        found.interaction("x1", "x2")


def test_work_is_bounded() -> None:
    for groups in (1, 8, 100, 1000):
        count = ShareSettings().count(groups) * ShareSettings().replicates
        assert count * (groups + 2) <= max(16_384, 128 * (groups + 2))
        assert math.log2(count).is_integer()
    points: list[int] = []

    def counted(at: Tensor) -> Tensor:  # all three inputs act together: every pair that is looked at is
        points.append(len(at))
        return at.prod(1)

    of(counted, 3)
    assert sum(points) == ShareSettings().evaluations(3)
