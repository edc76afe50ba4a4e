"""NCCL's topology XML: the tree, the hops, NVLinks through switches, masks, and XML that is refused."""

import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.captures import read_text
from gputopo.values.errors import InputError
from gputopo.values.index_ranges import index_ranges
from gputopo.values.machine import Hop, Machine
from tests.captures import samples

CAPTURES = Path(__file__).parents[4] / "shared" / "captures" / "nccl_xml"


def capture(start: str) -> Machine:
    if not CAPTURES.is_dir():
        pytest.skip("the folder of public captures is not beside this checkout")
    (path,) = CAPTURES.glob(f"{start}*.xml")
    return read_text(path.read_text(encoding="utf-8"), origin=path.name)


def hop(machine: Machine, a: int, b: int) -> Hop | None:
    link = machine.link(a, b)
    assert link is not None
    return link.hop


def test_every_fact_of_the_file_is_in_the_machine() -> None:
    machine = read_text(samples.NCCL, origin="x")
    assert [gpu.pci_address for gpu in machine.gpus] == list(samples.GPUS)
    assert [gpu.numa_node for gpu in machine.gpus] == [0, 0, 1]
    assert [gpu.cpu_affinity for gpu in machine.gpus] == ["0-3", "0-3", "4-7"]
    assert [gpu.pci_device_id for gpu in machine.gpus] == ["1b81"] * 3
    assert [(gpu.pcie.gen_max, gpu.pcie.width_max) for gpu in machine.gpus] == [(3, 16), (3, 8), (3, 16)]
    assert [hop(machine, *pair) for pair in ((0, 1), (0, 2), (1, 2))] == [Hop.PIX, Hop.SYS, Hop.SYS]
    assert [link.nvlinks for link in machine.links] == [0, 0, 0]
    (nic,) = machine.nics
    assert (nic.name, nic.pci_address, nic.numa_node) == ("mlx5_0", samples.NIC, 1)
    assert nic.hops == {"gpu:0": Hop.SYS, "gpu:1": Hop.SYS, "gpu:2": Hop.PHB}
    assert read_text(f"<!--\nOf a model of server\n-->\n{samples.NCCL}", origin="x").unread == ()


def test_nvml_numbers_the_gpus_where_every_gpu_has_its_number() -> None:
    turned = samples.NCCL.replace('dev="0" sm', 'dev="7" sm')
    machine = read_text(turned, origin="x")
    assert {gpu.index: gpu.pci_address for gpu in machine.gpus} == dict(
        zip((7, 1, 2), samples.GPUS, strict=True)
    )
    twice = samples.NCCL.replace('dev="0" sm', 'dev="1" sm')
    assert [gpu.index for gpu in read_text(twice, origin="x").gpus] == [0, 1, 2]


def test_links_to_switches_count_for_every_pair() -> None:
    machine = capture("oci-H100")
    assert [link.nvlinks for link in machine.links] == [18] * 28
    assert len(machine.nics) == 16
    assert machine.nics[0].hops["gpu:0"] is Hop.PXB
    assert machine.nics[0].hops["gpu:7"] is Hop.SYS
    assert machine.host.numa_nodes is not None
    assert [node.cpus for node in machine.host.numa_nodes] == ["0-55,112-167", "56-111,168-223"]


