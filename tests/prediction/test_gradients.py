"""What reductions send by prediction, against the copies between devices in the graphs of the core."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.prediction import GradientBlock, ModelCosts, Paths, Placement, StepPredictor, require_program
from gputopo.values.run.all_reduce import NAMES
from tests.launch.forks import answer_of
from tests.prediction.invented import models, through
from tests.prediction.sent import COUNTS, HOST, ON_HOST, SIZES, SPREAD

REDUCTIONS = tuple(name for name in NAMES if Placement("replicated", None, name).traffic is not None)
Graph = tuple[dict[tuple[int, int], float], int]  # the share of all bytes by sender and receiver; additions


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


@pytest.fixture(scope="module")
def graphs() -> dict[str, Graph]:
    found = answer_of("-m", "tests.prediction.sent")
    return {
        name: ({(one, other): share for one, other, share in sent}, additions)
        for name, (sent, additions) in found.items()
    }


@pytest.mark.tensorflow
@pytest.mark.parametrize("towers", COUNTS)
@pytest.mark.parametrize("name", SPREAD)
def test_spread_reductions_add_on_each_tower_as_much_as_predicted(
    graphs: dict[str, Graph], name: str, towers: int
) -> None:
    """Of two towers each sends the other its part of what that one adds, and the sums of its own."""
    sent, additions = graphs[f"{name} {towers}"]
    pieces, busiest = _predicted(name, towers)
    loads = [
        (sum(sent[tower, other] for other in range(towers) if other != tower) - 1) / (towers - 2)
        for tower in range(towers)
    ]

    assert max(loads) == pytest.approx(busiest, rel=1e-3)
    assert additions == pytest.approx(pieces)


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", ON_HOST)
def test_the_host_has_all_gradients_once_in_as_many_pieces_as_predicted(
    graphs: dict[str, Graph], name: str
) -> None:
    sent, additions = graphs[f"{name} 3"]

    assert sent == pytest.approx({pair: 1.0 for tower in range(3) for pair in ((tower, HOST), (HOST, tower))})
    assert additions == pytest.approx(_predicted(name, 3)[0])


@pytest.mark.tensorflow
def test_the_first_tower_has_all_gradients_of_one_device(graphs: dict[str, Graph]) -> None:
    to_first, _ = graphs["one_device 3"]
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
