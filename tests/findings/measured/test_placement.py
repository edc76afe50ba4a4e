"""Host memory that lies on another NUMA node than it was asked for."""

from msgspec.structs import replace

from gputopo.findings import find_bandwidth
from gputopo.values.machine import Machine
from tests.findings.measured.machines import measured, sample, with_copies


def with_memory(wanted: int | None, lies: int) -> Machine:
    machine = measured(2)
    machine = replace(machine, gpus=tuple(replace(gpu, numa_node=1) for gpu in machine.gpus))
    copies = tuple(
        replace(sample("h2d", "host", f"gpu:{gpu}", 9.0, pinned=True), numa_node=lies, numa_wanted=wanted)
        for gpu in (0, 1)
    )
    return with_copies(machine, copies)


def test_memory_of_another_node_than_the_gpus_own_is_a_warning() -> None:
    (one,) = [one for one in find_bandwidth(with_memory(1, 0)) if one.id == "numa.memory_elsewhere"]
    assert (one.severity, str(one.subject)) == ("warning", "gpus:0-1")
    assert "host memory requested on NUMA node 1 is on node 0" in one.says
    assert "--cpuset-mems" in (one.remedy or "")


def test_memory_of_a_far_node_that_could_not_be_had_is_worth_knowing() -> None:
    (one,) = [one for one in find_bandwidth(with_memory(0, 1)) if one.id == "numa.memory_elsewhere"]
    assert one.severity == "info"


def test_memory_that_is_spread_is_named() -> None:
    (one,) = [one for one in find_bandwidth(with_memory(1, 1)) if one.id == "numa.memory_elsewhere"]
    assert "host memory requested on NUMA node 1 is partly on others" in one.says


def test_memory_where_it_was_asked_for_is_no_finding() -> None:
    assert not [one for one in find_bandwidth(with_memory(None, 1)) if one.id == "numa.memory_elsewhere"]
