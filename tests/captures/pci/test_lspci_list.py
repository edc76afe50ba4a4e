"""lspci's lists: links, access control, drivers, memory nodes and the tree from the bridges' buses."""

import re

import pytest

from gputopo.captures import read_text
from gputopo.values.errors import InputError
from gputopo.values.machine import Hop, Machine
from tests.captures import samples


def read(text: str = samples.LSPCI_VERBOSE) -> Machine:
    return read_text(text, origin="x")


def test_every_fact_of_the_list_is_in_the_machine() -> None:
    machine = read()
    assert [gpu.pci_address for gpu in machine.gpus] == list(samples.GPUS)
    assert [gpu.numa_node for gpu in machine.gpus] == [0, 0, 1]
    assert [gpu.bar1_mib.total for gpu in machine.gpus] == [256] * 3
    assert [(gpu.pcie.gen_now, gpu.pcie.width_now) for gpu in machine.gpus] == [(1, 16), (1, 8), (1, 16)]
    assert [(gpu.pcie.gen_max, gpu.pcie.width_max) for gpu in machine.gpus] == [(3, 16), (3, 8), (3, 16)]
    assert [gpu.pcie.limiting_hop for gpu in machine.gpus] == [None, "0000:04:10.0", None]
    assert [link.hop for link in machine.links] == [Hop.PIX, Hop.SYS, Hop.SYS]
    gpu = next(node for node in machine.pci if node.address == samples.GPUS[0])
    assert (gpu.driver, gpu.class_code, gpu.vendor_id) == ("nvidia", "030000", "10de")
    assert gpu.name == "NVIDIA Corporation GP104 [GeForce GTX 1070]"
    (old,) = read("19:00.0 3D controller: NVIDIA Corporation Device 2330 (rev a1)\n").gpus
    assert (old.pci_device_id, old.name) == ("2330", None)
    assert machine.unread == ()


def test_access_control_is_reported_for_each_bridge_and_the_host() -> None:
    machine = read()
    assert {node.address: node.acs for node in machine.pci if node.kind == "bridge"} == {
        "0000:00:02.0": True,
        "0000:03:00.0": False,
        "0000:04:08.0": False,
        "0000:04:10.0": False,
        "0000:80:02.0": False,
    }
    assert machine.host.acs == "on"
    elsewhere = samples.LSPCI_VERBOSE.replace("Redir+", "Redir-") + samples.lspci_bridge(
        "80:03.0", "90", acs="+"
    )
    assert read(elsewhere).host.acs == "off"  # no GPU and no network card is below that bridge
    assert read(f"{elsewhere}90:00.0 Ethernet controller: Intel Corporation E810-C\n").host.acs == "on"


def test_without_root_the_links_are_missing_with_the_reason() -> None:
    hidden = re.sub(r"\t\tLnk.*\n|\t\tACS.*\n", "", samples.LSPCI_VERBOSE)
    machine = read(hidden.replace("\tRegion 1", "\tCapabilities: <access denied>\n\tRegion 1"))
    assert machine.host.acs is None
    assert "as root" in machine.missing["host.acs"]
    assert machine.missing[f"pci[{samples.GPUS[0]}].speed_gt_per_s"] == "lspci was not run as root"
    assert [gpu.pcie.gen_now for gpu in machine.gpus] == [None] * 3


@pytest.mark.parametrize(
    "line",
    [
        "01:00.0 VGA compatible controller [0300]: NVIDIA Corporation GP104 [GeForce] [10de:1b81] (rev a1)",
        "0000:01:00.0 3D controller [0302]: NVIDIA Corporation GP104 [Tesla] [10de:1b81] (rev a1)",
        "01:00.0 0300: 10de:1b81 (rev a1)",
    ],
)
def test_every_form_of_a_device_is_read(line: str) -> None:
    (gpu,) = read(line + "\n").gpus
    assert (gpu.pci_address, gpu.pci_device_id) == ("0000:01:00.0", "1b81")


def test_a_device_that_stands_twice_is_one_where_both_lines_agree() -> None:
    brief = "".join(re.findall(r"^\S.*\n", samples.LSPCI_VERBOSE, re.MULTILINE))
    for text in (brief + samples.LSPCI_VERBOSE, samples.LSPCI_VERBOSE + brief, samples.LSPCI_VERBOSE * 2):
        machine = read(text)
        assert (machine.pci, machine.gpus, machine.unread) == (read().pci, read().gpus, ())


def test_two_devices_at_one_address_are_refused() -> None:
    other = samples.LSPCI_VERBOSE.replace("NVIDIA Corporation", "Matrox Electronics Systems Ltd.")
    with pytest.raises(InputError, match="twice, as two devices"):
        read(samples.LSPCI_VERBOSE + re.sub(r" \[10de:\w{4}\]", "", other))


@pytest.mark.parametrize("below", ["\t!!! Unknown header type 7f\n", ""])
def test_a_gpu_whose_configuration_reads_as_ones_is_lost(below: str) -> None:
    sound = "3b:00.0 3D controller: NVIDIA Corporation GA100 (rev a1)\n\tNUMA node: 0\n\n"
    gone = "86:00.0 3D controller: NVIDIA Corporation GA100 (rev ff) (prog-if ff)\n"
    assert [gpu.lost for gpu in read(sound + gone + below).gpus] == [False, True]
