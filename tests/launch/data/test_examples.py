"""The Example messages of ImageNet's records."""

from typing import Any

import pytest

pytestmark = pytest.mark.tensorflow


def test_tensorflow_reads_the_fields_of_a_written_example(found: dict[str, Any]) -> None:
    assert found["known_fields"] == {
        "records": 3,
        "walked": 3,
        "fields": {
            "image/height": [462],
            "image/width": [581],
            "image/colorspace": ["RGB"],
            "image/channels": [3],
            "image/class/label": [615],
            "image/class/synset": ["n00000615"],
            "image/class/text": ["class 615"],
            "image/object/bbox/xmin": [0.0],
            "image/object/bbox/xmax": [0.5],
            "image/object/bbox/ymin": [0.25],
            "image/object/bbox/ymax": [1.0],
            "image/object/bbox/label": [615],
            "image/format": ["JPEG"],
            "image/filename": ["drawn.JPEG"],
            "image/encoded": [302],
        },
    }


def test_records_of_another_schema_are_reported_by_the_field_that_differs(found: dict[str, Any]) -> None:
    cases: list[tuple[str, str]] = [
        ("no message", "it is not an Example message"),
        ("no picture", "it has no image/encoded, but image/channels, image/class/label, "),
        ("empty picture", "its image/encoded is empty"),
        ("no label", "it has no label"),
        ("label of text", "its image/class/label is not one whole number"),
        ("two labels", "its image/class/label is not one whole number"),
        ("odd boxes", "its boxes are incomplete"),
    ]
    for kind, why in cases:
        assert found["wrong"]["fields"][kind].startswith(why)


@pytest.mark.parametrize("kind", ["sound", "boxes outside"])
def test_of_a_record_with_all_fields_the_label_is_known(found: dict[str, Any], kind: str) -> None:
    assert found["wrong"]["fields"][kind] == 3


def test_what_keeps_a_picture_from_being_made_is_reported(found: dict[str, Any]) -> None:
    assert found["wrong"]["picture"] == "it has no image that can be decoded"
