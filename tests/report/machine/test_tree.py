from typing import Any

import pytest

from gputopo.report import inspection_document
from gputopo.values.finding import Inspection
from gputopo.values.machine import (
    Gpu,
    Host,
    Machine,
    Nic,
    NumaNode,
    Pcie,
    PciNode,
    Throttle,
    UtilizationPercent,
)
from tests.kit.machines import machine_of
from tests.report.shown import assert_golden, section_text

ROOT = "pci0000:00"


def shown(machine: Machine, width: int = 78) -> str:
    document = inspection_document(Inspection(machine=machine), "topology")
    return section_text(document, "PCI tree", width)


def bridge(address: str, parent: str | None = None, **facts: Any) -> PciNode:
    return PciNode(address=address, root=ROOT, parent=parent, kind="bridge", **facts)


def card(address: str, parent: str | None = None, **facts: Any) -> PciNode:
    return PciNode(address=address, root=ROOT, parent=parent, kind="gpu", **facts)


@pytest.mark.parametrize("scenario", ["7gforce", "dgx1"])
def test_a_tree_is_shown_as_it_was(scenario: str) -> None:
    """Ports are not shown for themselves; a slot that limits its card is marked, NVLinks stand beside."""
    assert_golden(f"tree {scenario}", shown(machine_of(scenario), 120))


def test_a_bridge_that_limits_several_gpus_is_marked_at_the_switch() -> None:
    slow: dict[str, Any] = {"speed_gt_per_s": 8.0, "max_speed_gt_per_s": 8.0, "width": 4, "max_width": 4}
    pci = (
        bridge("0000:00:01.0", **slow),
        bridge("0000:01:00.0", "0000:00:01.0"),
        *(bridge(f"0000:02:0{n}.0", "0000:01:00.0") for n in (0, 1)),
        *(card(f"0000:0{3 + n}:00.0", f"0000:02:0{n}.0") for n in (0, 1)),
    )
    gpus = tuple(
        Gpu(index=n, pci_address=f"0000:0{3 + n}:00.0", pcie=Pcie(limiting_hop="0000:00:01.0"))
        for n in (0, 1)
    )
    text = shown(Machine(source="x", gpus=gpus, pci=pci))
    marked = next(line for line in text.splitlines() if "switch" in line)
    assert marked.endswith("<- 0000:00:01.0, gen 3 x4, limits GPUs 0-1")


@pytest.mark.parametrize(
    ("state", "words"), [("P8", "gen 1 x16 of gen 4 under load"), ("P0", "gen 1 x16 of gen 4")]
)
def test_a_link_below_its_maximum_is_distinguished_from_an_idle_one(state: str, words: str) -> None:
    gpu = Gpu(
        index=0,
        pci_address="0000:01:00.0",
        pstate=state,
        pcie=Pcie(gen_now=1, gen_max=4),
        throttle=Throttle(mask=0),
        utilization_percent=UtilizationPercent(gpu=90),
    )
    node = card("0000:01:00.0", speed_gt_per_s=2.5, max_speed_gt_per_s=16.0, width=16, max_width=16)
    assert f"0000:01:00.0  {words}\n" in shown(Machine(source="x", gpus=(gpu,), pci=(node,)))


def test_a_gpu_is_found_by_its_address_lost_or_with_a_long_domain_and_else_named_below_the_tree() -> None:
    gpus = (
        Gpu(index=0, pci_address="00000000:01:00.0", lost=True),
        Gpu(index=1, pci_address="0000:77:00.0"),
    )
    text = shown(Machine(source="x", gpus=gpus, pci=(card("0000:01:00.0"),)))
    assert "GPU 0  LOST" in text
    assert text.endswith("Not in the tree: GPU 1\n")


def test_a_bridge_that_a_capture_lacks_leaves_the_gpu_at_its_root() -> None:
    text = shown(Machine(source="x", pci=(card("0000:01:00.0", parent="0000:00:01.0"),)))
    assert "root complex 0000:00\n   └─ GPU (not counted)  0000:01:00.0" in text


def test_memory_nodes_are_named_with_their_cpus_and_only_if_there_are_any() -> None:
    pci = (card("0000:01:00.0", numa_node=1), card("0000:02:00.0", numa_node=-1))
    host = Host(numa_nodes=(NumaNode(index=0, cpus="0-7"), NumaNode(index=1, cpus="8-15")))
    text = shown(Machine(source="x", pci=pci, host=host))
    assert text.index("NUMA 1, CPUs 8-15") < text.index("NUMA node unknown")
    assert shown(Machine(source="x", pci=pci[1:])).startswith("Host\n")


def test_what_lspci_calls_a_device_stands_where_no_driver_names_it() -> None:
    at = ("0000:01:00.0", "0000:02:00.0")
    tree = (
        card(at[0], name="NVIDIA Corporation GA100 [A100 PCIe 40GB]"),
        PciNode(address=at[1], root=ROOT, kind="nic", name="Mellanox Technologies MT28908"),
    )
    gpu, nic = Gpu(index=0, pci_address=at[0]), Nic(index=0, pci_address=at[1])
    text = shown(Machine(source="lspci -vvv", gpus=(gpu,), nics=(nic,), pci=tree))
    assert "GPU 0 GA100 [A100 PCIe 40GB]  0000:01:00.0" in text
    assert "NIC 0 Mellanox Technologies MT28908  0000:02:00.0" in text
