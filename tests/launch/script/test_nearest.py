from typing import Any

import pytest

from gputopo.launch.script.nearest import nearest
from gputopo.values.run.all_reduce import NAMES
from gputopo.values.run.plan import Candidate


def choice(**fields: Any) -> Candidate:
    return Candidate(**{"gpus": (0, 1), "variable_update": "replicated", **fields})


@pytest.mark.parametrize(
    ("reduction", "words"),
    [
        ("nccl", "MirroredStrategy with NCCL"),
        ("nccl_op", "MirroredStrategy with NCCL"),
        ("tf_hierarchical", "MirroredStrategy with hierarchical copies"),
        ("one_device", "MirroredStrategy with reduction to one device"),
        ("collective", "MirroredStrategy"),
        (None, "MirroredStrategy"),
    ],
)
def test_what_tf_distribute_has_is_used_and_nothing_is_said_to_lack(
    reduction: str | None, words: str
) -> None:
    found = nearest(choice(all_reduce=reduction), "gpu", 4)
    assert (found.words, found.lacks) == (words, None)


def test_a_server_is_central_wherever_its_variables_are() -> None:
    for place in ("cpu", "gpu:1"):
        found = nearest(choice(variable_update="parameter_server", ps_device=place), "gpu", 2)
        assert (found.words, found.lacks) == ("CentralStorageStrategy", None)


def test_a_server_spread_over_gpus_is_replaced_by_nccl_and_named() -> None:
    spread = choice(variable_update="parameter_server", ps_device="gpu:spread")
    found = nearest(spread, "gpu", 2)
    assert found.words == "MirroredStrategy with NCCL"
    assert found.lacks == "variables spread over the devices"


def test_hierarchical_copies_lose_a_gradient_of_odd_devices_and_are_not_used_there() -> None:
    for reduction in ("hierarchical", "tf_hierarchical"):
        assert nearest(choice(all_reduce=reduction), "gpu", 4).strategy.reduction == "hierarchical"
        assert nearest(choice(all_reduce=reduction), "gpu", 3).strategy.reduction == "nccl"
        assert nearest(choice(all_reduce=reduction), "cpu", 3).strategy.reduction == "one"


@pytest.mark.parametrize("name", NAMES)
def test_nccl_is_for_gpus_only_unless_the_plan_has_it(name: str) -> None:
    reduction = nearest(choice(all_reduce=name), "cpu", 2).strategy.reduction
    assert reduction != "nccl" or name in ("nccl", "nccl_op")


def test_one_device_needs_no_reduction_whatever_the_plan_is() -> None:
    for update in ("replicated", "parameter_server"):
        assert nearest(choice(variable_update=update, ps_device="cpu"), "gpu", 1).words == "OneDeviceStrategy"
