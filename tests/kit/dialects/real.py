"""The trees of real machines: GPUs under PCIe switches, and the number of their NVLinks.

Addresses follow from the tree, and all GPUs are of one model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from gputopo.values.machine import Gpu, Hop, Host, Link, Machine, Nic, NumaNode, Pcie, PciNode

Switch = Sequence[str]  # "gpu:0", "nic:0" below one switch; a single device is on a root port


_NAME, _DEVICE_ID = "NVIDIA A100-SXM4-40GB", "20b0"
_SPEED = 16.0  # GT/s, of PCIe 4.0


@dataclass(slots=True)
class _Tree:
    nodes: list[PciNode] = field(default_factory=list)
    paths: dict[str, tuple[str, str]] = field(default_factory=dict)  # by device: its NUMA node, its switch
    addresses: dict[str, str] = field(default_factory=dict)


def _box(
    numa_nodes: Sequence[Sequence[Switch]],
    *,
    nvlinks: Mapping[tuple[int, int], int] | int = 0,
    width: int = 16,
    cpus: int = 20,
) -> Machine:
    """Return a machine. `numa_nodes`: the switches of each node; `width`: lanes of each GPU's link."""
    tree = _Tree()
    for number, switches in enumerate(numa_nodes):
        _add_root(tree, number, switches, width)
    gpus = sorted(int(place[4:]) for place in tree.paths if place.startswith("gpu:"))
    nics = sorted(int(place[4:]) for place in tree.paths if place.startswith("nic:"))
    joined = dict.fromkeys(combinations(gpus, 2), nvlinks) if isinstance(nvlinks, int) else nvlinks
    places = [f"gpu:{gpu}" for gpu in gpus] + [f"nic:{nic}" for nic in nics]
    return Machine(
        source="made",
        host=Host(
            numa_nodes=tuple(
                NumaNode(index=i, cpus=f"{i * cpus}-{(i + 1) * cpus - 1}") for i in range(len(numa_nodes))
            )
        ),
        gpus=tuple(_gpu(tree, index, width, cpus) for index in gpus),
        links=tuple(
            Link(
                a=a,
                b=b,
                hop=_hop(tree, f"gpu:{a}", f"gpu:{b}"),
                nvlinks=joined.get((a, b), 0),
            )
            for a, b in combinations(gpus, 2)
        ),
        nics=tuple(
            Nic(
                index=nic,
                name=f"mlx5_{nic}",
                hops={place: _hop(tree, f"nic:{nic}", place) for place in places if place != f"nic:{nic}"},
            )
            for nic in nics
        ),
        pci=tuple(tree.nodes),
    )


def _gpu(tree: _Tree, index: int, width: int, cpus: int) -> Gpu:
    numa = int(tree.paths[f"gpu:{index}"][0])
    return Gpu(
        index=index,
        name=_NAME,
        pci_address=tree.addresses[f"gpu:{index}"],
        pci_device_id=_DEVICE_ID,
        numa_node=numa,
        cpu_affinity=f"{numa * cpus}-{(numa + 1) * cpus - 1}",
        pcie=Pcie(gen_now=1, gen_max=4, width_now=width, width_max=16),
    )


def _hop(tree: _Tree, one: str, other: str) -> Hop:
    """Return the hop of a pair.

    A NUMA node has one host bridge, where devices without a common switch meet.
    """
    (numa, switch), (far, other_switch) = tree.paths[one], tree.paths[other]
    if numa != far:
        return Hop.SYS
    return Hop.PIX if switch == other_switch else Hop.PHB


def _add_root(tree: _Tree, number: int, switches: Sequence[Switch], width: int) -> None:
    bus = 0x40 * number
    root = f"pci0000:{bus:02x}"
    behind = bus + 1
    for place, devices in enumerate(switches):
        port = _bridge(tree, f"0000:{bus:02x}:{place + 1:02x}.0", root, None, number)
        if len(devices) == 1:
            _device(tree, devices[0], f"0000:{behind:02x}:00.0", root, port, number, width)
            behind += 1
        else:
            upstream = _bridge(tree, f"0000:{behind:02x}:00.0", root, port, number)
            for slot, device in enumerate(devices):
                address = f"0000:{behind + 1:02x}:{4 * slot + 4:02x}.0"
                downstream = _bridge(tree, address, root, upstream, number)
                below = f"0000:{behind + 2 + slot:02x}:00.0"
                _device(tree, device, below, root, downstream, number, width)
            behind += 2 + len(devices)
        for device in devices:
            tree.paths[device] = (str(number), port)


def _bridge(tree: _Tree, address: str, root: str, parent: str | None, numa: int) -> str:
    node = PciNode(
        address=address, root=root, parent=parent, kind="bridge", vendor_id="10b5", device_id="8747",
        class_code="060400", numa_node=numa, max_speed_gt_per_s=_SPEED, max_width=16, acs=False,
        name="PLX Technology, Inc. PEX 8747 48-Lane Switch",
    )  # fmt: skip
    tree.nodes.append(node)
    return address


def _device(tree: _Tree, place: str, address: str, root: str, parent: str, numa: int, width: int) -> None:
    tree.addresses[place] = address
    if place.startswith("gpu:"):
        node = PciNode(
            address=address, root=root, parent=parent, kind="gpu", vendor_id="10de",
            device_id=_DEVICE_ID, class_code="030000", numa_node=numa, speed_gt_per_s=2.5,
            max_speed_gt_per_s=_SPEED, width=width, max_width=16,
            name="NVIDIA Corporation GA100 [A100-SXM4-40GB]",
        )  # fmt: skip
    else:
        node = PciNode(
            address=address, root=root, parent=parent, kind="nic", vendor_id="15b3", device_id="1013",
            class_code="020700", numa_node=numa, speed_gt_per_s=8.0, max_speed_gt_per_s=8.0, width=16,
            max_width=16, name="Mellanox Technologies MT27700 Family [ConnectX-4]",
        )  # fmt: skip
    tree.nodes.append(node)


def _gpus(*indices: int) -> list[str]:
    return [f"gpu:{index}" for index in indices]


_DGX1 = [
    [["gpu:0", "gpu:1", "nic:0"], ["gpu:2", "gpu:3", "nic:1"]],
    [["gpu:4", "gpu:5", "nic:2"], ["gpu:6", "gpu:7", "nic:3"]],
]
_CUBE = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3), (4, 5), (4, 6), (4, 7), (5, 6), (5, 7), (6, 7)]
_ACROSS = [(0, 4), (1, 5), (2, 6), (3, 7)]
_TWICE = [(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)]

MACHINES: dict[str, Machine] = {
    "7 GTX 1070 on x1 risers": _box([[_gpus(0, 1, 2), _gpus(3, 4, 5, 6)]], width=1),
    "DGX-1 V100": _box(_DGX1, nvlinks=dict.fromkeys([*_CUBE, *_ACROSS], 1) | dict.fromkeys(_TWICE, 2)),
    "8 A100 with NVSwitches": _box(
        [[_gpus(0, 1), _gpus(2, 3)], [_gpus(4, 5), _gpus(6, 7)]], nvlinks=12, cpus=24
    ),
    "GH200": _box([[["gpu:0"], ["nic:0"]]], cpus=72),
    "4 RTX 3090": _box([[["gpu:0"], ["gpu:1"]], [["gpu:2"], ["gpu:3"]]], nvlinks={(0, 1): 4}),
}
