"""Plans for logical CPU devices: placements in order, speeds if one is given."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.planner.cpu_devices import UPDATE, Work, added, cpu_devices, cpu_plan, predict, updated
from gputopo.prediction.step import Placement, model_of
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


SERVER, COPIED, RING = (
    Placement("parameter_server", "cpu"),
    Placement("replicated", None, "copy"),
    Placement("replicated", None, "ring"),
)
ALONE = Placement("independent")
MODES = (SERVER, COPIED, RING, ALONE, Placement("replicated", None, "hierarchical"))
MODEL = model_of(require("alexnet"))


def test_adding_n_tensors_reads_n_and_writes_one() -> None:
    assert added(SERVER, 4) == added(COPIED, 4) == Work(5, 1)
    assert added(ALONE, 4) == added(SERVER, 1) == Work(0, 0)


def test_a_ring_reads_every_gradient_and_joins_the_sums_on_every_device() -> None:
    assert added(RING, 4) == Work(2 * 4, 7)
    assert added(Placement("replicated", None, "pscpu#2"), 4).passes == 5 + 2 * 4


def test_groups_are_added_before_their_sums_are() -> None:
    assert added(MODES[-1], 4) == Work(4 + 2, 2 + 1)


def test_collectives_of_a_model_wait_for_one_another() -> None:
    small = model_of(require("resnet20"))
    work = added(Placement("replicated", None, "collective"), 2)
    assert work.seconds(small, cpu_devices()) > 1e-6 * len(small.sizes) * cpu_devices().us_collective


def test_a_server_updates_once_and_copies_each() -> None:
    assert updated(SERVER, 4) == Work(UPDATE, 1)
    assert updated(COPIED, 4) == updated(ALONE, 4) == Work(4 * UPDATE, 4)


@given(st.sampled_from(MODES), st.integers(1, 16), st.floats(0.01, 100))
def test_a_step_computes_for_all_devices_and_one_device_takes_what_it_was_given(
    mode: Placement, towers: int, alone_s: float
) -> None:
    one = predict(MODEL, mode, 1, 1 + alone_s, cpu_devices())
    assert one.step_s == pytest.approx(1 + alone_s)
    step = predict(MODEL, mode, towers, 1 + alone_s, cpu_devices())
    share = cpu_devices().at_once if towers > 1 else 1.0
    assert step.compute_s == pytest.approx(towers * share * one.compute_s)
    assert min(step[:4]) >= 0


@given(st.integers(2, 16))
def test_a_server_does_least_and_a_ring_most(towers: int) -> None:
    steps = [
        predict(MODEL, mode, towers, 1.0, cpu_devices()).step_s for mode in (SERVER, ALONE, COPIED, RING)
    ]
    assert all(a < b or towers == 2 for a, b in pairwise(steps))
