"""The network interface that has an address: its name, rate and MTU, as the kernel reports them."""

from pathlib import Path
from typing import NamedTuple

import psutil

_ETHERNET = "1"  # ARPHRD_ETHER in linux/if_arp.h; InfiniBand is 32, loopback 772


class Interface(NamedTuple):
    """As `ip link` and `ethtool` print it. `rate_gbit_per_s`: None where it is no Ethernet, or not known."""

    name: str
    rate_gbit_per_s: float | None
    mtu_bytes: int | None


def interface_of(address: str, sys: Path = Path("/sys")) -> Interface | None:
    """Return the interface that has an IP address, None where none has."""
    bare = address.partition("%")[0]
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address.partition("%")[0] == bare for one in addresses):
            stats = psutil.net_if_stats().get(name)
            rate = stats.speed / 1000 if stats is not None and 0 < stats.speed < 2**20 else None
            is_ethernet = _text(sys / "class/net" / name / "type") == _ETHERNET
            return Interface(name, rate if is_ethernet else None, stats.mtu if stats is not None else None)
    return None


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeError):
        return None
