"""What this host can measure the network with: the interface of an address, nccl-tests."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import psutil

from gputopo.copies.network import NcclPrograms, ToolChoice, Tools
from gputopo.probes.driver import listed_gpus
from gputopo.probes.host import read_text

_PATIENCE_S = 5.0  # for a program to print its version
_OPEN_MPI = re.compile(r"\(Open MPI\) \d+\.\d+")
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
    found = "not asked for" if asked == "tcp" else nccl_at(address, root)
    return Tools(lacks=found) if isinstance(found, str) else Tools(nccl=found)


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
        mpirun=mpirun, program=program, gpus=gpus, all_reduce=_of_nccl_tests("all_reduce_perf")
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
