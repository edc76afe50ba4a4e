import pytest

from gputopo.planner import Request, cpu_plan
from gputopo.values.errors import UsageError
from gputopo.values.run.plan import mode_words


def test_the_variables_are_where_they_take_least_work_and_the_order_is_that_of_the_work() -> None:
    plan = cpu_plan(Request(model="alexnet"), 4)
    modes = list(map(mode_words, plan.candidates))
    assert modes[:3] == ["parameter_server cpu", "parameter_server gpu:spread", "replicated copy"]
    assert modes[-2:] == ["replicated ring", "replicated collective"]
    assert not any("nccl" in mode for mode in modes)
    assert (plan.choice.images_per_sec, plan.prediction) == (None, None)


def test_a_reduction_that_would_lose_gradients_is_not_listed() -> None:
    assert "replicated tf_hierarchical" not in map(mode_words, cpu_plan(Request(), 3).candidates)


def test_one_device_has_one_placement() -> None:
    assert len(cpu_plan(Request(), 1).candidates) == 1


@pytest.mark.parametrize(
    ("request_", "devices", "what"),
    [
        (Request(), 65, "--num-gpus cannot be 65"),
        (Request(ps="gpu:2"), 2, "2 logical CPU devices"),
        (Request(ps="host:1"), 2, "this is a plan for one"),
        (Request(ps="cpu", variable_update="replicated"), 2, "each device has its own copy"),
        (Request(all_reduce="copy", variable_update="independent"), 2, "nothing is reduced"),
    ],
)
def test_what_cpu_devices_cannot_do_is_refused(request_: Request, devices: int, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        cpu_plan(request_, devices)
