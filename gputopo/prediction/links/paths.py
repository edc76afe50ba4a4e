"""GB/s between the places of a machine: GPUs and the host, pairs of GPUs, the links they share. Pure.

Measured copies first, else the link's generation and width, else the model's widest link; `assumed` where no
fact stands behind a path. GB/s are 10^9 bytes in one direction.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import combinations
from typing import Literal, NamedTuple

import msgspec

from gputopo.copies.pairs import NvLinks, is_uniform
from gputopo.prediction.links.shared_links import (
    ASSUMED_GENERATION,
    ASSUMED_WIDTH,
    BOTH_SHARE,
    NetworkPath,
    SocketLink,
    Uplink,
    socket_links,
    uplinks,
)
from gputopo.reference.expectations import (
    LinkExpectation,
    NvLinkExpectation,
    expected_gpu,
    expected_link,
    observed_link,
    over_nvlink,
)
from gputopo.topology.doubts import believed_links
from gputopo.topology.peer_access import redirected_pairs
from gputopo.values.bandwidth import Bandwidth, Pair
from gputopo.values.index_ranges import gpu_ranges
from gputopo.values.machine import Gpu, Hop, Link, Machine
from gputopo.values.rates import PairSpeed, both_at_once, host_link_rates, is_far, judged, pair_speeds

# redirected: directly, but by access control through the root complex also below one switch.
PathKind = Literal["nvlink", "direct", "redirected", "staged"]
Basis = Literal["measured", "link", "model", "assumed"]
_BASES: tuple[Basis, ...] = ("measured", "link", "model", "assumed")

# Direct copies between two GPUs as a share of the slower of their links, by the farthest hop between them.
# One switch: 1.02 (7gforce, bundled). Several switches: 0.95 is ours. Host bridge: 0.87 and 0.91 (7gforce-v2,
# 7gforce), 1.0 (RTX 6000 Ada on an AMD board, p2pBandwidthLatencyTest in a public repository), 0.83 that NCCL
# expects of Intel CPUs (src/graph/topo.h INTEL_P2P_OVERHEAD). Sockets: 0.5 (6.5 of 13.2 GB/s, RTX 3090) to
# 0.8 (K80); NCCL expects 0.5 to 0.83 (BDW_QPI_BW, SKL_QPI_BW of PCI_BW).
HOP_SHARE: Mapping[Hop | None, float] = {
    Hop.INTERNAL: 1.0,
    Hop.PIX: 1.0,
    Hop.PXB: 0.95,
    Hop.PHB: 0.85,
    Hop.NODE: 0.80,
    Hop.SYS: 0.70,
    None: 0.80,
}
# Copies staged through the host, whatever the hop: 0.95 (7gforce), 0.97 (7gforce-v2), 0.86 and 0.96
# (az-4x-m60), 0.87 (RTX 4090), 0.85 (RTX 6000 Ada), 0.64 (DGX Station V100), 0.45 (A100), from published
# outputs of p2pBandwidthLatencyTest: the median.
STAGED_SHARE = 0.87
# Copies through host memory are no faster, whatever the links: 36 to 38 GB/s with 16 lanes of generation 5
# (NVIDIA/nccl issue 1264, H100; NVIDIA/nccl-tests issue 287, RTX 5090 on EPYC Genoa).
STAGED_MAX_GB_PER_S = 38.0
# Both directions at once, staged: 0.56 (RTX 5090), 0.69 (RTX 4090), 0.70 (RTX 6000 Ada), the same outputs.
STAGED_BOTH_SHARE = 0.69
# What large copies reach of NVLink-C2C: as of NVLink 4 (nvlinks.csv). Ours.
C2C_SHARE = 0.88
# Both directions at once carry at least what one does alone.
MIN_BOTH = 0.5


class HostLink(NamedTuple):
    """What one GPU copies to and from the host, alone; `both`: both at once, as a share of their sum."""

    up: float
    down: float
    basis: Basis
    both: float = BOTH_SHARE


class PairPath(NamedTuple):
    """How copies between two GPUs go, and their rate in one direction."""

    kind: PathKind
    gb_per_s: float
    basis: Basis
    both: float = BOTH_SHARE

    @property
    def through_host(self) -> bool:
        """Whether copies go up to the host and down again, wherever the two GPUs are."""
        return self.kind in ("redirected", "staged")


Resource = tuple[str | int, ...]
"""A link, as `gputopo.prediction.links.flows` names it."""

Cost = tuple[Resource, float, float]
"""A resource that a copy uses, its GB/s, and what both directions at once carry as a share of their sum."""


class Paths(msgspec.Struct, frozen=True, dict=True):
    """All paths of a machine. `pairs` by the two indices, low first.

    Of several hosts (`gputopo.prediction.links.hosts`) GPUs are numbered through, `names` has what they are
    called, `places` the number of the host of each, `networks` the path of each host to the others, and
    `home` is the host whose CPU has variables.
    """

    hosts: Mapping[int, HostLink]
    pairs: Mapping[Pair, PairPath]
    uplinks: tuple[Uplink, ...]
    sockets: tuple[SocketLink, ...] = ()
    ports: Mapping[int, float] = {}  # what the NVLinks of a GPU carry together, where they lead to NVSwitches
    cpus: int = 1  # CPU sockets, whose cores add gradients
    names: Mapping[int, str] = {}
    places: Mapping[int, int] = {}
    networks: tuple[NetworkPath, ...] = ()
    home: int = 0

    @cached_property
    def copies(self) -> dict[Pair, Sequence[Cost]]:
        """What copies from one GPU to another use, as far as it was asked for."""
        return {}

    @cached_property
    def rings(self) -> dict[tuple[int, ...], tuple[Resource | None, float]]:
        """The slowest link of NCCL's ring over GPUs of one host, and its seconds, as far as asked for."""
        return {}

    def host_of(self, gpu: int) -> int:
        """Return the number of a GPU's host; 0 on a single one."""
        return self.places.get(gpu, 0)

    def gpu_words(self, gpu: int) -> str:
        """Return what a GPU is called: `GPU 3`, `n2 GPU 3`."""
        return self.names.get(gpu, f"GPU {gpu}")

    def pair(self, a: int, b: int) -> PairPath:
        """Return the path between two GPUs."""
        return self.pairs[min(a, b), max(a, b)]

    @property
    def is_measured(self) -> bool:
        """Whether copies were measured, with the host or between GPUs."""
        found = {host.basis for host in self.hosts.values()} | {path.basis for path in self.pairs.values()}
        return "measured" in found

    @cached_property
    def ports_both(self) -> dict[int, float]:
        """Both directions at once of the NVLinks of each GPU to switches, as a share of their sum."""
        found: dict[int, float] = {}
        for pair, path in self.pairs.items():
            for gpu in pair if path.kind == "nvlink" else ():
                found[gpu] = min(path.both, found.get(gpu, 1.0))
        return found


