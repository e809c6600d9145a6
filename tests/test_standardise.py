"""Standardising: statistics, constant columns, codes, extreme scales, units of densities, hostile JSON."""

import json
import math

import numpy as np
import pytest
import torch

from flashgp.foundations.errors import ModelFileError, ShapeError
from flashgp.inference.gp import GP
from flashgp.inference.training.initial import DataFacts
from flashgp.kernels.default import DEFAULT
from flashgp.targets import Classes, Number, Target, Unshifted
from flashgp.units import Scaling, learned_scalings


def learned(x: np.ndarray, y: np.ndarray, codes: tuple[int, ...] = ()) -> Scaling:
    gp = GP(DEFAULT.build(x.shape[1], codes))
    (scaling,) = learned_scalings(gp, x, y[:, None], (Number(),))
    return scaling


def test_columns_are_standardised_and_come_back() -> None:
    generator = np.random.default_rng(0)
    x, y = generator.normal([5.0, -1e8, 3.0], [2.0, 1e-3, 1e-8], (200, 3)), generator.normal(7.0, 3.0, 200)
    scaling = learned(x, y)
    z = scaling.x(x)
    assert np.abs(z.mean(0)).max() < 1e-4  # 1e8 with spread 1e-3 keeps five digits
    assert np.allclose(z.std(0), 1.0, atol=1e-4)
    assert np.allclose(scaling.target.mean(scaling.y(y)), y, rtol=1e-14)
    assert np.isclose(scaling.y(y).std(), 1.0)
    assert scaling.target.std(1.0) == scaling.target.scale


def test_codes_are_left_alone_and_a_constant_column_is_only_shifted() -> None:
    x = np.array([[0.0, 0.1, 4.0], [2.0, np.nextafter(0.1, 1.0), 5.0], [1.0, 0.1, 9.0]])  # constant up to rounding
    scaling = learned(x, np.array([3.0, 3.0, 3.0]), codes=(0,))
    assert np.array_equal(scaling.x(x)[:, 0], x[:, 0])
    assert np.abs(scaling.x(x)[:, 1]).max() < 1e-15
    assert (scaling.x_scale[1], scaling.target.scale) == (1.0, 3.0), "a constant target is its own scale"


@pytest.mark.parametrize("size", [1e-280, 1e-200, 1e280])
def test_extreme_columns_stay_finite(size: float) -> None:
    x = np.array([[-1.0], [0.5], [1.0]]) * size
    scaling = learned(x, x[:, 0])
    assert np.isfinite(scaling.x(x)).all()
    assert Scaling.from_json(json.loads(json.dumps(scaling.to_json()))) == scaling


def test_tensors_stay_tensors_of_their_dtype() -> None:
    scaling = learned(np.array([[1.0, 2.0], [3.0, 8.0]]), np.array([1.0, 2.0]))
    z = scaling.x(torch.tensor([[1.0, 2.0], [3.0, 8.0]], dtype=torch.float32))
    assert z.dtype == torch.float32
    assert torch.equal(z, torch.tensor([[-1.0, -1.0], [1.0, 1.0]]))


def test_log_density_moves_by_the_scale() -> None:
    scaling = Scaling((0.0,), (1.0,), Number(2.0, 5.0))
    y, mean, std = 9.0, 4.0, 10.0
    direct = -0.5 * ((y - mean) / std) ** 2 - math.log(std * math.sqrt(2 * math.pi))
    z = (scaling.y(y) - scaling.y(mean)) / (std / 5.0)
    standardised = -0.5 * z**2 - math.log(std / 5.0 * math.sqrt(2 * math.pi))
    assert math.isclose(standardised + float(scaling.target.log_slope(np.array(y))), direct, rel_tol=1e-12)


