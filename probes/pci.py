"""Reads the PCI tree from sysfs: NVIDIA GPUs, network cards, the bridges above them, their errors and ACS.

The kernel's own view, so it needs neither driver nor privileges. `root` is the folder that holds `sys`.
"""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from gputopo.probes.host import read_text
from gputopo.reference.expectations import WIDTHS, address_order
from gputopo.values.machine import PciNode

NOT_PERMITTED = "NOT_PERMITTED"  # config space beyond its first 64 bytes is for root (CAP_SYS_ADMIN)
_NOT_IN_SYS = "NOT_IN_PROC_OR_SYS"

# linux: Documentation/ABI/testing/sysfs-bus-pci-devices-aer; one line an error, the sum in the last.
_AER_FILES = {
    "correctable": "aer_dev_correctable",
    "nonfatal": "aer_dev_nonfatal",
    "fatal": "aer_dev_fatal",
}

# PCI Express Base Specification, extended capabilities: a list that begins at 0x100, each with its number in
# 16 bits, its version in 4 and the offset of the next in 12. Here: Access Control Services.
_EXTENDED = 0x100
_ACS = 0x000D
_ACS_CONTROL = 6  # offset of the control register in it, 16 bits
# Request redirect, completion redirect, egress control: what sends peer traffic up to the root. The same bits
# are cleared by the kernel option disable_acs_redir (linux: drivers/pci/pci.c).
_REDIRECT = 0x4 | 0x8 | 0x20
_MAX_CAPABILITIES = (4096 - _EXTENDED) // 8


def read_aer(folder: str) -> dict[str, int] | None:
    """Return a function's error counters since boot, or None where the kernel keeps none."""
    counts = {}
    for name, file in _AER_FILES.items():
        text = read_text(f"{folder}/{file}")
        count = None if text is None else aer_total(text)
        if count is not None:
            counts[name] = count
    return counts or None


def aer_total(text: str) -> int | None:
    """Return the sum in an aer_dev_* file: its TOTAL line, else the lines added up; None for other text."""
    lines = re.findall(r"^(\S.*?)\s+([0-9]+)$", text, re.MULTILINE)
    totals = [int(number) for name, number in lines if name.startswith("TOTAL")]
    if totals:
        return totals[-1]
    return sum(int(number) for _, number in lines) if lines else None


