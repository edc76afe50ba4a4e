"""What `nvidia-smi topo` of each era prints of real machines is read back, cell by cell."""

import msgspec
import pytest

from gputopo.captures import read_text
from gputopo.values.machine import Hop, Link, Machine
from tests.captures.samples import in_turn
from tests.kit.dialects import real, topo


def expected(machine: Machine, era: str) -> list[Link]:
    """The links as a matrix shows them: NVLinks hide the hop, and an old driver has no NODE."""
    return [
        Link(a=k.a, b=k.b, hop=None if k.nvlinks else shown(k.hop, era), nvlinks=k.nvlinks)
        for k in machine.links
    ]


def shown(hop: Hop | None, era: str) -> Hop | None:
    return Hop.PHB if hop is Hop.NODE and not topo.ERAS[era].node else hop


def check(machine: Machine, era: str) -> None:
    read = read_text(topo.matrix(machine, era), origin="written")
    assert read.unread == ()
    assert list(read.links) == expected(machine, era)
    assert [gpu.index for gpu in read.gpus] == [gpu.index for gpu in machine.gpus]
    assert [gpu.cpu_affinity for gpu in read.gpus] == [gpu.cpu_affinity for gpu in machine.gpus]
    if "NUMA Affinity" in topo.ERAS[era].titles:
        assert [gpu.numa_node for gpu in read.gpus] == [gpu.numa_node for gpu in machine.gpus]
    assert [nic.name for nic in read.nics] == [nic.name for nic in machine.nics]
    for nic, written in zip(read.nics, machine.nics, strict=True):
        assert nic.hops == {place: shown(hop, era) for place, hop in written.hops.items()}


@pytest.mark.parametrize(("name", "era"), in_turn(real.MACHINES, topo.ERAS))
def test_the_matrix_of_a_real_machine_is_read(era: str, name: str) -> None:
    check(real.MACHINES[name], era)


@pytest.mark.parametrize("name", real.MACHINES)
def test_the_peer_statuses_of_a_real_machine_are_read(name: str) -> None:
    machine = real.MACHINES[name]
    both = topo.peers(machine, "r") + "\n" + topo.peers(machine, "w")
    read = read_text(both, origin="written")
    assert [(k.p2p_read, k.p2p_write) for k in read.links] == [
        (k.p2p_read, k.p2p_write) for k in machine.links
    ]
    alone = msgspec.structs.replace(
        machine, links=tuple(msgspec.structs.replace(k, p2p_write=k.p2p_read) for k in machine.links)
    )
    unsaid = read_text(topo.peers(alone, "r", command=False), origin="written")
    assert [(k.p2p_read, k.p2p_write) for k in unsaid.links] == [
        (k.p2p_read, k.p2p_write) for k in alone.links
    ]
