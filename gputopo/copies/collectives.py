"""Collective operations: the samples of one operation over its sizes, and its expected bus bandwidth."""

import itertools
from collections.abc import Sequence

from msgspec.structs import replace

from gputopo.reference import (
    GpuExpectation,
    expected_bus,
    expected_link,
    expected_nvlink,
    expected_of,
    observed_link,
)
from gputopo.values.bandwidth import AT_MOST, COLLECTIVE_NAMES, CollectiveRate, Expectation
from gputopo.values.ends import ALL_GPUS, HOSTS
from gputopo.values.machine import Gpu, Machine, NicPort

# A ring uses the rate of all NVLinks of a GPU in one direction, as NCCL counts it (nvlinks.csv). A100 and
# H200 reach 0.98 and 0.99 of it from 8 GiB, A100 0.92 at 256 MiB (nccl_bus.csv). Low: not measured; chosen
# below these.
RING_BYTES = 256 * 1024 * 1024
RING_LOW_SHARE = 0.75
FEW_LOW_SHARE = 0.50  # for 2 and 3 GPUs, NCCL uses fewer channels: 2 B200 reach 0.67 (google/dranet)
# Over PCIe, the slowest link limits a ring. Without peer access each byte goes through host memory: 8 GeForce
# RTX 2080 Ti reach 0.2 of the link's rate (published log). Not measured; chosen so that only lower rates are
# judged.
PCIE_BYTES = 32 * 1024 * 1024
PCIE_LOW_SHARE = 0.15
# Each GPU sends to one GPU or to all others at once: 0.93 of the rate of its NVLinks for 8 A100
# (nccl_bus.csv), 0.90 for two (NVIDIA/nccl-tests issue 331). In a mesh of four, each neighbour has a third of
# the links. Without P2P, copies reach less than a tenth. Not measured; chosen between the last two.
EXCHANGE_LOW_SHARE = 0.20
# Over several hosts, the network ports of a host limit a ring. 4 ports of 100 Gbit/s reach 0.94 of their rate
# (NVIDIA/nccl issue 307). One port of 200 Gbit/s reaches 0.96 behind a GPU's switch and 0.64 behind the CPU
# (issue 412). A tree over two hosts reaches up to twice the ring (issue 307). Not measured; chosen below all
# of these.
NETWORK_LOW_SHARE = 0.5
_EXCHANGES = ("alltoall", "sendrecv")
_RINGS = ("allreduce", "allgather", "reduce_scatter", "broadcast", "reduce")
_SWITCHED = 3  # NVLink generations of servers with NVSwitches, in which any two GPUs can use all links
_CUBE = 8  # GPUs of a server without them


def expected_rate(sample: CollectiveRate, machine: Machine) -> Expectation | None:
    """Return the expected bus bandwidth of an operation, or None if unknown.

    For an operation over several hosts, the machine is one of them, and the others are assumed to be equal.
    """
    if sample.source == HOSTS:
        return _over_network(sample, machine)
    gpus = _members(sample, machine)
    if sample.in_place is None or sample.group or len(gpus) < 2:
        return None
    rows = {row.name: row for gpu in gpus if (row := expected_of(gpu))}
    if len(rows) != 1 or len({gpu.name for gpu in gpus}) != 1 or sample.bytes is None:
        return None
    model = next(iter(rows.values()))
    joined = _nvlinks_of_each(gpus, model, machine)
    return (
        _published(sample, model, len(gpus), joined)
        or _over_nvlink(sample, model, joined)
        or _over_pcie(sample, gpus, model, machine, joined)
    )


def _members(sample: CollectiveRate, machine: Machine) -> list[Gpu]:
    """Return the GPUs that took part, or all GPUs of the machine if not every rank is listed."""
    indices = sample.source.gpus
    if indices:
        members = [gpu for gpu in machine.gpus if gpu.index in indices]
        return members if len(members) == len(indices) == (sample.ranks or len(indices)) else []
    everywhere = sample.source == ALL_GPUS and len(machine.gpus) == sample.ranks
    return list(machine.gpus) if everywhere else []


def _nvlinks_of_each(gpus: Sequence[Gpu], model: GpuExpectation, machine: Machine) -> int | None:
    """Return the number of NVLinks from each GPU to the others: 0 for only PCIe, None if unknown."""
    total = model.nvlinks
    counts = {gpu.index: 0 for gpu in gpus}
    known = True
    for a, b in itertools.combinations(sorted(counts), 2):
        link = machine.link(a, b)
        known = known and link is not None and link.nvlinks is not None
        for index in (a, b):
            counts[index] += (link.nvlinks or 0) if link else 0
    if known:
        least = min(counts.values())
        return min(least, total or least) if least and _is_one_fabric(gpus, machine) else 0
    if total is None:
        return 0 if model.nvlink_generation is None and model.nvlink_by_bridge is None else None
    if model.nvlink_by_bridge is not False:
        return None
    whole = (model.nvlink_generation or 0) >= _SWITCHED or len(gpus) == _CUBE
    return total if whole else None


def _is_one_fabric(gpus: Sequence[Gpu], machine: Machine) -> bool:
    """Return whether NVLinks connect each GPU to every other, directly or through other GPUs."""
    reached, unreached = {gpus[0].index}, {gpu.index for gpu in gpus[1:]}
    while near := {b for b in unreached if any((k := machine.link(a, b)) and k.nvlinks for a in reached)}:
        reached |= near
        unreached -= near
    return not unreached


