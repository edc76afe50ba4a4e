"""CIFAR-10 as batches."""

from typing import Any

import pytest

pytestmark = pytest.mark.tensorflow


def test_the_binary_version_gives_the_stored_pixels_and_labels(given: dict[str, Any]) -> None:
    found = given["cifar"]
    assert all(found["labels_fit"])
    assert len(set(found["rows"])) == 40
    assert min(found["rows"]) >= 0
    assert found["test"] == pytest.approx(0.0, abs=1e-6)
    assert found["test_labels"][0] == found["test_labels"][1]


def test_distorted_pictures_of_the_python_version_are_windows_of_the_bordered_ones(
    given: dict[str, Any],
) -> None:
    assert all(given["cifar"]["windows"])
    assert given["cifar"]["moved"] > 0.5


def test_damaged_records_of_cifar_are_named_or_left_out_as_asked(given: dict[str, Any]) -> None:
    found = given["cifar"]
    assert "data_batch_1.bin, record " in found["cut"][0]
    first = "data_batch_1.bin record 2 (the file ends within record 2)."
    assert found["skipped"][-1] == f"2 bad records were skipped, the first one {first}"
    assert "has 1 of 5 training files" in found["skipped"][0]
