"""Why GPUs cannot copy to one another directly (P2P): the cause, as far as known facts give it.

The driver answers with a code alone. The rules follow NVIDIA/open-gpu-kernel-modules (p2p_caps.c,
chipset_pcie.c): two different chips are never peers; a pair needs a switch or a CPU that the driver lists;
some CPUs refuse across sockets. What no fact explains is called unknown.
"""

from typing import Literal

import msgspec

from gputopo.reference.expectations import expected_gpu
from gputopo.values.machine import Gpu, Hop, Link, Machine, PciNode

Cause = Literal[
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
    "unknown",
]

# The codes of NVML's P2P status (nvmlGpuP2PStatus_t) that blame the way between the cards.
_WAY = ("CHIPSET_NOT_SUPPORTED", "TOPOLOGY_NOT_SUPPORTED")
# Without "resizable BAR" the window has this size or less, and a large card cannot show all of its memory.
SMALL_BAR1_MIB = 256


class Off(msgspec.Struct, frozen=True, kw_only=True):
    """Why P2P is off between two GPUs. `status`: NVML's word. `fix`: None where no fix exists."""

    cause: Cause
    status: str
    says: str
    fix: str | None


_WORDS: dict[Cause, tuple[str, str | None]] = {
    "registry_key": (
        "a setting of the NVIDIA kernel module turns P2P off",
        "look for NVreg_RegistryDwords in /etc/modprobe.d and /proc/driver/nvidia/params, remove it, reboot",
    ),
    "different_chips": ("the two cards have different chips, which the driver never makes peers", None),
    "geforce_policy": ("NVIDIA's driver gives GeForce cards from RTX on no P2P over PCIe", None),
    "across_sockets": ("the driver does not allow P2P across these CPU sockets", None),
    "chipset": (
        "the driver does not list the chipset or CPU between the two cards",
        "move both cards under one PCIe switch if the board has one; a newer driver may list the CPU",
    ),
    "acs": (
        "access control (ACS) of the bridges sends traffic between the cards up to the CPU",
        "turn ACS off in the BIOS, or by setpci on the bridges at start-up",
    ),
    "iommu": (
        "the IOMMU translates the cards' addresses",
        "boot with iommu=pt, or turn the IOMMU (VT-d, AMD-Vi) off in the BIOS",
    ),
    "bar1": (
        "the cards show too little of their memory on the bus (BAR1)",
        "turn on Above 4G Decoding and Resizable BAR in the BIOS; the card's VBIOS may need an update",
    ),
    "virtual_machine": (
        "this is a virtual machine, whose host decides which devices are peers",
        "ask the provider for an instance with P2P; inside the machine there is no fix",
    ),
    "container": (
        "this is a container, which may not show the devices and memory that P2P needs",
        "compare with nvidia-smi topo -p2p r outside of it; start it with --ipc=host and all GPUs",
    ),
    "unknown": (
        "the cause is not known",
        "nvidia-smi topo -p2p r tells the code; sudo dmesg | grep -i nvrm may tell more",
    ),
}


def statuses(link: Link) -> tuple[str, ...]:
    """Give NVML's words for a pair that are not OK: of reads, then of writes, each once."""
    told = (link.p2p_read, link.p2p_write)
    return tuple(dict.fromkeys(word for word in told if word is not None and word != "OK"))


def why_off(machine: Machine, link: Link) -> Off | None:
    """Give why P2P is off between two GPUs, or None where it is on or not known.

    The first cause that the facts bear counts: a setting of the driver, different chips, the driver's
    policy for GeForce, sockets and chipset, ACS, IOMMU, BAR1, virtual machine, container.
    """
    found = statuses(link)
    if not found or found == ("UNKNOWN",):
        return None
    cause = _cause(machine, link, found)
    says, fix = _WORDS[cause]
    if cause in ("across_sockets", "chipset") and _virtual(machine):
        says, fix = f"{says} (which a virtual machine only pretends to have)", _WORDS["virtual_machine"][1]
    return Off(cause=cause, status=found[0], says=says, fix=fix)


def with_reasons(machine: Machine) -> Machine:
    """Give the machine with `p2p_reason` told for the pairs whose P2P is off.

    A cause that the facts give stands before the words for NVML's code; where it is unknown, those stay.
    """
    links = tuple(
        link if off is None else msgspec.structs.replace(link, p2p_reason=_reason(link, off))
        for link in machine.links
        for off in (why_off(machine, link),)
    )
    return msgspec.structs.replace(machine, links=links)


