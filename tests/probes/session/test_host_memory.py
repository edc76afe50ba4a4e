"""Host memory is measured in the real memory of this machine, with nodes and limits of a tree."""

import ctypes
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gputopo.probes import NumaMemory
from gputopo.probes.session import HostMemoryRates, measure_host_memory
from gputopo.values.machine import Host, NumaNode
from tests.kit.sysfs import write_files

MIB = 2**20
CPU = str(min(os.sched_getaffinity(0)))
NO_TREE = Path("/nonexistent")


def node(
    index: int, cpus: str = CPU, memory_mib: int = 1000, distances: tuple[int, ...] = (10, 21)
) -> NumaNode:
    return NumaNode(index=index, cpus=cpus, memory_mib=memory_mib, distances=distances)


class Nodes(NumaMemory):
    """Memory lies on the node that a thread is bound to, or always on `on`."""

    def __init__(self, on: int | None = None) -> None:
        super().__init__(NO_TREE)
        self.on = on
        self.wanted: int | None = None

    @contextmanager
    def bound(self, node: int | None, cpus: object) -> Iterator[None]:
        self.wanted = node
        yield

    def nodes(self, address: int, size: int) -> Mapping[int, int]:
        on = self.wanted if self.on is None else self.on
        return {} if on is None else {on: 512}


def measured(*nodes: NumaNode, memory: NumaMemory | None = None) -> HostMemoryRates:
    """Measure with buffers of a few MiB: right is asked for here, not fast."""
    return measure_host_memory(
        Host(numa_nodes=nodes or None),
        root=NO_TREE,
        repeats=2,
        max_bytes=8 * MIB,
        memory=memory or Nodes(),
    )


def test_a_machine_with_one_node_gives_one_sample_and_the_affinity_of_this_thread_stays() -> None:
    before = os.sched_getaffinity(0)
    found = measured()
    (sample,) = found.samples
    assert (sample.kind, sample.source, sample.destination) == ("host_memory", "node:0", "node:0")
    assert len(sample.repeats_gb_per_s) == 2
    assert sample.median_gb_per_s is not None
    assert 0.1 < sample.median_gb_per_s < 5000
    assert (found.failures, found.not_measured) == ((), ())
    assert os.sched_getaffinity(0) == before


def size_of_buffer(root: Path, **options: Any) -> tuple[int | None, tuple[str, ...]]:
    """Return the bytes that are copied in one repeat, and the notes about them."""
    ticks = iter(range(10_000))
    found = measure_host_memory(
        Host(numa_nodes=(node(0),)), root=root, repeats=1, now=lambda: float(next(ticks)), **options
    )
    (sample,) = found.samples
    assert sample.bytes is not None
    # Read and written, by one thread within a second.
    assert sample.median_gb_per_s == pytest.approx(2 * sample.bytes / 1e9)
    return sample.bytes, found.notes


def ways(found: HostMemoryRates) -> list[tuple[str, str]]:
    """The nodes of memory and cores."""
    return [(str(one.source), str(one.destination)) for one in found.samples]


def test_each_node_is_measured_from_its_own_cores_and_from_the_farthest_ones() -> None:
    found = measured(node(0), node(1, distances=(21, 10)))
    assert ways(found) == [
        ("node:0", "node:0"),
        ("node:0", "node:1"),
        ("node:1", "node:1"),
        ("node:1", "node:0"),
    ]
    assert found.not_measured == ()


def test_a_node_without_cpus_is_reported_and_one_without_memory_is_none() -> None:
    found = measured(
        node(0, distances=()), node(2, ""), node(3, memory_mib=0, distances=()), node(4, "", memory_mib=0)
    )
    assert ways(found) == [("node:0", "node:0"), ("node:0", "node:3")]
    assert [one.what for one in found.not_measured] == ["host memory of node:2"]


def test_wrong_data_is_a_failure_on_its_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    copy = ctypes.memmove

    def fill_only(to: int, source: int | bytes, size: int) -> None:
        """Write the pattern, which begins with bytes and is doubled; copy nothing to another buffer."""
        if isinstance(source, bytes) or to == source + size:
            copy(to, source, size)

    monkeypatch.setattr(ctypes, "memmove", fill_only)
    found = measured()
    assert found.samples == ()
    assert [(one.source, one.reason) for one in found.failures] == [("node:0", "WRONG_DATA")]


def test_memory_that_lies_on_another_node_is_not_measured_as_of_this_one() -> None:
    found = measured(node(0), node(1, distances=(21, 10)), memory=Nodes(on=1))
    assert {one.source for one in found.samples} == {"node:1"}
    assert [(one.what, one.reason) for one in found.not_measured] == [
        (f"host memory of node:0 from the cores of node:{cores}", "the system put it on node 1")
        for cores in (0, 1)
    ]


def caches(root: Path, kib: int, cpus: int = 4) -> None:
    for cpu in range(cpus):
        folder = root / f"sys/devices/system/cpu/cpu{cpu}"
        write_files(folder / "topology", {"physical_package_id": cpu // 4})
        write_files(folder / "cache/index0", {"level": 1, "size": "32K", "shared_cpu_list": str(cpu)})
        shared = f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}"
        write_files(folder / "cache/index3", {"level": 3, "size": f"{kib}K", "shared_cpu_list": shared})


def test_buffers_are_four_times_the_last_level_caches_of_one_package(tmp_path: Path) -> None:
    caches(tmp_path, 9 * 1024, cpus=8)
    assert size_of_buffer(tmp_path) == (4 * 2 * 9 * MIB, ())


def test_caches_that_are_too_large_for_the_limit_are_reported(tmp_path: Path) -> None:
    caches(tmp_path, 512 * 1024)
    size, (note,) = size_of_buffer(tmp_path, max_bytes=64 * MIB)
    assert size == 32 * MIB
    assert "the caches hold 1024 MiB" in note


@pytest.mark.parametrize(
    "files",
    [
        {"proc/meminfo": "MemTotal: 900000 kB\nMemAvailable: 204800 kB\n"},
        {"sys/fs/cgroup/memory.max": 300 * MIB, "sys/fs/cgroup/memory.current": 100 * MIB},
        {
            "sys/fs/cgroup/memory/memory.limit_in_bytes": 300 * MIB,
            "sys/fs/cgroup/memory/memory.usage_in_bytes": 100 * MIB,
        },
    ],
)
def test_no_more_than_a_quarter_of_what_is_free_is_taken(tmp_path: Path, files: dict[str, object]) -> None:
    write_files(tmp_path, files)
    size, _ = size_of_buffer(tmp_path)
    assert size == 25 * MIB