def paths_of(machine: Machine) -> Paths:
    """Return the paths between all places of a machine."""
    gpus = machine.by_index
    links = believed_links(machine)
    hosts = _hosts(machine)
    pairs = _Pairs(machine, links, hosts)
    found = {pair: pairs.path(*pair) for pair in combinations(sorted(gpus), 2)}
    for index, host in hosts.items():
        # A link carries in both directions at once what any copy of two GPUs does over it.
        shares = [found[pair].both for pair in pairs.at_once if index in pair and pair in found]
        hosts[index] = host._replace(both=max([host.both, *shares]))
    alone = {index: max(host.up, host.down) for index, host in hosts.items()}
    several = any(link.hop is Hop.SYS for link in links.values())
    return Paths(
        hosts,
        found,
        uplinks(machine, links, alone),
        socket_links(machine, links),
        {gpu: port for gpu in gpus if (port := pairs.port(gpu, found)) is not None},
        machine.host.sockets or (2 if several else 1),
    )


def unknown_facts(machine: Machine, paths: Paths) -> tuple[str, ...]:
    """Return the facts that predictions lack, what helps most first, each with what shows it."""
    found = []
    for basis, words in (("assumed", "PCIe link, and no known model"), ("model", "PCIe link of the slot")):
        if gpus := [gpu for gpu, host in paths.hosts.items() if host.basis == basis]:
            found.append(f"{words}, of {gpu_ranges(gpus)} (gputopo inspect, or nvidia-smi -q)")
    apart = {pair for pair, path in paths.pairs.items() if path.basis != "measured" and path.kind != "nvlink"}
    links = believed_links(machine)
    if far := sorted({gpu for pair in apart if pair not in links or links[pair].hop is None for gpu in pair}):
        found.append(f"PCIe hops between {gpu_ranges(far)} (nvidia-smi topo -m)")
    if apart or any(host.basis != "measured" for host in paths.hosts.values()):
        found.append("copy rates of this machine (gputopo bandwidth --save)")
    return tuple(found)