def _reason(link: Link, off: Off) -> str:
    return link.p2p_reason if off.cause == "unknown" and link.p2p_reason else off.says


def chips_differ(a: Gpu, b: Gpu) -> bool | None:
    """Tell whether two GPUs have different chips, or None where that is not known.

    Cards of one name have one chip. A GTX 1070 and a GTX 1080 have the same (GP104).
    """
    if a.name is not None and a.name == b.name:
        return False
    first, second = expected_gpu(a.name, a.pci_device_id), expected_gpu(b.name, b.pci_device_id)
    if first is not None and second is not None:
        if first.chip and second.chip:
            return first.chip != second.chip
        if first.architecture != second.architecture:
            return True
    if a.architecture and b.architecture and a.architecture != b.architecture:
        return True
    return None


def acs_bridges(machine: Machine) -> tuple[str, ...]:
    """Give the bridges with ACS on through which GPUs of one switch would reach one another.

    Root ports are left out: traffic between them passes the CPU with and without ACS.
    """
    nodes = {node.address: node for node in machine.pci}
    below: dict[str, set[str]] = {}
    for node in machine.pci:
        if node.kind == "gpu":
            for bridge in _above(nodes, node):
                below.setdefault(bridge.address, set()).add(node.address)
    shared = {address for address, gpus in below.items() if len(gpus) > 1}
    return tuple(
        sorted(address for address in below if nodes[address].acs and nodes[address].parent in shared)
    )


def _cause(machine: Machine, link: Link, found: tuple[str, ...]) -> Cause:
    if "DISABLED_BY_REGKEY" in found:
        return "registry_key"
    gpus = {gpu.index: gpu for gpu in machine.gpus}
    pair = [gpus[index] for index in (link.a, link.b) if index in gpus]
    differ = chips_differ(*pair) if len(pair) == 2 else None
    if differ:
        return "different_chips"
    if pair and not link.nvlinks and all(map(_geforce_policy, pair)) and not _equals_are_peers(machine, pair):
        return "geforce_policy"
    if any(status in _WAY for status in found):
        if link.hop is Hop.SYS:
            return "across_sockets"
        # Under one switch it is no chipset that stands between the cards; what switches it off, may.
        if not (link.hop is not None and link.hop <= Hop.PXB and _has_acs(machine)):
            return "chipset"
    return _by_surroundings(machine, pair)


def _by_surroundings(machine: Machine, pair: list[Gpu]) -> Cause:
    if _has_acs(machine):
        return "acs"
    if machine.host.iommu == "translated":
        return "iommu"
    if any(_small_bar1(gpu) for gpu in pair):
        return "bar1"
    if _virtual(machine):
        return "virtual_machine"
    return "container" if machine.host.container not in (None, "none") else "unknown"


def _has_acs(machine: Machine) -> bool:
    if _virtual(machine):
        return False  # the bridges that a virtual machine shows are invented
    return bool(acs_bridges(machine)) or (
        machine.host.acs == "on" and not any(node.acs is not None for node in machine.pci)
    )


def _geforce_policy(gpu: Gpu) -> bool:
    expected = expected_gpu(gpu.name, gpu.pci_device_id)
    if expected is not None and expected.p2p_over_pcie is not None:
        return not expected.p2p_over_pcie
    return gpu.name is not None and "GeForce RTX" in gpu.name


def _equals_are_peers(machine: Machine, pair: list[Gpu]) -> bool:
    """Tell whether other cards of this model are peers here: then no policy keeps these apart."""
    names = {gpu.index: gpu.name for gpu in machine.gpus}
    return any(
        link.p2p_read == "OK"
        and not link.nvlinks
        and {names.get(link.a), names.get(link.b)} == {pair[0].name}
        for link in machine.links
    )


def _small_bar1(gpu: Gpu) -> bool:
    window, memory = gpu.bar1_mib.total, gpu.memory_mib.total
    return window is not None and memory is not None and window <= SMALL_BAR1_MIB < memory


def _virtual(machine: Machine) -> bool:
    return machine.host.virtual_machine not in (None, "none")


def _above(nodes: dict[str, PciNode], node: PciNode) -> list[PciNode]:
    way: list[PciNode] = []
    parent = nodes.get(node.parent or "")
    while parent is not None and parent not in way:
        way.append(parent)
        parent = nodes.get(parent.parent or "")
    return way
