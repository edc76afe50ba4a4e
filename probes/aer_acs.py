"""Reads from sysfs the errors of a PCI function (AER), and whether bridges redirect peer traffic (ACS)."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from gputopo.probes.host import read_text
from gputopo.values.machine import PciNode

NOT_PERMITTED = "NOT_PERMITTED"  # only root (CAP_SYS_ADMIN) can read config space beyond its first 64 bytes
_NOT_IN_SYS = "NOT_IN_PROC_OR_SYS"

# linux: Documentation/ABI/testing/sysfs-bus-pci-devices-aer; one line per error, the sum in the last line.
_AER_FILES = {
    "correctable": "aer_dev_correctable",
    "nonfatal": "aer_dev_nonfatal",
    "fatal": "aer_dev_fatal",
}

# PCI Express Base Specification, extended capabilities: a list that starts at 0x100. Each entry has its
# number in 16 bits, its version in 4 and the offset of the next entry in 12. This one is Access Control
# Services.
_EXTENDED = 0x100
_ACS = 0x000D
_ACS_CONTROL = 6  # offset of the control register in the capability, 16 bits
# Request redirect, completion redirect and egress control send peer traffic up to the root. The kernel option
# disable_acs_redir clears the same bits (linux: drivers/pci/pci.c).
_REDIRECT = 0x4 | 0x8 | 0x20
_MAX_CAPABILITIES = (4096 - _EXTENDED) // 8


def read_aer(folder: str) -> dict[str, int] | None:
    """Return a function's error counters since boot, or None if the kernel keeps none."""
    counts = {}
    for name, file in _AER_FILES.items():
        text = read_text(f"{folder}/{file}")
        count = None if text is None else aer_total(text)
        if count is not None:
            counts[name] = count
    return counts or None


def aer_total(text: str) -> int | None:
    """Return the sum in an aer_dev_* file: its TOTAL line, or the sum of the lines; None for other text."""
    lines = re.findall(r"^(\S.*?)\s+([0-9]+)$", text, re.MULTILINE)
    totals = [int(number) for name, number in lines if name.startswith("TOTAL")]
    if totals:
        return totals[-1]
    return sum(int(number) for _, number in lines) if lines else None


def read_acs(folder: str) -> bool | str:
    """Return whether a bridge redirects peer traffic to the root complex, or the reason why it is unknown.

    A bridge without the capability does not redirect. Reads only a few words: all of config space is slow to
    read.
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
        if header == 0xFFFFFFFF:  # a device that sleeps or is gone returns all ones
            return "UNREADABLE_CONFIG_SPACE"
        if header & 0xFFFF == _ACS:
            control = int.from_bytes(os.pread(file, 2, offset + _ACS_CONTROL), "little")
            return bool(control & _REDIRECT)
        offset = header >> 20 & 0xFFC
    return False


def host_acs(nodes: Sequence[PciNode], root: Path) -> tuple[str | None, str]:
    """Return "on" if a bridge above a GPU redirects peer traffic, "off" if none does, or None and why."""
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
