"""hwloc's XML: processors, memory, tree, NVLinks by bandwidth, and what must not be stored."""

from pathlib import Path

import pytest

from gputopo.captures.pci import hwloc_xml
from gputopo.values import schema
from gputopo.values.errors import InputError
from gputopo.values.machine import Hop, Machine
from tests.captures import samples

CAPTURE = Path(__file__).parents[4] / "shared/captures/hwloc/power8gpudistances_hwloc.xml"


def read(text: str = samples.HWLOC) -> Machine:
    return hwloc_xml.parse(text, origin="x")


def test_every_fact_of_the_file_is_in_the_machine() -> None:
    machine = read()
    assert [gpu.pci_address for gpu in machine.gpus] == list(samples.GPUS)
    assert [gpu.cuda_index for gpu in machine.gpus] == [2, 1, 0]
    assert [gpu.name for gpu in machine.gpus] == ["GeForce GTX 1070"] * 3
    assert [gpu.numa_node for gpu in machine.gpus] == [0, 0, 1]
    assert [gpu.cpu_affinity for gpu in machine.gpus] == ["0-3", "0-3", "4-7"]
    assert [gpu.memory_mib.total for gpu in machine.gpus] == [8110] * 3
    assert [link.hop for link in machine.links] == [Hop.PIX, Hop.SYS, Hop.SYS]
    assert [link.nvlinks for link in machine.links] == [2, 0, 0]
    (nic,) = machine.nics
    assert (nic.name, nic.pci_address, nic.hops["gpu:2"]) == ("mlx5_0", samples.NIC, Hop.PHB)
    host = machine.host
    assert (host.cpu_model, host.sockets, host.physical_cores, host.logical_cpus) == ("Invented CPU", 2, 2, 4)
    assert (host.memory_mib, host.kernel) == (131072, "6.1.0-test")
    assert host.numa_nodes is not None
    assert [node.distances for node in host.numa_nodes] == [(10, 21), (21, 10)]


def test_a_link_speed_of_all_lanes_is_reported_as_such() -> None:
    machine = read()
    assert "15.75 GB/s" in machine.missing[f"pci[{samples.GPUS[0]}].speed_gt_per_s"]
    assert f"pci[{samples.NIC}].speed_gt_per_s" not in machine.missing  # 0: hwloc does not know it
    assert all(node.speed_gt_per_s is None for node in machine.pci)


def test_the_host_name_is_not_kept() -> None:
    assert "secret-host" not in schema.encode_pretty(read())


def test_a_power8_server_with_nvlinks_to_its_cpus_is_read() -> None:
    if not CAPTURE.is_file():
        pytest.skip("the folder of public captures is not beside this checkout")
    machine = read(CAPTURE.read_text(encoding="utf-8"))
    assert [gpu.name for gpu in machine.gpus] == ["Tesla P100-SXM2-16GB"] * 4
    assert [gpu.cuda_index for gpu in machine.gpus] == [0, 1, 2, 3]
    assert {(link.a, link.b): link.nvlinks for link in machine.links if link.nvlinks} == {
        (0, 1): 2,
        (2, 3): 2,
    }
    assert [link.hop for link in machine.links] == [Hop.NODE, *[Hop.SYS] * 4, Hop.NODE]
    assert machine.host.logical_cpus == 16
    assert all(gpu.uuid is None for gpu in machine.gpus)


def test_links_through_switches_count_for_every_pair() -> None:
    switch = '<object type="OSDev" gp_index="99" name="nvswitch" subtype="NVSwitch"/></object>\n  <distances2'
    text = samples.HWLOC.replace("</object>\n  <distances2", switch, 1)
    text = text.replace(">30 31 32 <", ">30 31 32 99 <").replace(
        "1000000 50000 0 50000 1000000 0 0 0 1000000",
        "1000000 0 0 300000 0 1000000 0 300000 0 0 1000000 150000 0 0 0 1000000",
    )
    assert [link.nvlinks for link in read(text).links] == [12, 6, 6]


def test_a_bandwidth_that_is_no_whole_number_of_links_gives_none() -> None:
    assert [link.nvlinks for link in read(samples.HWLOC.replace(" 50000", " 51000")).links] == [None, 0, 0]
    cut = samples.HWLOC.replace("1000000 50000 0", "1000000 50000")
    assert [link.nvlinks for link in read(cut).links] == [None, None, None]


def test_version_1_names_sockets_and_distances_otherwise() -> None:
    old = samples.HWLOC.replace('"Package"', '"Socket"').replace(' version="2.0"', "")
    start, end = old.index("  <distances2"), old.index("</topology>")
    latencies = "".join(f'<latency value="{value}"/>' for value in ("1.0", "2.1", "2.1", "1.0"))
    inside = f'<distances nbobjs="2" relative_depth="1" latency_base="10.0">{latencies}</distances>'
    old = old[:start] + old[end:]
    old = old.replace('<info name="OSRelease"', inside + '<info name="OSRelease"')
    machine = read(old)
    assert machine.host.sockets == 2
    assert machine.host.numa_nodes is not None
    assert machine.host.numa_nodes[0].distances == (10, 21)
    assert [link.nvlinks for link in machine.links] == [None] * 3


def test_without_host_bridges_no_hop_is_made_up() -> None:
    flat = samples.HWLOC.replace('bridge_type="0-1"', 'bridge_type="?"')
    assert [link.hop for link in read(flat).links] == [None] * 3


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (samples.HWLOC[:900], "is not complete XML"),
        ("<topology/>", "no <object>"),
        ('<!DOCTYPE t [<!ENTITY a "b">]><topology><object name="&a;"/></topology>', "entities"),
    ],
)
def test_dangerous_and_broken_xml_is_refused_in_words(text: str, what: str) -> None:
    assert hwloc_xml.recognise(text)
    with pytest.raises(InputError, match="(?s)" + what):
        read(text)
