"""The hosts of a job and the rank of this one, from all sources, in order of precedence."""

import itertools
from collections.abc import Mapping, Sequence

import msgspec

from gputopo.launch.hosts import starters
from gputopo.launch.hosts.hostlists import HostAddress
from gputopo.launch.hosts.options import HostOptions
from gputopo.launch.hosts.starters import RankClaim
from gputopo.values.errors import UsageError
from gputopo.values.index_ranges import host_ranges

# The default port if no job id is known. TensorFlow's examples of clusters use it, too.
PORT = 2222
# Ports that are derived from job ids. They are below Linux's ephemeral ports (ip_local_port_range: 32768 on).
_FIRST_PORT, _PORTS = 20_000, 12_000


def port_by(job: str) -> int:
    """Return the port of a job, derived from any text that all its hosts share."""
    import hashlib  # loads OpenSSL, and most commands have no job

    return _FIRST_PORT + int.from_bytes(hashlib.sha256(job.encode()).digest()[:4]) % _PORTS


_ALONE = "--num-hosts 1 uses only this host"


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """Two or more hosts that work together, and the rank of this host."""

    rank: int  # index of this host in `hosts`
    hosts: tuple[HostAddress, ...]  # in rank order; the first has a name, the others only if it is known
    source: str  # where the size comes from, for messages
    job: str | None = None  # the starter's id of this job, None if it sets none

    @property
    def size(self) -> int:
        """Number of hosts."""
        return len(self.hosts)

    @property
    def leader(self) -> HostAddress:
        """The host of rank 0, whose name is known."""
        return self.hosts[0]

    @property
    def port(self) -> int:
        """Port of rank 0 at which the hosts meet: the given port, else a port for each job id, else PORT."""
        return self.leader.port or (PORT if self.job is None else port_by(self.job))


FoundHosts = Allocation | tuple[HostAddress, ...]
"""Hosts that work together. An Allocation: this process is one of them. Addresses: it has to start them."""


def find_hosts(options: HostOptions, environ: Mapping[str, str]) -> FoundHosts | None:
    """Return the hosts that work together, or None if this host works by itself.

    Options have precedence over TF_CONFIG, then the starters, then the index of a Kubernetes Job. A source
    that has one host is ignored. Raises UsageError if two sources disagree about the rank, the size or the
    host of rank 0, if information is missing, and for several tasks on one host.
    """
    asked = claim_of(options)
    if options.num_hosts == 1:
        return None
    started = [claim for claim in starters.claims(environ) if claim.is_of_several]
    index = starters.claim_by(starters.INDEXED_JOB, environ)
    if not started and index is None and asked is not None and asked.hosts and asked.rank is None:
        from gputopo.launch.hosts.addresses import is_this_host

        is_alone = len(asked.hosts) == 1 and is_this_host(str(asked.hosts[0].name))
        return None if is_alone else asked.hosts
    if not started and index is not None:
        started = _indexed(index, asked)
    if not started and (asked is None or asked.size == 1):
        return None
    claims = [*([] if asked is None else [asked]), *started]
    for claim in claims:
        _require_one_task(claim)
    for first, second in itertools.combinations(claims, 2):
        _require_agreement(first, second)
    return _allocation(claims, environ)


def claim_of(options: HostOptions) -> RankClaim | None:
    """Return the rank claim that the options make. Raises UsageError if they contradict one another."""
    flag, hosts = ("--hosts", options.hosts) if options.hosts else ("--hostfile", options.hostfile)
    if options.hosts and options.hostfile and options.hosts != options.hostfile:
        raise UsageError("--hosts and --hostfile list different hosts", "use only one of them")
    if hosts and options.num_hosts not in (None, len(hosts)):
        raise UsageError(
            f"{flag} lists {_counted(len(hosts))}, but --num-hosts is {options.num_hosts}",
            "remove --num-hosts",
        )
    if not hosts:
        flag = "--num-hosts" if options.num_hosts is not None else "--node-rank"
    if not hosts and options.num_hosts is None and options.node_rank is None:
        return None
    size = len(hosts) or options.num_hosts
    _require_inside(options.node_rank, size, flag)
    return RankClaim(source=flag, remove=f"remove {flag}", rank=options.node_rank, size=size, hosts=hosts)


