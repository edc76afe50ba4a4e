"""Files that change while a run reads them."""

from typing import Any

import pytest

from tests.launch.train.inputs.cases.changing import CHANGED

pytestmark = pytest.mark.tensorflow
GONE = "the file cannot be read: No such file or directory"


def test_a_file_that_is_removed_stops_a_run_with_its_name_and_the_reason(given: dict[str, Any]) -> None:
    what, hint = given["changing"]["removed-stop"]["error"]
    assert what.endswith(f"{CHANGED}, record 0: {GONE}")
    assert "--bad-records skip" in hint


@pytest.mark.parametrize(
    ("kind", "left", "record"),
    [
        ("removed", {1, 2, 3, 7, 8, 9}, f"record 0 ({GONE})"),
        ("cut", {1, 2, 3, 4, 7, 8, 9}, "record 1 (the file ends within record 1)"),
    ],
)
def test_a_run_goes_on_without_what_was_removed_or_cut_where_that_was_asked(
    given: dict[str, Any], kind: str, left: set[int], record: str
) -> None:
    found = given["changing"][f"{kind}-skip"]
    assert found["error"] is None
    assert set(found["last"]) == left
    assert f"{CHANGED} {record}" in found["says"]


def test_a_run_whose_files_are_all_gone_ends_with_an_error(given: dict[str, Any]) -> None:
    what, _ = given["changing"]["all_removed-skip"]["error"]
    assert "3 bad records were left out" in what
    assert GONE in what


def test_a_file_that_cannot_be_opened_is_skipped_and_reported(given: dict[str, Any]) -> None:
    found = given["not_opened"]
    assert sorted(found["read"]) == [[file, number] for file in (0, 2) for number in range(3)]
    assert found["bad"] == [f"1 bad record was left out: {CHANGED} record 0 ({GONE})."]
    assert found["growth"] == 1.0
