"""Peer access (P2P) between GPUs: pairs without it, ACS on the paths, and pairs that NCCL stages."""

from collections.abc import Iterator
from itertools import combinations

from gputopo.findings.rule import Case, Fault, Rule, check, present
from gputopo.topology import P2P_CAUSES, P2pOff, acs_bridges, why_p2p_off
from gputopo.values.finding import Severity
from gputopo.values.grouping import grouped
from gputopo.values.index_ranges import pairs_in_words
from gputopo.values.machine import Hop, Link, Machine
from gputopo.values.subject import MACHINE, Subject

# These have rules of their own: pairs without P2P are part of their evidence.
_OWN_RULE = ("acs", "iommu")
# Pairs that can never be peers are no fault of the machine: the report shows them, with the cause.
_BY_DESIGN = ("different_chips", "across_sockets")
_NEVER = (*_BY_DESIGN, "geforce_policy")
_NO_FIX = "This cannot be changed. Copies go through host memory; gputopo bandwidth measures their rate."


def _severity(cause: str) -> Severity:
    fixable = P2P_CAUSES[cause].fix is not None and cause in ("registry_key", "bar1", "container")
    return "warning" if fixable else "info"


P2P_OFF = Rule(
    "p2p.off",
    "no peer access (P2P) between GPUs",
    remedy=_NO_FIX,
    severities=("info", "warning"),
    cases=tuple(
        Case(name, cause.says, _severity(name), cause.fix or _NO_FIX)
        for name, cause in P2P_CAUSES.items()
        if name not in (*_OWN_RULE, *_BY_DESIGN)
    ),
)
P2P_ACS_ON = Rule(
    "p2p.acs_on",
    "P2P traffic is redirected through the root complex (ACS)",
    remedy=(
        "Disable ACS (and the IOMMU, if unused) in the BIOS, or with setpci on these bridges at each "
        'boot. See "PCI Access Control Services" in NVIDIA\'s NCCL troubleshooting guide.'
    ),
    severities=("warning", "info"),
)
OFF_BY_A_VARIABLE = Case(
    "variable",
    "turned off by a variable",
    severity="info",
    remedy="Unset the variable and train again, unless it is a workaround for a fault of these GPUs.",
)
NCCL_STAGED = Rule(
    "nccl.staged",
    "NCCL copies between GPUs of one host through host memory (SHM) or a network (NET), not by P2P",
    remedy=(
        "Look for NCCL_P2P_DISABLE and NCCL_P2P_LEVEL in the environment and in /etc/nccl.conf, and see "
        "nvidia-smi topo -p2p r and gputopo inspect on the host for peer access that is refused."
    ),
    severities=("info", "warning"),
    cases=(OFF_BY_A_VARIABLE,),
)
P2P_IOMMU = Rule(
    "p2p.iommu",
    "no peer access (P2P) between GPUs, and the IOMMU translates addresses",
    remedy="Boot with iommu=pt, or turn the IOMMU (VT-d, AMD-Vi) off in the BIOS.",
)


@check(P2P_OFF, P2P_IOMMU)
def check_peer_access(machine: Machine) -> Iterator[Fault]:
    """Find pairs without P2P that could be peers: one finding for each cause."""
    for cause, pairs in grouped((why.cause, (link, why)) for link, why in _off(machine)).items():
        link, why = pairs[0]
        says = f"no P2P ({pairs_in_words((link.a, link.b) for link, _ in pairs)}): {why.says}"
        if cause == "iommu":
            evidence = {"iommu": machine.host.iommu, "pairs": [f"{pair.a}-{pair.b}" for pair, _ in pairs]}
            yield P2P_IOMMU.fault(MACHINE, says, evidence)
        elif cause not in (*_OWN_RULE, *_BY_DESIGN):
            yield P2P_OFF.fault(
                Subject.of_link(link.a, link.b) if len(pairs) == 1 else MACHINE,
                says,
                {
                    "cause": cause,
                    "pairs": {f"{pair.a}-{pair.b}": list(pair.p2p_refusals) for pair, _ in pairs},
                },
                _severity(cause) if why.fix is not None else "info",
                remedy=why.fix,
            )


@check(NCCL_STAGED)
def check_paths_of_nccl(machine: Machine) -> Iterator[Fault]:
    """Find GPUs of one host that NCCL does not connect by P2P; a warning where the path is a short one."""
    if machine.nccl is None:
        return
    slow = [
        (link.nccl[0].partition("/")[0], link)
        for link in machine.links
        if link.nccl and link.p2p_read in (None, "OK") and not any(via.startswith("P2P") for via in link.nccl)
    ]
    variables = [
        setting
        for setting in machine.nccl.settings
        if setting.startswith(("NCCL_P2P_DISABLE=", "NCCL_P2P_LEVEL="))
    ]
    for name, pairs in grouped(slow).items():
        near = any(link.nvlinks or (link.hop is not None and link.hop <= Hop.PXB) for link in pairs)
        words = pairs_in_words([(link.a, link.b) for link in pairs])
        yield NCCL_STAGED.fault(
            MACHINE,
            f"NCCL connects {words} by {name}, not P2P{f' ({variables[0]})' if variables else ''}",
            {
                "transports": {f"{link.a}-{link.b}": list(link.nccl) for link in pairs},
                "settings": list(machine.nccl.settings),
            },
            "warning" if near else "info",
            case=OFF_BY_A_VARIABLE if variables else None,
        )


@check(P2P_ACS_ON)
def check_acs(machine: Machine) -> Iterator[Fault]:
    """Find ACS on bridges between GPUs: P2P is slow, or hangs. Also between a GPU and a network card."""
    if machine.host.virtual_machine not in (None, "none"):
        return
    bridges = acs_bridges(machine)
    to_cards = sorted({*acs_bridges(machine, nics=True)} - {*bridges})
    if to_cards:
        says = f"ACS is on between GPUs and network cards ({', '.join(to_cards)}): GPUDirect RDMA is slow"
        yield P2P_ACS_ON.fault(MACHINE, says, {"acs": machine.host.acs, "bridges": to_cards}, "info")
    if len(present(machine)) < 2:
        return
    in_tree = any(node.acs is not None for node in machine.pci)
    if (not bridges and (in_tree or machine.host.acs != "on")) or not _is_relevant(machine):
        return
    where = "ACS is on between GPUs" if bridges else "ACS is on (where is not reported)"
    yield P2P_ACS_ON.fault(
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
    links = machine.links_by_pair
    for a, b in combinations(sorted(gpu.index for gpu in present(machine)), 2):
        link = links.get((a, b))
        if link is None:
            return True
        why = why_p2p_off(machine, link)
        never = why is not None and why.cause in _NEVER
        if not never and (link.hop is None or link.hop <= Hop.PXB):
            return True
    return False


def _off(machine: Machine) -> Iterator[tuple[Link, P2pOff]]:
    lost = {gpu.index for gpu in machine.gpus if gpu.lost}
    for link in machine.links_by_pair.values():
        if not {link.a, link.b} & lost:
            why = why_p2p_off(machine, link)
            if why is not None:
                yield link, why