def _hosts(machine: Machine) -> dict[int, HostLink]:
    samples = machine.bandwidth.samples if machine.bandwidth else ()
    down = host_link_rates(samples, "h2d", machine)
    up = host_link_rates(samples, "d2h", machine)
    both: dict[int, float] = {}
    for sample in judged(samples):
        of = sample.host_gpu
        if sample.kind != "bidirectional" or of is None or sample.pinned is False:
            continue
        if sample.is_by_copy_engine and not is_far(sample, of, machine):
            both[of] = max(sample.rate, both.get(of, 0.0))
    hosts = {}
    for gpu in machine.gpus:
        index = gpu.index
        if index not in up and index not in down:
            hosts[index] = _host_link(gpu, machine)
            continue
        one, other = up.get(index, down.get(index, 0.0)), down.get(index, up.get(index, 0.0))
        share = _share(both[index], one + other) if index in both else BOTH_SHARE
        hosts[index] = HostLink(one, other, "measured", share)
    return hosts


def _share(both: float, alone: float) -> float:
    """Return both directions at once as a share of the sum of each alone, within what is possible."""
    return min(1.0, max(MIN_BOTH, both / alone))


def _host_link(gpu: Gpu, machine: Machine) -> HostLink:
    model = expected_gpu(gpu.name, gpu.pci_device_id)
    if model is not None and model.c2c_gb_per_s:
        return HostLink(C2C_SHARE * model.c2c_gb_per_s, C2C_SHARE * model.c2c_gb_per_s, "model")
    if seen := observed_link(gpu, None, machine):
        return _of_row(seen[0], "link")
    generation = gpu.pcie.gen_max or gpu.pcie.gen_max_device or (model.pcie_generation if model else None)
    width = gpu.pcie.width_now or gpu.pcie.width_max
    if width is None and model is not None:
        width = model.pcie_width_seen or model.pcie_width
    row = expected_link(generation, width)
    if row is not None:
        return _of_row(row, "model")
    assumed = expected_link(generation or ASSUMED_GENERATION, width or ASSUMED_WIDTH)
    assumed = assumed or expected_link(ASSUMED_GENERATION, ASSUMED_WIDTH)
    assert assumed is not None
    return _of_row(assumed, "assumed")


def _of_row(row: LinkExpectation, basis: Basis) -> HostLink:
    return HostLink(row.copy_to_host_gb_per_s, row.copy_to_device_gb_per_s, basis)


