"""The network between hosts, measured in pairs: transfers that failed."""

from collections.abc import Iterator

from gputopo.findings.rule import Finding, Rule, check
from gputopo.values.bandwidth import NETWORK, host_of
from gputopo.values.machine import Machine
from gputopo.values.subject import MACHINE

FAILED = Rule(
    "network.failed",
    title="a transfer between hosts failed",
    remedy="See whether the other host is up, runs the same program and can be reached at that port: host "
    "name, interface, firewall (ping, ss -tln); for RDMA see ibstat and gputopo inspect.",
    severities=("error",),
)


@check(FAILED)
def failed(machine: Machine) -> Iterator[Finding]:
    """Find transfers between hosts that failed, one finding for each reason."""
    by_words: dict[str, list[tuple[str, str]]] = {}
    for one in machine.bandwidth.failures if machine.bandwidth else ():
        if one.kind in NETWORK:
            by_words.setdefault(one.says, []).append((one.source, one.destination))
    for says, pairs in by_words.items():
        named = ", ".join(f"{host_of(a) or a} to {host_of(b) or b}" for a, b in pairs[:_MAX_NAMED])
        more = f" and {len(pairs) - _MAX_NAMED} more" if len(pairs) > _MAX_NAMED else ""
        yield FAILED.finding(MACHINE, f"{named}{more}: {says}", {"transfers": pairs, "says": says})


_MAX_NAMED = 4
