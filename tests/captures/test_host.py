"""`lscpu` and `numactl -H`, written here from nodes and read back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputopo.captures import merge, read_text
from gputopo.values.index_ranges import index_ranges
from gputopo.values.machine import Host, NumaNode
from tests import there
from tests.captures.samples import ALL

LSCPU_2_34 = """\
Architecture:                    x86_64
CPU op-mode(s):                  32-bit, 64-bit
CPU(s):                          8
On-line CPU(s) list:             0-7
Thread(s) per core:              2
Core(s) per socket:              2
Socket(s):                       2
NUMA node(s):                    2
Vendor ID:                       GenuineIntel
Model name:                      Intel(R) Xeon(R) Gold 6230 CPU @ 2.10GHz
Hypervisor vendor:               KVM
L3 cache:                        32 MiB
NUMA node0 CPU(s):               0-1,4-5
NUMA node1 CPU(s):               2-3,6-7
Vulnerability Spectre v1:        Mitigation; usercopy/swapgs barriers and __user pointer sanitization
Flags:                           fpu vme de pse tsc msr pae mce cx8 apic
"""
LSCPU_2_37 = """\
Architecture:             x86_64
  CPU op-mode(s):         32-bit, 64-bit
CPU(s):                   8
  On-line CPU(s) list:    0-7
Vendor ID:                GenuineIntel
  Model name:             Intel(R) Xeon(R) Gold 6230 CPU @ 2.10GHz
    Thread(s) per core:   2
    Core(s) per socket:   2
    Socket(s):            2
    Flags:                fpu vme de pse tsc msr pae mce cx8 apic
Virtualization features:
  Hypervisor vendor:      KVM
Caches (sum of all):
  L3:                     32 MiB (2 instances)
NUMA:
  NUMA node(s):           2
  NUMA node0 CPU(s):      0-1,4-5
  NUMA node1 CPU(s):      2-3,6-7
"""
NUMACTL = """\
available: 2 nodes (0-1)
node 0 cpus: 0 1 4 5
node 0 size: 128808 MB
node 0 free: 1234 MB
node 1 cpus: 2 3 6 7
node 1 size: 129021 MB
node 1 free: 0 MB
node distances:
node   0   1
  0:  10  21
  1:  21  10
"""
OF_LSCPU = Host(
    cpu_model="Intel(R) Xeon(R) Gold 6230 CPU @ 2.10GHz",
    sockets=2,
    physical_cores=4,
    logical_cpus=8,
    numa_nodes=(NumaNode(index=0, cpus="0-1,4-5"), NumaNode(index=1, cpus="2-3,6-7")),
    virtual_machine="kvm",
)
OF_NUMACTL = (
    NumaNode(index=0, cpus="0-1,4-5", memory_mib=128808, distances=(10, 21)),
    NumaNode(index=1, cpus="2-3,6-7", memory_mib=129021, distances=(21, 10)),
)


@pytest.mark.parametrize("text", [LSCPU_2_34, LSCPU_2_37])
def test_lscpu_of_any_version_shows_the_host(text: str) -> None:
    machine = read_text(text, origin="x")
    assert (machine.source, machine.host, machine.unread) == ("lscpu", OF_LSCPU, ())


def test_both_in_one_text_are_one_host() -> None:
    host = read_text(f"$ lscpu\n{LSCPU_2_37}$ numactl -H\n{NUMACTL}", origin="x").host
    assert (host.sockets, host.numa_nodes) == (2, OF_NUMACTL)


def test_cpus_that_are_off_are_not_counted() -> None:
    text = LSCPU_2_34.replace("list:             0-7", "list:             0-3")
    assert read_text(text, origin="x").host.logical_cpus == 4


@pytest.mark.parametrize(("name", "text"), [("topo", LSCPU_2_37), ("nvidia-smi", NUMACTL)])
def test_beside_another_capture_both_are_read(name: str, text: str) -> None:
    alone = read_text(ALL[name], origin="x")
    for both in (f"{ALL[name]}\n{text}", f"{text}\n{ALL[name]}"):
        machine = read_text(both, origin="x")
        assert machine.gpus == alone.gpus
        assert there(machine.host.numa_nodes)[0].cpus in ("0-1,4-5", "0-3")


def test_nodes_of_two_sources_are_compared() -> None:
    merged = merge([read_text(text, origin="x") for text in (ALL["topo"], NUMACTL)])
    assert {one.fact for one in merged.contradictions} == {
        "host.numa_nodes[0].cpus",
        "host.numa_nodes[1].cpus",
    }


@given(st.lists(st.tuples(st.sets(st.integers(0, 255)), st.integers(0, 10**6)), min_size=1, max_size=8))
@settings(deadline=None)
def test_any_nodes_are_read_as_written(nodes: list[tuple[set[int], int]]) -> None:
    text = f"available: {len(nodes)} nodes (0-{len(nodes) - 1})\n"
    for index, (cpus, size) in enumerate(nodes):
        text += f"node {index} cpus: {' '.join(map(str, sorted(cpus)))}\nnode {index} size: {size} MB\n"
    host = read_text(text, origin="x").host
    assert host.numa_nodes == tuple(
        NumaNode(index=index, cpus=index_ranges(cpus), memory_mib=size)
        for index, (cpus, size) in enumerate(nodes)
    )
