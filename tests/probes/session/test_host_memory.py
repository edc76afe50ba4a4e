import os
from pathlib import Path

import pytest

from gputopo.probes.numa import NumaMemory
from gputopo.probes.session import host_memory
from gputopo.probes.session.host_memory import (
    MAX_BYTES,
    MIB,
    buffer_bytes,
    last_level_cache_bytes,
    measure_host_memory,
    placings_of,
)
from gputopo.values.machine import Host, NumaNode
from tests.kit.sysfs import write_files

TWO = Host(
    numa_nodes=(
        NumaNode(index=0, cpus="0-3", memory_mib=1000, distances=(10, 21)),
        NumaNode(index=1, cpus="4-7", memory_mib=1000, distances=(21, 10)),
    )
)


def small(host: Host, tmp_path: Path) -> host_memory.HostMemoryRates:
    """Measures with buffers of a few MiB: right is asked for here, not fast."""
    return measure_host_memory(host, root=tmp_path, repeats=2, max_bytes=8 * MIB)


def test_a_machine_with_one_node_gives_one_sample(tmp_path: Path) -> None:
    found = small(Host(), tmp_path)
    (sample,) = found.samples
    assert (sample.kind, sample.source, sample.destination) == ("host_memory", "node:0", "node:0")
    assert len(sample.repeats_gb_per_s) == 2
    assert sample.median_gb_per_s is not None
    assert 0.1 < sample.median_gb_per_s < 5000
    assert (found.failures, found.not_measured) == ((), ())


def test_bytes_count_twice_as_stream_counts_them(tmp_path: Path) -> None:
    ticks = iter(range(10_000))
    cpu = min(os.sched_getaffinity(0))
    host = Host(numa_nodes=(NumaNode(index=0, cpus=str(cpu), memory_mib=1000),))
    found = measure_host_memory(
        host, root=tmp_path, repeats=1, max_bytes=64 * MIB, now=lambda: float(next(ticks))
    )
    (sample,) = found.samples
    assert sample.bytes == 32 * MIB
    assert sample.median_gb_per_s == pytest.approx(2 * 32 * MIB / 1e9)  # one thread, one second


def test_the_affinity_of_this_thread_stays(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    small(Host(), tmp_path)
    assert os.sched_getaffinity(0) == before


def test_each_node_is_measured_from_its_own_cores_and_from_the_farthest_ones() -> None:
    placings, not_measured = placings_of(TWO, set(range(8)))
    assert [(one.memory_node, one.cores_node) for one in placings] == [(0, 0), (0, 1), (1, 1), (1, 0)]
    assert placings[1].memory_cpus == frozenset(range(4))
    assert placings[1].cores_cpus == frozenset(range(4, 8))
    assert not_measured == ()


def test_a_node_whose_cpus_may_not_be_used_is_reported() -> None:
    placings, not_measured = placings_of(TWO, {0, 1})
    assert [(one.memory_node, one.cores_node) for one in placings] == [(0, 0)]
    (reported,) = not_measured
    assert reported.what == "host memory of node:1"
    assert "may not use" in reported.reason


def test_a_node_without_cpus_is_reported_and_one_without_memory_is_none() -> None:
    host = Host(
        numa_nodes=(
            NumaNode(index=0, cpus="0-3", memory_mib=1000),
            NumaNode(index=2, cpus="", memory_mib=1000),
            NumaNode(index=3, cpus="4-5", memory_mib=0),
            NumaNode(index=4, cpus="", memory_mib=0),
        )
    )
    placings, not_measured = placings_of(host, set(range(8)))
    assert [(one.memory_node, one.cores_node) for one in placings] == [(0, 0), (0, 3)]
    assert [one.what for one in not_measured] == ["host memory of node:2"]


def test_wrong_data_is_a_failure_on_its_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "timed_copy", lambda at, size, now: (0.0, 1.0))  # copies nothing
    found = small(Host(), tmp_path)
    assert found.samples == ()
    assert [(one.source, one.reason) for one in found.failures] == [("node:0", "WRONG_DATA")]


def test_memory_that_lies_on_another_node_is_not_measured_as_of_this_one(tmp_path: Path) -> None:
    class Elsewhere(NumaMemory):
        def nodes(self, address: int, size: int) -> dict[int, int]:
            return {0: 12, 1: 500}

    cpus = str(min(os.sched_getaffinity(0)))
    host = Host(numa_nodes=(NumaNode(index=0, cpus=cpus, memory_mib=1000), NumaNode(index=1, cpus=cpus)))
    found = measure_host_memory(host, root=tmp_path, max_bytes=8 * MIB, memory=Elsewhere(tmp_path))
    assert {one.source for one in found.samples} == {"node:1"}
    assert [(one.what, one.reason) for one in found.not_measured] == [
        (f"host memory of node:0 from the cores of node:{node}", "the system put it on node 1")
        for node in (0, 1)
    ]


def test_memory_that_is_refused_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("mmap.mmap", refuse)
    found = small(Host(), tmp_path)
    assert found.samples == ()
    assert [one.reason for one in found.not_measured] == ["Cannot allocate memory"]


def caches(root: Path, kib: int, cpus: int = 4) -> None:
    for cpu in range(cpus):
        folder = root / f"sys/devices/system/cpu/cpu{cpu}"
        write_files(folder / "topology", {"physical_package_id": cpu // 4})
        write_files(folder / "cache/index0", {"level": 1, "size": "32K", "shared_cpu_list": str(cpu)})
        shared = f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}"
        write_files(folder / "cache/index3", {"level": 3, "size": f"{kib}K", "shared_cpu_list": shared})


def test_the_last_level_cache_is_that_of_one_package(tmp_path: Path) -> None:
    caches(tmp_path, 16384, cpus=8)
    assert last_level_cache_bytes(tmp_path) == 2 * 16 * MIB
    assert last_level_cache_bytes(tmp_path / "nothing") is None


def test_buffers_are_four_times_the_caches_within_the_limit(tmp_path: Path) -> None:
    caches(tmp_path, 16384)
    assert buffer_bytes(tmp_path) == (128 * MIB, ())


def test_caches_that_are_too_large_for_the_limit_are_reported(tmp_path: Path) -> None:
    caches(tmp_path, 512 * 1024)
    size, notes = buffer_bytes(tmp_path)
    assert 2 * size <= MAX_BYTES
    assert "the caches hold 1024 MiB" in notes[0]


@pytest.mark.parametrize(
    "files",
    [
        {"proc/meminfo": "MemTotal: 900000 kB\nMemAvailable: 409600 kB\n"},
        {"sys/fs/cgroup/memory.max": 500 * MIB, "sys/fs/cgroup/memory.current": 100 * MIB},
        {
            "sys/fs/cgroup/memory/memory.limit_in_bytes": 500 * MIB,
            "sys/fs/cgroup/memory/memory.usage_in_bytes": 100 * MIB,
        },
    ],
)
def test_no_more_than_a_quarter_of_what_is_free_is_taken(tmp_path: Path, files: dict[str, object]) -> None:
    write_files(tmp_path, files)
    size, _ = buffer_bytes(tmp_path)
    assert size == 50 * MIB
