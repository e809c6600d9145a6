"""The values of golden.json and of a committed model file, which a refactoring may not change: see golden.py."""

import math

import numpy
import pytest

import flashgp as fgp
from project import golden


@pytest.mark.parametrize("name", golden.SCENARIOS)
def test_values_are_what_they_were(name):
    """On any machine within the scenario's tolerance; and twice here, the same bits where it is deterministic."""
    case, found = golden.SCENARIOS[name], golden.computed(name)
    off = golden.differences(golden.portable(found), golden.written()[name])
    wrong = {key: f"{value:.1e}" for key, value in off.items() if value > case.tolerance}
    assert not wrong, f"differ by more than {case.tolerance:g} of the largest entry"
    if case.against == 0.0:
        assert golden.differences(golden.computed(name), found) == {}


def test_every_scenario_is_in_the_file_and_has_numbers():
    values = golden.written()
    assert list(values) == list(golden.SCENARIOS)
    assert all(array.size and numpy.isfinite(array).all() for arrays in values.values() for array in arrays.values())


def test_the_committed_model_file_is_of_this_repository():
    """It predicts the golden values in the scenario `model_file`; it holds repeated rows and a composite kernel."""
    post = fgp.load(golden.MODEL)
    assert (post.count, post.distinct) == (24, 22)
    assert golden.MODEL.stat().st_size < 40_000


def test_the_comparison_sees_one_bit():
    wanted = golden.written()["condition_cholesky"]["mean"]
    assert golden.distance(wanted, wanted) == 0.0
    found = wanted.copy()
    found[1] = numpy.nextafter(found[1], math.inf)
    assert 0.0 < golden.distance(found, wanted) < 1e-15
    assert golden.distance(found[1:], wanted) == math.inf
    found[0] = math.nan
    assert golden.distance(found, wanted) == math.inf
