import itertools

import pytest

from gputopo.topology import without_identities
from gputopo.values.machine import Gpu, GpuProcess, Hop, Link, Machine


def test_hops_are_ordered_from_near_to_far() -> None:
    assert sorted(Hop, key=lambda hop: hop.level) == [
        Hop.INTERNAL,
        Hop.PIX,
        Hop.PXB,
        Hop.PHB,
        Hop.NODE,
        Hop.SYS,
    ]
    assert all(near < far and far > near and near <= far for near, far in itertools.pairwise(Hop))
    assert max(Hop.PIX, Hop.SYS, Hop.PHB) is Hop.SYS


def test_a_hop_is_made_from_the_number_of_nvml_and_gives_it_back() -> None:
    assert [hop.level for hop in Hop] == [0, 10, 20, 30, 40, 50]
    assert all(Hop.from_level(hop.level) is hop for hop in Hop)
    with pytest.raises(ValueError, match="25 is no NVML topology level"):
        Hop.from_level(25)


def test_a_link_is_written_low_index_first() -> None:
    for a, b in ((1, 0), (2, 2)):
        with pytest.raises(ValueError, match="low index first"):
            Link(a=a, b=b)


def test_identities_are_left_out_and_all_else_stays() -> None:
    process = GpuProcess(pid=7, name="python", user="eve", memory_mib=3)
    machine = Machine(
        source="live", gpus=(Gpu(index=0, uuid="GPU-1", name="A", processes=(process,)), Gpu(index=1))
    )
    bare = without_identities(machine)
    assert [gpu.uuid for gpu in bare.gpus] == [None, None]
    assert bare.gpus[0].processes == (GpuProcess(pid=7, name="python", memory_mib=3),)
    assert bare.gpus[1].processes is None
    assert (bare.source, bare.gpus[0].name) == ("live", "A")
    assert machine.gpus[0].uuid == "GPU-1"
