"""Links that several GPUs share: uplinks of switches and boards, links between sockets. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from math import inf
from typing import NamedTuple

from gputopo.copies.expected import BIDIRECTIONAL_SHARE
from gputopo.copies.sharing import carries, rates_at_once, uplink_groups
from gputopo.reference.expectations import expected_gpu, expected_link, generation_of
from gputopo.topology.hops import bridges_above, joined_by_hops
from gputopo.values.bandwidth import Kind, Sample, UplinkGroup
from gputopo.values.machine import Hop, Link, Machine

# Both directions of one link at once, of the sum of each alone.
BOTH_SHARE = BIDIRECTIONAL_SHARE
# A card of an unknown model in an unknown slot: what most of the machines in published tables had.
ASSUMED_GENERATION, ASSUMED_WIDTH = 3, 16
# GB/s between two sockets in one direction: links of two bytes a transfer, at the highest rate of the series.
# QPI: one link of a Xeon E5-2400, two of others (compucon.co.nz, Intel Xeon E5-2400 and E5-2600 Explained);
# 9.6 GT/s are 19.2 GB/s (community.intel.com, How to saturate the QPI link). UPI: two or three links of 9.6
# or 10.4 GT/s (Intel Xeon Processor Scalable Family Technical Overview); two are assumed.
# Infinity Fabric of EPYC 7002 and 7003: three links of 18 GT/s (rocm.docs.amd.com, MI100 microarchitecture).
_SOCKET_LINKS = (
    (re.compile(r"Xeon.* E5-24\d{2}"), 2 * 8.0),
    (re.compile(r"Xeon.* E5-[24]\d{3}[A-Z]? v[34]"), 2 * 2 * 9.6),
    (re.compile(r"Xeon.* E5-[24]\d{3}[A-Z]?( v2|\b(?! v))"), 2 * 2 * 8.0),
    (re.compile(r"Xeon.* (Platinum|Gold) [5-9][12]\d{2}"), 2 * 2 * 10.4),
    (re.compile(r"Xeon.* Silver 4[12]\d{2}"), 2 * 2 * 9.6),
    (re.compile(r"EPYC 7[0-9F][0-9A-Z][23]\b"), 3 * 2 * 18.0),
)
# Of that, what reads from the other socket reach: 30.6 of 38.4 GB/s on Xeon E5 v3 and v4 (the same page).
_SOCKET_SHARE = 0.8

Gpus = frozenset[int]
Pair = tuple[int, int]


class Uplink(NamedTuple):
    """GPUs that share a link to the host, and what it carries in each direction."""

    gpus: Gpus
    up: float
    down: float
    both: float = BOTH_SHARE


class SocketLink(NamedTuple):
    """The link between two NUMA nodes with their GPUs, and what it carries in each direction."""

    nodes: tuple[int, int]
    gpus: tuple[Gpus, Gpus]
    gb_per_s: float
    both: float = BOTH_SHARE


def uplinks(machine: Machine, links: Mapping[Pair, Link], alone: Mapping[int, float]) -> tuple[Uplink, ...]:
    """Return the shared uplinks: as measured, else bridges of the PCI tree, else switches by hops.

    `alone`: GB/s of each GPU with the host. A direction in which GPUs were measured together and did not slow
    one another down has no limit.
    """
    samples = machine.bandwidth.samples if machine.bandwidth else ()
    down, up = rates_at_once(samples, "h2d"), rates_at_once(samples, "d2h")
    found = {frozenset(uplink.gpus): uplink for uplink in _measured(machine, samples)}
    known = list(_of_tree(machine)) or list(_of_hops(machine, links, alone))
    for gpus, rate in known:
        uplink = Uplink(gpus, inf if carries(gpus, up) else rate, inf if carries(gpus, down) else rate)
        if gpus not in found and min(uplink.up, uplink.down) < inf:
            found[gpus] = uplink
    return tuple(found.values())


def socket_links(machine: Machine, links: Mapping[Pair, Link]) -> tuple[SocketLink, ...]:
    """Return the links between sockets with GPUs, where the CPU model shows what they carry."""
    rate = next((rate for cpu, rate in _SOCKET_LINKS if cpu.search(machine.host.cpu_model or "")), None)
    nodes = _nodes(machine, links)
    if rate is None or len(nodes) < 2 or (machine.host.sockets or len(nodes)) < len(nodes):
        return ()
    return tuple(
        SocketLink((a, b), (nodes[a], nodes[b]), _SOCKET_SHARE * rate)
        for a, b in combinations(sorted(nodes), 2)
    )


def _nodes(machine: Machine, links: Mapping[Pair, Link]) -> dict[int, Gpus]:
    """Return the GPUs of each NUMA node; by the hops of pairs where a GPU's node is unknown."""
    gpus = [gpu.index for gpu in machine.gpus]
    numa = {gpu.index: gpu.numa_node for gpu in machine.gpus}
    known = {node for node in numa.values() if node is not None and node >= 0}
    if known and known == set(numa.values()):
        return {node: frozenset(gpu for gpu in gpus if numa[gpu] == node) for node in known}
    hops = [links[pair].hop if pair in links else None for pair in combinations(sorted(gpus), 2)]
    return {} if None in hops else dict(enumerate(joined_by_hops(gpus, links, Hop.NODE)))


