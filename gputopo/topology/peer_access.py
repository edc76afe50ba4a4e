"""Why GPUs have no peer access (P2P) to each other: the cause, if known facts show it.

The driver reports only a code. The rules follow NVIDIA/open-gpu-kernel-modules (p2p_caps.c,
chipset_pcie.c): two different chips are never peers; a pair needs a switch or a CPU that the driver supports;
some CPUs refuse P2P across sockets. If no fact explains it, the cause is unknown.
"""

from collections.abc import Mapping
from itertools import combinations
from typing import Literal, NamedTuple

import msgspec

from gputopo.reference import expected_of, reference_rows
from gputopo.topology.hops import bridges_above
from gputopo.values.machine import Gpu, Hop, Link, Machine

P2pCause = Literal[
    "registry_key",
    "different_chips",
    "geforce_policy",
    "across_sockets",
    "chipset",
    "acs",
    "iommu",
    "bar1",
    "virtual_machine",
    "container",
    "gpu",
    "unknown",
]

# The NVML P2P statuses (nvmlGpuP2PStatus_t) that blame the path between the GPUs.
_PATH_CODES = ("CHIPSET_NOT_SUPPORTED", "TOPOLOGY_NOT_SUPPORTED")
# Without "resizable BAR" the window is no larger, and a large GPU cannot map all of its memory.
SMALL_BAR1_MIB = 256


class P2pOff(msgspec.Struct, frozen=True, kw_only=True):
    """Why P2P is off between two GPUs. `status`: NVML's status. `fix`: None if there is no fix."""

    cause: P2pCause
    status: str
    says: str
    fix: str | None


class CauseText(NamedTuple):
    """The message for a cause, and its fix, or None if there is no fix."""

    says: str
    fix: str | None


P2P_CAUSES: Mapping[str, CauseText] = {
    row["cause"]: CauseText(row["says"], row["fix"] or None) for row in reference_rows("p2p_causes.csv")
}


def why_p2p_off(machine: Machine, link: Link) -> P2pOff | None:
    """Return why P2P is off between two GPUs, or None if it is on or unknown.

    The first cause that the facts show is used: a setting of the driver, different chips, the driver's policy
    for GeForce, sockets and chipset, ACS, IOMMU, BAR1, virtual machine, container.
    """
    refusals = link.p2p_refusals
    if not refusals or refusals == ("UNKNOWN",):
        return None
    cause = _cause(machine, link, refusals)
    says, fix = P2P_CAUSES[cause]
    if cause in ("across_sockets", "chipset") and _virtual(machine):
        says, fix = f"{says} (emulated by a virtual machine)", P2P_CAUSES["virtual_machine"].fix
    return P2pOff(cause=cause, status=refusals[0], says=says, fix=fix)


def with_p2p_reasons(machine: Machine) -> Machine:
    """Return the machine with `p2p_reason` set for the pairs whose P2P is off.

    A cause that the facts show replaces the text for NVML's code; if the cause is unknown, that text stays.
    """
    links = []
    for link in machine.links:
        off = why_p2p_off(machine, link)
        if off is not None and (off.cause != "unknown" or not link.p2p_reason):
            link = msgspec.structs.replace(link, p2p_reason=off.says)
        links.append(link)
    return msgspec.structs.replace(machine, links=tuple(links))


def chips_differ(a: Gpu, b: Gpu) -> bool | None:
    """Return whether two GPUs have different chips, or None if that is unknown.

    GPUs with the same name have the same chip. A GTX 1070 and a GTX 1080 have the same chip (GP104).
    """
    if a.name is not None and a.name == b.name:
        return False
    first, second = expected_of(a), expected_of(b)
    if first is not None and second is not None:
        if first.chip and second.chip:
            return first.chip != second.chip
        if first.architecture != second.architecture:
            return True
    if a.architecture and b.architecture and a.architecture != b.architecture:
        return True
    return None