def test_a_file_of_a_virtual_machine_gives_what_it_states() -> None:
    machine = capture("azure-ndv4")
    assert [gpu.pci_address for gpu in machine.gpus][:2] == ["0001:00:00.0", "0002:00:00.0"]
    assert len(machine.nics) == 8
    assert hop(machine, 0, 1) is Hop.PIX
    assert [link.nvlinks for link in machine.links] == [None] * 28
    strange = samples.NCCL.replace('"8.0 GT/s PCIe"', '"0.3 GT/s"')
    assert {node.max_speed_gt_per_s for node in read_text(strange, origin="x").pci} == {0.3}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (samples.NCCL[: len(samples.NCCL) // 2], "is not complete XML"),
        (
            '<!DOCTYPE x [<!ENTITY a "b"><!ENTITY c "&a;&a;">]><system><cpu numaid="&c;"/></system>',
            "entities",
        ),
        ('<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><system><cpu>&a;</cpu></system>', "entities"),
        ("<system/>", "no <cpu>"),
        (samples.NCCL.replace('sm="61"', 'sm="90" gcn="942"'), "from RCCL, which is for AMD GPUs"),
        (samples.NCCL.replace(samples.GPUS[1], samples.GPUS[0]), "twice"),
    ],
)
def test_dangerous_and_broken_xml_is_refused_in_words(text: str, what: str) -> None:
    with pytest.raises(InputError, match="(?s)" + what):
        read_text(text, origin="file.xml")


def test_deep_xml_neither_hangs_nor_breaks() -> None:
    deep = "".join(f'<pci busid="{n >> 13:04x}:{n >> 5 & 255:02x}:{n & 31:02x}.0">' for n in range(3000))
    text = f'<system version="1"><cpu numaid="0">{deep}{"</pci>" * 3000}</cpu></system>'
    started = time.perf_counter()
    assert len(read_text(text, origin="x").pci) == 3000
    assert time.perf_counter() - started < 5


def test_what_is_not_understood_is_listed() -> None:
    strange = samples.NCCL.replace("<nic>", "<fpga/><nic>").replace('busid="0000:03:00.0"', 'busid="here"')
    machine = read_text(strange, origin="x")
    assert sorted(unread.text for unread in machine.unread) == [
        "<fpga> under 0000:86:00.0",
        "<pci busid='here'>",
    ]


@given(st.frozensets(st.integers(0, 223), min_size=1))
def test_a_mask_gives_back_the_cpus_it_was_made_of(cpus: frozenset[int]) -> None:
    number = sum(1 << cpu for cpu in cpus)
    words = [f"{number >> 32 * place & 0xFFFFFFFF:08x}" for place in reversed(range(7))]
    assert read_text(samples.NCCL.replace("0000000f", ",".join(words)), origin="x").gpus[
        0
    ].cpu_affinity == index_ranges(cpus)


@pytest.mark.parametrize("text", ["xyz", "0," + "0" * 9])
def test_what_is_no_mask_gives_no_cpus(text: str) -> None:
    assert read_text(samples.NCCL.replace("0000000f", text), origin="x").gpus[0].cpu_affinity is None


def test_a_link_to_the_cpu_of_the_same_package_and_a_cpu_without_a_number_are_no_riddles() -> None:
    grace = re.sub(r'(<gpu dev="0"[^>]*)/>', r'\1><c2c bw="44712" count="5"/></gpu>', samples.NCCL)
    machine = read_text(grace.replace('numaid="1" ', ""), origin="x")
    assert machine.unread == ()
    assert [gpu.numa_node for gpu in machine.gpus] == [0, 0, None]


def test_links_of_a_gpu_to_itself_lead_to_gpus_that_are_not_known() -> None:
    """As in Azure's NCv4, whose virtual machines hide the other end of NVLink bridges."""
    itself = '<nvlink target="0001:00:00.0" count="12" tclass="0x030200"/>'
    text = (
        '<system version="1"><cpu numaid="0" affinity="0000ffff">'
        f'<pci busid="0001:00:00.0" class="0x030200"><gpu dev="0" sm="80">{itself}</gpu></pci>'
        '<pci busid="0002:00:00.0" class="0x030200"><gpu dev="1" sm="80"/></pci></cpu></system>'
    )
    machine = read_text(text, origin="x")
    assert [link.nvlinks for link in machine.links] == [None]
    assert "12 links of this GPU to itself" in machine.missing["gpus[0].nvlinks"]
    assert "lead is not reported" in machine.missing["links[0-1].nvlinks"]
    assert machine.contradictions == ()
