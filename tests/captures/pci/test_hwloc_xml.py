"""hwloc's XML: processors, memory, tree, and what must not be stored."""

import pytest

from gputopo.captures.pci import hwloc_xml
from gputopo.values import schema
from gputopo.values.errors import InputError
from gputopo.values.machine import Hop, Machine
from tests.captures import samples


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
    (nic,) = machine.nics
    assert (nic.name, nic.pci_address, nic.hops["gpu:2"]) == ("mlx5_0", samples.NIC, Hop.PHB)
    host = machine.host
    assert (host.cpu_model, host.sockets, host.physical_cores, host.logical_cpus) == ("Invented CPU", 2, 2, 4)
    assert (host.memory_mib, host.kernel) == (131072, "6.1.0-test")


def test_a_link_speed_of_all_lanes_is_reported_as_such() -> None:
    machine = read()
    assert "15.75 GB/s" in machine.missing[f"pci[{samples.GPUS[0]}].speed_gt_per_s"]
    assert f"pci[{samples.NIC}].speed_gt_per_s" not in machine.missing  # 0: hwloc does not know it
    assert all(node.speed_gt_per_s is None for node in machine.pci)


def test_the_host_name_is_not_kept() -> None:
    assert "secret-host" not in schema.encode_pretty(read())


def test_version_1_names_sockets_otherwise() -> None:
    old = samples.HWLOC.replace('"Package"', '"Socket"').replace(' version="2.0"', "")
    assert read(old).host.sockets == 2


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
