from pathlib import Path

import pytest

from gputopo.probes import read_tree, read_with
from gputopo.probes.nvml import NvmlAnswers
from gputopo.values.machine import Contradiction, Gpu, Hop, Link, Machine, NvLink
from tests.kit.machines import read_double
from tests.kit.nvml import FakeNvml
from tests.kit.scenarios import SCENARIOS
from tests.kit.sysfs import write_files, write_function

A, B = "0000:01:00.0", "0000:02:00.0"
NO_TREE = Path("/nonexistent")


def pair(root: Path, a: Gpu, b: Gpu, hop: Hop | None = None) -> Machine:
    """Read a machine of which NVML reports two GPUs and the hop between them."""
    answers = NvmlAnswers(None, gpus=(a, b), links=(Link(a=0, b=1, hop=hop),), counted=2)
    return read_with(root, lambda: answers)


def linked(index: int, address: str | None, *links: NvLink) -> Gpu:
    return Gpu(index=index, pci_address=address, nvlinks=links)


def up(link: int, remote: str | None, kind: str | None = "gpu") -> NvLink:
    return NvLink(link=link, active=True, remote_pci_address=remote, remote_kind=kind)


@pytest.mark.parametrize(
    ("a", "b", "nvlinks"),
    [
        # Those to other GPUs do not count.
        (
            linked(0, A, up(0, B), up(1, B), up(2, "0000:03:00.0"), NvLink(link=3, active=False)),
            linked(1, B),
            2,
        ),
        (linked(0, A), linked(1, B, up(0, A), up(1, A)), 2),
        # One of the two reports nothing.
        (linked(0, A, up(0, B)), Gpu(index=1, pci_address=B), 1),
        (Gpu(index=0), Gpu(index=1, pci_address=B), None),
        # The other end is hidden.
        (linked(0, A, up(0, None)), Gpu(index=1, pci_address=B), None),
        (linked(0, A, up(0, None)), linked(1, B, up(0, A)), 1),
        # Through switches a pair has as many as the GPU with fewer.
        (
            linked(0, A, *(up(n, "0000:c4:00.0", "switch") for n in range(12))),
            linked(1, B, *(up(n, None, "switch") for n in range(10))),
            10,
        ),
    ],
)
def test_the_nvlinks_of_a_pair_are_counted_from_either_end(a: Gpu, b: Gpu, nvlinks: int | None) -> None:
    assert pair(NO_TREE, a, b).links[0].nvlinks == nvlinks


def write_gpus(root: Path, a: str = "pci0000:00", b: str = "pci0000:00") -> Path:
    """Write two GPUs, each under what is above it."""
    for above, address in ((a, A), (b, B)):
        write_function(root, f"{above}/{address}", "10de", "20b0", "030200")
    return root


SWITCH = "pci0000:00/0000:00:01.0"
GPUS = (Gpu(index=0, pci_address=A), Gpu(index=1, pci_address=B))


@pytest.mark.parametrize(
    ("above", "by_nvml", "hop", "contradicts"),
    [
        ("pci0000:00", Hop.PIX, Hop.PIX, True),
        ("pci0000:00", Hop.PHB, Hop.PHB, False),
        ("pci0000:00", None, Hop.PHB, False),
        (SWITCH, Hop.INTERNAL, Hop.INTERNAL, False),  # two GPUs of one board
    ],
)
def test_nvml_and_the_tree_are_both_heard_and_nvmls_word_stands(
    above: str, by_nvml: Hop | None, hop: Hop, contradicts: bool, tmp_path: Path
) -> None:
    machine = pair(write_gpus(tmp_path, above, above), *GPUS, by_nvml)
    assert machine.links[0].hop is hop
    said = {"nvml": "PIX", "sysfs": "PHB"}
    assert machine.contradictions == (
        (Contradiction(fact="links[0-1].hop", said=said),) if contradicts else ()
    )


@pytest.mark.parametrize(("nodes", "hop"), [(0, Hop.NODE), (2, None)])
def test_without_memory_nodes_in_the_tree_of_a_two_node_host_nothing_is_guessed(
    nodes: int, hop: Hop | None, tmp_path: Path
) -> None:
    for gpu in write_gpus(tmp_path, "pci0000:00", "pci0000:80").glob("sys/devices/*/*/numa_node"):
        gpu.unlink()
    for node in range(nodes):
        write_files(tmp_path / f"sys/devices/system/node/node{node}", {"cpulist": f"{node}"})
    assert read_tree(tmp_path).links[0].hop is hop


@pytest.mark.parametrize(
    ("call", "fact"),
    [
        ("nvmlDeviceGetTopologyCommonAncestor", "hop"),
        ("nvmlDeviceGetP2PStatus[1]", "p2p_write"),
    ],
)
def test_a_refused_call_about_a_pair_costs_only_its_own_fact(call: str, fact: str) -> None:
    fake = FakeNvml(SCENARIOS["four"])
    fake.refuse(call, 999, gpu=0)
    machine = read_double(fake)
    values = {"hop": Hop.PIX, "p2p_read": "OK", "p2p_write": "OK"}
    for link in machine.links:
        wanted = values if link.a else values | {fact: None}
        assert {name: getattr(link, name) for name in values} == wanted
    paths = [path for path in machine.missing if path.startswith("links")]
    assert paths == [f"links[0-{b}].{fact}" for b in (1, 2, 3)]
