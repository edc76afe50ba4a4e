"""The network interface that has an IP address."""

from pathlib import Path
from typing import NamedTuple

import psutil

from gputopo.probes.host import read_text

_ETHERNET = "1"  # ARPHRD_ETHER in linux/if_arp.h; InfiniBand is 32, loopback 772


class Interface(NamedTuple):
    """As `ip link` and `ethtool` print it. `rate_gbit_per_s`: None if it is not Ethernet, or unknown."""

    interface: str
    rate_gbit_per_s: float | None
    mtu_bytes: int | None


def interface_of(address: str, sys: Path = Path("/sys")) -> Interface | None:
    """Return the interface that has an IP address, or None if no interface has it."""
    bare = address.partition("%")[0]
    for name, addresses in psutil.net_if_addrs().items():
        if any(address_there.address.partition("%")[0] == bare for address_there in addresses):
            stats = psutil.net_if_stats().get(name)
            rate = stats.speed / 1000 if stats is not None and 0 < stats.speed < 2**20 else None
            is_ethernet = read_text(sys / "class/net" / name / "type") == _ETHERNET
            return Interface(name, rate if is_ethernet else None, stats.mtu if stats is not None else None)
    return None
