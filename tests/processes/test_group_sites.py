"""Sites that passes over rows make from q(u), (M-273), over ranks: as of one process with all rows."""

from processes import sites_jobs
from processes.launch import Ranks


def test_sites_over_ranks_are_those_of_one_process(ranks: Ranks) -> None:
    told = ranks.run(sites_jobs.shared, 2, (61, 40))
    assert told[0] == told[1]
    conditioned, fitted, parameters, refused = told[0]
    assert conditioned < 1e-9
    assert fitted < 1e-4
    assert parameters < 1e-4
    assert "`group` must be None where sites are found by iteration" in refused