class _Pairs:
    """The facts that paths between GPUs rest on."""

    def __init__(self, machine: Machine, links: Mapping[Pair, Link], hosts: Mapping[int, HostLink]) -> None:
        self._hosts, self._links = hosts, links
        self._gpus = machine.by_index
        self._models = {
            index: row
            for index, gpu in self._gpus.items()
            if (row := expected_gpu(gpu.name, gpu.pci_device_id)) is not None
        }
        bandwidth = machine.bandwidth or Bandwidth(source="")
        samples = bandwidth.samples
        self._speeds = pair_speeds(machine.bandwidth)
        self._nvlinks = NvLinks(bandwidth, machine)
        self._faster_than_pcie = over_nvlink(samples, machine)
        self.at_once = both_at_once(samples)
        self._redirected = redirected_pairs(machine)

    def path(self, a: int, b: int) -> PairPath:
        nvlinks = self._count(a, b)
        row = self._nvlinks.reference(a, b)
        speed = self._speeds.get((a, b))
        if speed is not None:
            return self._measured(a, b, speed, nvlinks, row)
        if nvlinks and row is not None:
            both = min(1.0, row.bidirectional_share / row.copy_share)
            return PairPath("nvlink", nvlinks * row.link_gb_per_s * row.copy_share, "link", both)
        slower = min(min(self._hosts[gpu][:2]) for gpu in (a, b))
        basis = max((self._hosts[gpu].basis for gpu in (a, b)), key=_BASES.index)
        link = self._links.get((a, b))
        if not self._is_direct(a, b, link):
            return PairPath(
                "staged", min(STAGED_SHARE * slower, STAGED_MAX_GB_PER_S), basis, STAGED_BOTH_SHARE
            )
        hop = link.hop if link else None
        if (a, b) in self._redirected:
            return PairPath("redirected", HOP_SHARE[max(hop or Hop.PHB, Hop.PHB)] * slower, basis)
        return PairPath("direct", HOP_SHARE[hop] * slower, basis)

    def port(self, gpu: int, paths: Mapping[Pair, PairPath]) -> float | None:
        """Return what all NVLinks of a GPU carry, where its pairs share them: they lead to switches."""
        model = self._models.get(gpu)
        others = [pair for pair in paths if gpu in pair and paths[pair].kind == "nvlink"]
        counts = [self._count(*pair) or 0 for pair in others]
        if model is None or not model.nvlinks or not others or sum(counts) <= model.nvlinks:
            return None
        # All links of the GPU, each as fast as in the fastest of its pairs.
        return max(
            paths[pair].gb_per_s * max(1.0, model.nvlinks / count)
            for pair, count in zip(others, counts, strict=True)
            if count
        )

    def _measured(
        self, a: int, b: int, speed: PairSpeed, nvlinks: int | None, row: NvLinkExpectation | None
    ) -> PairPath:
        # Programs copy directly wherever the driver allows it, also where that is slower.
        direct = speed.direct is not None or (
            speed.path is None and self._is_direct(a, b, self._links.get((a, b)))
        )
        one = speed.direct if speed.direct is not None else speed.gb_per_s
        at_once = self.at_once.get((a, b))
        half = (at_once.direct if direct else at_once.staged) if at_once else None
        share = min(1.0, half / one) if half else BOTH_SHARE if direct else STAGED_BOTH_SHARE
        if direct and (nvlinks or (a, b) in self._faster_than_pcie):
            if row is not None and not half:
                share = min(1.0, row.bidirectional_share / row.copy_share)
            return PairPath("nvlink", one, "measured", share)
        if direct and (a, b) in self._redirected:
            return PairPath("redirected", one, "measured", share)
        return PairPath("direct" if direct else "staged", one, "measured", share)

    def _is_direct(self, a: int, b: int, link: Link | None) -> bool:
        """Return whether the driver copies directly over PCIe, as far as that is known."""
        if link is not None and link.p2p_read is not None:
            return link.p2p_read == "OK"
        rows = [self._models.get(gpu) for gpu in (a, b)]
        return all(row is None or row.p2p_over_pcie is not False for row in rows)

    def _count(self, a: int, b: int) -> int | None:
        """Return the NVLinks of a pair: as reported, by measured rates, or as all pairs of the model have."""
        link = self._links.get((a, b))
        if link is not None and link.nvlinks is not None:
            return link.nvlinks
        found = self._nvlinks.between(a, b)
        if found is not None:
            return found.links
        model = self._models.get(a)
        if model is None or model != self._models.get(b) or not is_uniform(model) or not model.nvlinks:
            return None
        peers = sum(one == model for one in self._models.values()) - 1
        return max((one for one in model.pair_nvlinks if one * peers <= model.nvlinks), default=model.nvlinks)
