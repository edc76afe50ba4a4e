"""The machine as frozen values, and their JSON form (`gputopo.machine/1`).

A fact that is absent is None, and `Machine.missing` holds the reason under the fact's path
(`gpus[0].clocks_mhz.memory.now`). Units are in the names. Building a value never asks the machine anything.
"""

import msgspec

from gputopo.values.bandwidth import Bandwidth
from gputopo.values.base import Value
from gputopo.values.gpu import (
    JOINING,
    ClockMhz,
    ClocksMhz,
    Ecc,
    Fabric,
    Gpu,
    GpuProcess,
    MemoryMib,
    Mig,
    NvLink,
    Pcie,
    PowerW,
    RemappedRows,
    RetiredPages,
    TemperatureC,
    Throttle,
    UtilizationPercent,
)
from gputopo.values.hop import Hop
from gputopo.values.host import Driver, DriverStatus, Host, NumaNode
from gputopo.values.links import Link, Nic
from gputopo.values.pci import PciNode

__all__ = [
    "JOINING",
    "ClockMhz",
    "ClocksMhz",
    "Contradiction",
    "Driver",
    "DriverStatus",
    "Ecc",
    "Fabric",
    "Gpu",
    "GpuProcess",
    "Hop",
    "Host",
    "Link",
    "Machine",
    "MemoryMib",
    "Mig",
    "Nic",
    "NumaNode",
    "NvLink",
    "PciNode",
    "Pcie",
    "PowerW",
    "RemappedRows",
    "RetiredPages",
    "TemperatureC",
    "Throttle",
    "Unread",
    "UtilizationPercent",
]


class Contradiction(Value, frozen=True):
    """Two sources that say different things of one fact; the first one given stands in the machine."""

    fact: str  # "links[0-1].hop"
    said: dict[str, str]  # source: what it said


class Unread(Value, frozen=True):
    """A line of a capture that was not understood."""

    source: str
    line: int
    text: str


class Machine(Value, frozen=True, tag_field="schema", tag="gputopo.machine/1"):
    """All that is known of one machine, and where it came from."""

    source: str  # live, recording, nvidia-smi topo, ...; several are joined by " + "
    host: Host = Host()
    driver: Driver = Driver()
    gpus: tuple[Gpu, ...] = ()
    links: tuple[Link, ...] = ()
    nics: tuple[Nic, ...] = ()
    pci: tuple[PciNode, ...] = ()
    bandwidth: Bandwidth | None = None
    missing: dict[str, str] = msgspec.field(default_factory=dict)
    contradictions: tuple[Contradiction, ...] = ()
    unread: tuple[Unread, ...] = ()

    def link(self, a: int, b: int) -> Link | None:
        """Give the link between two GPUs by index, in either order, or None if it is not known."""
        low, high = min(a, b), max(a, b)
        return next((link for link in self.links if (link.a, link.b) == (low, high)), None)
