"""Permutation importance, eqs. (M-151) to (M-153): a plain reference, laws, seeds, tables whose answer is known."""

import gzip
import math
from pathlib import Path

import numpy
import pytest
import torch
from torch import Tensor

import flashgp as fgp
from flashgp.foundations.errors import DomainError
from flashgp.inference.posterior import Posterior
from flashgp.inference.predict.importance import ImportanceSettings, importance

F64 = torch.float64


def points(n: int, d: int = 3, seed: int = 0) -> Tensor:
    return torch.rand(n, d, dtype=F64, generator=torch.Generator().manual_seed(seed))


def noise(n: int, seed: int = 1) -> Tensor:
    return torch.randn(n, dtype=F64, generator=torch.Generator().manual_seed(seed))


def posterior(n: int = 90, outputs: int | None = None, **likelihood: object) -> Posterior:
    """Of a target that leans on x1 most, on x2 little, and on x3 not at all."""
    x = points(n)
    y = torch.sin(5.0 * x[:, 0]) + 0.3 * x[:, 1] + 0.1 * noise(n)
    y = y if outputs is None else torch.stack([y, 2.0 * x[:, 2] + 0.1 * noise(n, 2)], dim=1)
    kernel = 1.0 * fgp.kernels.RBF(torch.tensor([0.5, 2.0, 2.0]))
    return fgp.GP(kernel, likelihood=fgp.likelihoods.Gaussian(0.01, **likelihood), outputs=outputs).condition(x, y)  # type: ignore[arg-type]


# -- values -----------------------------------------------------------------------------------------------------------
def test_equals_a_plain_reference_that_leaves_rows_out() -> None:
    """Eqs. (M-151) and (M-152): with each row held out by itself and all pairs exchanged no choice is left."""
    n, post = 12, posterior(12)
    found = importance(post.state, settings=ImportanceSettings(rows=n, permutations=n - 1, largest_part=1 / n))
    x, y = post.x, post.y
    falls, grown = torch.zeros(3, n, n, dtype=F64), torch.zeros(3, n, n, dtype=F64)
    squares = torch.zeros(n, dtype=F64)
    for i in range(n):
        rest = torch.arange(n) != i
        behind = fgp.GP(post.gp.kernel, post.gp.mean, post.gp.likelihood).condition(x[rest], y[rest])

        def scores(at: Tensor, behind: Posterior = behind, i: int = i) -> tuple[Tensor, Tensor]:
            p = behind.predict(at)
            return p.log_prob(y[i].expand(len(at))), (p.mean - y[i]).square()

        log_prob, square = scores(x[i : i + 1])
        squares[i] = square
        for column in range(3):
            moved = x[i].repeat(n, 1)
            moved[:, column] = x[:, column]
            density, error = scores(moved)
            falls[column, i], grown[column, i] = log_prob - density, error - square
    pairs = n * (n - 1)  # a row with its own value adds 0
    scale = math.sqrt(torch.finfo(F64).eps)
    torch.testing.assert_close(found.log_density, falls.sum((1, 2)) / pairs, rtol=scale, atol=scale)
    root = squares.mean().sqrt()
    wanted = (squares.mean() + grown.sum((1, 2)) / pairs).sqrt() - root
    torch.testing.assert_close(found.rmse, wanted, rtol=scale, atol=scale)
    assert (found.rows, found.others, found.permutations) == (n, n - 1, n - 1)


def test_the_order_is_that_of_the_rmse() -> None:
    found = posterior().importance()
    assert [found.names[j] for j in found.order] == ["x1", "x2", "x3"]
    assert found.rmse[found.order].tolist() == sorted(found.rmse.tolist(), reverse=True)


def test_standard_errors_are_the_spread_over_rows_and_permutations() -> None:
    """Eq. (M-153): other rows held out, other permutations; the spread of the importance is its standard error."""
    post = posterior(400)
    found = [post.importance(rows=40, permutations=2, seed=seed) for seed in range(40)]
    for name in ("log_density", "rmse"):
        values = torch.stack([getattr(one, name) for one in found])
        errors = torch.stack([getattr(one, f"{name}_error") for one in found])
        ratio = errors.square().mean(0).sqrt() / values.std(0)
        assert bool((ratio[:2] > 0.7).all()), (name, ratio)
        assert bool((ratio[:2] < 1.8).all()), (name, ratio)


# -- laws -------------------------------------------------------------------------------------------------------------
def test_a_column_that_the_kernel_ignores_has_none_at_all() -> None:
    x = points(300)
    kernel = 1.0 * fgp.kernels.Matern(nu=1.5, lengthscale=torch.ones(2), active_dims=[0, 2])
    found = fgp.GP(kernel).condition(x, torch.sin(5.0 * x[:, 0])).importance()
    for name in ("log_density", "log_density_error", "rmse", "rmse_error"):
        values = getattr(found, name).tolist()
        assert values[1] == 0.0, name
        assert values[0] > 0.0, name


