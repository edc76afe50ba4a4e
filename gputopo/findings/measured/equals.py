"""What measured copies tell of a GPU whose equals copy far faster with the host, where no link is told."""

from collections.abc import Iterator
from statistics import median

from gputopo.copies.numbers import pair_copies, rate
from gputopo.findings.fault import Fault, findings_of, kinds, roughly
from gputopo.findings.finding import Finding
from gputopo.findings.measured.links import host_rates, link_is_unknown, narrow_faults
from gputopo.values.bandwidth import Bandwidth
from gputopo.values.machine import Machine

# Many boards give one card 16 lanes and the next 8, and a far memory node costs a third (a P100: gearshifft,
# pull request 82). Below half something else is up: one H100 of four at 0.25 (NVIDIA/nvbandwidth issue 6).
# The rest is for the noise of both numbers. Ours.
EQUALS_SHARE = 0.45


def slower_than_equals(machine: Machine) -> Iterator[Finding]:
    """Find GPUs whose best copy with the host is far below that of cards of the same model.

    Where copies with the host were not measured, by those between GPUs that go through its memory. Where the
    link is told, `bandwidth.below_expected` and the rules over links judge by it; a card that is as slow as
    few lanes are has `pcie.slot_narrow` already.
    """
    if machine.bandwidth is None:
        return
    told = {fault.gpu.index for fault in narrow_faults(machine)}
    best = {index: max(own.values()) for index, own in host_rates(machine.bandwidth, machine).items()}
    way = "with the host" if best else "through the host"
    best = best or _staged(machine.bandwidth)
    faults = []
    for group in kinds(machine):
        for gpu in group:
            peers = {str(other.index): best[other.index] for other in group if other.index in best}
            own = peers.pop(str(gpu.index), None)
            if own is None or not peers or gpu.index in told or not link_is_unknown(gpu, machine):
                continue
            due = median(peers.values())
            if own < EQUALS_SHARE * due:
                says = f"copies {way} reach about {roughly(own / due)} of those of equal cards here"
                evidence = {"gb_per_s": own, "peers_gb_per_s": peers}
                faults.append(Fault(gpu, says, evidence, "warning"))
    yield from findings_of(
        "bandwidth.below_expected",
        faults,
        "measure it again, and not as the first: it may have been waking up; if it stays, compare lanes and "
        "generation of the cards while they copy (gputopo inspect --watch), seat card and riser again, and "
        "look for PCIe errors (sudo dmesg)",
        machine,
    )


def _staged(bandwidth: Bandwidth) -> dict[int, float]:
    """Give for each GPU the fastest copy through host memory; direct ones may take a bridge of some cards."""
    best: dict[int, float] = {}
    for pair, sample in pair_copies(bandwidth.samples, "p2p_staged").items():
        for gpu in pair:
            best[gpu] = max(rate(sample), best.get(gpu, 0.0))
    return best
