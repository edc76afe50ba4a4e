"""Layers with tensors, asked of TensorFlow in its own process."""

import pytest

from tests.launch.forks import answer_of

pytestmark = pytest.mark.tensorflow

# Sums of up to 128 products, in another order: a few units of the last place of 24 and of 8 bits.
FLOAT32, BFLOAT16 = 8 * 2.0**-24, 8 * 2.0**-8
LONG_SUMS = 32 * 2.0**-24  # of 1024 products, twice in a row: the root of 1024 such units


@pytest.fixture(scope="module")
def answer() -> dict[str, object]:
    found: dict[str, object] = answer_of("-m", "tests.launch.train.layers_process")
    return found


def test_pointwise_convolutions_of_every_stride_have_the_right_gradients(
    answer: dict[str, object],
) -> None:
    differences = answer["differences"]
    assert isinstance(differences, dict)
    assert len(differences) == 9
    assert {case: apart for case, apart in differences.items() if max(apart.values()) > FLOAT32} == {}


def test_a_strided_pointwise_convolution_works_in_a_short_type(answer: dict[str, object]) -> None:
    half = answer["half"]
    assert isinstance(half, dict)
    assert max(half.values()) < BFLOAT16


def test_dense_layers_of_every_number_of_rows_are_those_of_tensorflow(answer: dict[str, object]) -> None:
    differences = answer["dense"]
    assert isinstance(differences, dict)
    assert len(differences) == 2
    assert {rows: apart for rows, apart in differences.items() if max(apart.values()) > LONG_SUMS} == {}
