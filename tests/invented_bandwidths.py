"""Bandwidths made by hand: every number is chosen, so a report's cells can be foretold."""

from itertools import combinations, permutations

import msgspec

from gputopo.values.bandwidth import (
    Bandwidth,
    Conditions,
    CopyLatency,
    CopyRate,
    Expectation,
    Failure,
    NotMeasured,
    Sample,
    Samples,
    UplinkGroup,
)
from gputopo.values.ends import End
from gputopo.values.machine import Gpu, Hop, Host, Link, Machine

UP, DOWN = 12.25, 13.1  # GB/s of gpu 0; each further one 0.1 more
MEASURED_AT = 1_795_000_000.0  # 2026-11-18 11:06:40 UTC


def machine_with(gpus: int) -> Machine:
    """Return a machine with PCI addresses, in pairs behind a switch."""
    return Machine(
        source="test",
        host=Host(cpu_model="A CPU"),
        gpus=tuple(
            Gpu(index=i, name="NVIDIA Test 1", pci_address=f"0000:{i + 1:02x}:00.0", numa_node=0)
            for i in range(gpus)
        ),
        links=tuple(
            Link(a=a, b=b, hop=Hop.PIX if a // 2 == b // 2 else Hop.PHB)
            for a, b in combinations(range(gpus), 2)
        ),
    )


def pair(source: int, destination: int, speed: float, *, staged: bool = False) -> CopyRate:
    """Return one copy between GPUs, alone."""
    return CopyRate(
        kind="p2p_staged" if staged else "p2p_direct",
        source=End(f"gpu:{source}"),
        destination=End(f"gpu:{destination}"),
        method="copy_engine",
        median_gb_per_s=speed,
        repeats_gb_per_s=(speed,),
        expectation=Expectation(gb_per_s=None if staged else 12.6),
    )


def host_samples(gpu: int) -> list[Sample]:
    """Return the copies of one GPU with the host: alone, at once, pageable; and inside it."""
    place, extra = End.of_gpus(gpu), gpu / 10
    seen = (Conditions(gpu=gpu, readings=3, pstate="P0", pcie_gen=3, pcie_width=16),)
    to = CopyRate(kind="h2d", source=End("host"), destination=place, pinned=True, bytes=2**25)
    replace = msgspec.structs.replace
    return [
        replace(to, median_gb_per_s=UP + extra, expectation=Expectation("links.csv", 12.6),
                conditions=seen),
        replace(to, kind="d2h", source=place, destination=End("host"), median_gb_per_s=DOWN + extra),
        replace(to, median_gb_per_s=6.5, group="h2d all"),
        replace(to, kind="bidirectional", median_gb_per_s=21.5),
        replace(to, pinned=False, median_gb_per_s=4.75),
        CopyLatency(source=to.source, destination=place, pinned=True, median_us=8.25, bytes=16),
        CopyRate(kind="d2d_local", source=place, destination=place, median_gb_per_s=601.0,
               discarded_gb_per_s=(85.0, 90.0), discarded_because="clock ramp-up"),
    ]  # fmt: skip


def bandwidth_of(gpus: int = 4) -> Bandwidth:
    """Return what a whole session could have measured; the last pair copies faster through the host."""
    last = (gpus - 2, gpus - 1)
    samples = [sample for gpu in range(gpus) for sample in host_samples(gpu)]
    for a, b in permutations(range(gpus), 2):
        direct = 11.3 if a // 2 == b // 2 else 6.25
        samples.append(pair(a, b, 0.73 if tuple(sorted((a, b))) == last else direct))
        samples.append(pair(a, b, 0.77 if tuple(sorted((a, b))) == last else 5.5, staged=True))
    samples.append(
        CopyRate(kind="host_memory", source=End("node:0"), destination=End("node:1"), median_gb_per_s=31.4)
    )
    return Bandwidth(
        source="live",
        samples=Samples(samples),
        failures=(
            Failure(kind="p2p_direct", source=End("gpu:0"), destination=End("gpu:1"), method="kernel_read",
                    reason="WRONG_DATA", says="3 words differ"),
        ),
        not_measured=(NotMeasured(what="far memory node", reason="there is one node only"),),
        uplink_groups=(
            UplinkGroup(gpus=(0, 1), from_kind="h2d", alone_gb_per_s=24.6, together_gb_per_s=13.0,
                        bridge="0000:00:01.0", agrees=True),
        ),
        level="quick",
        measured_at=MEASURED_AT,
        duration_s=12.5,
        driver_version="550.54",
        cuda_version="12.4",
    )  # fmt: skip
