"""One function of the PCI tree, as a frozen value."""

from typing import Literal

from gputopo.values.base import Value


class PciNode(Value, frozen=True):
    """One function of the PCI tree: a GPU, a NIC or a bridge on the way from one to its root.

    `parent` is the bridge above, None directly under the root complex (`root`, such as `pci0000:00`).
    Speeds are GT/s per lane. Read from /sys/bus/pci/devices/<address>/.
    """

    address: str
    root: str
    parent: str | None = None
    kind: Literal["gpu", "nic", "bridge", "other"] = "other"
    vendor_id: str | None = None  # "10de"
    device_id: str | None = None
    class_code: str | None = None  # "030000"
    driver: str | None = None
    numa_node: int | None = None
    speed_gt_per_s: float | None = None
    max_speed_gt_per_s: float | None = None
    width: int | None = None
    max_width: int | None = None
    acs: bool | None = None  # access control sends peer traffic up to the root
    aer: dict[str, int] | None = None  # {"correctable": 0, "nonfatal": 0, "fatal": 0}
    name: str | None = None  # as lspci or hwloc call it
