"""Where in the PCI tree GPUs sit: links that several share, and slots of the chipset."""

import re
from collections.abc import Iterator

from gputopo.findings.fault import Fault, findings_of, numbers, present
from gputopo.findings.finding import Finding
from gputopo.values.machine import Gpu, Machine, PciNode

# Two GPUs on one uplink are usual (NVIDIA's DGX), four happen; from five equal ones on, each is left less
# than a quarter of its own link when all copy at once. Ours.
SHARED_TIMES = 4
# Root ports of Intel's desktop chipsets are devices 1b to 1d of bus 0 (Intel 100 to 700 series chipset
# datasheets, "PCI Express root ports": D27, D28, D29); slots of the CPU are devices 1 and 6.
_CHIPSET_PORT = re.compile(r"0000:00:1[bcd]\.[0-7]")
_INTEL = "8086"


def shared_uplinks(machine: Machine) -> Iterator[Finding]:
    """Find bridges through which several GPUs reach the CPU, and which are far too narrow for all at once."""
    told: list[tuple[PciNode, list[Gpu], float]] = []
    nodes = {node.address: node for node in machine.pci}
    behind = _behind(machine, nodes)
    for address, gpus in behind.items():
        uplink = nodes[address]
        needs = sum(_rate(nodes.get(gpu.pci_address or "")) or 0 for gpu in gpus)
        rate = _rate(uplink)
        nearer = any(set(map(id, group)) == set(map(id, gpus)) for _, group, _ in told)
        if len(gpus) > 1 and rate and needs > SHARED_TIMES * rate and not nearer:
            told.append((uplink, gpus, needs / rate))
    if told:
        groups = [
            f"GPUs {numbers(gpu.index for gpu in gpus)} behind {node.address}" for node, gpus, _ in told
        ]
        yield Finding(
            id="pcie.shared_uplink",
            severity="info",
            subject="machine",
            says=f"{'; '.join(groups)}: when all copy at once, each gets under 1/{SHARED_TIMES} of its link",
            evidence={
                "uplinks": {
                    node.address: {
                        "gpus": [gpu.index for gpu in gpus],
                        "times_oversubscribed": round(times, 2),
                    }
                    for node, gpus, times in told
                }
            },
            remedy="take GPUs of different uplinks for work that is fed from the host; gputopo bandwidth "
            "measures what is left",
        )


def chipset_slots(machine: Machine) -> Iterator[Finding]:
    """Find GPUs in slots of the chipset, which share its narrow link to the CPU with disks and network."""
    nodes = {node.address: node for node in machine.pci}
    faults = []
    for gpu in present(machine):
        port = _root_port(nodes, gpu)
        if port is not None and port.vendor_id == _INTEL and _CHIPSET_PORT.fullmatch(port.address):
            evidence = {"root_port": port.address, "width": port.max_width}
            faults.append(
                Fault(gpu, f"it hangs on the chipset (root port {port.address})", evidence, "warning")
            )
    yield from findings_of(
        "pcie.chipset_slot",
        faults,
        "its traffic shares the chipset's link with disks and network: move it to a slot that is wired to "
        "the CPU (see the board's manual)",
        machine,
    )


def _behind(machine: Machine, nodes: dict[str, PciNode]) -> dict[str, list[Gpu]]:
    """Give the GPUs behind each bridge, the outermost bridges first."""
    found: dict[str, list[Gpu]] = {}
    for gpu in present(machine):
        for bridge in reversed(_way_up(nodes, gpu)):
            found.setdefault(bridge.address, []).append(gpu)
    return found


def _way_up(nodes: dict[str, PciNode], gpu: Gpu) -> list[PciNode]:
    """Give the bridges above a GPU, the nearest first. A damaged tree that goes in a circle ends there."""
    way: list[PciNode] = []
    node = nodes.get(gpu.pci_address or "")
    while node is not None and node.parent is not None:
        node = nodes.get(node.parent)
        if node is None or node in way or node.address == gpu.pci_address:
            break
        way.append(node)
    return way


def _root_port(nodes: dict[str, PciNode], gpu: Gpu) -> PciNode | None:
    way = _way_up(nodes, gpu)
    return way[-1] if way and way[-1].parent is None else None


def _rate(node: PciNode | None) -> float | None:
    """Give the most that a link carries, in GT/s over all lanes: enough for shares of one kind of link."""
    if node is None or node.max_speed_gt_per_s is None or node.max_width is None:
        return None
    return node.max_speed_gt_per_s * node.max_width
