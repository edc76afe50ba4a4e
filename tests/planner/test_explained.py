"""The step of a choice in words and milliseconds."""

import msgspec
import pytest

from gputopo.planner import Request, plan
from gputopo.values.run.plan import StepLine
from tests import there
from tests.matrices import FOUR_AND_FOUR, machine_of

REQUEST = Request(model="alexnet", single_gpu_images_per_sec=(1500.0,), explain=True)


def line_of(**asked: object) -> StepLine:
    found = there(plan(machine_of(FOUR_AND_FOUR), msgspec.structs.replace(REQUEST, **asked)).line)
    return found


@pytest.mark.parametrize("ps", ["cpu", "gpu:0", "gpu:spread"])
def test_its_parts_are_those_of_the_choice(ps: str) -> None:
    made = plan(machine_of(FOUR_AND_FOUR), msgspec.structs.replace(REQUEST, ps=ps))
    line, choice = made.line, made.choice
    assert line is not None
    parts = {"weights": line.weights_ms, "gradients": line.gradients_ms, "variables": line.variables_ms}
    assert parts == choice.exposed_ms
    assert line.forward_ms + line.backward_ms == pytest.approx(choice.compute_ms, abs=1e-3)
    assert any(one.resource.startswith(str(choice.limited_by)) for one in line.resources)


def test_one_gpu_exchanges_nothing() -> None:
    line = line_of(num_gpus=1)
    assert (line.resources, line.gradients_ms) == ((), 0.0)
    assert all(one.ready_ms == one.through_ms for one in line.blocks)


def test_it_is_there_only_where_it_was_asked_for() -> None:
    assert plan(machine_of(FOUR_AND_FOUR), msgspec.structs.replace(REQUEST, explain=False)).line is None
    assert plan(machine_of(FOUR_AND_FOUR), Request(explain=True, predicts=False)).line is None
