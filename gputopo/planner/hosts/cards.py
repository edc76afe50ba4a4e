"""How near the GPUs of a host are to the card of its network. Pure.

TensorFlow's copies between hosts go over the interface whose address the hosts know each other by. Where it
is unknown, as in a recording, each GPU counts by its nearest card with a link.
"""

from collections.abc import Sequence

from gputopo.values.index_ranges import index_ranges
from gputopo.values.machine import Hop, Machine, Nic, NicPort

_WORDS = {
    Hop.INTERNAL: "on the board of",
    Hop.PIX: "on the same PCIe switch as",
    Hop.PXB: "on PCIe switches of the same root port as",
    Hop.PHB: "on the same PCIe host bridge as",
    Hop.NODE: "on the NUMA node of",
    Hop.SYS: "on another CPU socket than",
}


def port_of(machine: Machine, interface: str) -> tuple[Nic, NicPort] | None:
    """Return the card and the port of an interface; None where no card of the machine has it."""
    return next(
        ((nic, port) for nic in machine.nics for port in nic.ports or () if port.interface == interface), None
    )


def fastest_port(machine: Machine) -> tuple[Nic, NicPort] | None:
    """Return the port with a link and the highest rate, of the first card that has one."""
    there = [
        (nic, port)
        for nic in machine.nics
        for port in nic.ports or ()
        if port.rate_gbit_per_s and port.up is not False
    ]
    return max(there, key=lambda one: one[1].rate_gbit_per_s or 0.0, default=None)


class Cards:
    """The cards of a machine that count; none where the GPUs exchange nothing with other hosts."""

    def __init__(self, machine: Machine, interface: str | None) -> None:
        """`interface`: of the hosts' network, empty where it is unknown; None: no other hosts."""
        self._cards: tuple[Nic, ...] = ()
        if interface is not None:
            named = port_of(machine, interface)
            self._cards = (named[0],) if named is not None else tuple(filter(_may_carry, machine.nics))

    def decide(self, gpus: Sequence[int]) -> bool:
        """Return whether some of these GPUs are nearer to a card than others."""
        return len(set(map(self.key, gpus))) > 1

    def key(self, gpu: int) -> int:
        """Return the sort key of a GPU, the nearest first; the same for all where no distance is known."""
        hop, _ = self._nearest(gpu)
        return _RANKS[hop]

    def reasons(self, gpus: Sequence[int]) -> list[str]:
        """Return how near GPUs are to their cards, a sentence for each distance."""
        found: dict[Hop, dict[str, list[int]]] = {}
        for gpu in sorted(gpus):
            hop, nic = self._nearest(gpu)
            if hop is not None and nic is not None:
                found.setdefault(hop, {}).setdefault(nic_words(nic), []).append(gpu)
        return [_sentence(hop, found[hop]) for hop in sorted(found, key=_RANKS.__getitem__)]

    def _nearest(self, gpu: int) -> tuple[Hop | None, Nic | None]:
        known = [(hop, nic) for nic in self._cards if (hop := nic.hops.get(f"gpu:{gpu}")) is not None]
        return min(known, key=lambda one: _RANKS[one[0]], default=(None, None))


def nic_words(nic: Nic) -> str:
    """Return what a card is called: `mlx5_1`, its interface, else its number."""
    port = next(iter(nic.ports or ()), None)
    name = nic.name if nic.name and " " not in nic.name else None
    return (port.name if port else None) or name or f"NIC{nic.index}"


def _sentence(hop: Hop, by_card: dict[str, list[int]]) -> str:
    """Return `GPUs 4-7 are on the same PCIe switch as mlx5_1`, of several cards which GPUs each has."""
    if len(by_card) > 1:
        each = ", ".join(f"{name} {index_ranges(gpus)}" for name, gpus in by_card.items())
        return f"each GPU is {_WORDS[hop]} a card: {each}"
    ((name, gpus),) = by_card.items()
    noun, verb = ("GPU", "is") if len(gpus) == 1 else ("GPUs", "are")
    return f"{noun} {index_ranges(gpus)} {verb} {_WORDS[hop]} {name}"


def _may_carry(nic: Nic) -> bool:
    return nic.ports is None or any(port.up is not False for port in nic.ports)


_RANKS: dict[Hop | None, int] = {hop: rank for rank, hop in enumerate((*Hop, None))}
