"""The timeline of a step in words and milliseconds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.prediction import ModelCosts, Paths, ProgramConstants, StepPredictor, step_timeline
from gputopo.prediction.links.flows import in_words
from gputopo.prediction.links.paths import Resource
from gputopo.prediction.links.shared_links import Uplink
from gputopo.prediction.timeline import group_in_words
from tests.prediction.invented import machines, models, placings, programs


def test_links_that_carry_the_same_are_named_together() -> None:
    cases: list[tuple[list[Resource], str]] = [
        ([("up", 3)], "link of GPU 3, sending"),
        ([("up", 3), ("up", 0), ("up", 1)], "link of GPUs 0-1,3, sending"),
        ([("uplink up", 0)], "uplink of GPUs 0-1, to the host"),
        ([("nvlink", 0, 1), ("nvlink", 1, 0)], "NVLink 0 to 1 and 1 alike"),
    ]
    for alike, shown in cases:
        paths = Paths({}, {}, (Uplink(frozenset({0, 1}), 12.0),))
        assert group_in_words(alike, paths, on_host=False) == shown


def test_resources_are_in_words() -> None:
    for resource, place, shown in [
        (("up", 3), "cpu", "GPU 3 to the host"),
        (("down", 3), "cpu", "the host to GPU 3"),
        (("up", 3), "gpu:0", "link of GPU 3, sending"),
        (("down", 3), "gpu:0", "link of GPU 3, receiving"),
        (("uplink up", 0), "gpu:0", "uplink of GPUs 0-3"),
        (("nvlink", 0, 1), "gpu:0", "NVLink 0 to 1"),
        (("pair", 0, 5), "gpu:0", "path from GPU 0 to 5"),
        (("nvlink out", 1), "gpu:0", "NVLinks of GPU 1, sending"),
        (("host",), "cpu", "gradients added on the CPU"),
    ]:
        paths = Paths({}, {}, (Uplink(frozenset(range(4)), 12.0),))
        assert in_words(resource, paths, on_host=place == "cpu") == shown


@given(machines(), models(), programs(), st.floats(1e-3, 2.0), st.data())
def test_its_parts_are_those_of_the_prediction(
    paths: Paths, model: ModelCosts, program: ProgramConstants, compute_s: float, data: st.DataObject
) -> None:
    gpus = sorted(paths.hosts)
    placing = data.draw(st.sampled_from(placings(gpus)))
    predictor = StepPredictor(model, program, paths)
    found = step_timeline(predictor, gpus, compute_s, placing)
    step = predictor.step(gpus, compute_s, placing)
    parts = [1e3 * one for one in (step.weights_s, step.gradients_s, step.variables_s)]
    assert [found.weights_ms, found.gradients_ms, found.variables_ms] == pytest.approx(parts, abs=1e-4)
    assert found.forward_ms + found.backward_ms == pytest.approx(1e3 * compute_s, abs=1e-3)
    ends = found.weights_ms + found.forward_ms + found.backward_ms
    last = found.blocks[-1].through_ms
    assert max(ends, last) == pytest.approx(ends + found.gradients_ms, abs=1e-3)
    waits = max((one.wait_ms for one in found.resources), default=0.0)
    if placing.traffic != "none":
        assert waits == pytest.approx(found.weights_ms, abs=1e-3)
        assert max(one.through_ms for one in found.resources) == pytest.approx(last, abs=1e-3)


@given(machines(), models(), programs(), st.data())
def test_no_gradient_is_through_before_it_is_ready_or_before_those_ahead(
    paths: Paths, model: ModelCosts, program: ProgramConstants, data: st.DataObject
) -> None:
    gpus = sorted(paths.hosts)
    placing = data.draw(st.sampled_from(placings(gpus)))
    blocks = step_timeline(StepPredictor(model, program, paths), gpus, 1.0, placing).blocks
    assert [one.block for one in blocks] == list(reversed(model.names))
    assert all(one.ready_ms <= one.through_ms for one in blocks)
    assert [one.through_ms for one in blocks] == sorted(one.through_ms for one in blocks)
