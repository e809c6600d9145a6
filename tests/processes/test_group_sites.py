"""Sites that iteration finds, (M-267), (M-272) and (M-273), over ranks: as of one process with all rows."""

import pytest

from processes import sites_jobs
from processes.launch import Ranks


@pytest.mark.parametrize("kind", ["sparse", "sparse classes", "exact", "full_scale", "classes"])
def test_sites_over_ranks_are_those_of_one_process(ranks: Ranks, kind: str) -> None:
    found = ranks.run(sites_jobs.shared, 2, (61, 40), kind)
    assert found[0] == found[1]
    conditioned, fitted, parameters = found[0]
    assert conditioned < 1e-9
    assert fitted < 1e-4
    assert parameters < 1e-4


def test_sampled_variances_over_ranks_are_those_of_one_process(ranks: Ranks) -> None:
    one, other = ranks.run(sites_jobs.sampled, 2, (61, 40))
    assert one == other
    assert one < 1e-6


@pytest.mark.parametrize(("kind", "counts"), [("sparse", (61, 40)), ("many", (101, 0))])
def test_an_exact_posterior_is_that_of_one_process(ranks: Ranks, kind: str, counts: tuple[int, ...]) -> None:
    """(M-451): of parameters by an approximation that is asked for, or where a factor in each step takes too long."""
    one, other = ranks.run(sites_jobs.exact_posterior, 2, counts, kind)
    assert one == other
    posterior, parameters, kinds = one
    assert posterior < 1e-4
    assert parameters < 1e-4
    assert {"EXACT_POSTERIOR", "SHARED", "SITES"} <= {*kinds}
    assert ("SEARCHED_BY_FULL_SCALE" in kinds) == (kind == "many")
