"""Parsers for lists of hosts: `n[9-10]` of Slurm, `a:2222,b:2222`, and hostfiles of Open MPI.

The order of the text is kept, because it is the order of the ranks. ClusterShell's NodeSet parses the same
bracket syntax, but it sorts names, merges equal names, and runs configured programs for @groups.
"""

import itertools
import re
from collections.abc import Iterator, Sequence

import msgspec

from gputopo.values.errors import UsageError
from gputopo.values.option import shown

MAX_HOSTS = 65536  # limits ranges, so that a typing mistake cannot fill the memory; not measured
MIN_PORT, MAX_PORT = 1024, 65535  # ports that a user may listen on
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_IPV4 = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){3}")
_IPV6 = re.compile(r"[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(?:%[A-Za-z0-9_.-]+)?")
_BRACKETED_IPV6 = re.compile(rf"\[({_IPV6.pattern})\](?::(.*))?", re.DOTALL)
_COMMA = re.compile(r",(?![^\[]*\])")  # a comma outside brackets
# Text that may follow a host: `slots=8 max_slots=8` (Open MPI, DeepSpeed), a number of slots, or `8 all.q@n1
# UNDEFINED` (Grid Engine).
_BEHIND_HOST = re.compile(r"[A-Za-z_][\w-]*=\S+(?: [A-Za-z_][\w-]*=\S+)*|[0-9]+(?: \S+@\S+ \S+)?")
_EXAMPLE = "list the hosts in the order of their ranks: n[1-4], or a,b:2222,[fd00::3]:2222"


class HostAddress(msgspec.Struct, frozen=True):
    """A host of a training. `name`: name or IP address, None until it joins; `port`: None for the default."""

    name: str | None
    port: int | None = None

    def __str__(self) -> str:
        name = f"[{self.name}]" if self.name and ":" in self.name else self.name or "?"
        return name if self.port is None else f"{name}:{self.port}"

    @property
    def is_ip(self) -> bool:
        """Whether the name is an IP address."""
        return self.name is not None and bool(_IPV4.fullmatch(self.name) or _IPV6.fullmatch(self.name))

    def differs(self, other: "HostAddress") -> bool:
        """Whether they cannot be the same host. A name and an IP address can be; so can n1 and n1.site."""
        if self.is_ip != other.is_ip or self.name is None or other.name is None:
            return False
        if self.is_ip:
            return self.name != other.name
        return any(mine != its for mine, its in zip(_labels(self.name), _labels(other.name), strict=False))


def _labels(name: str) -> list[str]:
    return name.lower().split(".")


def address(name: str, port: int | None = None) -> HostAddress | None:
    """Return the address, None if `name` cannot be a host. A port that users may not use is dropped."""
    host = HostAddress(name, port if port is not None and MIN_PORT <= port <= MAX_PORT else None)
    return host if host.is_ip or _NAME.fullmatch(name) else None


def read_hosts(where: str, text: str) -> tuple[HostAddress, ...]:
    """Return the hosts of a comma-separated list in the order of the text, with bracket ranges expanded.

    `where`: the option or variable with the list, for messages. Raises UsageError, also for a host that is
    listed twice.
    """
    hosts: list[HostAddress] = []
    for part in _COMMA.split(text):
        hosts.extend(itertools.islice(_hosts_of(where, part.strip()), MAX_HOSTS + 1))
        if len(hosts) > MAX_HOSTS:
            raise UsageError(f"{where} {shown(text)} has more than {MAX_HOSTS} hosts", _EXAMPLE)
    seen: set[HostAddress] = set()
    for host in hosts:
        if host in seen:
            raise UsageError(f"{where} lists {host} twice", "list every host once, or give each a port")
        seen.add(host)
    return tuple(hosts)


def read_hostfile(where: str, text: str) -> tuple[HostAddress, ...]:
    """Return the hosts of a hostfile, which has one host or one bracket range per line; `#` starts a comment.

    Text after a host that does not concern its address, such as `slots=4` of Open MPI, is ignored. Other text
    after a host is an error, because it comes from another kind of file. Repeated lines, as PBS writes for
    each slot, are one host. Raises UsageError.
    """
    hosts: dict[HostAddress, None] = {}
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.partition("#")[0]
        host, *more = bare.split() or [""]
        if more and _BEHIND_HOST.fullmatch(" ".join(more)) is None:
            raise UsageError(
                f"line {number} of {where} has more than a host: {shown(bare.strip())}",
                "write one host per line, in the order of their ranks, or a,b,c; slots=8 may follow",
            )
        if host:
            hosts.update(dict.fromkeys(read_hosts(f"line {number} of {where}", host)))
    if not hosts:
        raise UsageError(f"{where} has no host", "write one host per line, in the order of their ranks")
    return tuple(hosts)


def _hosts_of(where: str, part: str) -> Iterator[HostAddress]:
    """Yield the hosts of one part of a list. Raises UsageError."""
    bracketed = _BRACKETED_IPV6.fullmatch(part)
    if bracketed:
        yield HostAddress(bracketed[1], _port(where, part, bracketed[2]))
        return
    if _IPV6.fullmatch(part):
        yield HostAddress(part)
        return
    folded, colon, port = part.partition(":")
    number = _port(where, part, port if colon else None)
    for name in _unfolded(where, folded):
        if not _NAME.fullmatch(name) or name.isdecimal():
            raise UsageError(f"{where} has the invalid host {shown(part)}", _EXAMPLE)
        yield HostAddress(name, number)


def _port(where: str, part: str, text: str | None) -> int | None:
    if text is None:
        return None
    if text.isascii() and text.isdigit() and MIN_PORT <= int(text[:9]) <= MAX_PORT:
        return int(text)
    if not text.isdecimal():
        raise UsageError(f"{where} has the invalid host {shown(part)}", _EXAMPLE)
    raise UsageError(
        f"{where} cannot have {shown(part)}: a port is from {MIN_PORT} to {MAX_PORT}",
        "remove the number of tasks after the colon (MPICH's form), which is not supported",
    )


def _unfolded(where: str, text: str) -> Iterator[str]:
    """Yield the names of a bracket expression. The last bracket changes fastest, as in Slurm."""
    pieces = re.split(r"\[([^\[\]]*)\]", text)
    if any(bracket in piece for piece in pieces[::2] for bracket in "[]"):
        raise UsageError(f"{where} cannot be {shown(text)}: a bracket is open", _EXAMPLE)
    choices: list[Sequence[str]] = [
        tuple(_numbers(where, piece)) if index % 2 else (piece,) for index, piece in enumerate(pieces)
    ]
    for chosen in itertools.product(*choices):
        yield "".join(chosen)


def _numbers(where: str, text: str) -> Iterator[str]:
    """Yield the numbers between brackets, with leading zeros: `1-3,07-09`. Raises UsageError."""
    for part in text.split(","):
        matched = re.fullmatch(r"([0-9]{1,15})(?:-([0-9]{1,15}))?", part.strip())
        if matched is None:
            raise UsageError(f"{where} cannot have [{text}]", f"{_EXAMPLE}; zeros are kept: n[01-16]")
        low, high = matched[1], matched[2] or matched[1]
        if int(high) < int(low):
            raise UsageError(f"{where} has [{text}], which counts down", f"did you mean [{high}-{low}]?")
        if int(high) - int(low) >= MAX_HOSTS:
            raise UsageError(f"{where} has [{text}], which is more than {MAX_HOSTS} hosts", _EXAMPLE)
        for number in range(int(low), int(high) + 1):
            yield str(number).zfill(len(low))
