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


@pytest.mark.parametrize("name", ["labels", "classes", "levels", "counts", "numbers", "log noise"])
def test_classes_and_counts_are_ordered_by_their_log_loss(name: str) -> None:
    """(M-151), and one number for each column, however many latent functions there are."""
    kinds, x = fgp.likelihoods, points(60)
    likelihood, y = {
        "labels": (kinds.Bernoulli(), (x[:, 0] > 0.5).double()),
        "classes": (kinds.Categorical(3), (3.0 * x[:, 0]).floor()),
        "levels": (kinds.Ordinal(3), (3.0 * x[:, 0]).floor()),
        "counts": (kinds.Poisson(), (9.0 * x[:, 0]).floor()),
        "numbers": (kinds.StudentT(), x[:, 0]),
        "log noise": (kinds.HeteroscedasticGaussian(), x[:, 0]),
    }[name]
    kernel = 3.0 * fgp.kernels.RBF(torch.tensor([0.5, 2.0, 2.0]))
    found = fgp.GP(kernel, likelihood=likelihood).condition(x, y).importance(permutations=2)
    by, measure = ("rmse", "RMSE") if name in ("numbers", "log noise") else ("log_density", "log loss")
    assert (found.by, found.measure) == (by, measure)
    assert found.rmse.shape == found.log_density.shape == (3,)
    assert found.order == getattr(found, by).argsort(descending=True).tolist()
    assert found.growth is getattr(found, by)
    error = found.rmse_error if by == "rmse" else found.log_density_error
    torch.testing.assert_close(found.growth_interval()[1] - found.growth, 1.959964 * error, rtol=1e-6, atol=0.0)
    assert f"{measure} grows by" in repr(found)
    assert repr(found).splitlines()[2].split()[:2] == ["x1", f"{float(found.growth[0]):.4g}"]


def test_held_out_counts_have_the_trials_and_exposures_of_their_rows() -> None:
    """Where they are alike, they are those of all trials, and a constant mean of the log rate."""
    x, y, kinds = points(40), (9.0 * points(40)[:, 0]).floor(), fgp.likelihoods
    twelve = torch.full((40,), 12.0, dtype=F64)
    for of_rows, mean, of_all in (
        (kinds.Binomial(trials=twelve), 0.0, kinds.Binomial(12)),
        (kinds.Poisson(exposure=twelve), math.log(12.0), kinds.Poisson()),
    ):
        found, wanted = (
            fgp.GP(fgp.kernels.RBF(0.7), fgp.means.Constant(value), one)
            .condition(x, y)
            .importance(rows=8, permutations=1)
            for one, value in ((of_rows, 0.0), (of_all, mean))
        )
        for name in ("log_density", "rmse"):
            torch.testing.assert_close(getattr(found, name), getattr(wanted, name), rtol=1e-4, atol=1e-6)


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
    unit = model.scaling.target.unit
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
