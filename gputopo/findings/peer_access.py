"""Direct copies between GPUs (P2P): off where they could be on, or sent round by ACS or the IOMMU."""

from collections.abc import Iterator
from itertools import combinations

from gputopo.findings.fault import present
from gputopo.findings.finding import Finding, Severity
from gputopo.topology.hops import links_by_pair
from gputopo.topology.peer_access import Off, acs_bridges, statuses, why_off
from gputopo.values.index_ranges import pairs_in_words
from gputopo.values.machine import Hop, Link, Machine

_NO_FIX = "no fix exists: copies go through host memory; gputopo bandwidth measures how fast that is"
# Of these a rule of its own tells: switched-off pairs are part of its evidence.
_OWN_RULE = ("acs", "iommu")
# Pairs that can never be peers are no fault of the machine: the report tells them, with the cause.
_BY_DESIGN = ("different_chips", "across_sockets")
_NEVER = (*_BY_DESIGN, "geforce_policy")


def off(machine: Machine) -> Iterator[Finding]:
    """Give one finding for each cause, with all pairs that it keeps apart and that could be peers."""
    by_cause: dict[str, list[tuple[Link, Off]]] = {}
    for link, why in _off(machine):
        if why.cause not in (*_OWN_RULE, *_BY_DESIGN):
            by_cause.setdefault(why.cause, []).append((link, why))
    for cause, pairs in by_cause.items():
        link, why = pairs[0]
        fixable = why.fix is not None and cause in ("registry_key", "bar1", "container")
        severity: Severity = "warning" if fixable else "info"
        yield Finding(
            id="p2p.off",
            severity=severity,
            subject=f"link:{link.a}-{link.b}" if len(pairs) == 1 else "machine",
            says=f"GPUs cannot copy directly ({_pairs(pairs)}): {why.says}",
            evidence={
                "cause": cause,
                "pairs": {f"{link.a}-{link.b}": list(statuses(link)) for link, _ in pairs},
            },
            remedy=why.fix or _NO_FIX,
        )


def acs(machine: Machine) -> Iterator[Finding]:
    """Find access control on bridges between GPUs: direct copies are slow, or never end."""
    if len(present(machine)) < 2 or machine.host.virtual_machine not in (None, "none"):
        return
    bridges = acs_bridges(machine)
    told = any(node.acs is not None for node in machine.pci)
    off_pairs = [f"{link.a}-{link.b}" for link, why in _off(machine) if why.cause == "acs"]
    if (not bridges and (told or machine.host.acs != "on")) or not _in_the_way(machine):
        return
    where = "is on between GPUs" if bridges else "is on; where that is between GPUs, which is not told,"
    yield Finding(
        id="p2p.acs_on",
        severity="warning",
        subject="machine",
        says=f"access control (ACS) {where}{':' if bridges else ''} direct copies take the way through the "
        "CPU, are slow and may hang",
        evidence={"acs": machine.host.acs, "bridges": list(bridges), "p2p_off": off_pairs},
        remedy="turn ACS (and the IOMMU, if nothing needs it) off in the BIOS; or by setpci on these bridges "
        "at each start, as NVIDIA's NCCL guide describes (troubleshooting, PCI Access Control Services)",
    )


def _in_the_way(machine: Machine) -> bool:
    """Tell whether any two GPUs may be peers below one host bridge: only such copies does ACS send round."""
    links = links_by_pair(machine)
    for a, b in combinations(sorted(gpu.index for gpu in present(machine)), 2):
        link = links.get((a, b))
        if link is None:
            return True
        why = why_off(machine, link)
        never = why is not None and why.cause in _NEVER
        if not never and (link.hop is None or link.hop <= Hop.PXB):
            return True
    return False


def iommu(machine: Machine) -> Iterator[Finding]:
    """Find pairs that are off and of which only an IOMMU in the way is known."""
    pairs = [(link, why) for link, why in _off(machine) if why.cause == "iommu"]
    if pairs:
        yield Finding(
            id="p2p.iommu",
            severity="warning",
            subject="machine",
            says=f"GPUs cannot copy directly ({_pairs(pairs)}): {pairs[0][1].says}",
            evidence={"iommu": machine.host.iommu, "pairs": [f"{link.a}-{link.b}" for link, _ in pairs]},
            remedy=pairs[0][1].fix,
        )


def _off(machine: Machine) -> Iterator[tuple[Link, Off]]:
    lost = {gpu.index for gpu in machine.gpus if gpu.lost}
    for link in links_by_pair(machine).values():
        if not {link.a, link.b} & lost:
            why = why_off(machine, link)
            if why is not None:
                yield link, why


def _pairs(pairs: list[tuple[Link, Off]]) -> str:
    return pairs_in_words((link.a, link.b) for link, _ in pairs)
