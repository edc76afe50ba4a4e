from gputopo.planner.environment import plan_environment
from gputopo.values.machine import Gpu, Machine


def machine_with(*uuids: str | None) -> Machine:
    return Machine(source="a test", gpus=tuple(Gpu(index=i, uuid=uuid) for i, uuid in enumerate(uuids)))


def test_gpus_are_named_by_uuid_in_tower_order() -> None:
    assert plan_environment(machine_with("GPU-a", "GPU-b", "GPU-c"), (2, 0)) == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "GPU-c,GPU-a",
    }


def test_one_unknown_uuid_makes_all_of_them_indices() -> None:
    # CUDA reads the list as either UUIDs or indices.
    environment = plan_environment(machine_with("GPU-a", None, "GPU-c"), (0, 1))
    assert environment["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert (
        plan_environment(machine_with("GPU-a", None, "GPU-c"), (0, 2))["CUDA_VISIBLE_DEVICES"]
        == "GPU-a,GPU-c"
    )