def test_the_same_seed_gives_the_same_and_another_does_not() -> None:
    post = posterior(300)
    first, again, other = (post.importance(seed=seed) for seed in (3, 3, 4))
    assert torch.equal(first.log_density, again.log_density)
    assert torch.equal(first.rmse_error, again.rmse_error)
    assert not torch.equal(first.log_density, other.log_density)
    before = torch.random.get_rng_state()
    post.importance()
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_order_of_outputs_columns_and_names_is_followed() -> None:
    post = posterior()
    turned = fgp.GP(1.0 * fgp.kernels.RBF(torch.tensor([2.0, 0.5, 2.0])), likelihood=fgp.likelihoods.Gaussian(0.01))
    found = turned.condition(post.x[:, [2, 0, 1]], post.y).importance()
    torch.testing.assert_close(found.log_density, post.importance().log_density[[2, 0, 1]], rtol=1e-6, atol=1e-9)


def test_several_outputs_have_an_importance_each() -> None:
    both = posterior(outputs=2).importance()
    assert both.log_density.shape == both.rmse_error.shape == (3, 2)
    alone = posterior().importance()
    torch.testing.assert_close(both.log_density[:, 0], alone.log_density, rtol=1e-6, atol=1e-9)
    assert int(both.rmse[:, 1].argmax()) == 2
    shared = posterior(outputs=2, shared=True).importance()
    torch.testing.assert_close(both.rmse, shared.rmse, rtol=1e-6, atol=1e-9)


def test_noise_of_rows_belongs_to_the_rows() -> None:
    x = points(80)
    y, rows = torch.sin(5.0 * x[:, 0]), torch.full((80,), 0.04, dtype=F64)
    kernel = 1.0 * fgp.kernels.RBF(torch.tensor([0.5, 2.0, 2.0]))
    of_rows = fgp.GP(kernel, likelihood=fgp.likelihoods.Gaussian(None, row_variance=rows)).condition(x, y)
    one = fgp.GP(kernel, likelihood=fgp.likelihoods.Gaussian(0.04)).condition(x, y)
    torch.testing.assert_close(of_rows.importance().log_density, one.importance().log_density, rtol=1e-9, atol=1e-12)


def test_rows_of_equal_x_are_held_out_together() -> None:
    """Else a copy of the row behind would answer for it, and exchanged values would look far worse than they are."""
    x = points(60)
    y = torch.sin(5.0 * x[:, 0]) + 0.1 * noise(60)
    gp = fgp.GP(1.0 * fgp.kernels.RBF(torch.tensor([0.05, 0.05, 0.05])), likelihood=fgp.likelihoods.Gaussian(1e-4))
    twice = gp.condition(torch.cat([x, x]), torch.cat([y, y])).importance(rows=120)
    assert float(twice.rmse.abs().max()) < 0.1, "nothing is known of a row but by its copy"


def test_columns_that_are_permuted_together() -> None:
    post = posterior()
    found = post.importance({"both": [0, 1], "third": 2})
    assert found.names == ("both", "third")
    apart = post.importance()
    assert found.rmse[0] > apart.rmse[:2].max()
    torch.testing.assert_close(found.rmse[1], apart.rmse[2], rtol=0.5, atol=0.01)


# -- known answers ----------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def concrete(shared_data: Path) -> dict[str, numpy.ndarray]:
    """The concrete table, a third of its rows, with a column of coins."""
    with gzip.open(shared_data / "uci" / "concrete" / "data.csv.gz") as file:
        numbers = numpy.loadtxt(file, delimiter=",")
    names = ("cement", "slag", "ash", "water", "plasticiser", "coarse", "fine", "age", "strength")
    chosen = numpy.random.default_rng(0).permutation(len(numbers))[:400]
    table = {name: numbers[chosen, j] for j, name in enumerate(names)}
    return table | {"coin": numpy.random.default_rng(1).integers(0, 2, 400).astype(float)}


def test_cement_comes_first_and_a_coin_last(concrete: dict[str, numpy.ndarray]) -> None:
    model = fgp.TableModel(starts=1).fit(concrete, target="strength")
    found = model.importance()
    assert found.names == model.inputs
    ranked = [found.names[j] for j in found.order]
    assert set(ranked[:2]) == {"cement", "age"}, ranked
    assert ranked[-1] == "coin", ranked
    low, _ = found.interval()
    assert bool(low[found.order[0]] > 0.0)


