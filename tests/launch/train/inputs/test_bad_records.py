"""Records that cannot be used, and data that do not fit their model."""

from typing import Any

import pytest

from tests.launch.train.inputs.folders import (
    DAMAGE,
    DAMAGED_FILE,
    DAMAGED_RECORD,
    IN_TRAINING,
    SEEN_BY_EACH_CHECK,
)

pytestmark = pytest.mark.tensorflow

# Labels of the three files of three records, 1 to 9, without the damaged one; a file is lost from there on
# where it is unknown how long the damaged record is.
LEFT = {kind: [1, 2, 3, 4, 6, 7, 8, 9] for kind in DAMAGE} | {"truncated": [1, 2, 3, 4, 7, 8, 9]}
WHY = {
    "checksum": "its checksum does not match its bytes",
    "truncated": "the file ends within record 1",
    "picture": "it holds no picture that can be decoded",
    "label": "its label 2000 is none of 1 to 1000",
    "empty_record": "it is empty",
}


def test_damage_stops_a_run_with_the_file_and_the_record(given: dict[str, Any]) -> None:
    for kind in SEEN_BY_EACH_CHECK:
        what, hint = given["damage"][f"{kind}-stop"]
        assert what.endswith(f"{DAMAGED_FILE}, record {DAMAGED_RECORD}: {WHY[kind]}")
        assert "--bad-records skip" in hint


def test_damage_is_left_out_and_counted_where_that_was_asked(given: dict[str, Any]) -> None:
    for kind in DAMAGE:
        found = given["damage"][f"{kind}-eval"]
        assert sorted(label for label in found["labels"] if label >= 0) == LEFT[kind]
        named = f"{DAMAGED_FILE} record {DAMAGED_RECORD} ({WHY[kind]})"
        assert found["says"][-1] == f"1 bad record was left out: {named}."
        assert found["images"] == len(LEFT[kind])  # of which an evaluation reports whether it judged all


def test_training_goes_round_without_the_damaged_record_and_counts_it_once(given: dict[str, Any]) -> None:
    for kind in IN_TRAINING:
        found = given["damage"][f"{kind}-train"]
        assert len(found["labels"]) == 72
        assert set(found["labels"]) == set(LEFT[kind])
        rounds = 72 // len(LEFT[kind])
        assert all(abs(found["labels"].count(label) - rounds) <= 1 for label in LEFT[kind])
        assert found["says"][-1].startswith("1 bad record was left out: train-00001-of-00003 record 1")


def test_wrong_boxes_are_reported_where_boxes_are_used(given: dict[str, Any]) -> None:
    assert "its boxes are not within its picture" in given["schemas"]["train"][0]
    assert given["schemas"]["eval"] is None


def test_a_folder_without_one_good_record_ends_with_an_error_and_not_never(given: dict[str, Any]) -> None:
    what, _ = given["nothing_good"]
    assert what.startswith("there is not one good record: 5 bad records were left out: train-00000-of-00001")


def test_data_that_do_not_fit_the_model_are_refused(given: dict[str, Any]) -> None:
    cases: list[tuple[str, str]] = [
        ("resnet20 on imagenet", "resnet20 is made for cifar10, "),
        ("resnet50 on cifar10", "resnet50 is made for imagenet, "),
        ("own with few classes", "own takes 3 colours and has 5 classes: cifar10 does not fit it"),
        ("own with small range", "is none of 1 to 1"),
        ("name", "holds imagenet, not cifar10"),
    ]
    for case, says in cases:
        assert says in given["unfit"][case][0]


def test_an_error_of_a_record_holds_no_pipeline_that_the_worker_would_wait_for(given: dict[str, Any]) -> None:
    assert given["let_go"]["error"] is not None
    assert given["let_go"]["alive"] == 0


def test_a_file_that_cannot_be_opened_is_skipped_and_reported(given: dict[str, Any]) -> None:
    found = given["not_opened"]
    assert sorted(found["read"]) == [[file, number] for file in (0, 2) for number in range(3)]
    (said,) = found["bad"]
    assert "left out: train-00001-of-00003 record 0 (the file cannot be read" in said
    assert found["growth"] == 1.0
