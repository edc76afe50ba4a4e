"""Labels of Example messages by their bytes alone; TensorFlow's own messages are in test_examples."""

from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch.data.example_fields import wrong_label
from tests.launch.data.records import example

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


@given(label=st.one_of(INT64, st.integers(-2, 1002)), packed=st.booleans(), picture=st.binary(max_size=300))
def test_a_label_is_one_of_1_to_1000(label: int, packed: bool, picture: bytes) -> None:
    said = wrong_label(example(picture, [label], packed=packed))
    assert said == (None if 1 <= label <= 1000 else f"its label {label} is none of 1 to 1000")


def test_a_record_without_the_field_has_no_label() -> None:
    assert wrong_label(example(b"picture", None)) == "it has no label"


@given(labels=st.lists(INT64).filter(lambda labels: len(labels) != 1))
def test_what_is_no_single_label_is_left_to_tensorflow(labels: list[int]) -> None:
    assert wrong_label(example(b"picture", labels)) is None
    assert wrong_label(example(None, labels)) is None


@given(st.binary(max_size=100), st.integers(0, 60))
def test_bytes_that_are_no_message_are_left_to_tensorflow(data: bytes, cut: int) -> None:
    assert wrong_label(data) is None
    assert wrong_label(example(b"picture", [2000])[: -1 - cut % 40]) is None
