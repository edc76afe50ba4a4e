"""What this host can measure the network with: the interface of an address, its RDMA port, programs."""

import ipaddress
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import psutil

from gputopo.copies.nccl_hosts import variables_of
from gputopo.copies.network import NCCL_TESTS, RDMA, NcclPrograms, RdmaPort, ToolChoice, Tools
from gputopo.probes.driver import listed_gpus
from gputopo.probes.host import read_text
from gputopo.probes.nics import rdma_ports

_PATIENCE_S = 5.0  # for a program to print its version
_OPEN_MPI = re.compile(r"\(Open MPI\) \d+\.\d+")
# Of nccl-tests built with MPI=1: as NAME_SUFFIX=_mpi has it, and without.
_SUFFIXES = ("_mpi", "")
_ETHERNET = "1"  # ARPHRD_ETHER in linux/if_arp.h; InfiniBand is 32, loopback 772


class Interface(NamedTuple):
    """As `ip link` and `ethtool` print it. `rate_gbit_per_s`: None where it is no Ethernet, or not known."""

    interface: str
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
    rdma = rdma_at(address, root) if asked in ("auto", RDMA) else "not asked for"
    nccl = nccl_at(address, root) if asked in ("auto", NCCL_TESTS) else "not asked for"
    return Tools(
        rdma=None if isinstance(rdma, str) else rdma,
        nccl=None if isinstance(nccl, str) else nccl,
        lacks={tool: why for tool, why in ((RDMA, rdma), (NCCL_TESTS, nccl)) if isinstance(why, str)},
    )


def rdma_at(address: str, root: Path = Path("/")) -> RdmaPort | str:
    """Return the active RDMA port of an address, or why ib_write_bw has none.

    A RoCE port has it as a GID, an InfiniBand port by its IPoIB interface; of InfiniBand alone, the first
    active port: its subnet manager gives it an address of its own.
    """
    if ":" in address:
        return "perftest meets its server at an IPv4 address, and the hosts meet at IPv6 addresses"
    active = [(port, place) for port, place in rdma_ports(root) if port.state == "ACTIVE"]
    if not active:
        return "no active RDMA port"
    if shutil.which(RDMA) is None:
        return f"{RDMA} is not installed"
    interface = interface_of(address, root / "sys")
    own = interface.interface if interface is not None else None
    found = [
        RdmaPort(
            device=port.rdma_device or "",
            port=port.rdma_port or 1,
            link_layer=port.link_layer or "",
            rate_gbit_per_s=port.rate_gbit_per_s,
            gid_index=gid,
        )
        for port, place in sorted(active, key=lambda one: one[0].interface != own)
        if (gid := _gid_index(place, address)) is not None or port.link_layer == "InfiniBand"
    ]
    return found[0] if found else f"no RoCE v2 port has the address {address}"


def _gid_index(place: Path, address: str) -> int | None:
    """Return the index of the port's GID for RoCE v2 that is an IPv4 address, as ::ffff:10.0.0.1."""
    for file in sorted(place.glob("gids/*"), key=lambda one: int(one.name)):
        gid, kind = read_text(file), read_text(place / "gid_attrs/types" / file.name)
        if (
            kind == "RoCE v2"
            and gid
            and ipaddress.IPv6Address(gid).ipv4_mapped == ipaddress.ip_address(address)
        ):
            return int(file.name)
    return None


def nccl_at(address: str, root: Path = Path("/")) -> NcclPrograms | str:
    """Return what nccl-tests needs of this host, or what of it there is not."""
    gpus = len(listed_gpus(root))
    if not gpus:
        return "no GPU"
    if ":" in address:
        return "mpirun is given IPv4 addresses, and the hosts meet at IPv6 addresses"
    if (program := _of_nccl_tests("sendrecv_perf")) is None:
        return "sendrecv_perf is not installed"
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        return "mpirun is not installed"
    if (why := _why_no_open_mpi(mpirun)) is not None:
        return why
    return NcclPrograms(
        mpirun=mpirun,
        program=program,
        gpus=gpus,
        all_reduce=_of_nccl_tests("all_reduce_perf"),
        variables=variables_of(os.environ),
    )


def _of_nccl_tests(name: str) -> str | None:
    return next((path for suffix in _SUFFIXES if (path := shutil.which(f"{name}{suffix}"))), None)


def _why_no_open_mpi(path: str) -> str | None:
    """Return why a mpirun cannot be used, None where it can."""
    try:
        done = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_PATIENCE_S,
            check=False,
        )
    except OSError as error:
        return f"mpirun cannot be started: {error.strerror}"
    except subprocess.TimeoutExpired:
        return f"mpirun does not print its version within {_PATIENCE_S:g} s"
    is_known = _OPEN_MPI.search(done.stdout.decode(errors="replace")) is not None
    return None if is_known else "mpirun does not print its version of Open MPI"
