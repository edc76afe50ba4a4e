from gputopo.probes.session.devices import far_nodes, near_nodes
from gputopo.values.machine import Gpu, Host, Machine, NumaNode


def numa_machine(*, nodes: int, gpu_nodes: tuple[int | None, ...]) -> Machine:
    numa = tuple(
        NumaNode(
            index=node,
            cpus="" if node == 3 else f"{node}",
            memory_mib=1000,
            distances=tuple(10 + 7 * abs(node - other) for other in range(nodes)),
        )
        for node in range(nodes)
    )
    gpus = tuple(Gpu(index=index, numa_node=node) for index, node in enumerate(gpu_nodes))
    return Machine(source="live", host=Host(numa_nodes=numa), gpus=gpus)


def test_the_memory_node_is_that_of_the_gpu_or_the_only_one_or_the_one_asked_for() -> None:
    assert near_nodes(numa_machine(nodes=2, gpu_nodes=(1, 0, None)), (0, 1, 2), None) == {0: 1, 1: 0}
    assert near_nodes(numa_machine(nodes=1, gpu_nodes=(-1, None)), (0, 1), None) == {0: 0, 1: 0}
    assert near_nodes(numa_machine(nodes=2, gpu_nodes=(1, 0)), (0, 1), 0) == {0: 0, 1: 0}


def test_the_far_node_is_the_farthest_that_has_cpus() -> None:
    machine = numa_machine(nodes=4, gpu_nodes=(0, 2))
    assert far_nodes(machine, {0: 0, 1: 2}) == {0: 2, 1: 0}
    assert far_nodes(numa_machine(nodes=1, gpu_nodes=(0,)), {0: 0}) == {}
