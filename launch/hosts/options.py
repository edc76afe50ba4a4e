"""The options about hosts."""

from pathlib import Path
from typing import Annotated, ClassVar

import msgspec

from gputopo.launch.hosts.hostlists import HostAddress, read_hostfile, read_hosts
from gputopo.values.errors import InputError
from gputopo.values.option import Option, shown

# Default wait for all hosts, in seconds. Not measured; batch systems start tasks within seconds, but
# containers pull their images first. torchrun waits 600 s (rendezvous join_timeout), MPI for ever.
JOIN_S = 60.0


def _read_file(flag: str, text: str) -> tuple[HostAddress, ...]:
    """Return the hosts of a file. Raises InputError, UsageError."""
    try:
        hosts = Path(text).expanduser().read_text(encoding="utf-8-sig")
    except (OSError, RuntimeError, ValueError) as error:  # no file, ~nobody, not UTF-8
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(
            f"{flag} {shown(text)} cannot be read: {why}", "give a text file with one host per line"
        ) from error
    return read_hostfile(f"{flag} {text}", hosts)


class HostOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options about hosts. If `num_hosts` is 1, only this host is used, whatever the environment says."""

    THEME: ClassVar[str] = "Hosts"

    hosts: Annotated[
        tuple[HostAddress, ...],
        read_hosts,
        Option(
            "--hosts",
            "Hosts in the order of their ranks, optionally with a port",
            value="LIST",
            more=True,
        ),
    ] = ()
    hostfile: Annotated[
        tuple[HostAddress, ...],
        _read_file,
        Option("--hostfile", "File with one host per line", value="FILE", more=True),
    ] = ()
    num_hosts: Annotated[
        int | None,
        Option(
            "--num-hosts",
            "Number of hosts, if the launcher does not provide it; 1: only this host",
            default="from the environment",
            min=1,
            max=65536,
            more=True,
        ),
    ] = None
    remote_python: Annotated[
        str | None,
        Option(
            "--remote-python",
            "Python interpreter on the other hosts; gputopo has to be installed there",
            value="PATH",
            default="the same path as on this host",
            more=True,
        ),
    ] = None
    join_timeout: Annotated[
        float,
        Option(
            "--join-timeout",
            "Time to wait for all hosts",
            value="TIME",
            unit="s",
            above=0,
            more=True,
        ),
    ] = JOIN_S
    allow_public_address: Annotated[
        bool,
        Option(
            "--allow-public-address",
            "Allow TensorFlow's servers on a public address. Anyone who can connect can run code as you",
            more=True,
        ),
    ] = False
    insecure: Annotated[
        bool,
        Option(
            "--insecure",
            "Do not authenticate hosts: anyone who can connect to rank 0's port can take part",
            more=True,
        ),
    ] = False
    node_rank: Annotated[
        int | None,
        Option(
            "--node-rank",
            "Rank of this host, from 0",
            default="from the environment",
            min=0,
            max=65535,
            more=True,
        ),
    ] = None
