"""What NCCL and lspci print of real machines is read back: the tree, and the hops in it."""

from collections.abc import Callable

import pytest

from gputopo.captures import read_text
from gputopo.values.machine import Hop, Machine
from tests.captures.samples import in_turn
from tests.kit.dialects import pci, real

WRITERS: dict[str, Callable[[Machine], str]] = {
    "NCCL": pci.nccl,
    "lspci -tv": pci.lspci_tree,
    "lspci -vvv": pci.lspci_verbose,
}


@pytest.mark.parametrize(("name", "tool"), in_turn(real.MACHINES, WRITERS))
def test_every_hop_of_a_real_machine_is_read(tool: str, name: str) -> None:
    machine = real.MACHINES[name]
    read = read_text(WRITERS[tool](machine), origin="written")
    assert read.unread == ()
    assert read.contradictions == ()
    assert [gpu.pci_address for gpu in read.gpus] == [gpu.pci_address for gpu in machine.gpus]
    far = None if tool == "lspci -tv" else Hop.SYS  # the tree alone has no NUMA nodes
    assert hops(read) == {pair: far if hop is Hop.SYS else hop for pair, hop in hops(machine).items()}
    for nic, written in zip(read.nics, machine.nics, strict=True):
        known = {place: hop for place, hop in written.hops.items() if far or hop is not Hop.SYS}
        assert nic.hops == known


def hops(machine: Machine) -> dict[tuple[int, int], Hop | None]:
    return {(link.a, link.b): link.hop for link in machine.links}


@pytest.mark.parametrize("name", real.MACHINES)
def test_each_tool_is_read_for_what_it_alone_prints(name: str) -> None:
    machine = real.MACHINES[name]
    nccl, verbose = (read_text(WRITERS[tool](machine), origin="written") for tool in ("NCCL", "lspci -vvv"))
    assert [link.nvlinks for link in nccl.links] == [link.nvlinks for link in machine.links]
    assert [gpu.numa_node for gpu in nccl.gpus] == [gpu.numa_node for gpu in machine.gpus]
    assert [gpu.cpu_affinity for gpu in nccl.gpus] == [gpu.cpu_affinity for gpu in machine.gpus]
    assert {node.address: node for node in verbose.pci} == {node.address: node for node in machine.pci}
    assert [(gpu.pcie.width_now, gpu.pcie.width_max) for gpu in verbose.gpus] == [
        (gpu.pcie.width_now, gpu.pcie.width_max) for gpu in machine.gpus
    ]
