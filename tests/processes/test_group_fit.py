"""Fits by ranks, each with rows of its own, equal the fit of one process."""

import numpy
import pytest

from processes import fit_jobs
from processes.launch import Ranks


def test_an_exact_fit_is_that_of_one_process(ranks: Ranks) -> None:
    one = fit_jobs.fitted(None, "exact", (201,))
    for counts in ((100, 101), (101, 97, 3, 0)):
        found = ranks.run(fit_jobs.fitted, len(counts), "exact", counts)
        printed = "Not judged: `verdict` says how good the predictions are, from all rows; ask it on every rank."
        assert found[0]["printed"].startswith(printed)
        for part in found:
            assert part["verdict"] == one["verdict"]
            assert part["evaluations"] == one["evaluations"]
            assert part["shared"]["counts"] == counts
            numpy.testing.assert_allclose(part["theta"], one["theta"], rtol=1e-10, atol=1e-10)
            numpy.testing.assert_allclose(part["mean"], one["mean"], rtol=0.0, atol=1e-10)


def test_a_fit_by_estimated_gradients_is_that_of_one_process(ranks: Ranks) -> None:
    one = fit_jobs.fitted(None, "estimated", (301,))
    assert one["estimated"]
    for counts in ((201, 97, 3, 0),):
        found = ranks.run(fit_jobs.fitted, len(counts), "estimated", counts)
        for part in found:
            assert part["estimated"]
            assert part["route"] == one["route"]
            assert abs(part["evaluations"] - one["evaluations"]) <= 1
            # The search ends where a step promises p / (4 S) nats, 0.02 of 6 parameters and 64 probes: far wider.
            numpy.testing.assert_allclose(part["theta"], one["theta"], rtol=0.0, atol=1e-2)
            numpy.testing.assert_allclose(part["mean"], one["mean"], rtol=0.0, atol=5e-3)
            for name in ("theta", "mean"):  # the same bits on every rank
                assert numpy.array_equal(part[name], found[0][name])


@pytest.mark.parametrize(("kind", "counts"), [("exact", (1, 199, 0, 1)), ("estimated", (200, 1))])
def test_a_fit_goes_on_from_its_checkpoint_with_another_number_of_ranks(ranks: Ranks, kind, counts, tmp_path) -> None:
    path = str(tmp_path / "fit.checkpoint")
    first = ranks.run(fit_jobs.fitted, 3, kind, (101, 97, 3), path)
    assert not first[0]["replayed"]
    for part in ranks.run(fit_jobs.fitted, len(counts), kind, counts, path):
        assert part["replayed"] == first[0]["evaluations"]
        assert part["history"] == first[0]["history"]
        numpy.testing.assert_allclose(part["mean"], first[0]["mean"], rtol=0.0, atol=1e-8)
