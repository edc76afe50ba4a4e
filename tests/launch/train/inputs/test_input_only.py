"""The input without a model."""

from typing import Any

import pytest

pytestmark = pytest.mark.tensorflow


def test_the_input_alone_gives_the_events_of_a_run_without_losses(given: dict[str, Any]) -> None:
    found = given["input_only"]
    assert found["kinds"] == ["ModelBuilt", *["Step"] * 2, "WarmupDone", *["Step"] * 3, "Noticed", "Noticed"]
    assert found["steps"] == [-1, 0, 1, 2, 3]
    assert set(found["losses"]) == {None}
    assert set(found["images"]) == {6}
    assert found["towers"] == [0, 1] * 5
    assert all(found["marks"])


def test_the_input_alone_reports_what_it_does_and_what_it_left_out(given: dict[str, Any]) -> None:
    found = given["input_only"]
    assert "imagenet from 3 train files" in found["says"][0]
    assert "pixel / 127.5 - 1" in found["says"][0]
    assert found["noticed"][0].startswith("The 8 images were read 3.8 times")
    assert found["noticed"][1].startswith("1 bad record was skipped")
    assert found["describes"]["threads"] >= 1
    assert found["input"] == found["describes"]
    assert found["input"]["ready_on"] == "/CPU:0, /CPU:1"
    assert all(found["waited"])


def test_a_pipeline_gets_the_cores_that_the_towers_leave_but_one_thread_at_least_and_as_many_as_asked(
    given: dict[str, Any],
) -> None:
    assert given["threads_left"] == {"known": [6, 8, 1], "asked": 3}
