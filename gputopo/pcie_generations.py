"""PCIe generations and the speeds that stand for them."""

# GT/s per lane of each generation. linux: drivers/pci/probe.c, pcie_link_speed[].
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6, 128.0: 7}


def generation_of(speed_gt_per_s: float | None) -> int | None:
    """Give the generation of a speed in GT/s per lane, or None if no generation has it."""
    return None if speed_gt_per_s is None else _GENERATIONS.get(speed_gt_per_s)
