"""How far apart two devices are on PCIe."""

import functools
from enum import Enum


@functools.total_ordering
class Hop(Enum):
    """How far apart two devices are on PCIe, by the names of `nvidia-smi topo -m`. Nearer is smaller.

    `level` is NVML's number for it (nvmlGpuTopologyLevel_t).
    """

    INTERNAL = "INTERNAL"  # two GPUs of one board
    PIX = "PIX"  # at most one PCIe switch between them
    PXB = "PXB"  # several switches, no host bridge
    PHB = "PHB"  # a host bridge: through the CPU's root complex
    NODE = "NODE"  # several host bridges of one NUMA node
    SYS = "SYS"  # the link between NUMA nodes (SOC in old captures)

    @property
    def level(self) -> int:
        """NVML's number: 0, 10, 20, 30, 40, 50 from near to far."""
        return _LEVELS[self]

    @classmethod
    def from_level(cls, level: int) -> "Hop":
        """Give the hop of an NVML level. Raises ValueError for a number that NVML does not define."""
        for hop, number in _LEVELS.items():
            if number == level:
                return hop
        raise ValueError(f"{level} is no NVML topology level")

    def __lt__(self, other: object) -> bool:
        return self.level < other.level if isinstance(other, Hop) else NotImplemented


_LEVELS = {hop: 10 * position for position, hop in enumerate(Hop)}
