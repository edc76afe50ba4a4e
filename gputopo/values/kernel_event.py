"""Errors of GPUs, PCIe and NVLink in the kernel log as frozen values."""

from typing import Literal

from gputopo.values.fields import Value

KernelEventKind = Literal[
    "xid",  # of a GPU, by the NVIDIA kernel module
    "sxid",  # of an NVSwitch
    "lost",  # fallen off the bus
    "aer",  # PCIe Advanced Error Reporting
    "pcie",  # another PCIe error: containment (DPC), link down, device inaccessible
    "nvlink",  # of NVLink, without an Xid
    "nvrm",  # another error of the NVIDIA kernel module
]


class KernelEvent(Value, frozen=True):
    """An error in the kernel log. Those of one kind, code, severity and device are one event with a count.

    `time`, `last_time`: of the first and the last, as far as the log has them: ISO 8601, `Mar 05 10:00:00`
    where the log has no year, `1234.567 s` since boot. `severity`: of AER corrected, nonfatal or fatal, of an
    SXid nonfatal or fatal. `device_driver`: of the device that AER names. `text`: of the first.
    """

    kind: KernelEventKind
    text: str
    code: int | None = None
    severity: str | None = None
    pci_address: str | None = None
    device_driver: str | None = None
    count: int = 1
    time: str | None = None
    last_time: str | None = None
