from typing import Any

import pytest

from gputopo.launch.spec.env import HostPlace, program_env, worker_env
from gputopo.launch.spec.run_spec import Runtime
from tests.launch.specs import cpu_spec

PLAN = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "GPU-00-aa,GPU-11-aa"}


def test_a_gpu_worker_sees_the_gpus_of_the_plan_by_uuid_and_keeps_the_parents_environment() -> None:
    environment = worker_env({"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "7"}, cpu_spec(backend="gpu"), PLAN)
    assert environment["PATH"] == "/bin"
    assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-00-aa,GPU-11-aa"
    assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert environment["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
    assert environment["PYTHONUNBUFFERED"] == "1"


def test_a_worker_on_cpu_devices_sees_no_gpu_whatever_was_planned() -> None:
    environment = worker_env({"CUDA_VISIBLE_DEVICES": "0"}, cpu_spec(rehearsal_of="7gforce"), PLAN)
    assert environment["CUDA_VISIBLE_DEVICES"] == "-1"


def test_what_the_user_set_for_tensorflow_stands() -> None:
    parent = {"TF_FORCE_GPU_ALLOW_GROWTH": "false", "TF_CPP_MIN_LOG_LEVEL": "0"}
    environment = worker_env(parent, cpu_spec(backend="gpu"), PLAN)
    assert {name: environment[name] for name in parent} == parent


def gpu_env(parent: dict[str, str], **runtime: Any) -> dict[str, str]:
    return worker_env(parent, cpu_spec(backend="gpu", runtime=Runtime(**runtime)), PLAN)


@pytest.mark.parametrize(
    ("runtime", "mode", "count"),
    [
        ({}, "gpu_private", "2"),
        ({"per_gpu_threads": 4}, "gpu_private", "4"),
        ({"gpu_thread_mode": "gpu_shared", "per_gpu_threads": 4}, "gpu_shared", "8"),
        ({"gpu_thread_mode": "global", "per_gpu_threads": 4}, "global", None),
    ],
)
def test_threads_that_start_kernels_are_private_to_a_gpu_or_shared_by_all(
    runtime: dict[str, Any], mode: str, count: str | None
) -> None:
    environment = gpu_env({}, **runtime)
    assert environment["TF_GPU_THREAD_MODE"] == mode
    assert environment.get("TF_GPU_THREAD_COUNT") == count


def test_memory_is_limited_or_grows_but_never_both() -> None:
    assert gpu_env({})["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
    for parent in ({}, {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}):
        assert gpu_env(parent, memory_limit_mib=1024)["TF_FORCE_GPU_ALLOW_GROWTH"] == "false"


def test_a_worker_on_cpu_devices_gets_no_gpu_threads() -> None:
    environment = worker_env({}, cpu_spec(runtime=Runtime(memory_limit_mib=99, per_gpu_threads=3)), {})
    assert not [name for name in environment if name.startswith("TF_GPU_THREAD")]


def test_a_worker_on_gpus_gets_their_cpus_and_one_on_cpu_devices_none() -> None:
    place = HostPlace(cpus="0-3", memory_node=1, threads=2)
    inner = {"GPUTOPO_CPUS": "7", "GPUTOPO_MEMORY_NODE": "3", "OMP_NUM_THREADS": "5"}
    on_gpu = worker_env(inner, cpu_spec(backend="gpu"), PLAN, place)
    assert (on_gpu["GPUTOPO_CPUS"], on_gpu["GPUTOPO_MEMORY_NODE"]) == ("0-3", "1")
    assert (on_gpu["TF_NUM_INTRAOP_THREADS"], on_gpu["OMP_NUM_THREADS"]) == ("2", "5")
    for environment in (worker_env(inner, cpu_spec(), PLAN, place), program_env(inner, PLAN)):
        assert not {"GPUTOPO_CPUS", "GPUTOPO_MEMORY_NODE", "TF_NUM_INTRAOP_THREADS"} & {*environment}


def test_a_program_gets_the_plan_or_no_gpu() -> None:
    assert program_env({"A": "1"}, PLAN) == {"A": "1", **PLAN}
    assert program_env({"A": "1"}, None) == {"A": "1", "CUDA_VISIBLE_DEVICES": "-1"}
