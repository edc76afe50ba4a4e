"""What a PCI function is, by the name that lspci prints for it."""

import re
from collections.abc import Sequence
from typing import Literal

from gputopo.reference import expected_gpu

NAME_IN_TREE = "lspci's own name of it is in the PCI tree"  # the reason why a GPU has no name

# Chips: G80 to GT21x, Fermi to Blackwell (GF, GK, GM, GP, GV, TU, GA, GH, AD, GB).
_GPU_CHIP = re.compile(
    r"\b(?:G[A-Z]\d{2,3}[A-Z]{0,3}|G\d{2,3}[A-Z]{0,3}|TU\d{3}[A-Z]{0,3}|AD\d{3}[A-Z]{0,3}|NV\d{2})\b"
)
_UNKNOWN = re.compile(r"\bDevice ([0-9a-f]{4})\b", re.IGNORECASE)
_NO_GPU = re.compile(
    r"audio|usb|ucsi|nvswitch|bridge|switch|bluefield|connectx|infiniband|ethernet|serial|nforce|smu\b|sata",
    re.IGNORECASE,
)
_NETWORK = re.compile(
    r"ethernet|network|infiniband|connectx|wi-?fi|wireless|\b(?:10|25|40|50|100|200|400)\s?gb?e\b|omni-path"
    r"|elastic fabric adapter|\bena\b|virtual function",
    re.IGNORECASE,
)
_NO_NETWORK = re.compile(
    r"\b(?:bridge|root port|dma|management|nvme|i/o memory|controller hub|sound|audio)\b", re.IGNORECASE
)
_VENDORS = {
    "NVIDIA Corporation": "10de",
    "Advanced Micro Devices": "1022",
    "Intel Corporation": "8086",
    "Mellanox Technologies": "15b3",
    "Broadcom": "14e4",
    "PLX Technology": "10b5",
    "ASPEED Technology": "1a03",
}


def kind_by_name(name: str, same_card: Sequence[str]) -> Literal["gpu", "nic", "other"]:
    """Return what a function is by its name; `same_card`: the names of all functions of the card."""
    if name.startswith("NVIDIA ") and _NO_GPU.search(name) is None:
        audible = any("audio" in other.lower() for other in same_card)
        number = device_by_name(name)
        if _GPU_CHIP.search(name) or (number and (audible or expected_gpu(None, number) is not None)):
            return "gpu"
    if _NETWORK.search(name) and _NO_NETWORK.search(name) is None:
        return "nic"
    return "nic" if name.startswith("Mellanox ") and "Family" in name else "other"


def may_be_gpu(name: str) -> bool:
    """Return whether a name is an NVIDIA device whose model lspci did not know."""
    return name.startswith("NVIDIA ") and _UNKNOWN.search(name) is not None


def vendor_by_name(name: str) -> str | None:
    """Return the vendor number of the vendors that matter here if the name shows it, else None.

    AMD's graphics cards have another number (1002) under nearly the same name: the result is None.
    """
    if "[AMD/ATI]" in name:
        return None
    return next((number for maker, number in _VENDORS.items() if name.startswith(maker)), None)


def device_by_name(name: str) -> str | None:
    """Return the number that lspci prints for a device that is not in its list of names: `Device 2330`."""
    found = _UNKNOWN.search(name)
    return found[1].lower() if found else None
