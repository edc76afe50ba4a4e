"""A step in time is the step that is predicted, and its gradients are served as fair sharing serves them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputopo.prediction.links.paths import Paths
from gputopo.prediction.programs import Program
from gputopo.prediction.step import Model, Stepper, predict
from gputopo.prediction.timeline import timeline
from tests.prediction.invented import machines, models, placings, programs


@given(machines(), models(), programs(), st.floats(1e-3, 2.0), st.data())
@settings(max_examples=40)
def test_its_parts_are_those_of_the_prediction(
    paths: Paths, model: Model, program: Program, compute_s: float, data: st.DataObject
) -> None:
    gpus = sorted(paths.hosts)
    placing = data.draw(st.sampled_from(placings(gpus)))
    stepper = Stepper(model, program, len(gpus))
    found = timeline(stepper, paths, gpus, compute_s, placing)
    step = predict(stepper, paths, gpus, compute_s, placing)
    assert (found.weights_s, found.gradients_s, found.variables_s) == (
        step.weights_s,
        step.gradients_s,
        step.variables_s,
    )
    assert found.forward_s + found.backward_s == pytest.approx(compute_s)
    ends = found.weights_s + found.forward_s + found.backward_s
    last = found.blocks[-1].through_s
    assert max(ends, last) == pytest.approx(ends + found.gradients_s)
    waits = max((one.wait_s for one in found.resources), default=0.0)
    if placing.all_reduce == "tf_hierarchical":
        # The slowest link of each stage is seldom the same.
        assert waits <= found.weights_s * (1 + 1e-9)
        assert all(one.through_s <= last * (1 + 1e-9) for one in found.resources)
    elif placing.traffic != "none":
        assert waits == pytest.approx(found.weights_s)
        assert max(one.through_s for one in found.resources) == pytest.approx(last)


@given(machines(), models(), programs(), st.data())
@settings(max_examples=20)
def test_no_gradient_is_through_before_it_is_ready_or_before_those_ahead(
    paths: Paths, model: Model, program: Program, data: st.DataObject
) -> None:
    gpus = sorted(paths.hosts)
    placing = data.draw(st.sampled_from(placings(gpus)))
    blocks = timeline(Stepper(model, program, len(gpus)), paths, gpus, 1.0, placing).blocks
    assert [one.number for one in blocks] == list(reversed(range(len(model.blocks))))
    assert all(one.ready_s <= one.through_s for one in blocks)
    assert [one.through_s for one in blocks] == sorted(one.through_s for one in blocks)
