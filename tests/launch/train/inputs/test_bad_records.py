"""Records that cannot be used, and data that do not fit their model."""

import re
from typing import Any

import pytest

from tests.launch.train.inputs.cases.damage import PASSES
from tests.launch.train.inputs.folders import DAMAGE, DAMAGED_RECORD, forms

pytestmark = pytest.mark.tensorflow

# Labels 1 to 21 of seven files of three, without the second of the five damaged files; one is lost from there
# on where it is unknown how long the damaged record is.
LEFT = set(range(1, 22)) - {5, 8, 9, 11, 14, 17}
WHY = {
    "checksum": "its checksum does not match its bytes",
    "truncated": "the file ends within record 1",
    "picture": "it has no image that can be decoded",
    "label": "its label 2000 is not between 1 and 1000",
    "empty_record": "it is empty",
}


def test_a_bad_record_stops_a_run_by_its_file_and_number(given: dict[str, Any]) -> None:
    cases: list[tuple[list[str], str]] = [
        (given["let_go"]["error"], r"train-00000-of-00001, record 0: its boxes are not within its image$"),
        (
            given["unfit"]["small range"],
            r"train-0000\d-of-00003, record \d+: its label [234] is not between 1 and 1$",
        ),
    ]
    for (what, hint), says in cases:
        assert re.search(says, what)
        assert "--bad-records skip" in hint


def test_training_goes_round_without_the_damaged_records_and_counts_them_once(given: dict[str, Any]) -> None:
    found = given["damage"]
    assert sorted(found["labels"]) == sorted([*LEFT] * PASSES)
    first = [
        f"5 bad records were skipped, the first one train-{file:05d}-of-00007 record {DAMAGED_RECORD} "
        f"({WHY[kind]})."
        for file, kind in enumerate(DAMAGE, 1)
    ]
    assert found["says"][-1] in first
    assert found["images"] == len(LEFT)


def test_wrong_boxes_are_no_matter_where_none_are_used(given: dict[str, Any]) -> None:
    assert given["forms"]["judged"] == [*range(len(forms()) + 1)], "the last one has them"


def test_a_folder_without_one_good_record_ends_with_an_error_and_not_never(given: dict[str, Any]) -> None:
    what, _ = given["nothing_good"]
    assert what.startswith(
        "there is no valid record: 5 bad records were skipped, the first one train-00000-of-00001"
    )


def test_data_that_do_not_fit_the_model_are_refused(given: dict[str, Any]) -> None:
    what, _ = given["unfit"]["few classes"]
    assert what == "own takes 3 colours and has 5 classes: cifar10 does not fit it"


def test_an_error_of_a_record_holds_no_pipeline_that_the_worker_would_wait_for(given: dict[str, Any]) -> None:
    assert given["let_go"]["alive"] == 0


def test_a_file_that_cannot_be_opened_is_skipped_and_reported(given: dict[str, Any]) -> None:
    found = given["not_opened"]
    assert sorted(found["labels"]) == [1, 2, 3, 7, 8, 9]
    first = "validation-00001-of-00003 record 0 (the file cannot be read: "
    assert found["notice"].startswith(f"1 bad record was skipped, the first one {first}")
