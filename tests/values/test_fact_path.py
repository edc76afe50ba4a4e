"""Addresses of facts: what is built is read back, followed and renumbered."""

import pytest

from gputopo.values.machine import Gpu, Host, Link, Machine, Nic, NumaNode, NvLink, PciNode
from gputopo.values.subject import (
    EVERY,
    FactPath,
    at_gpu,
    at_link,
    at_nic,
    at_numa_node,
    at_pci,
    fact_in_words,
    item,
    single_facts,
    values_at,
)

MACHINE = Machine(
    source="a test",
    host=Host(kernel="6.8", numa_nodes=(NumaNode(index=1, cpus="0-3"),)),
    gpus=(Gpu(index=0, nvlinks=(NvLink(link=2, active=True),)), Gpu(index=3, fan_percent=30)),
    links=(Link(a=0, b=3, nvlinks=2),),
    nics=(Nic(index=1, name="mlx5_0"),),
    pci=(PciNode(address="0000:01:00.0", root="pci0000:00", aer={"fatal": 1}),),
)


@pytest.mark.parametrize(
    ("text", "parts", "indices"),
    [
        (at_gpu(3, "pcie.gen_now"), ("gpus", "3", "pcie.gen_now"), (3,)),
        (at_gpu(EVERY, "name"), ("gpus", "*", "name"), ()),
        (at_gpu(0), ("gpus", "0", ""), (0,)),
        (at_gpu(0, item("nvlinks", 2, "active")), ("gpus", "0", "nvlinks[2].active"), (0,)),
        (at_link(0, 1, "hop"), ("links", "0-1", "hop"), (0, 1)),
        (at_link(EVERY, fact="hop"), ("links", "*", "hop"), ()),
        (at_nic(1, "hops.gpu:0"), ("nics", "1", "hops.gpu:0"), (1,)),
        (at_pci("0000:01:00.0", "kind"), ("pci", "0000:01:00.0", "kind"), ()),
        ("driver.version", ("driver", "", "version"), ()),
        (at_numa_node(1, "cpus"), ("host", "", "numa_nodes[1].cpus"), ()),
        ("gpus", ("gpus", "", ""), ()),
    ],
)
def test_an_address_is_read_as_it_was_built(
    text: str, parts: tuple[str, str, str], indices: tuple[int, ...]
) -> None:
    path = FactPath.parse(text)
    assert (path.group, path.key, path.fact) == parts
    assert (path.indices, path.text) == (indices, text)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("gpus[3].fan_percent", [30]),
        ("gpus[*].fan_percent", [None, 30]),
        ("gpus[1].fan_percent", []),
        ("gpus[0].nvlinks[2].active", [True]),
        ("links[0-3].nvlinks", [2]),
        ("nics[1].name", ["mlx5_0"]),
        ("pci[0000:01:00.0].aer.fatal", [1]),
        ("host.numa_nodes[1].cpus", ["0-3"]),
        ("host.kernel", ["6.8"]),
        ("host.unheard_of", [None]),
    ],
)
def test_an_address_is_followed(text: str, values: list[object]) -> None:
    assert values_at(MACHINE, text) == values


def test_every_single_fact_has_its_address() -> None:
    for path, value in single_facts(MACHINE):
        if value not in ((), None) and "contradictions" not in path:
            assert values_at(MACHINE, path) == [value], path


@pytest.mark.parametrize(
    ("text", "new"),
    [
        ("gpus[0].name", "gpus[5].name"),
        ("gpus[*].name", "gpus[*].name"),
        ("gpus[1].name", None),
        ("links[0-3].hop", "links[4-5].hop"),
        ("links[0-1].hop", None),
        ("nics[0].hops.gpu:3", "nics[7].hops.gpu:4"),
        ("nics[0].hops.nic:0", "nics[7].hops.nic:7"),
        ("nics[0].hops.gpu:1", None),
        ("host.kernel", "host.kernel"),
    ],
)
def test_devices_are_renumbered(text: str, new: str | None) -> None:
    found = FactPath.parse(text).renumbered({0: 5, 3: 4}, {0: 7})
    assert (found and found.text) == new


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpus[1].pci_address", "PCI address of GPU 1"),
        ("links[0-1].hop", "PCIe hop of GPUs 0 and 1"),
        ("driver.cuda_version", "driver CUDA version"),
        ("host.memory_mib", "host memory"),
        ("host.numa_nodes[1].cpus", "host NUMA node 1 CPUs"),
    ],
)
def test_an_address_in_words(text: str, words: str) -> None:
    assert fact_in_words(text) == words