def read_acs(folder: str) -> bool | str:
    """Return whether a bridge redirects peer traffic to the root complex, or the reason why it is unknown.

    A bridge without the capability cannot. Reads a few words: the whole of config space is slow to read.
    """
    try:
        file = os.open(f"{folder}/config", os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:
        return NOT_PERMITTED
    except OSError:
        return _NOT_IN_SYS
    try:
        return _acs_of(file)
    except OSError:
        return "UNREADABLE_CONFIG_SPACE"
    finally:
        os.close(file)


def _acs_of(file: int) -> bool | str:
    if not os.pread(file, 4, 64):  # the kernel returns 64 bytes to a caller without rights
        return NOT_PERMITTED
    offset = _EXTENDED
    seen: set[int] = set()
    while offset >= _EXTENDED and offset not in seen and len(seen) < _MAX_CAPABILITIES:
        seen.add(offset)
        words = os.pread(file, 4, offset)
        if len(words) < 4:
            return "NO_EXTENDED_CONFIG_SPACE"
        header = int.from_bytes(words, "little")
        if header == 0xFFFFFFFF:  # a device that sleeps or is gone answers with ones
            return "UNREADABLE_CONFIG_SPACE"
        if header & 0xFFFF == _ACS:
            control = int.from_bytes(os.pread(file, 2, offset + _ACS_CONTROL), "little")
            return bool(control & _REDIRECT)
        offset = header >> 20 & 0xFFC
    return False


def host_acs(nodes: Sequence[PciNode], root: Path) -> tuple[str | None, str]:
    """Return "on" if any bridge above a GPU sends peer traffic up, "off" if none does, else None and why."""
    tree = {node.address: node for node in nodes}
    above: dict[str, PciNode] = {}
    for node in nodes:
        place = tree.get(node.parent or "") if node.kind == "gpu" else None
        while place is not None and place.address not in above:
            above[place.address] = place
            place = tree.get(place.parent or "")
    if any(bridge.acs for bridge in above.values()):
        return "on", ""
    unread = [bridge for bridge in above.values() if bridge.acs is None]
    if above and not unread:
        return "off", ""
    if not above:
        return None, "NO_BRIDGE_ABOVE_A_GPU"
    read = read_acs(f"{root}/sys/bus/pci/devices/{unread[0].address}")
    return None, read if isinstance(read, str) else _NOT_IN_SYS


_KERNEL_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")

_NVIDIA = "10de"
_GPU_CLASSES = ("0300", "0302")  # VGA and 3D controller; the card's sound and USB functions are no GPUs
_NIC_CLASS = "02"


def read_pci(root: Path) -> tuple[PciNode, ...]:
    """Return the GPUs, NICs and the bridges above them, ordered by address. Nothing where there is no /sys.

    A device's parents are taken from where its link under bus/pci/devices points to, so a bridge that has no
    separate link is found too. Where the tree does not show what a device is attached to, its `root` is
    empty. Virtual functions of a NIC (SR-IOV) are left out: they are the same card once more.
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
    """Return the name of a NIC.

    Of its InfiniBand device (`mlx5_0`), else of its network interface (`eth0`).
    """
    folder = root / "sys/bus/pci/devices" / address
    for pattern in ("infiniband/*", "net/*", "virtio*/net/*"):
        names = sorted(found.name for found in folder.glob(pattern))
        if names:
            return names[0]
    return None


def read_speed(text: str | None) -> float | None:
    """Read "8.0 GT/s PCIe" (new kernels) or "8 GT/s" (old ones); None for "Unknown" and the like."""
    match = re.match(r"(\d+(?:\.\d+)?) GT/s", text or "")
    return float(match[1]) if match else None


def read_width(text: str | None) -> int | None:
    """Read a number of lanes; None for 0 and 255, which mean unknown."""
    return int(text) if text and text.isascii() and text.isdigit() and int(text) in WIDTHS else None


def _functions(devices: Path, root: Path) -> Iterator[tuple[str, Path]]:
    """Return the address and the true folder of each PCI function; links that lead nowhere are left out."""
    try:
        names = sorted(os.listdir(devices))
    except OSError:
        return
    for name in names:
        if not _KERNEL_ADDRESS.fullmatch(name):
            continue
        folder = _target(devices / name, root)
        if os.path.isdir(folder):
            yield name, folder


def _target(link: Path, root: Path) -> Path:
    """Follow one link without leaving `root`: a copied tree may hold links that begin with /sys."""
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
    """Return the root complex above a device and the bridges between, from the root down.

    A path may hold two roots, as behind an Intel VMD: the nearer one counts.
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
    place = os.fspath(folder)  # joining strings is several times as fast as joining paths
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
        numa_node=_numa_node(read_text(f"{place}/numa_node")),
        speed_gt_per_s=read_speed(read_text(f"{place}/current_link_speed")),
        max_speed_gt_per_s=read_speed(read_text(f"{place}/max_link_speed")),
        width=read_width(read_text(f"{place}/current_link_width")),
        max_width=read_width(read_text(f"{place}/max_link_width")),
        acs=acs if isinstance(acs, bool) else None,
        aer=read_aer(place),
    )


def _hex_id(path: str, digits: int) -> str | None:
    match = re.fullmatch(r"(?:0x)?([0-9a-f]{1,8})", (read_text(path) or "").lower())
    return match[1].zfill(digits) if match else None


def _numa_node(text: str | None) -> int | None:
    """Read a node number; the kernel writes -1 where the firmware did not report it."""
    return int(text) if text and text.isascii() and text.isdigit() else None
