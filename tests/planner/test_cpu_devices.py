"""Plans for logical CPU devices: placements in order, speeds if one is given."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.planner.cpu_devices import cpu_plan
from gputopo.values.run.plan import Candidate, Plan
from gputopo.workload.workloads import names, require


def predicted(model: str = "alexnet", devices: int = 4, images_per_sec: float | None = 30.0) -> Plan:
    return cpu_plan(
        model, devices=devices, workload=require(model), batch_size=8, images_per_sec=images_per_sec
    )


def test_the_variables_are_where_they_take_least_work() -> None:
    choice = predicted(images_per_sec=None).choice
    assert (choice.variable_update, choice.ps_device, choice.images_per_sec) == (
        "parameter_server",
        "cpu",
        None,
    )
    assert choice.reasons[1].startswith("parameter_server cpu: the least work with the variables of ")


@given(st.sampled_from(names()), st.integers(2, 8), st.floats(0.5, 1e4))
def test_the_order_is_that_of_speeds_and_the_speed_of_one_device_does_not_change_it(
    model: str, devices: int, images_per_sec: float
) -> None:
    plan = predicted(model, devices, images_per_sec)
    speeds = [one.images_per_sec or 0.0 for one in plan.candidates]
    assert speeds == sorted(speeds, reverse=True)
    assert all((one.images_per_sec_low or 0) <= (one.images_per_sec or 0) for one in plan.candidates)
    unknown = predicted(model, devices, None)
    assert list(map(mode, plan.candidates)) == list(map(mode, unknown.candidates))


def test_a_lead_within_the_range_is_a_tie_that_short_runs_settle() -> None:
    small = predicted("resnet20", 2, 400.0).prediction
    assert small is not None
    assert small.margin is not None
    assert small.tie == "one short run of each (--autotune)"


def test_one_device_has_nothing_to_compare() -> None:
    plan = predicted(devices=1)
    assert (len(plan.candidates), plan.prediction) == (1, None)


@pytest.mark.parametrize("devices", [3, 5])
def test_a_reduction_that_would_lose_gradients_is_not_compared(devices: int) -> None:
    assert "tf_hierarchical" not in {one.all_reduce for one in predicted(devices=devices).candidates}


def mode(one: Candidate) -> tuple[str, str | None, str | None]:
    return one.variable_update, one.ps_device, one.all_reduce