def _indexed(index: RankClaim, asked: RankClaim | None) -> list[RankClaim]:
    """Return the claim of a Job's index if the size is known. Raises UsageError if the size is required."""
    if asked is not None and (asked.size or 0) > 1:
        return [index]
    if index.job is not None and index.rank:
        raise UsageError(
            f"this is pod {index.rank} of {index.source}, but no environment variable gives the number "
            "of pods",
            f"add --num-hosts N for all of them; {_ALONE}",
        )
    return []  # the pods of an indexed Job usually do not work together


def _require_one_task(claim: RankClaim) -> None:
    if claim.tasks_per_host > 1:
        raise UsageError(
            f"{claim.source} has {claim.tasks_per_host} tasks on one host, but one task uses all its GPUs",
            f"start one on each host: {claim.one_each}; {_ALONE}",
        )


def _require_agreement(first: RankClaim, other: RankClaim) -> None:
    """Raise UsageError if two claims differ."""
    what = None
    if first.size is not None and other.size is not None and first.size != other.size:
        what = f"{first.source} has {_counted(first.size)}, {other.source} has {other.size}"
    elif first.rank is not None and other.rank is not None and first.rank != other.rank:
        what = f"this host is rank {first.rank} by {first.source}, and rank {other.rank} by {other.source}"
    elif first.hosts and other.hosts and first.hosts[0].differs(other.hosts[0]):
        what = f"rank 0 is {first.hosts[0]} by {first.source}, and {other.hosts[0]} by {other.source}"
    if what is not None:
        raise UsageError(what, f"correct one of them: {first.remove}, or {other.remove}")


def _allocation(claims: Sequence[RankClaim], environ: Mapping[str, str]) -> Allocation:
    """Return the hosts from claims that agree. Raises UsageError if information is missing."""
    first = next((claim for claim in claims if claim.size is not None), claims[0])
    size, source = first.size, first.source
    if size is None:
        raise UsageError(
            f"{source} needs the number of hosts", f"add --hosts LIST, or --num-hosts N; {_ALONE}"
        )
    rank = next((claim.rank for claim in claims if claim.rank is not None), None)
    hosts = next((claim.hosts for claim in claims if len(claim.hosts) > 1), ())
    if len(hosts) not in (0, size):
        names = host_ranges(claim.name or "?" for claim in hosts)
        raise UsageError(
            f"{source} has {_counted(size)}, but lists {len(hosts)}: {names}",
            f"list them in rank order: --hosts LIST; {_ALONE}",
        )
    if rank is None:
        raise UsageError(
            f"{source} has {_counted(size)}, but the rank of this host is not given",
            f"list them with --hosts LIST to start all, or add --node-rank N; {_ALONE}",
        )
    _require_inside(rank, size, source)
    if not hosts:
        leader = next((claim.hosts for claim in claims if claim.hosts), ()) or starters.master(environ)
        if not leader:
            raise UsageError(
                f"{source} has {_counted(size)}, but the host of rank 0 is not given",
                f"list them in rank order: --hosts LIST, or set MASTER_ADDR; {_ALONE}",
            )
        hosts = (leader[0], *(HostAddress(None) for _ in range(size - 1)))
    job = next((claim.job for claim in claims if claim.job is not None), None)
    return Allocation(rank=rank, hosts=hosts, source=source, job=job)


def _require_inside(rank: int | None, size: int | None, source: str) -> None:
    if rank is not None and size is not None and rank >= size:
        raise UsageError(
            f"rank {rank} is outside the {_counted(size)} of {source}", f"ranks are 0 to {size - 1}; {_ALONE}"
        )


def _counted(hosts: int) -> str:
    return f"{hosts} host{'' if hosts == 1 else 's'}"
