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


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("let_go", r"train-00000-of-00001, record 0: its boxes are not within its image$"),
        ("unfit", r"train-0000\d-of-00003, record \d+: its label [234] is not between 1 and 1$"),
    ],
)
def test_a_bad_record_stops_a_run_by_its_file_and_number(given: dict[str, Any], case: str, says: str) -> None:
    what, hint = given[case]["own with small range" if case == "unfit" else "error"]
    assert re.search(says, what)
    assert "--bad-records skip" in hint


def test_damage_that_only_the_reader_finds_stops_a_run_with_its_reason(given: dict[str, Any]) -> None:
    for kind, (what, _) in given["stopped"].items():
        assert what.endswith(f"validation-00001-of-00003, record {DAMAGED_RECORD}: {WHY[kind]}")


def test_damage_is_left_out_and_counted_where_that_was_asked(given: dict[str, Any]) -> None:
    found = given["damage"]["eval"]
    assert sorted(label for label in found["labels"] if label >= 0) == sorted(LEFT)
    first = [
        f"5 bad records were skipped, the first one validation-{file:05d}-of-00007 record {DAMAGED_RECORD} "
        f"({WHY[kind]})."
        for file, kind in enumerate(DAMAGE, 1)
    ]
    assert found["says"][-1] in first
    assert found["images"] == len(LEFT)  # of which an evaluation reports whether it judged all


def test_training_goes_round_without_the_damaged_records_and_counts_them_once(given: dict[str, Any]) -> None:
    found = given["damage"]["train"]
    assert sorted(found["labels"]) == sorted([*LEFT] * PASSES)
    assert found["says"][-1].startswith("5 bad records were skipped, the first one ")


def test_wrong_boxes_are_no_matter_where_none_are_used(given: dict[str, Any]) -> None:
    assert given["forms"]["judged"] == [*range(1, len(forms()) + 2)], "the last one has them"


def test_a_folder_without_one_good_record_ends_with_an_error_and_not_never(given: dict[str, Any]) -> None:
    what, _ = given["nothing_good"]
    assert what.startswith(
        "there is no valid record: 5 bad records were skipped, the first one train-00000-of-00001"
    )


def test_data_that_do_not_fit_the_model_are_refused(given: dict[str, Any]) -> None:
    cases: list[tuple[str, str]] = [
        ("resnet20 on imagenet", "resnet20 is made for cifar10, "),
        ("own with few classes", "own takes 3 colours and has 5 classes: cifar10 does not fit it"),
        ("name", "holds imagenet, not cifar10"),
    ]
    for case, says in cases:
        assert says in given["unfit"][case][0]


def test_an_error_of_a_record_holds_no_pipeline_that_the_worker_would_wait_for(given: dict[str, Any]) -> None:
    assert given["let_go"]["alive"] == 0


def test_a_file_that_cannot_be_opened_is_skipped_and_reported(given: dict[str, Any]) -> None:
    found = given["not_opened"]
    assert sorted(found["labels"]) == [1, 2, 3, 7, 8, 9]
    first = "validation-00001-of-00003 record 0 (the file cannot be read: "
    assert found["notice"].startswith(f"1 bad record was skipped, the first one {first}")
