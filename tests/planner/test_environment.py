"""The environment of a plan, and its JSON."""

import msgspec
import pytest

from gputopo.planner import Request, plan, plan_environment
from gputopo.values.errors import NoPlanError
from gputopo.values.machine import Gpu, Machine
from gputopo.values.run.plan import Plan
from gputopo.values.schema import decode, encode
from tests.matrices import SEVEN, machine_of


def test_a_plan_reads_back_from_its_json() -> None:
    found = plan(
        machine_of(SEVEN, source="nvidia-smi topo"), Request(num_gpus=2, prefer_pix=True, exclude=(0,))
    )
    assert decode(encode(found), Plan, origin="a test") == found
    assert found.source == "nvidia-smi topo"


def machine_with(*uuids: str | None) -> Machine:
    return Machine(source="a test", gpus=tuple(Gpu(index=i, uuid=uuid) for i, uuid in enumerate(uuids)))


def test_gpus_are_named_by_uuid_in_tower_order() -> None:
    assert plan_environment(machine_with("GPU-a", "GPU-b", "GPU-c"), (2, 0)) == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "GPU-c,GPU-a",
    }


def test_beside_a_gpu_that_does_not_answer_no_index_is_given() -> None:
    """CUDA leaves that GPU out, and counts the others anew."""
    lost = msgspec.structs.replace(
        machine_with("GPU-a", None, "GPU-c", None),
        source="live",
        gpus=(Gpu(index=0, uuid="GPU-a"), Gpu(index=1, lost=True), Gpu(index=2, uuid="GPU-c"), Gpu(index=3)),
    )
    assert plan_environment(lost, (2, 0))["CUDA_VISIBLE_DEVICES"] == "GPU-c,GPU-a"
    with pytest.raises(NoPlanError, match="no answer from GPU 1"):
        plan_environment(lost, (0, 3))


def test_one_unknown_uuid_makes_all_of_them_indices() -> None:
    # CUDA reads the list as either UUIDs or indices.
    environment = plan_environment(machine_with("GPU-a", None, "GPU-c"), (0, 1))
    assert environment["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert (
        plan_environment(machine_with("GPU-a", None, "GPU-c"), (0, 2))["CUDA_VISIBLE_DEVICES"]
        == "GPU-a,GPU-c"
    )


@pytest.mark.parametrize("uuid", ["GPU-a LD_PRELOAD=evil.so y=", "GPU-a,GPU-b", "$(id)"])
def test_a_uuid_that_is_none_never_gets_into_the_environment(uuid: str) -> None:
    environment = plan_environment(machine_with("GPU-a", uuid), (0, 1))
    assert environment["CUDA_VISIBLE_DEVICES"] == "0,1"