def test_intervals_of_a_column_that_says_nothing_hold_0() -> None:
    """Of 20 tables with a column of coins, at parameters that read it, the 95 % intervals of 16 at least."""
    held = 0
    for seed in range(20):
        x, coin = points(150, seed=seed), noise(150, seed + 100).sign()
        x[:, 2] = coin
        y = torch.sin(5.0 * x[:, 0]) + 0.3 * noise(150, seed + 200)
        gp = fgp.GP(1.0 * fgp.kernels.RBF(torch.tensor([0.5, 3.0, 3.0])), likelihood=fgp.likelihoods.Gaussian(0.09))
        found = gp.condition(x, y).importance(rows=75)
        low, high = found.interval()
        held += bool(low[2] <= 0.0 <= high[2])
        assert low[0] > 0.0, "and the column that says all is found"
    assert held >= 16


# -- tables and estimators --------------------------------------------------------------------------------------------
def test_a_table_has_names_and_units(tmp_path: Path) -> None:
    x = numpy.random.default_rng(0).uniform(size=(80, 2))
    wave = 100.0 + 50.0 * numpy.sin(5.0 * x[:, 0])
    colours = numpy.array(["red", "green"])[(x[:, 1] > 0.5).astype(int)]
    table = {"hour": x[:, 0], "colour": colours, "wave": wave + 20.0 * (colours == "red")}
    model = fgp.TableModel(starts=1, target_transform="none").fit(table, target="wave")
    found = model.importance(permutations=2)
    standardised = model.posterior.importance(permutations=2)
    assert found.names == ("hour", "colour")
    unit = model.scaling.target_scale
    torch.testing.assert_close(found.rmse, unit * standardised.rmse, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.log_density, standardised.log_density)
    assert model.importance({"all": ["hour", "colour"]}).names == ("all",)
    model.save(tmp_path / "model.safetensors")
    again = fgp.load(tmp_path / "model.safetensors").importance(permutations=2)
    torch.testing.assert_close(again.rmse, found.rmse)
    text = repr(found).splitlines()
    assert "80 held-out rows predicted from 60 others" in text[0]
    assert text[2].startswith("hour")
    with pytest.raises(DomainError, match="got 'size'; choose from hour, colour"):
        model.importance({"one": "size"})


def test_errors_of_a_transformed_target_are_in_its_units() -> None:
    x = points(80)
    y = torch.exp(2.0 * torch.sin(5.0 * x[:, 0]) + 0.05 * noise(80)).numpy()
    model = fgp.TableModel(starts=1, target_transform="log").fit({"a": x[:, 0].numpy(), "y": y}, target="y")
    found = model.importance(permutations=4)
    # Without its one column a prediction is about as wrong as that of another row, in units of y.
    assert 0.5 < float(found.rmse[0]) / math.sqrt(2.0 * y.var()) < 2.0


def test_an_estimator_names_columns_of_frames_and_scales_outputs() -> None:
    pandas = pytest.importorskip("pandas")
    x = numpy.random.default_rng(0).uniform(size=(60, 2))
    y = numpy.stack([10.0 * numpy.sin(5.0 * x[:, 0]), 1000.0 * x[:, 1]], axis=1)
    model = fgp.GPRegressor(starts=1, target_transform="none").fit(pandas.DataFrame(x, columns=["a", "b"]), y)
    found = model.importance()
    assert found.names == ("a", "b")
    assert found.rmse.shape == (2, 2)
    assert found.rmse[0, 0] > 5.0 * found.rmse[1, 0]
    assert 100.0 < found.rmse[1, 1] < 1000.0
    assert fgp.GPRegressor(starts=1).fit(x, y[:, 0]).importance({"both": [0, 1]}).names == ("both",)


# -- errors -----------------------------------------------------------------------------------------------------------
def test_what_it_is_not_of() -> None:
    x = points(40)
    batch = fgp.GP(fgp.kernels.RBF(torch.ones(2, 3))).condition(x, x[:, 0])
    with pytest.raises(DomainError, match="is of one model"):
        batch.importance()
    with pytest.raises(DomainError, match="needs 2 rows at least"):
        fgp.GP(fgp.kernels.RBF()).condition(x[:1], x[:1, 0]).importance()
    post = posterior(20)
    with pytest.raises(DomainError, match=r"`groups\['far'\]` must have columns of x, 0 to 2, got 3"):
        post.importance({"far": 3})
    with pytest.raises(DomainError, match="`groups` must be a mapping"):
        post.importance(["a", "b", "c"])  # type: ignore[arg-type]
    with pytest.raises(DomainError, match="`rows`"):
        post.importance(rows=1)
    with pytest.raises(DomainError, match="`seed`"):
        post.importance(seed=0.5)  # type: ignore[arg-type]


def test_two_rows_are_enough() -> None:
    x = points(2)
    found = fgp.GP(fgp.kernels.RBF()).condition(x, x[:, 0]).importance()
    assert (found.rows, found.others, found.permutations) == (2, 1, 1)
    assert bool(found.rmse.isfinite().all())
