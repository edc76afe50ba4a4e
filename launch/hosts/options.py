"""The options that name the hosts of a job, and which of them this is."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from gputopo.launch.hosts.gathering.patience import JOIN_S
from gputopo.launch.hosts.hostlists import MAX_HOSTS, HostAddress, read_hostfile, read_hosts
from gputopo.values.errors import InputError
from gputopo.values.option import Option, shown

Starter = Literal["auto", "ssh", "srun", "mpirun"]


def _read_file(flag: str, text: str) -> tuple[HostAddress, ...]:
    """Return the hosts of a file. Raises InputError, UsageError."""
    try:
        hosts = Path(text).expanduser().read_text(encoding="utf-8-sig")
    except (OSError, RuntimeError, ValueError) as error:  # no file, ~nobody, no UTF-8
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(
            f"{flag} {shown(text)} cannot be read: {why}", "name a text file with one host a line"
        ) from error
    return read_hostfile(f"{flag} {text}", hosts)


class HostOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for about hosts; `num_hosts` 1: this one alone, whatever the environment has."""

    THEME = "Hosts"

    hosts: Annotated[
        tuple[HostAddress, ...],
        Option(
            "--hosts",
            "Hosts in the order of their ranks, each with a port if need be",
            value="LIST",
            read=read_hosts,
        ),
    ] = ()
    hostfile: Annotated[
        tuple[HostAddress, ...],
        Option("--hostfile", "File with a host on each line", value="FILE", read=_read_file),
    ] = ()
    num_hosts: Annotated[
        int | None,
        Option(
            "--num-hosts",
            "Number of hosts, where nothing else gives it; 1: this host alone",
            default="from the environment",
            min=1,
            max=MAX_HOSTS,
        ),
    ] = None
    starter: Annotated[
        Starter,
        Option(
            "--starter",
            "What starts gputopo on each of the --hosts where this is none of them; auto: srun in a Slurm "
            "job, else ssh",
        ),
    ] = "auto"
    remote_python: Annotated[
        str | None,
        Option(
            "--remote-python",
            "Python of the other hosts, which has gputopo",
            value="PATH",
            default="the path of this one's",
        ),
    ] = None
    join_timeout: Annotated[
        float, Option("--join-timeout", "Seconds to wait until all hosts have joined", above=0)
    ] = JOIN_S
    allow_public_address: Annotated[
        bool,
        Option(
            "--allow-public-address",
            "Let the hosts meet at a public address: whoever connects there can run what they like",
        ),
    ] = False
    node_rank: Annotated[
        int | None,
        Option(
            "--node-rank",
            "Rank of this host, from 0",
            default="from the environment",
            min=0,
            max=MAX_HOSTS - 1,
        ),
    ] = None
