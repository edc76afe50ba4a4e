"""The setting of NCCL that turns direct copies (P2P) off between some pairs, and between few others."""

from collections.abc import Iterable
from itertools import combinations

from gputopo.findings.rule import copies_of, present
from gputopo.reference import over_nvlink
from gputopo.values.bandwidth import Pair
from gputopo.values.machine import Hop, Machine

P2P_OFF = "NCCL_P2P_DISABLE=1"
LEVELS = ("NVL", "PIX", "PXB", "PHB", "SYS")  # near to far
_LEVEL_OF_HOP = {
    Hop.INTERNAL: "PIX",
    Hop.PIX: "PIX",
    Hop.PXB: "PXB",
    Hop.PHB: "PHB",
    Hop.NODE: "PHB",
    Hop.SYS: "SYS",
}


def cutoff(machine: Machine, pairs: Iterable[Pair]) -> tuple[str, tuple[Pair, ...]] | None:
    """Return the setting that turns P2P off between these pairs and between as few others as possible,
    and these others.

    P2P_OFF only on machines without any NVLink. None where one of the pairs has NVLinks, or their
    distance is unknown and other pairs would lose P2P.
    """
    unwanted = {(min(pair), max(pair)) for pair in pairs}
    links = {(link.a, link.b): link for link in machine.links}
    gpus = sorted({gpu.index for gpu in present(machine)} | {gpu for pair in unwanted for gpu in pair})
    by_nvlink = nvlink_pairs(machine)
    levels: dict[Pair, str | None] = {}
    for pair in combinations(gpus, 2):
        link = links.get(pair)
        hop = link.hop if link else None
        levels[pair] = "NVL" if pair in by_nvlink else _LEVEL_OF_HOP[hop] if hop else None
    others = [
        pair
        for pair in levels
        if pair not in unwanted and not (pair in links and links[pair].p2p_refusals)  # without P2P as it is
    ]
    if unwanted & by_nvlink:
        return None
    none_at_all = "NCCL_P2P_LEVEL=NVL" if has_nvlink(machine) else P2P_OFF
    nearest = min((_place(levels[pair]) for pair in unwanted), default=None)
    if all(levels[pair] == "NVL" for pair in others) and (nearest is None or nearest < LEVELS.index("PXB")):
        return none_at_all, ()
    if nearest is None or nearest < 0:
        return None
    setting = none_at_all if nearest < LEVELS.index("PXB") else f"NCCL_P2P_LEVEL={LEVELS[nearest - 1]}"
    return setting, tuple(pair for pair in others if not 0 <= _place(levels[pair]) < nearest)


def nvlink_pairs(machine: Machine) -> frozenset[Pair]:
    """Return the pairs joined by NVLink, low index first: reported so, or faster than their PCIe links."""
    reported = {(link.a, link.b) for link in machine.links if link.nvlinks}
    return over_nvlink(copies_of(machine).copies, machine) | reported


def has_nvlink(machine: Machine) -> bool:
    """Return whether any two GPUs are, or may be, joined by NVLink."""
    if any(port.active is not False for gpu in present(machine) for port in gpu.nvlinks or ()):
        return True
    return bool(nvlink_pairs(machine))


def _place(level: str | None) -> int:
    """Return the place of a level from near to far, -1 where the distance is unknown."""
    return -1 if level is None else LEVELS.index(level)
