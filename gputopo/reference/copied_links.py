"""Compares measured copies with the tables: the PCIe link of a copy, the pairs that copy over NVLink."""

from collections.abc import Iterable

from gputopo.reference.expectations import LinkExpectation, expected_link, expected_of, generation_of
from gputopo.values.bandwidth import CopyRate, Measured, Pair
from gputopo.values.grouping import maxima
from gputopo.values.machine import Gpu, Machine, PciNode

# Generation 6 with 16 lanes (links.csv): used if the model, or its link, is unknown.
MAX_PCIE_GB_PER_S = 121.0
# Maximum lanes of a narrow link. Not measured; chosen because eight lanes are enough for training and usual
# on many boards and clouds; with four, the copies of every step become visible.
NARROW_LANES = 4

# Used if the model is unknown: if copies with the host are this many times slower than copies between two
# GPUs, the two use different kinds of links. Not measured; chosen because a switch with a quarter of its
# lanes towards the host is rare.
OVER_HOST = 3.0


def pcie_max(gpu: Gpu | None) -> float:
    """Return the data rate in GB/s of the widest PCIe link that the model of a GPU supports."""
    row = expected_of(gpu) if gpu else None
    link = expected_link(row.pcie_generation, row.pcie_width) if row else None
    return link.data_rate_gb_per_s if link else MAX_PCIE_GB_PER_S


def over_nvlink(samples: Iterable[CopyRate], machine: Machine) -> frozenset[Pair]:
    """Return the pairs of GPUs, low index first, whose copies are faster than their PCIe links allow.

    If both models are unknown, a rate above 16 lanes of generation 5 is enough, provided that copies with the
    host reach less than a third of it.
    """
    samples = tuple(samples)
    gpus = machine.by_index
    with_host = maxima(
        (gpu, sample.rate)
        for sample in samples
        if (gpu := sample.host_gpu) is not None and sample.is_large and sample.kind in ("h2d", "d2h")
    )
    newest = expected_link(5, 16)
    pairs = set()
    for sample in samples:
        pair = sample.pair
        if pair is None or not sample.is_large or not sample.is_direct:
            continue
        limit = min(pcie_max(gpus.get(end)) for end in pair)
        unknown = [end for end in pair if end not in gpus or expected_of(gpus[end]) is None]
        if newest and len(unknown) == len(pair) and with_host.keys() & set(pair):
            host = max(with_host.get(end, 0.0) for end in pair)
            limit = min(limit, max(newest.data_rate_gb_per_s, OVER_HOST * host))
        if sample.one_way_rate > limit:
            pairs.add((min(pair), max(pair)))
    return frozenset(pairs)


def observed_link(
    gpu: Gpu, sample: Measured | None, machine: Machine, *, without_bridges: bool = False
) -> tuple[LinkExpectation, str] | None:
    """Return the link that a copy used: as it was under load, else the maximum of GPU, slot and path.

    The second value is its source; None if unknown. `without_bridges`: only the card's own link. The
    generation in an idle reading means nothing and is not used.
    """
    generation = gpu.pcie.gen_max or gpu.pcie.gen_max_device
    width, known_by = gpu.pcie.width_now or gpu.pcie.width_max, "by its card and slot"
    for conditions in sample.conditions if sample else ():
        if (
            conditions.gpu == gpu.index
            and conditions.readings
            and conditions.pcie_gen
            and conditions.pcie_width
        ):
            generation, width, known_by = conditions.pcie_gen, conditions.pcie_width, "observed under load"
    link = expected_link(generation, width)
    if link is None:
        return None
    above = None if without_bridges else _generation_and_width(machine, gpu.pcie.limiting_hop)
    hop = expected_link(*above) if above else None
    if hop and hop.data_rate_gb_per_s < link.data_rate_gb_per_s:
        return hop, f"of the bridge {gpu.pcie.limiting_hop} above it"
    return link, known_by


def _generation_and_width(machine: Machine, address: str | None) -> tuple[int, int] | None:
    node: PciNode | None = next((bridge for bridge in machine.pci if bridge.address == address), None)
    generation = generation_of(node.max_speed_gt_per_s) if node else None
    return (generation, node.max_width) if node and generation and node.max_width else None
