"""What reductions send by prediction, against the copies between devices in the graphs of the core."""

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.prediction import GradientBlock, ModelCosts, Paths, Placement, StepPredictor, require_program
from gputopo.values.run.all_reduce import NAMES
from gputopo.values.run.spec import Exchange
from gputopo.workload import MIN_CHUNK
from tests.prediction.invented import REDUCTIONS, models, through

SIZES = (64, 40_000, 40 * MIN_CHUNK, 7, 3 * MIN_CHUNK, 1_000_000, 12 * MIN_CHUNK)
HOST = -1


def _predicted(name: str, towers: int) -> tuple[float, float]:
    """Return the pieces that are added, and the share of all numbers that the busiest tower adds."""
    program = msgspec.structs.replace(
        require_program("gputopo"), us_add=1.0, us_cpu=1.0, link_share=1.0, cuts_variables=True
    )
    predictor = StepPredictor(
        ModelCosts((GradientBlock(4 * sum(SIZES), 1.0),), SIZES), program, Paths({}, {}, ())
    )
    terms = predictor.terms(Placement("replicated", None, name), towers)
    return 1e6 * terms.variables_s / towers, terms.gradients / towers


def _graph(name: str, towers: int) -> tuple[dict[tuple[int, int], float], int]:
    """Return the share of all bytes that each device sends to each other one, and the additions."""
    import tensorflow as tf

    from gputopo.launch.train.placement import reducer_of

    devices = [f"/GPU:{tower}" for tower in range(towers)]
    with tf.Graph().as_default() as graph:
        gradients = []
        for size in SIZES:
            row = []
            for device in devices:
                with tf.device(device):
                    row.append(tf.compat.v1.placeholder(tf.float32, (size,)))
            gradients.append(row)
        reducer_of(name, devices, Exchange())(gradients)
    sent: Counter[tuple[int, int]] = Counter()
    seen = set()
    additions = 0
    for op in graph.get_operations():
        there = _tower(op.device)
        additions += op.type in ("AddN", "AddV2")
        for tensor in op.inputs:
            here = _tower(tensor.device)
            if here != there and tensor.dtype == tf.float32 and (tensor.name, there) not in seen:
                seen.add((tensor.name, there))
                sent[here, there] += tensor.shape.num_elements()
    return {pair: numbers / sum(SIZES) for pair, numbers in sent.items()}, additions


def _tower(device: str) -> int:
    kind, number = device.rpartition("/device:")[2].lstrip("/").split(":")
    return HOST if kind == "CPU" else int(number)


@pytest.mark.tensorflow
@pytest.mark.parametrize("towers", [3, 4])
@pytest.mark.parametrize("name", ["copy", "psgpu", "psgpu#2", "psgpu#3"])
def test_spread_reductions_add_on_each_tower_as_much_as_predicted(name: str, towers: int) -> None:
    """Of two towers each sends the other its part of what that one adds, and the sums of its own."""
    sent, additions = _graph(name, towers)
    pieces, busiest = _predicted(name, towers)
    loads = [
        (sum(sent[tower, other] for other in range(towers) if other != tower) - 1) / (towers - 2)
        for tower in range(towers)
    ]

    assert max(loads) == pytest.approx(busiest, rel=1e-3)
    assert additions == pytest.approx(pieces)


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", ["pscpu", "pscpu#3"])
def test_the_host_has_all_gradients_once_in_as_many_pieces_as_predicted(name: str) -> None:
    sent, additions = _graph(name, 3)

    assert sent == pytest.approx({pair: 1.0 for tower in range(3) for pair in ((tower, HOST), (HOST, tower))})
    assert additions == pytest.approx(_predicted(name, 3)[0])


@pytest.mark.tensorflow
def test_the_first_tower_has_all_gradients_of_one_device() -> None:
    to_first, _ = _graph("one_device", 3)
    assert to_first == pytest.approx({pair: 1.0 for tower in (1, 2) for pair in ((tower, 0), (0, tower))})


def test_reductions_of_which_no_figure_is_published_are_not_predicted() -> None:
    assert set(NAMES) - set(REDUCTIONS) == {"ring", "collective", "hierarchical", "tf_hierarchical"}


@given(models(), st.floats(0.0, 1.0), st.floats(0.0, 1e-6))
def test_the_closed_form_ends_when_the_last_event_of_a_simulation_does(
    model: ModelCosts, overlap: float, seconds_per_byte: float
) -> None:
    """A gradient waits until it exists and until those before it are through."""
    now = made = 0.0
    for block in reversed(model.blocks):
        made += block.share
        now = max(now, overlap * made + 1 - overlap) + seconds_per_byte * block.bytes
    assert through(model.blocks, overlap, seconds_per_byte)[-1] == pytest.approx(now)


def test_gradients_of_the_last_layers_hide_behind_backward_of_the_first() -> None:
    """A large dense layer at the end of a network costs nothing where backward goes on long enough."""
    blocks = (GradientBlock(0, 0.9), GradientBlock(1000, 0.1))

    assert through(blocks, 1.0, 0.0005)[-1] == pytest.approx(1.0)
    assert through(blocks, 0.0, 0.0005)[-1] == pytest.approx(1.5)
    pooled = (GradientBlock(100, 0.5), GradientBlock(0, 0.5))  # nothing leaves before the end of backward
    assert through(pooled, 1.0, 0.01)[-1] == pytest.approx(2.0)
