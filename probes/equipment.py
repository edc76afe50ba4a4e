"""What this host can measure the network with: the interface of an address, programs, its RDMA port.

An address is of an InfiniBand port if the port's interface (IPoIB) has it, and of a RoCE port if it is one
of the port's GIDs, which the kernel makes of the addresses of interfaces, their VLANs and their bonds.
"""

import ipaddress
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import psutil

from gputopo.copies.network import NCCL_TESTS, Nccl, Rdma, ToolChoice, Tools
from gputopo.probes.driver import listed_gpus
from gputopo.probes.host import read_text
from gputopo.probes.nics import rdma_ports
from gputopo.values.machine import NicPort

_PATIENCE_S = 5.0  # for a program to print its version
_VERSION = re.compile(r"\d+\.\d+")
_OPEN_MPI = re.compile(r"\(Open MPI\) \d+\.\d+")
_ROCE_V2 = "RoCE v2"  # gid_attrs/types of linux: Documentation/ABI/stable/sysfs-class-infiniband
# Of nccl-tests built with MPI=1: as NAME_SUFFIX=_mpi has it, and without.
_SUFFIXES = ("_mpi", "")
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
            is_ethernet = read_text(sys / "class/net" / name / "type") == _ETHERNET
            return Interface(name, rate if is_ethernet else None, stats.mtu if stats is not None else None)
    return None


def tools_at(address: str, asked: ToolChoice, root: Path = Path("/")) -> Tools:
    """Return what can measure the network of an address of this host, as far as it was asked for."""
    lacks: dict[str, str] = {}
    rdma: Rdma | None = None
    nccl: Nccl | None = None
    if asked in ("auto", "iperf3") and (why := _lacking("iperf3")):
        lacks["iperf3"] = why
    if asked in ("auto", NCCL_TESTS):
        with_nccl = nccl_at(address, root)
        if isinstance(with_nccl, str):
            lacks[NCCL_TESTS] = with_nccl
        else:
            nccl = with_nccl
    if asked in ("auto", "ib_write_bw"):
        found = _lacking("ib_write_bw") or _lacking("ib_write_lat") or rdma_at(address, root)
        if isinstance(found, str):
            lacks["ib_write_bw"] = found
        else:
            rdma = found
    return Tools(rdma=rdma, nccl=nccl, lacks=lacks)


def nccl_at(address: str, root: Path = Path("/")) -> Nccl | str:
    """Return what nccl-tests needs of this host, or what of it there is not."""
    gpus = len(listed_gpus(root))
    if not gpus:
        return "no GPU"
    if ":" in address:
        return "mpirun is given IPv4 addresses, and the hosts meet at IPv6 addresses"
    if (program := _of_nccl_tests("sendrecv_perf")) is None:
        return "sendrecv_perf is not installed"
    mpirun = shutil.which("mpirun")
    if (why := _lacking("mpirun", _OPEN_MPI)) is not None or mpirun is None:
        return why or "mpirun is not installed"
    return Nccl(mpirun=mpirun, program=program, gpus=gpus, all_reduce=_of_nccl_tests("all_reduce_perf"))


def _of_nccl_tests(name: str) -> str | None:
    return next((path for suffix in _SUFFIXES if (path := shutil.which(f"{name}{suffix}"))), None)


def _lacking(program: str, version: re.Pattern[str] = _VERSION) -> str | None:
    """Return why a program cannot be used, None where it can."""
    path = shutil.which(program)
    if path is None:
        return f"{program} is not installed"
    try:
        # perftest ends with 1 after its version.
        done = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_PATIENCE_S,
            check=False,
        )
    except OSError as error:
        return f"{program} cannot be started: {error.strerror}"
    except subprocess.TimeoutExpired:
        return f"{program} does not print its version within {_PATIENCE_S:g} s"
    if version.search(done.stdout.decode(errors="replace")) is None:
        whose = " of Open MPI" if version is _OPEN_MPI else ""
        return f"{program} does not print its version{whose}"
    return None


def rdma_at(address: str, root: Path = Path("/")) -> Rdma | str:
    """Return the active RDMA port of an address, else an active one of InfiniBand, else why there is none."""
    bare = address.partition("%")[0]
    if ":" in bare:
        return "perftest meets its server at an IPv4 address, and the hosts meet at IPv6 addresses"
    ports = list(rdma_ports(root))
    if not ports:
        return "no RDMA port"
    active = [(port, place) for port, place in ports if port.state == "ACTIVE"]
    if not active:
        return f"no active RDMA port: {', '.join(f'{port.name} is {port.state}' for port, _ in ports[:4])}"
    interface = interface_of(bare)
    for port, place in active:
        gid = _gid_index(place, bare) if port.link_layer == "Ethernet" else None
        is_ipoib = port.link_layer == "InfiniBand" and interface and port.interface == interface.name
        if gid is not None or is_ipoib:
            return _rdma(port, gid, on_path=True)
    for port, _ in active:  # its subnet manager gives it an address of its own
        if port.link_layer == "InfiniBand":
            return _rdma(port, None, on_path=False)
    return (
        f"no RoCE v2 port has the address of this host: {', '.join(str(port.name) for port, _ in active[:4])}"
    )


def _rdma(port: NicPort, gid_index: int | None, *, on_path: bool) -> Rdma:
    return Rdma(
        device=port.rdma_device or "",
        port=port.rdma_port or 1,
        link_layer=port.link_layer or "",
        rate_gbit_per_s=port.rate_gbit_per_s,
        gid_index=gid_index,
        on_path=on_path,
    )


def _gid_index(place: Path, address: str) -> int | None:
    """Return the index of the port's GID for RoCE v2 that is an IPv4 address."""
    for file in sorted(place.glob("gids/*"), key=lambda one: (len(one.name), one.name)):
        if (
            _address_of(read_text(file)) == address
            and read_text(place / "gid_attrs/types" / file.name) == _ROCE_V2
        ):
            return int(file.name)
    return None


def _address_of(gid: str | None) -> str | None:
    """Return the IPv4 address in a GID such as 0000:0000:0000:0000:0000:ffff:0a00:0001."""
    try:
        mapped = ipaddress.IPv6Address(gid or "").ipv4_mapped
    except ValueError:
        return None
    return None if mapped is None else str(mapped)
