"""Threads of an input pipeline."""

from typing import Any

import pytest

pytestmark = pytest.mark.tensorflow


def test_the_pipeline_gets_the_cores_that_the_towers_leave(given: dict[str, Any]) -> None:
    assert given["private_threads"]["known"] == [1, 6, 8, 1, 12]


def test_there_is_at_least_one_thread_and_no_more_than_cores(given: dict[str, Any]) -> None:
    assert given["private_threads"]["min"] == 1
    assert given["private_threads"]["within_cores"]