def test_shapes_are_refused() -> None:
    with pytest.raises(ShapeError, match="must have 1 columns"):
        Scaling((0.0,), (1.0,), Number()).x(np.zeros((4, 2)))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"x_scale": [1.0]}, "scaling.x_scale"),
        ({"y_scale": 0}, "scaling.y_scale"),
        ({"version": 4}, "scaling.version"),
        ({"version": 3}, "scaling.target"),
        ({"version": 2}, "scaling.transform"),
        ({"more": 1}, "scaling"),
    ],
)
def test_hostile_json_is_refused_by_field(change: dict[str, object], named: str) -> None:
    data = Scaling((1.0, 2.0), (3.0, 4.0), Number(5.0, 6.0)).to_json() | change
    with pytest.raises(ModelFileError, match=f"`{named}`"):
        Scaling.from_json(data)
    with pytest.raises(ModelFileError):
        Scaling.from_json([data])


@pytest.mark.parametrize(
    ("target", "named"),
    [
        (5.0, "scaling.target.kind"),
        ({"kind": "number"}, "scaling.target.kind"),
        ({"kind": "classes", "labels": ["a"]}, "scaling.target.labels"),
        ({"kind": "classes", "labels": ["a", "a"]}, "scaling.target.labels"),
        ({"kind": "classes", "labels": ["a", None]}, "scaling.target.labels"),
        ({"kind": "unshifted", "scale": 0.0, "counts": True, "scaled": False}, "scaling.target.scale"),
        ({"kind": "unshifted", "scale": 1.0, "counts": 1, "scaled": False}, "scaling.target.counts"),
    ],
)
def test_targets_of_a_file_are_checked(target: object, named: str) -> None:
    data = {"version": 3, "x_shift": [0.0], "x_scale": [1.0], "target": target}
    with pytest.raises(ModelFileError, match=f"`{named}`"):
        Scaling.from_json(data)


@pytest.mark.parametrize("target", [Classes(("a", "b")), Classes((False, True)), Classes((1, 2.5)), Unshifted(3.0)])
def test_targets_come_back_from_a_file(target: Target) -> None:
    scaling = Scaling((1.0,), (2.0,), target)
    assert Scaling.from_json(json.loads(json.dumps(scaling.to_json()))) == scaling


def test_columns_in_one_unit_keep_it() -> None:
    """(M-450): a pixel that seldom varies is not enlarged; columns of different ranges, or few, are."""
    generator = np.random.default_rng(3)
    x, y = generator.integers(0, 17, (80, 5)).astype(float), generator.normal(size=80)
    x[:2, :4] = [[0.0], [16.0]]
    x[:, 4] = 3.0 * (np.arange(80) == 7)
    scaling = learned(x, y)
    assert len(set(scaling.x_shift)) == len(set(scaling.x_scale)) == 1
    assert np.isclose(scaling.x_scale[0], np.sqrt(x.var(axis=0).mean()))
    assert np.isclose(scaling.x_shift[0], x.mean())
    spread = DataFacts.of(torch.from_numpy(scaling.x(x)), torch.from_numpy(y), None).spread
    assert torch.allclose(spread, torch.ones(5, dtype=torch.float64)), "as a fit of tensors sees"
    large = learned(x * 1e200, y)
    assert np.allclose(np.array(large.x_scale), 1e200 * np.array(scaling.x_scale))
    beyond = x.copy()
    beyond[7, 4] = 17.0
    for other in (beyond, x[:, [0, 4]]):
        assert np.allclose(learned(other, y).x_scale, other.std(axis=0))


def test_codes_and_constant_columns_take_no_part_in_one_unit() -> None:
    generator = np.random.default_rng(4)
    x, y = generator.integers(0, 5, (60, 5)).astype(float), generator.normal(size=60)
    x[:2, :3] = [[0.0], [4.0]]
    x[:, 3], x[:, 4] = 2.5, generator.integers(0, 40, 60)
    scaling = learned(x, y, codes=(4,))
    assert len(set(scaling.x_scale[:3])) == 1
    assert (scaling.x_shift[3], scaling.x_scale[3]) == (2.5, 1.0)
    assert np.array_equal(scaling.x(x)[:, 4], x[:, 4])
