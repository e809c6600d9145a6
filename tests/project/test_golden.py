"""The values of golden.json and of a committed model file, which a refactoring may not change: see golden.py."""

import math

import numpy
import pytest

import flashgp as fgp
from project import golden


@pytest.mark.parametrize("name", golden.SCENARIOS)
def test_values_are_what_they_were(name):
    off, allowed = golden.comparison(name, golden.computed(name))
    wrong = {key: f"{value:.1e}" for key, value in off.items() if value > allowed}
    assert not wrong, f"differ by more than {allowed:g} of the largest entry; {golden.SCENARIOS[name].because}"


def test_every_scenario_is_in_the_file_and_has_numbers():
    _, values = golden.written()
    assert list(values) == list(golden.SCENARIOS)
    assert all(array.size and numpy.isfinite(array).all() for arrays in values.values() for array in arrays.values())


def test_a_tolerance_beyond_rounding_has_a_reason():
    for name, case in golden.SCENARIOS.items():
        assert case.because or case.tolerance <= 1e-12, name


def test_the_committed_model_file_is_of_this_repository():
    """It predicts the golden values in the scenario `model_file`; it holds repeated rows and a composite kernel."""
    post = fgp.load(golden.MODEL)
    assert (post.count, post.distinct) == (24, 22)
    assert golden.MODEL.stat().st_size < 40_000


def test_the_comparison_sees_one_bit():
    _, values = golden.written()
    wanted = values["condition_cholesky"]["mean"]
    assert golden.distance(wanted, wanted) == 0.0
    found = wanted.copy()
    found[1] = numpy.nextafter(found[1], math.inf)
    assert 0.0 < golden.distance(found, wanted) < 1e-15
    assert golden.distance(found[1:], wanted) == math.inf
    found[0] = math.nan
    assert golden.distance(found, wanted) == math.inf