def acs_bridges(machine: Machine, *, nics: bool = False) -> tuple[str, ...]:
    """Return the bridges with ACS on that are between two GPUs of one switch.

    `nics`: also the bridges between a GPU and a network card of one switch. Root ports are skipped: traffic
    between them crosses the CPU with or without ACS.
    """
    nodes = machine.pci_by_address
    below: dict[str, set[str]] = {}
    for node in machine.pci:
        if node.kind == "gpu" or (nics and node.kind == "nic"):
            for bridge in bridges_above(nodes, node.address)[0]:
                if bridge in nodes:
                    below.setdefault(bridge, set()).add(node.address)
    gpus = {node.address for node in machine.pci if node.kind == "gpu"}
    shared = {address for address, devices in below.items() if len(devices) > 1 and devices & gpus}
    return tuple(
        sorted(address for address in below if nodes[address].acs and nodes[address].parent in shared)
    )


def redirected_pairs(machine: Machine) -> frozenset[tuple[int, int]]:
    """Return the pairs of GPUs, low index first, whose traffic ACS redirects through the root complex."""
    bridges = set(acs_bridges(machine))
    if not bridges:
        return frozenset()
    nodes = machine.pci_by_address
    above = {
        gpu.index: bridges_above(nodes, gpu.pci_address)[0]
        for gpu in machine.gpus
        if gpu.pci_address in nodes and gpu.pci_address is not None
    }
    return frozenset(
        (a, b)
        for a, b in combinations(sorted(above), 2)
        if {*above[a]} & {*above[b]} and ({*above[a]} ^ {*above[b]}) & bridges
    )


def _cause(machine: Machine, link: Link, refusals: tuple[str, ...]) -> P2pCause:
    if "DISABLED_BY_REGKEY" in refusals:
        return "registry_key"
    gpus = machine.by_index
    pair = [gpus[index] for index in (link.a, link.b) if index in gpus]
    differ = chips_differ(*pair) if len(pair) == 2 else None
    if differ:
        return "different_chips"
    if (
        pair
        and not link.nvlinks
        and all(map(_geforce_policy, pair))
        and not _same_model_has_p2p(machine, pair)
    ):
        return "geforce_policy"
    if any(status in _PATH_CODES for status in refusals):
        if link.hop is Hop.SYS:
            return "across_sockets"
        # Under one switch there is no chipset between the GPUs; ACS, which turns P2P off, may be on.
        if not (link.hop is not None and link.hop <= Hop.PXB and _has_acs(machine)):
            return "chipset"
    surroundings = _by_surroundings(machine, pair)
    if surroundings is None:
        return "gpu" if "GPU_NOT_SUPPORTED" in refusals else "unknown"
    return surroundings


def _by_surroundings(machine: Machine, pair: list[Gpu]) -> P2pCause | None:
    if _has_acs(machine):
        return "acs"
    if machine.host.iommu == "translated":
        return "iommu"
    for gpu in pair:
        window, memory = gpu.bar1_mib.total, gpu.memory_mib.total
        if window is not None and memory is not None and window <= SMALL_BAR1_MIB < memory:
            return "bar1"
    if _virtual(machine):
        return "virtual_machine"
    return "container" if machine.host.container not in (None, "none") else None


def _has_acs(machine: Machine) -> bool:
    if _virtual(machine):
        return False  # the bridges of a virtual machine are emulated
    return bool(acs_bridges(machine)) or (
        machine.host.acs == "on" and not any(node.acs is not None for node in machine.pci)
    )


def _geforce_policy(gpu: Gpu) -> bool:
    expected = expected_of(gpu)
    if expected is not None and expected.p2p_over_pcie is not None:
        return not expected.p2p_over_pcie
    return gpu.name is not None and "GeForce RTX" in gpu.name


def _same_model_has_p2p(machine: Machine, pair: list[Gpu]) -> bool:
    """Return whether other GPUs of this model are peers here, so that no policy of the driver forbids P2P."""
    names = {gpu.index: gpu.name for gpu in machine.gpus}
    return any(
        link.p2p_read == "OK"
        and not link.nvlinks
        and {names.get(link.a), names.get(link.b)} == {pair[0].name}
        for link in machine.links
    )


def _virtual(machine: Machine) -> bool:
    return machine.host.virtual_machine not in (None, "none")