def _measured(machine: Machine, samples: Sequence[Sample]) -> Iterator[Uplink]:
    bandwidth = machine.bandwidth
    groups = (bandwidth.uplink_groups or uplink_groups(samples, machine)) if bandwidth else ()
    for group in groups:
        if group.from_kind == "bidirectional":
            # Each copy between the two goes up and down: that is what both directions at once carry.
            if group.together_gb_per_s:
                yield Uplink(frozenset(group.gpus), group.together_gb_per_s, group.together_gb_per_s, 1.0)
            continue
        down, up = _together(group, "h2d", samples), _together(group, "d2h", samples)
        down, up = down or up, up or down
        if down and up:
            yield Uplink(frozenset(group.gpus), up, down)


def _together(group: UplinkGroup, kind: Kind, samples: Sequence[Sample]) -> float | None:
    """Return what a group carries in one direction: no limit where it was not slowed, None where unknown."""
    measured = carries(frozenset(group.gpus), rates_at_once(samples, kind))
    if kind in group.directions:
        return measured or group.together_gb_per_s
    return inf if measured else None


def _of_tree(machine: Machine) -> Iterator[tuple[Gpus, float]]:
    """Return the GPUs below each bridge of the PCI tree, and what the narrowest bridge over them carries."""
    tree = {node.address: node for node in machine.pci}
    below: dict[str, set[int]] = {}
    for gpu in machine.gpus:
        if gpu.pci_address in tree and gpu.pci_address is not None:
            for bridge in bridges_above(tree, gpu.pci_address)[0]:
                below.setdefault(bridge, set()).add(gpu.index)
    rates: dict[Gpus, float] = {}
    for bridge, gpus in below.items():
        node = tree.get(bridge)
        row = expected_link(generation_of(node.max_speed_gt_per_s), node.max_width) if node else None
        if len(gpus) > 1 and row is not None:
            members = frozenset(gpus)
            rates[members] = min(row.copy_to_device_gb_per_s, rates.get(members, inf))
    yield from rates.items()


def _of_hops(
    machine: Machine, links: Mapping[Pair, Link], alone: Mapping[int, float]
) -> Iterator[tuple[Gpus, float]]:
    """Return GPUs of one board, of one switch and of switches below one another, and what is above them.

    Above a board, as much as one of its GPUs has; above a switch, 16 lanes of its cards' generation.
    """
    gpus = [gpu.index for gpu in machine.gpus]
    seen: set[Gpus] = set()
    for farthest in (Hop.INTERNAL, Hop.PIX, Hop.PXB):
        for group in joined_by_hops(gpus, links, farthest):
            if len(group) < 2 or group in seen:
                continue
            seen.add(group)
            fastest = max(alone[gpu] for gpu in group)
            yield group, fastest if farthest is Hop.INTERNAL else max(fastest, _sixteen_lanes(machine, group))


def _sixteen_lanes(machine: Machine, group: Gpus) -> float:
    generations = [
        gpu.pcie.gen_max
        or gpu.pcie.gen_max_device
        or (row.pcie_generation if row else None)
        or ASSUMED_GENERATION
        for gpu in machine.gpus
        if gpu.index in group
        for row in (expected_gpu(gpu.name, gpu.pci_device_id),)
    ]
    row = expected_link(max(generations), ASSUMED_WIDTH)
    assert row is not None
    return row.copy_to_device_gb_per_s
