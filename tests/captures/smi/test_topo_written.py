"""What `nvidia-smi topo` of each era prints of real machines is read back, cell by cell."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputopo.captures import reading
from gputopo.values.machine import Gpu, Hop, Link, Machine
from tests.captures.samples import in_turn
from tests.kit.dialects import real, topo

HOPS = [Hop.PIX, Hop.PXB, Hop.PHB, Hop.NODE, Hop.SYS]


def expected(machine: Machine, era: str) -> list[Link]:
    """The links as a matrix shows them: NVLinks hide the hop, and an old driver has no NODE."""
    return [
        Link(a=k.a, b=k.b, hop=None if k.nvlinks else shown(k.hop, era), nvlinks=k.nvlinks)
        for k in machine.links
    ]


def shown(hop: Hop | None, era: str) -> Hop | None:
    return Hop.PHB if hop is Hop.NODE and not topo.ERAS[era].node else hop


def check(machine: Machine, era: str) -> None:
    read = reading.read_text(topo.matrix(machine, era), origin="written")
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


@pytest.mark.parametrize("era", topo.ERAS)
def test_the_matrix_of_any_machine_is_read(era: str) -> None:
    @settings(max_examples=3)  # of each era
    @given(st.integers(1, 16), st.integers(0, 6), st.lists(st.integers(0, 22), min_size=7, max_size=7))
    def each(gpus: int, nics: int, cells: list[int]) -> None:
        links = []
        for a in range(gpus):
            for b in range(a + 1, gpus):
                cell = cells[(3 * a + 5 * b) % len(cells)]
                links.append(Link(a=a, b=b, hop=HOPS[cell % len(HOPS)], nvlinks=max(0, cell - 4)))
        machine = Machine(
            source="made",
            gpus=tuple(
                Gpu(index=i, cpu_affinity=f"{8 * i}-{8 * i + 7}", numa_node=i // 2) for i in range(gpus)
            ),
            links=tuple(links),
            nics=tuple(topo.with_hops(gpus, nics, [HOPS[cell % len(HOPS)] for cell in cells])),
        )
        check(machine, era)

    each()


@pytest.mark.parametrize("name", real.MACHINES)
def test_the_peer_statuses_of_a_real_machine_are_read(name: str) -> None:
    machine = real.MACHINES[name]
    both = topo.peers(machine, "r") + "\n" + topo.peers(machine, "w")
    read = reading.read_text(both, origin="written")
    assert [(k.p2p_read, k.p2p_write) for k in read.links] == [
        (k.p2p_read, k.p2p_write) for k in machine.links
    ]
    alone = msgspec.structs.replace(
        machine, links=tuple(msgspec.structs.replace(k, p2p_write=k.p2p_read) for k in machine.links)
    )
    unsaid = reading.read_text(topo.peers(alone, "r", command=False), origin="written")
    assert [(k.p2p_read, k.p2p_write) for k in unsaid.links] == [
        (k.p2p_read, k.p2p_write) for k in alone.links
    ]
