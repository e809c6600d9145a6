"""Four processes for all tests of this folder that one worker runs."""

from collections.abc import Iterator

import pytest

from processes.launch import Ranks


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    started = Ranks()
    yield started
    started.close()
