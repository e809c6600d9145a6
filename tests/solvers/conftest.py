"""Solver tests are made of small operations: one thread takes them."""

import pytest


@pytest.fixture(autouse=True)
def by_one_thread(one_thread: None) -> None:
    """Each test."""
