"""The address on which rank 0 listens, and the check that it is not open to everyone."""

import errno
import ipaddress
import os
import platform
import socket
from collections.abc import Iterable

from gputopo.launch.hosts.hostlists import HostAddress
from gputopo.values.errors import HardwareError, UsageError
from gputopo.values.option import listed, shown

# An address to bind a socket to, with its family, as socket.getaddrinfo returns them.
Bindable = tuple[socket.AddressFamily, str]


def is_public(address: str) -> bool:
    """Whether an IP address can be reached from anywhere. Raises ValueError if it is not an IP address.

    By IANA's registries of special addresses (`ipaddress.is_global`). For an IPv4 address within an IPv6
    address (::ffff:10.0.0.1), the IPv4 address is checked.
    """
    ip = _ip(address)
    mapped = getattr(ip, "ipv4_mapped", None)
    return bool((mapped or ip).is_global)


def require_private(addresses: Iterable[str], *, allow_public: bool) -> None:
    """Raise UsageError if one of the addresses is public, unless public addresses are allowed."""
    public = [address for address in addresses if is_public(address)]
    if public and not allow_public:
        raise UsageError(
            f"{listed(public, 'and')} is public, but the hosts of a training trust anyone who connects",
            "use a private address for rank 0, or allow this one with --allow-public-address",
        )


def is_this_host(name: str) -> bool:
    """Whether a name or IP address belongs to this host.

    Names are not looked up, because a name server may take seconds for each of many hosts.
    """
    node = platform.node().lower()
    if name.rstrip(".").lower() in (node, node.partition(".")[0], "localhost"):
        return True
    try:
        return _ip(name).is_loopback or name in _own_addresses()
    except ValueError:  # the name of another host
        return False


def places_to_listen(name: str, *, allow_public: bool) -> list[Bindable]:
    """Return the addresses where rank 0 may listen so that others reach it by this name, best first.

    These are all addresses of the name, with two exceptions. If the name has only loopback addresses here
    (Debian's /etc/hosts has 127.0.1.1) and is not localhost, other hosts resolve it differently. This host's
    name may also be unknown here, for example before a pod is in its cluster's DNS. In both cases rank 0
    listens on all interfaces. Raises UsageError for any other name that cannot be resolved, and for a public
    address that is not allowed.
    """
    try:
        places = _resolve(name)
    except UsageError:
        if _label(name) != _label(platform.node()):
            raise
        places = []
    if _is_own_alias(name, places):
        require_private(_own_addresses(), allow_public=allow_public)
        if socket.has_dualstack_ipv6():
            return [(socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")]
        return [(socket.AF_INET, "0.0.0.0")]
    require_private((address for _, address in places), allow_public=allow_public)
    return places


def cannot_listen(name: str, port: int, error: OSError) -> HardwareError:
    """Return the error to raise if rank 0 cannot listen on any address of its name."""
    if error.errno == errno.EADDRINUSE:
        return HardwareError(
            f"port {port} of {shown(name)} is in use, so the other hosts cannot reach rank 0 there",
            "end the run that uses it, or use another port on all hosts",
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return HardwareError(
            f"rank 0 is {shown(name)}, but this host does not have that address",
            "start rank 0 on that host, or list this host first",
        )
    return HardwareError(
        f"cannot listen on port {port} of {shown(name)}: {error.strerror}", "use another port on all hosts"
    )


def _resolve(name: str) -> list[Bindable]:
    try:
        answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # a name that is too long for DNS
        raise UsageError(
            f"rank 0 is {shown(name)}, which this host cannot resolve: {getattr(error, 'strerror', error)}",
            "use its IP address, or a name that all hosts can resolve",
        ) from error
    places = [(family, str(address[0])) for family, _, _, _, address in answers]
    return list(dict.fromkeys(place for place in places if place[0] in (socket.AF_INET, socket.AF_INET6)))


def _label(name: str) -> str:
    """Return the first label of a host's name, which does not depend on the host's domain."""
    return name.lower().partition(".")[0]


def _is_own_alias(name: str, places: Iterable[Bindable]) -> bool:
    if name.rstrip(".").lower() == "localhost" or HostAddress(name).is_ip:
        return False
    return all(_ip(address).is_loopback for _, address in places)


def _ip(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return an IP address without its zone. Raises ValueError."""
    return ipaddress.ip_address(address.partition("%")[0])


def _own_addresses() -> list[str]:
    import psutil

    families = (socket.AF_INET, socket.AF_INET6)
    return [
        address.address
        for card in psutil.net_if_addrs().values()
        for address in card
        if address.family in families
    ]


def open_ports(of_this_host: str, others: Iterable[tuple[str, str]]) -> str:
    """Return a warning about the ports of TensorFlow's servers, which are open to everyone.

    `of_this_host`: the name of this host, for the ports on which this process listens. `others`: names and
    addresses of the other hosts.
    """
    import psutil

    connections = (
        connection for connection in psutil.net_connections("tcp") if connection.pid == os.getpid()
    )
    ports = sorted(
        {
            connection.laddr[1]
            for connection in connections
            if connection.laddr and connection.status == psutil.CONN_LISTEN
        }
    )
    ips = [str(ip) for ip in map(_ip, _own_addresses()) if not (ip.is_loopback or ip.is_link_local)]
    where = [f"{of_this_host} ({', '.join(map(str, ports))})"]
    where += [f"{host} ({address.rpartition(':')[2]})" for host, address in others]
    reached = f" (here {listed(ips, 'and')})" if ips else ""
    return (
        f"TensorFlow listens on ports of {listed(where, 'and')}, on all interfaces{reached}, and does not "
        "authenticate clients: "
        "anyone who can connect to them can run code as you. To close them: gputopo explain security"
    )


def own_address(name: str, port: int) -> str:
    """Return the address of this host on the network of another host. Raises OSError."""
    family, kind, _, _, address = socket.getaddrinfo(name, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # sends nothing: this chooses the route
        return str(probe.getsockname()[0])


def free_port() -> int:
    """Return a port that no process listens on now."""
    with socket.socket() as listening:
        listening.bind(("", 0))
        return int(listening.getsockname()[1])
