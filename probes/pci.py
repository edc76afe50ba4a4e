"""Reads the PCI tree from sysfs: NVIDIA GPUs, network cards, the bridges above, their errors and ACS.

This is the kernel's view, so it needs neither driver nor privileges. `root` is the folder that contains
`sys`.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from gputopo.probes.aer_acs import read_acs, read_aer
from gputopo.probes.host import list_names, read_number, read_text
from gputopo.reference import address_order, parse_link_speed, parse_link_width
from gputopo.values.machine import PciNode

_KERNEL_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")

_NVIDIA = "10de"
_GPU_CLASSES = ("0300", "0302")  # VGA and 3D controller; not the card's sound and USB functions
_NIC_CLASS = "02"


def read_pci(root: Path) -> tuple[PciNode, ...]:
    """Return the GPUs, NICs and the bridges above them, ordered by address; empty without /sys.

    A device's parents come from the target of its link under bus/pci/devices, so a bridge that has no
    separate link is found too. If the tree does not show what a device is attached to, its `root` is empty.
    Virtual functions of a NIC (SR-IOV) are skipped: they are the same card.
    """
    devices = root / "sys/bus/pci/devices"
    nodes: dict[str, PciNode] = {}
    for address, folder in _functions(devices, root):
        kind = _kind(folder)
        if kind == "other":
            continue
        root_name, above = _path_to(folder)
        nodes[address] = _node(folder, address, kind, root_name, above[-1][0] if above else None)
        for place, (bridge, bridge_folder) in enumerate(above):
            parent = above[place - 1][0] if place else None
            nodes.setdefault(bridge, _node(bridge_folder, bridge, "bridge", root_name, parent))
    return tuple(nodes[address] for address in sorted(nodes, key=address_order))


def interface_name(root: Path, address: str) -> str | None:
    """Return the name of a NIC's InfiniBand device (`mlx5_0`), or of its network interface (`eth0`)."""
    folder = root / "sys/bus/pci/devices" / address
    for pattern in ("infiniband/*", "net/*", "virtio*/net/*"):
        names = sorted(path.name for path in folder.glob(pattern))
        if names:
            return names[0]
    return None


def _functions(devices: Path, root: Path) -> Iterator[tuple[str, Path]]:
    """Return the address and the real folder of each PCI function, without broken links."""
    for name in list_names(devices):
        if not _KERNEL_ADDRESS.fullmatch(name):
            continue
        folder = _target(devices / name, root)
        if os.path.isdir(folder):
            yield name, folder


def _target(link: Path, root: Path) -> Path:
    """Follow one link without leaving `root`: a copied tree may contain links that start with /sys."""
    try:
        target = os.readlink(link)
    except OSError:
        return link
    if os.path.isabs(target):
        return Path(os.path.normpath(root / target.lstrip("/")))
    return Path(os.path.normpath(link.parent / target))


def _kind(folder: Path) -> Literal["gpu", "nic", "other"]:
    class_code = _hex_id(f"{folder}/class", 6)
    if class_code is None:
        return "other"
    if class_code.startswith(_GPU_CLASSES) and _hex_id(f"{folder}/vendor", 4) == _NVIDIA:
        return "gpu"
    if class_code.startswith(_NIC_CLASS) and not os.path.islink(folder / "physfn"):
        return "nic"
    return "other"


def _path_to(folder: Path) -> tuple[str, list[tuple[str, Path]]]:
    """Return the root complex above a device and the bridges between them, from the root down.

    A path may contain two roots, as behind an Intel VMD. The nearer one is used.
    """
    root_name = ""
    bridges: list[tuple[str, Path]] = []
    for parent in reversed(folder.parents):
        if _ROOT.fullmatch(parent.name):
            root_name, bridges = parent.name, []
        elif root_name and _KERNEL_ADDRESS.fullmatch(parent.name):
            bridges.append((parent.name, parent))
    return root_name, bridges


def _node(
    folder: Path, address: str, kind: Literal["gpu", "nic", "bridge"], root_name: str, parent: str | None
) -> PciNode:
    place = os.fspath(folder)  # joining strings is several times faster than joining paths
    driver = f"{place}/driver"
    acs = read_acs(place) if kind == "bridge" else None
    return PciNode(
        address=address,
        root=root_name,
        parent=parent,
        kind=kind,
        vendor_id=_hex_id(f"{place}/vendor", 4),
        device_id=_hex_id(f"{place}/device", 4),
        class_code=_hex_id(f"{place}/class", 6),
        driver=os.path.basename(os.readlink(driver)) if os.path.islink(driver) else None,
        numa_node=read_number(f"{place}/numa_node"),  # -1 if the firmware did not report it
        speed_gt_per_s=parse_link_speed(read_text(f"{place}/current_link_speed")),
        max_speed_gt_per_s=parse_link_speed(read_text(f"{place}/max_link_speed")),
        width=parse_link_width(read_text(f"{place}/current_link_width")),
        max_width=parse_link_width(read_text(f"{place}/max_link_width")),
        acs=acs if isinstance(acs, bool) else None,
        aer=read_aer(place),
    )


def _hex_id(path: str, digits: int) -> str | None:
    match = re.fullmatch(r"(?:0x)?([0-9a-f]{1,8})", (read_text(path) or "").lower())
    return match[1].zfill(digits) if match else None
