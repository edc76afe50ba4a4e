"""The line of gradients before a resource that serves them one after another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.prediction.line import Block, line_of
from gputopo.prediction.step import Model
from tests.prediction.invented import models


@given(models(), st.floats(1e-3, 10.0), st.floats(0.0, 1.0), st.floats(0.0, 1e-6))
def test_the_closed_form_ends_when_the_last_event_of_a_simulation_does(
    model: Model, backward_s: float, overlap: float, seconds_per_byte: float
) -> None:
    """A gradient waits until it exists and until those before it are through."""
    now = made = 0.0
    for block in reversed(model.blocks):
        made += block.share
        ready = backward_s * (overlap * made + 1 - overlap)
        now = max(now, ready) + seconds_per_byte * block.bytes
    expected = max(now, backward_s)

    assert line_of(model.blocks, backward_s, overlap).end(seconds_per_byte) == pytest.approx(expected)


@given(models(), st.floats(0.0, 1e-6), st.floats(0.0, 1e-6))
def test_a_slower_resource_never_ends_earlier(model: Model, one: float, other: float) -> None:
    """The end rises with the seconds a byte."""
    line = line_of(model.blocks, 1.0, 0.5)

    assert line.end(min(one, other)) <= line.end(max(one, other))


def test_gradients_of_the_last_layers_hide_behind_backward_of_the_first() -> None:
    """A large dense layer at the end of a network costs nothing where backward goes on long enough."""
    blocks = (Block(0, 0.9), Block(1000, 0.1))

    assert line_of(blocks, 1.0, 1.0).end(0.0005) == 1.0
    assert line_of(blocks, 1.0, 0.0).end(0.0005) == 1.5


def test_a_model_without_blocks_is_refused() -> None:
    """There is nothing to predict from."""
    with pytest.raises(ValueError, match="without blocks"):
        line_of((), 1.0, 1.0)
