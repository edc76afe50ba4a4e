"""NVLinks: those that are down where equal cards have them up, and those that count errors."""

from collections.abc import Iterator
from itertools import combinations

from gputopo.findings.fault import Fault, findings_of, kinds, numbers, present
from gputopo.findings.finding import Finding
from gputopo.reference.expectations import expected_gpu
from gputopo.values.machine import Gpu, Machine

# NVIDIA/DCGM's PCIe test fails above 100 CRC errors a second; these counters count since the link came up.
CRC_ERRORS = 100
# Bridges join two cards; three that are all joined to one another sit on a board made for that.
FEWEST_JOINED = 3
# Packets are sent again without loss; a link does so now and then. Ours, by the same measure.
REPLAYS = 100


def down(machine: Machine) -> Iterator[Finding]:
    """Find GPUs with fewer NVLinks up than their equals, or than their model has on its board.

    Cards with a bridge may have any number, so of those only a half-lit bridge is a fault: some links up,
    and fewer than on an equal card.
    """
    faults = []
    # A virtual machine may hold a part of a server's GPUs, and MIG turns NVLinks off: neither is a fault.
    whole = len(present(machine)) > 1 and machine.host.virtual_machine in (None, "none")
    for group in kinds(machine):
        group = [gpu for gpu in group if not gpu.mig.mode]
        if not group:
            continue
        up = {gpu.index: _up(gpu) for gpu in group if gpu.nvlinks is not None}
        expected = expected_gpu(group[0].name, group[0].pci_device_id)
        on_board = whole and expected is not None and expected.nvlink_by_bridge is False
        due = max([*up.values(), (expected.nvlinks or 0) if expected and on_board else 0], default=0)
        for gpu in group:
            if gpu.index not in up or up[gpu.index] >= due:
                continue
            if (on_board and gpu.nvlinks) or up[gpu.index] or _listed_by_peer(gpu, group):
                says = f"{up[gpu.index]} NVLinks are up, {due} are due"
                evidence = {
                    "up": up[gpu.index],
                    "due": due,
                    "down": [link.link for link in gpu.nvlinks or () if link.active is False],
                    "peers": {str(index): count for index, count in up.items()},
                }
                # As many up on each of several equal cards may be how their board is wired.
                alike = up[gpu.index] and len(up) == len(group) > 1 and len(set(up.values())) == 1
                faults.append(Fault(gpu, says, evidence, "warning" if alike else "error"))
    yield from findings_of(
        "nvlink.down",
        faults,
        "nvidia-smi nvlink -s shows which; seat the bridge again, or on a server board reset the GPUs "
        "(sudo nvidia-smi -r), see that nvidia-fabricmanager runs, and reboot",
        machine,
    )


def thin_bridge(machine: Machine) -> Iterator[Finding]:
    """Find pairs whose NVLink bridge has fewer links than another pair's, where cards are joined by twos.

    For captures that tell pairs and not ports, such as a matrix. On server boards, where a card has several
    partners, counts differ by design, and of a machine shown in part nothing can be told.
    """
    joined = [link for link in machine.links if link.nvlinks]
    ends = [index for link in joined for index in (link.a, link.b)]
    if any(gpu.nvlinks is not None for gpu in machine.gpus) or len(ends) != len(set(ends)):
        return
    names = {gpu.index: gpu.name for gpu in machine.gpus}
    for link in joined:
        widest = max(other.nvlinks or 0 for other in joined if names.get(other.a) == names.get(link.a))
        if (link.nvlinks or 0) < widest:
            yield Finding(
                id="nvlink.thin_bridge",
                severity="warning",
                subject=f"link:{link.a}-{link.b}",
                says=f"GPUs {link.a} and {link.b} are joined by {link.nvlinks} NVLinks, "
                f"another pair of this machine by {widest}",
                evidence={"nvlinks": link.nvlinks, "widest": widest},
                remedy="nvidia-smi nvlink -s shows which are down; seat the bridge again, or replace it",
            )


def apart(machine: Machine) -> Iterator[Finding]:
    """Find GPUs without any NVLink beside GPUs that are all joined to one another, as by switches.

    For captures that tell pairs and not ports. Of nameless GPUs one may be of another model, such as the
    display card of a DGX Station, or split by MIG: of those it is a warning.
    """
    gpus = [gpu for gpu in present(machine) if not gpu.mig.mode]
    if any(gpu.nvlinks is not None for gpu in gpus):
        return
    count = {pair: link.nvlinks for link in machine.links for pair in ((link.a, link.b), (link.b, link.a))}
    joined = [gpu for gpu in gpus if any(count.get((gpu.index, other.index)) for other in gpus)]
    if len(joined) < FEWEST_JOINED or not all(
        count.get((a.index, b.index)) for a, b in combinations(joined, 2)
    ):
        return
    names, most = {gpu.name for gpu in joined}, max(filter(None, count.values()))
    says = f"it has no NVLinks, and GPUs {numbers(gpu.index for gpu in joined)} are all joined by {most}"
    evidence = {"joined": [gpu.index for gpu in joined], "nvlinks": most}
    yield from findings_of(
        "nvlink.down",
        [
            Fault(gpu, says, evidence, "warning" if gpu.name is None else "error")
            for gpu in gpus
            if gpu not in joined
            and gpu.name in names
            and all(count.get((gpu.index, other.index)) == 0 for other in joined)
        ],
        "nvidia-smi nvlink -s shows which are down (MIG turns them off, too); reset the GPUs "
        "(sudo nvidia-smi -r), see that nvidia-fabricmanager runs, and reboot",
        machine,
    )


def errors(machine: Machine) -> Iterator[Finding]:
    """Find NVLinks that had to recover, or that sent much again."""
    faults = []
    for gpu in present(machine):
        bad = {
            str(link.link): dict(link.errors) for link in gpu.nvlinks or () if _many_errors(dict(link.errors))
        }
        if bad:
            words = "; ".join(
                f"link {link}: {', '.join(f'{count} {kind}' for kind, count in counts.items() if count)}"
                for link, counts in bad.items()
            )
            faults.append(Fault(gpu, f"its NVLinks count errors ({words})", {"errors": bad}, "warning"))
    yield from findings_of(
        "nvlink.errors",
        faults,
        "sudo dmesg | grep -i -e nvlink -e 'xid.*74'; clean and seat the bridge again; if the counts go on "
        "rising (nvidia-smi nvlink -e), have the bridge or board replaced",
        machine,
    )


def _up(gpu: Gpu) -> int:
    return sum(link.active is True for link in gpu.nvlinks or ())


def _listed_by_peer(gpu: Gpu, group: list[Gpu]) -> bool:
    """Tell whether an equal card says that its NVLinks end at this one."""
    return gpu.pci_address is not None and any(
        link.active and link.remote_pci_address == gpu.pci_address
        for peer in group
        for link in peer.nvlinks or ()
    )


def _many_errors(counts: dict[str, int]) -> bool:
    crc = max(counts.get("crc_flit", 0), counts.get("crc_data", 0))
    return counts.get("recovery", 0) > 0 or crc > CRC_ERRORS or counts.get("replay", 0) > REPLAYS
