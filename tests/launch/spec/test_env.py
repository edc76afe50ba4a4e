"""CPUs, memory and threads of a run on GPUs: near its GPUs, and never more than what was given."""

from typing import Any

from gputopo.launch.spec import HostPlace, Usable, place_near_gpus, program_env, worker_env
from gputopo.values.machine import Gpu, Host, Machine, NumaNode
from gputopo.values.run.spec import Runtime
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
    persistent = "TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT"
    assert gpu_env({})[persistent] == "1", "as tf_cnn_benchmarks has it"
    parent = {"TF_FORCE_GPU_ALLOW_GROWTH": "false", "TF_CPP_MIN_LOG_LEVEL": "0", persistent: "0"}
    environment = worker_env(parent, cpu_spec(backend="gpu"), PLAN)
    assert {name: environment[name] for name in parent} == parent


def gpu_env(parent: dict[str, str], **runtime: Any) -> dict[str, str]:
    return worker_env(parent, cpu_spec(backend="gpu", runtime=Runtime(**runtime)), PLAN)


def test_threads_that_start_kernels_are_private_to_a_gpu_or_shared_by_all() -> None:
    cases: list[tuple[dict[str, Any], str, str | None]] = [
        ({"per_gpu_threads": 4}, "gpu_private", "4"),
        ({"gpu_thread_mode": "gpu_shared", "per_gpu_threads": 4}, "gpu_shared", "8"),
        ({"gpu_thread_mode": "global", "per_gpu_threads": 4}, "global", None),
    ]
    for runtime, mode, count in cases:
        environment = gpu_env({}, **runtime)
        assert environment["TF_GPU_THREAD_MODE"] == mode
        assert environment.get("TF_GPU_THREAD_COUNT") == count


def test_memory_is_limited_or_grows_but_never_both() -> None:
    assert gpu_env({})["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
    for parent in ({}, {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}):
        assert gpu_env(parent, memory_limit_mib=1024)["TF_FORCE_GPU_ALLOW_GROWTH"] == "false"


def test_a_worker_on_gpus_gets_their_cpus_and_one_on_cpu_devices_none() -> None:
    place = HostPlace(cpus="0-3", memory_node=1, threads=2)
    inner = {"GPUTOPO_CPUS": "7", "GPUTOPO_MEMORY_NODE": "3", "OMP_NUM_THREADS": "5"}
    on_gpu = worker_env(inner, cpu_spec(backend="gpu"), PLAN, place)
    assert (on_gpu["GPUTOPO_CPUS"], on_gpu["GPUTOPO_MEMORY_NODE"]) == ("0-3", "1")
    assert (on_gpu["TF_NUM_INTRAOP_THREADS"], on_gpu["OMP_NUM_THREADS"]) == ("2", "5")
    for environment in (worker_env(inner, cpu_spec(), PLAN, place), program_env(inner, PLAN)):
        assert not {"GPUTOPO_CPUS", "GPUTOPO_MEMORY_NODE", "TF_NUM_INTRAOP_THREADS"} & {*environment}


def test_a_program_gets_the_plan_or_no_gpu() -> None:
    assert program_env({"A": "1"}, PLAN) == {"TF_FORCE_GPU_ALLOW_GROWTH": "true", "A": "1", **PLAN}
    assert program_env({"TF_FORCE_GPU_ALLOW_GROWTH": "0"}, PLAN)["TF_FORCE_GPU_ALLOW_GROWTH"] == "0"
    assert program_env({"A": "1"}, None) == {"A": "1", "CUDA_VISIBLE_DEVICES": "-1"}


NODES = (NumaNode(index=0, cpus="0-7,16-23"), NumaNode(index=1, cpus="8-15,24-31"))
ALL = frozenset(range(32))


def box(*nodes_of_gpus: int | None, nodes: tuple[NumaNode, ...] = NODES) -> Machine:
    gpus = tuple(Gpu(index=index, numa_node=node) for index, node in enumerate(nodes_of_gpus))
    return Machine(source="live", host=Host(numa_nodes=nodes), gpus=gpus)


def test_gpus_of_one_node_run_on_its_cpus_and_prefer_its_memory() -> None:
    place = place_near_gpus(box(0, 0, 1, 1), (2, 3), Usable(ALL))
    assert (place.cpus, place.memory_node) == ("8-15,24-31", 1)
    (says,) = place.says
    assert "CPUs 8-15,24-31, near GPUs 2-3, memory of NUMA node 1 preferred" in says
    assert "--no-affinity" in says


def test_gpus_of_all_nodes_run_on_all_cpus() -> None:
    assert place_near_gpus(box(0, 0, 1, 1), (0, 2), Usable(ALL)) == HostPlace()
    three = (*NODES, NumaNode(index=2, cpus="32-39"))
    place = place_near_gpus(box(0, 1, 2, nodes=three), (0, 1), Usable(frozenset(range(40))))
    assert (place.cpus, place.memory_node) == ("0-31", None)


def test_what_a_job_or_container_was_given_is_never_widened_and_stated() -> None:
    cases: list[tuple[set[int], str | None, str]] = [
        ({0, 1, 2, 3}, None, "CPUs 0-3, all that this process may use, are near GPU 0"),
        ({4, 5, 6, 7, 8, 9}, "4-7", "CPUs 4-7, near GPU 0"),
        ({8, 9}, None, "not changed: none of them is near GPU 0"),
        ({7, 8, 9, 10}, None, "not changed: only 7 of them near GPU 0"),
    ]
    for allowed, cpus, words in cases:
        place = place_near_gpus(box(0, 1), (0,), Usable(frozenset(allowed)))
        assert place.cpus == cpus
        assert words in place.says[-1]


def test_one_node_or_an_unknown_one_leaves_the_cpus_as_they_are() -> None:
    assert place_near_gpus(box(0, nodes=NODES[:1]), (0,), Usable(ALL)) == HostPlace()
    place = place_near_gpus(box(0, None), (0, 1), Usable(ALL))
    assert (place.cpus, place.memory_node) == (None, None)
    assert "the NUMA node of GPU 1 is unknown" in place.says[0]


def test_the_affinity_of_a_gpu_stands_for_an_unknown_node() -> None:
    gpu = Gpu(index=0, cpu_affinity="8-15,24-31")
    machine = Machine(source="live", host=Host(numa_nodes=NODES), gpus=(gpu,))
    assert place_near_gpus(machine, (0,), Usable(ALL)).cpus == "8-15,24-31"


def test_a_quota_bounds_the_threads_that_count_cpus_by_themselves() -> None:
    machine = box(0, nodes=NODES[:1])
    place = place_near_gpus(machine, (0,), Usable(ALL, quota=3.5))
    assert place.environment({"OMP_NUM_THREADS": "1"}) == {
        "TF_NUM_INTRAOP_THREADS": "4",
        "TF_NUM_INTEROP_THREADS": "4",
    }
    assert "quota of 3.5 CPUs" in place.says[0]
    assert place_near_gpus(machine, (0,), Usable(frozenset({0, 1}), quota=2.0)).threads is None
