"""Constants of PCIe: generations, link widths, and the order of addresses."""

import re

# GT/s per lane of each generation. linux: drivers/pci/probe.c, pcie_link_speed[].
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6, 128.0: 7}
# PCI Express Base Specification, Link Capabilities Register; sysfs has 0 and 255 for "unknown".
WIDTHS = (1, 2, 4, 8, 12, 16, 32)


def generation_of(speed_gt_per_s: float | None) -> int | None:
    """Return the generation of a speed in GT/s per lane, or None if no generation has it."""
    return None if speed_gt_per_s is None else _GENERATIONS.get(speed_gt_per_s)


def address_order(address: str) -> tuple[int, ...]:
    """Return the sort key of an address in PCI order, which is NVML's order of GPUs."""
    return tuple(int(part, 16) for part in re.split("[:.]", address))
