"""More machines with shared uplinks: scenarios for the doubles of NVML and CUDA.

`2x4`: two switches with four cards each, under one CPU. `8two`: the same on two sockets, generation 4.
`chipset`: two cards at the CPU, two behind a narrow chipset link.
"""

from collections.abc import Sequence

from tests.kit.scenarios import SCENARIOS
from tests.kit.specs import Bridge, GpuSpec, LinkSpec, Scenario


def _card(index: int, address: str, parent: str, root: str, link: LinkSpec, node: int) -> GpuSpec:
    return GpuSpec(
        address=address,
        parent=parent,
        root=root,
        uuid=f"GPU-000000c0-0000-4000-8000-{index:012x}",
        link=link,
        numa_node=node,
    )


def _switched(name: str, roots: Sequence[str], link: LinkSpec, nodes: Sequence[int]) -> Scenario:
    """Return one switch with four cards under each root. The uplink is as wide as the slots."""
    bridges: list[Bridge] = []
    gpus: list[GpuSpec] = []
    for number, (root, node) in enumerate(zip(roots, nodes, strict=True)):
        bus = 0x10 + 0x20 * number
        port, up = f"0000:{root}:0{1 + number}.0", f"0000:{bus:02x}:00.0"
        path = f"pci0000:{root}"
        bridges += [Bridge(port, path, None, link), Bridge(up, path, port, link)]
        for place in range(4):
            down = f"0000:{bus + 1:02x}:{4 * place:02x}.0"
            bridges.append(Bridge(down, path, up, link))
            address = f"0000:{bus + 2 + place:02x}:00.0"
            gpus.append(_card(len(gpus), address, down, path, link, node))
    sockets = len(set(nodes))
    cpus = tuple(range(16 * node, 16 * node + 16) for node in range(sockets))
    return Scenario(name, tuple(gpus), tuple(bridges), sockets=sockets, cpus=cpus)


def _chipset() -> Scenario:
    root = "pci0000:00"
    wide, narrow = LinkSpec(8.0, 16, 8.0, 16), LinkSpec(8.0, 4, 8.0, 4)
    ports = [Bridge("0000:00:01.0", root, None, wide), Bridge("0000:00:02.0", root, None, wide)]
    behind = [
        Bridge("0000:00:1c.0", root, None, narrow),
        Bridge("0000:04:00.0", root, "0000:00:1c.0", narrow),
        Bridge("0000:05:00.0", root, "0000:04:00.0", wide),
        Bridge("0000:05:01.0", root, "0000:04:00.0", wide),
    ]
    places = (("01", "0000:00:01.0"), ("02", "0000:00:02.0"), ("06", "0000:05:00.0"), ("07", "0000:05:01.0"))
    gpus = tuple(
        _card(index, f"0000:{bus}:00.0", parent, root, wide, 0) for index, (bus, parent) in enumerate(places)
    )
    return Scenario("chipset", gpus, (*ports, *behind), cpus=(range(16),))


_GEN3, _GEN4 = LinkSpec(8.0, 16, 8.0, 16), LinkSpec(16.0, 16, 16.0, 16)

LAYOUTS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        _switched("2x4", ("00", "00"), _GEN3, (0, 0)),
        _switched("8two", ("00", "80"), _GEN4, (0, 1)),
        _chipset(),
    )
}


def named(name: str) -> Scenario:
    """Return a layout, or a scenario of the kit. Raises ValueError for an unknown name."""
    found = LAYOUTS.get(name) or SCENARIOS.get(name)
    if found is None:
        raise ValueError(f"no scenario {name!r}; there are {', '.join((*SCENARIOS, *LAYOUTS))}")
    return found
