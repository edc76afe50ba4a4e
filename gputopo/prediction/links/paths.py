"""GB/s between GPUs and the host, between pairs of GPUs, and over the links that they share.

Measured copies are used first, else the link's generation and width, else the widest link of the model. The
basis is `assumed` if no fact is known. GB/s are 10^9 bytes in one direction.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import combinations
from typing import Literal, NamedTuple

import msgspec

from gputopo.copies import NvLinks, is_uniform
from gputopo.prediction.links.shared_links import (
    ASSUMED_GENERATION,
    ASSUMED_WIDTH,
    Uplink,
    pcie_generation,
    uplinks,
)
from gputopo.reference import LinkExpectation, expected_link, expected_of, observed_link, over_nvlink
from gputopo.topology import believed_links, redirected_pairs
from gputopo.values.bandwidth import Bandwidth, Pair
from gputopo.values.machine import Gpu, Hop, Link, Machine
from gputopo.values.rates import PairSpeed, host_link_rates, pair_speeds

# redirected: direct, but access control sends the copy through the root complex even below one switch.
PathKind = Literal["nvlink", "direct", "redirected", "staged"]
Basis = Literal["measured", "link", "model", "assumed"]
_BASES: tuple[Basis, ...] = ("measured", "link", "model", "assumed")

# Direct copies between two GPUs as a share of the rate of their slower link, by the farthest hop between
# them. One switch: 1.02 (7gforce, bundled). Several switches: 0.95 is not measured; chosen because it is
# between one switch and a host bridge. Host bridge: 0.87 and 0.91 (7gforce-v2, 7gforce), 1.0 (RTX 6000 Ada on
# an AMD board, p2pBandwidthLatencyTest in a public repository), 0.83 that NCCL expects of Intel CPUs
# (src/graph/topo.h INTEL_P2P_OVERHEAD). Sockets: 0.5 (6.5 of 13.2 GB/s, RTX 3090) to 0.8 (K80); NCCL expects
# 0.5 to 0.83 (BDW_QPI_BW, SKL_QPI_BW of PCI_BW).
HOP_SHARE: Mapping[Hop | None, float] = {
    Hop.INTERNAL: 1.0,
    Hop.PIX: 1.0,
    Hop.PXB: 0.95,
    Hop.PHB: 0.85,
    Hop.NODE: 0.80,
    Hop.SYS: 0.70,
    None: 0.80,
}
# The same for copies staged through the host, for any hop: the median of 0.95 (7gforce), 0.97 (7gforce-v2),
# 0.86 and 0.96 (az-4x-m60), 0.87 (RTX 4090), 0.85 (RTX 6000 Ada), 0.64 (DGX Station V100), 0.45 (A100), from
# published outputs of p2pBandwidthLatencyTest.
STAGED_SHARE = 0.87
# The maximum rate of copies through host memory, for any link: 36 to 38 GB/s with 16 lanes of generation 5
# (NVIDIA/nccl issue 1264, H100; NVIDIA/nccl-tests issue 287, RTX 5090 on EPYC Genoa).
STAGED_MAX_GB_PER_S = 38.0
# The share of NVLink-C2C that large copies reach. Not measured; chosen because NVLink 4 has it (nvlinks.csv).
C2C_SHARE = 0.88


class HostLink(NamedTuple):
    """The rates of one GPU to and from the host, by itself."""

    up: float
    down: float
    basis: Basis


class PairPath(NamedTuple):
    """How copies between two GPUs go, and their rate in one direction."""

    kind: PathKind
    gb_per_s: float
    basis: Basis

    @property
    def through_host(self) -> bool:
        """Whether copies go up to the host and down again, wherever the two GPUs are."""
        return self.kind in ("redirected", "staged")


Resource = tuple[str | int, ...]
"""A link, as defined in `gputopo.prediction.links.flows`."""

Cost = tuple[Resource, float]
"""A resource that a copy uses, and its GB/s."""


class Limit(NamedTuple):
    """The link that a byte of the model occupies longest, and the seconds; (None, 0) without copies."""

    resource: Resource | None
    seconds: float


class Paths(msgspec.Struct, frozen=True, dict=True):
    """All paths of a machine. Keys of `pairs`: the two indices, low first."""

    hosts: Mapping[int, HostLink]
    pairs: Mapping[Pair, PairPath]
    uplinks: tuple[Uplink, ...]
    ports: Mapping[int, float] = {}  # total rate of a GPU's NVLinks, if they lead to NVSwitches
    cpus: int = 1  # CPU sockets; their cores add gradients

    @cached_property
    def copies(self) -> dict[tuple[int | None, int | None], Sequence[Cost]]:
        """A cache: the costs of copies between two GPUs, or a GPU and the host (None)."""
        return {}

    @cached_property
    def limits(self) -> dict[object, tuple[Limit, Limit]]:
        """A cache: what limits weights and gradients, by GPUs and placement."""
        return {}

    def pair(self, a: int, b: int) -> PairPath:
        """Return the path between two GPUs."""
        return self.pairs[min(a, b), max(a, b)]

    def has_peer_access(self, gpus: Sequence[int]) -> bool:
        """Return whether any two of these GPUs copy directly to each other."""
        return any(self.pair(*pair).kind != "staged" for pair in combinations(gpus, 2))


def paths_of(machine: Machine) -> Paths:
    """Return the paths between the GPUs and the host of a machine."""
    gpus = machine.by_index
    links = believed_links(machine)
    hosts = _hosts(machine)
    pairs = _Pairs(machine, links, hosts)
    pair_paths = {pair: pairs.path(*pair) for pair in combinations(sorted(gpus), 2)}
    alone = {index: max(host.up, host.down) for index, host in hosts.items()}
    several = any(link.hop is Hop.SYS for link in links.values())
    return Paths(
        hosts,
        pair_paths,
        uplinks(machine, links, alone),
        {gpu: port for gpu in gpus if (port := pairs.port(gpu, pair_paths)) is not None},
        machine.host.sockets or (2 if several else 1),
    )


def _hosts(machine: Machine) -> dict[int, HostLink]:
    samples = machine.bandwidth.copies if machine.bandwidth else ()
    down = host_link_rates(samples, "h2d", machine)
    up = host_link_rates(samples, "d2h", machine)
    hosts = {}
    for gpu in machine.gpus:
        index = gpu.index
        if index not in up and index not in down:
            hosts[index] = _host_link(gpu, machine)
            continue
        up_rate, down_rate = up.get(index, down.get(index, 0.0)), down.get(index, up.get(index, 0.0))
        hosts[index] = HostLink(up_rate, down_rate, "measured")
    return hosts


def _host_link(gpu: Gpu, machine: Machine) -> HostLink:
    model = expected_of(gpu)
    if model is not None and model.c2c_gb_per_s:
        return HostLink(C2C_SHARE * model.c2c_gb_per_s, C2C_SHARE * model.c2c_gb_per_s, "model")
    row, basis = pcie_link(gpu, machine)
    return HostLink(row.copy_to_host_gb_per_s, row.copy_to_device_gb_per_s, basis)


def pcie_link(gpu: Gpu, machine: Machine) -> tuple[LinkExpectation, Basis]:
    """Return the PCIe link of a GPU and its basis: reported, else of its model, else assumed."""
    if seen := observed_link(gpu, None, machine):
        return seen[0], "link"
    model = expected_of(gpu)
    generation, width = pcie_generation(gpu), gpu.pcie.width_now or gpu.pcie.width_max
    if width is None and model is not None:
        width = model.pcie_width_seen or model.pcie_width
    if row := expected_link(generation, width):
        return row, "model"
    row = expected_link(generation or ASSUMED_GENERATION, width or ASSUMED_WIDTH)
    row = row or expected_link(ASSUMED_GENERATION, ASSUMED_WIDTH)
    assert row is not None
    return row, "assumed"


class _Pairs:
    """The facts from which paths between GPUs are computed."""

    def __init__(self, machine: Machine, links: Mapping[Pair, Link], hosts: Mapping[int, HostLink]) -> None:
        self._hosts, self._links = hosts, links
        self._gpus = machine.by_index
        self._models = {
            index: row for index, gpu in self._gpus.items() if (row := expected_of(gpu)) is not None
        }
        bandwidth = machine.bandwidth or Bandwidth(source="")
        self._speeds = pair_speeds(machine.bandwidth)
        self._nvlinks = NvLinks(bandwidth, machine)
        self._faster_than_pcie = over_nvlink(bandwidth.copies, machine)
        self._redirected = redirected_pairs(machine)

    def path(self, a: int, b: int) -> PairPath:
        nvlinks = self._count(a, b)
        row = self._nvlinks.reference(a, b)
        speed = self._speeds.get((a, b))
        if speed is not None:
            return self._measured(a, b, speed, nvlinks)
        if nvlinks and row is not None:
            return PairPath("nvlink", nvlinks * row.link_gb_per_s * row.copy_share, "link")
        slower = min(min(self._hosts[gpu][:2]) for gpu in (a, b))
        basis = max((self._hosts[gpu].basis for gpu in (a, b)), key=_BASES.index)
        link = self._links.get((a, b))
        if not self._is_direct(a, b, link):
            return PairPath("staged", min(STAGED_SHARE * slower, STAGED_MAX_GB_PER_S), basis)
        hop = link.hop if link else None
        if (a, b) in self._redirected:
            return PairPath("redirected", HOP_SHARE[max(hop or Hop.PHB, Hop.PHB)] * slower, basis)
        return PairPath("direct", HOP_SHARE[hop] * slower, basis)

    def port(self, gpu: int, paths: Mapping[Pair, PairPath]) -> float | None:
        """Return the rate of all NVLinks of a GPU if its pairs share them, because they lead to switches."""
        model = self._models.get(gpu)
        others = [pair for pair in paths if gpu in pair and paths[pair].kind == "nvlink"]
        counts = [self._count(*pair) or 0 for pair in others]
        if model is None or not model.nvlinks or not others or sum(counts) <= model.nvlinks:
            return None
        # All links of the GPU at the rate of its fastest pair.
        return max(
            paths[pair].gb_per_s * max(1.0, model.nvlinks / count)
            for pair, count in zip(others, counts, strict=True)
            if count
        )

    def _measured(self, a: int, b: int, speed: PairSpeed, nvlinks: int | None) -> PairPath:
        # Programs copy directly wherever the driver allows it, even if that is slower.
        direct = speed.direct is not None or (
            speed.path is None and self._is_direct(a, b, self._links.get((a, b)))
        )
        rate = speed.direct if speed.direct is not None else speed.gb_per_s
        if not direct:
            return PairPath("staged", rate, "measured")
        if nvlinks or (a, b) in self._faster_than_pcie:
            return PairPath("nvlink", rate, "measured")
        return PairPath("redirected" if (a, b) in self._redirected else "direct", rate, "measured")

    def _is_direct(self, a: int, b: int, link: Link | None) -> bool:
        """Return whether the driver copies directly over PCIe, as far as this is known."""
        if link is not None and link.p2p_read is not None:
            return link.p2p_read == "OK"
        rows = [self._models.get(gpu) for gpu in (a, b)]
        return all(row is None or row.p2p_over_pcie is not False for row in rows)

    def _count(self, a: int, b: int) -> int | None:
        """Return the NVLinks of a pair: reported, from measured rates, or the same number for all pairs."""
        link = self._links.get((a, b))
        if link is not None and link.nvlinks is not None:
            return link.nvlinks
        count = self._nvlinks.between(a, b)
        if count is not None:
            return count.links
        model = self._models.get(a)
        if model is None or model != self._models.get(b) or not is_uniform(model) or not model.nvlinks:
            return None
        peers = sum(row == model for row in self._models.values()) - 1
        return max(
            (links for links in model.pair_nvlinks if links * peers <= model.nvlinks), default=model.nvlinks
        )
