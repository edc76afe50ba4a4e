"""Peer access (P2P) between GPUs: off where it could be on, or redirected by ACS or the IOMMU."""

from collections.abc import Iterator
from itertools import combinations

from gputopo.findings.rule import Case, Finding, Rule, Severity, check, present
from gputopo.topology.hops import links_by_pair
from gputopo.topology.peer_access import CAUSES, Cause, Off, acs_bridges, statuses, why_off
from gputopo.values.index_ranges import pairs_in_words
from gputopo.values.machine import Hop, Link, Machine
from gputopo.values.subject import MACHINE, Subject

# These have rules of their own: pairs without P2P are part of their evidence.
_OWN_RULE = ("acs", "iommu")
# Pairs that can never be peers are no fault of the machine: the report shows them, with the cause.
_BY_DESIGN = ("different_chips", "across_sockets")
_NEVER = (*_BY_DESIGN, "geforce_policy")
_NO_FIX = "No fix exists: copies go through host memory; gputopo bandwidth measures their rate."


def _severity(cause: Cause) -> Severity:
    fixable = CAUSES[cause].fix is not None and cause in ("registry_key", "bar1", "container")
    return "warning" if fixable else "info"


P2P_OFF = Rule(
    "p2p.off",
    title="no peer access (P2P) between GPUs",
    remedy=_NO_FIX,
    severities=("info", "warning"),
    cases={
        name: Case(cause.says, cause.fix or _NO_FIX, _severity(name))
        for name, cause in CAUSES.items()
        if name not in (*_OWN_RULE, *_BY_DESIGN)
    },
)
P2P_ACS_ON = Rule(
    "p2p.acs_on",
    title="P2P traffic is redirected through the root complex (ACS)",
    remedy="Turn ACS (and the IOMMU, if not needed) off in the BIOS, or by setpci on these bridges at each "
    "boot: NVIDIA's NCCL guide, troubleshooting, PCI Access Control Services.",
)
P2P_IOMMU = Rule(
    "p2p.iommu",
    title="no peer access (P2P) between GPUs, and the IOMMU translates addresses",
    remedy=CAUSES["iommu"].fix or _NO_FIX,
)


@check(P2P_OFF, P2P_IOMMU)
def off(machine: Machine) -> Iterator[Finding]:
    """Find pairs without P2P that could be peers: one finding for each cause."""
    by_cause: dict[Cause, list[tuple[Link, Off]]] = {}
    for link, why in _off(machine):
        by_cause.setdefault(why.cause, []).append((link, why))
    for cause, pairs in by_cause.items():
        link, why = pairs[0]
        says = f"no P2P ({_pairs(pairs)}): {why.says}"
        if cause == "iommu":
            evidence = {"iommu": machine.host.iommu, "pairs": [f"{one.a}-{one.b}" for one, _ in pairs]}
            yield P2P_IOMMU.finding(MACHINE, says, evidence)
        elif cause not in (*_OWN_RULE, *_BY_DESIGN):
            yield P2P_OFF.finding(
                Subject.of_link(link.a, link.b) if len(pairs) == 1 else MACHINE,
                says,
                {"cause": cause, "pairs": {f"{one.a}-{one.b}": list(statuses(one)) for one, _ in pairs}},
                _severity(cause) if why.fix is not None else "info",
                remedy=why.fix,
            )


@check(P2P_ACS_ON)
def acs(machine: Machine) -> Iterator[Finding]:
    """Find ACS on bridges between GPUs: P2P is slow, or hangs."""
    if len(present(machine)) < 2 or machine.host.virtual_machine not in (None, "none"):
        return
    bridges = acs_bridges(machine)
    in_tree = any(node.acs is not None for node in machine.pci)
    if (not bridges and (in_tree or machine.host.acs != "on")) or not _is_relevant(machine):
        return
    where = "ACS is on between GPUs" if bridges else "ACS is on (where is not reported)"
    yield P2P_ACS_ON.finding(
        MACHINE,
        f"{where}: P2P traffic is redirected through the root complex, is slow and may hang",
        {
            "acs": machine.host.acs,
            "bridges": list(bridges),
            "p2p_off": [f"{link.a}-{link.b}" for link, why in _off(machine) if why.cause == "acs"],
        },
    )


def _is_relevant(machine: Machine) -> bool:
    """Return whether any two GPUs may be peers below one host bridge: ACS redirects only such copies."""
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


def _off(machine: Machine) -> Iterator[tuple[Link, Off]]:
    lost = {gpu.index for gpu in machine.gpus if gpu.lost}
    for link in links_by_pair(machine).values():
        if not {link.a, link.b} & lost:
            why = why_off(machine, link)
            if why is not None:
                yield link, why


def _pairs(pairs: list[tuple[Link, Off]]) -> str:
    return pairs_in_words((link.a, link.b) for link, _ in pairs)
