"""The ways between GPUs, and between GPUs and network cards, as frozen values."""

import msgspec

from gputopo.values.base import Value
from gputopo.values.hop import Hop


class Link(Value, frozen=True):
    """The way between two GPUs, low index first. NVLinks are counted beside the PCIe hop, not instead of it.

    `hop` is None where a capture shows only `NV4`. Raises ValueError if `a` is not below `b`.
    """

    a: int
    b: int
    hop: Hop | None = None
    nvlinks: int | None = None  # None: not known; 0: none
    p2p_read: str | None = None
    p2p_write: str | None = None
    p2p_reason: str | None = None

    def __post_init__(self) -> None:
        if self.a >= self.b:
            raise ValueError(f"a link is written low index first, got {self.a}, {self.b}")


class Nic(Value, frozen=True):
    """A network card of the matrix. `hops` maps `gpu:0` or `nic:1` to how far that device is."""

    index: int
    name: str | None = None
    pci_address: str | None = None
    numa_node: int | None = None
    hops: dict[str, Hop] = msgspec.field(default_factory=dict)
