"""Reads a copy of another machine's /sys and /proc, as a folder: no NVML is asked, no device is opened."""

from pathlib import Path

import msgspec

from gputopo.probes.collect import NvmlSays, read_machine
from gputopo.values.machine import Driver, Machine

SOURCE = "sysfs"
NOT_IN_COPY = "NOT_IN_A_COPIED_SYS"


def read_tree(root: Path) -> Machine:
    """Give the machine whose `sys` (and `proc`, where it was copied too) lies under `root`.

    The GPUs are the NVIDIA GPUs on its PCI bus. Whether its driver works cannot be seen from a copy:
    `driver.status` is not_read. Never raises for what a copy lacks.
    """
    machine = read_machine(root, says=NvmlSays(error=NOT_IN_COPY))
    driver = Driver(status="not_read", kernel_module_version=machine.driver.kernel_module_version)
    return msgspec.structs.replace(machine, source=SOURCE, driver=driver)