def _published(
    sample: CollectiveRate, model: GpuExpectation, ranks: int, joined: int | None
) -> Expectation | None:
    rows = expected_bus(model.name, ranks, sample.kind, sample.bytes or 0)
    rows = [row for row in rows if row.links != "nvlink" or joined]
    if not rows or joined == 0:
        return None
    ring = next((row for row in rows if row.nvls is False), None)
    off = nvls_is_off(sample)
    row = ring if off and ring else next((row for row in rows if row.nvls is not False), rows[0])
    if off and row.nvls:
        return None
    operation = COLLECTIVE_NAMES[sample.kind]
    return Expectation(
        f"{model.name}, {ranks} GPUs, {operation} ({row.confidence}: nccl_bus.csv)",
        row.bus_gb_per_s,
        row.low_gb_per_s,
        without_nvls=(ring.bus_gb_per_s if ring else _ring_rate(model, joined)) if row.nvls else None,
    )


def _ring_rate(model: GpuExpectation, joined: int | None) -> float | None:
    link = expected_nvlink(model.nvlink_generation, model.chip)
    return joined * link.nccl_gb_per_s if joined and link and link.nccl_gb_per_s else None


def _over_nvlink(sample: CollectiveRate, model: GpuExpectation, joined: int | None) -> Expectation | None:
    link = expected_nvlink(model.nvlink_generation, model.chip)
    if not joined or link is None or link.nccl_gb_per_s is None or (sample.bytes or 0) < RING_BYTES:
        return None
    rate = joined * link.nccl_gb_per_s
    if sample.kind in _EXCHANGES and link.version >= _SWITCHED:
        return Expectation(
            f"{AT_MOST} {joined} NVLinks of version {link.version} of a GPU "
            f"at {link.nccl_gb_per_s:g} GB/s (nvlinks.csv)",
            rate,
            EXCHANGE_LOW_SHARE * rate,
        )
    if sample.kind not in _RINGS:
        return None
    is_few = (sample.ranks or 0) <= 3
    return Expectation(
        f"{AT_MOST if is_few else 'derived:'} a ring over {joined} NVLinks of version {link.version} "
        f"at {link.nccl_gb_per_s:g} GB/s (nvlinks.csv)",
        rate,
        (FEW_LOW_SHARE if is_few else RING_LOW_SHARE) * rate,
    )


def _over_pcie(
    sample: CollectiveRate, gpus: Sequence[Gpu], model: GpuExpectation, machine: Machine, joined: int | None
) -> Expectation | None:
    if joined != 0 or sample.kind not in (*_RINGS, *_EXCHANGES) or (sample.bytes or 0) < PCIE_BYTES:
        return None
    links = []
    for gpu in gpus:
        by_model = (expected_link(model.pcie_generation, model.pcie_width), "by its model")
        link, known_by = observed_link(gpu, sample, machine) or by_model
        if link is None:
            return None
        links.append((link.copy_to_device_gb_per_s, link.name, known_by))
    rate, name, known_by = min(links)
    return Expectation(
        f"{AT_MOST} the slowest PCIe link, {name} {known_by} (links.csv)",
        rate,
        PCIE_LOW_SHARE * rate,
    )


def network_ports(machine: Machine) -> list[NicPort]:
    """Return the ports that NCCL should use between hosts: the fastest RDMA ports, or the fastest ports."""
    up = [port for nic in machine.nics for port in nic.ports or () if port.up and port.rate_gbit_per_s]
    ports = [port for port in up if port.rdma_device is not None] or up
    best = max((port.rate_gbit_per_s or 0.0 for port in ports), default=0.0)
    return [port for port in ports if port.rate_gbit_per_s == best]


def _over_network(sample: CollectiveRate, machine: Machine) -> Expectation | None:
    """Return the rate of a ring over several hosts, limited by their ports (one for each GPU) or GPUs."""
    is_large = (sample.bytes or 0) >= RING_BYTES
    if not sample.hosts or sample.hosts < 2 or sample.group or sample.kind not in _RINGS or not is_large:
        return None
    ranks_each = (sample.ranks or 0) // sample.hosts
    ports = network_ports(machine)
    if not ranks_each or not ports:
        return None
    count, port = min(ranks_each, len(ports)), ports[0]
    rate = count * (port.rate_gbit_per_s or 0.0) / 8
    layer = "RDMA" if port.rdma_device is not None else "network"
    over = Expectation(
        f"derived: a ring over {count} {layer} port{'s' if count > 1 else ''} of "
        f"{port.rate_gbit_per_s:g} Gbit/s of each host",
        rate,
        NETWORK_LOW_SHARE * rate,
    )
    within = _within_each(sample, machine, ranks_each)
    return over if within is None or (within.low_gb_per_s or 0.0) >= NETWORK_LOW_SHARE * rate else within


def _within_each(sample: CollectiveRate, machine: Machine, gpus: int) -> Expectation | None:
    """Return the rate that the GPUs of one host allow, if all GPUs of the machine take part."""
    if not 1 < gpus == len(machine.gpus):
        return None
    inside = replace(sample, source=ALL_GPUS, hosts=1, ranks=gpus)
    return expected_rate(inside, machine)


def nvls_is_off(sample: CollectiveRate) -> bool:
    """Return whether NCCL's log or command shows that NVSwitches do not reduce (NVLink SHARP)."""
    algorithms = [fact.split("=")[1].upper() for fact in sample.nccl if fact.startswith("NCCL_ALGO=")]
    chosen = any("NVLS" not in algorithm and not algorithm.startswith("^") for algorithm in algorithms)
    excluded = any("NVLS" in algorithm and algorithm.startswith("^") for algorithm in algorithms)
    return chosen or excluded or "no NVLS" in sample.nccl or "NCCL_NVLS_ENABLE=0" in sample.nccl
