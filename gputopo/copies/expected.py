"""What each measured copy should have reached, beside its number, with the source of that expectation.

Expectations are for large copies that ran alone. A small copy, one among others at once, a pageable one, a
latency and a host memory rate have none: no reference data for them.
"""

from collections.abc import Iterator

import msgspec

from gputopo.copies.numbers import by_copy_engine, host_copies, host_gpu, is_far, is_large, pair_of, rates
from gputopo.reference.expectations import (
    GpuExpectation,
    LinkExpectation,
    expected_gpu,
    expected_link,
    expected_nvlink,
    fitting_links,
)
from gputopo.reference.pcie import generation_of
from gputopo.topology.hops import bridges_above
from gputopo.values.bandwidth import Bandwidth, Sample, gpu_of
from gputopo.values.machine import Gpu, Machine, PciNode

# A copy within a GPU's memory, read and written, as a share of the published rate: 0.73 on GTX 1080 Ti (353
# of 484), 0.76 on GTX 1070 (195 of 256), 0.80 on GTX 1080 (256 of 320), 0.85 on Tesla M60 (135 of 160), 0.87
# on V100 (783 of 900), from published outputs of p2pBandwidthLatencyTest. Low: a little under the minimum.
LOCAL_COPY_SHARE = 0.80
LOCAL_COPY_LOW_SHARE = 0.70
# GDDR keeps the codes of error correction among the data, and to fetch them takes about 20 % of its rate
# (CUDA C++ Best Practices Guide, "Theoretical Bandwidth Calculation"); HBM has separate memory for them.
ECC_LOW_SHARE = 0.80
# Both directions of one link at once, of the sum of each alone: 101 of 111 GB/s (NVIDIA/cuda-samples issue
# 357, generation 5), 20.0 of 22.6 between GTX 1080 Ti (generation 3). Low: ours, under both.
BIDIRECTIONAL_SHARE = 0.90
BIDIRECTIONAL_LOW_SHARE = 0.80
# A copy between GPUs against the slower of its two links: 0.86 to 1.07 in the same published outputs; across
# a host bridge down to 0.76, which is the finding that such copies are slow. Low: ours, between the two.
PAIR_LOW_SHARE = 0.80


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What a copy should reach and at least reaches on sound machines, in GB/s. None: only words about it."""

    source: str
    gb_per_s: float | None = None
    low_gb_per_s: float | None = None


class ObservedLink(msgspec.Struct, frozen=True, kw_only=True):
    """The PCIe link of a GPU that its copies are compared with, and its source."""

    generation: int
    width: int
    known_by: str

    @property
    def name(self) -> str:
        """Name it as `Gen3 x16`."""
        return f"Gen{self.generation} x{self.width}"


def with_expectations(bandwidth: Bandwidth, machine: Machine) -> Bandwidth:
    """Return the same numbers with what is expected of each; those that have none stay without."""
    judge = _Judge(bandwidth, machine)
    return msgspec.structs.replace(bandwidth, samples=tuple(map(judge.beside, bandwidth.samples)))


def observed_link(
    gpu: Gpu, sample: Sample | None, machine: Machine, *, without_bridges: bool = False
) -> ObservedLink | None:
    """Return the link a copy went over: as it was under load, else the maximum that GPU, slot and path allow.

    None where unknown. `without_bridges`: the card's own link alone. An idle reading of the
    generation means nothing and is not used.
    """
    generation = gpu.pcie.gen_max or gpu.pcie.gen_max_device
    width, known_by = gpu.pcie.width_now or gpu.pcie.width_max, "by its card and slot"
    for one in sample.conditions if sample else ():
        if one.gpu == gpu.index and one.readings and one.pcie_gen and one.pcie_width:
            generation, width, known_by = one.pcie_gen, one.pcie_width, "observed under load"
    if generation is None or width is None:
        return None
    above = None if without_bridges else _generation_and_width(machine, gpu.pcie.limiting_hop)
    own = expected_link(generation, width)
    hop = expected_link(*above) if above else None
    if above and own and hop and hop.data_rate_gb_per_s < own.data_rate_gb_per_s:
        (generation, width), known_by = above, f"of the bridge {gpu.pcie.limiting_hop} above it"
    return ObservedLink(generation=generation, width=width, known_by=known_by)


def links_for(rate_gb_per_s: float, gpu: Gpu | None) -> tuple[LinkExpectation, ...]:
    """Return the links that a copy rate fits, the likeliest first: cards train to the latest generation.

    No link is given that is later or wider than the card's own, where the model is known.
    """
    row = expected_gpu(gpu.name, gpu.pci_device_id) if gpu else None
    fits = fitting_links(rate_gb_per_s, row.pcie_generation if row else None)
    widest = (row.pcie_width if row else None) or 16
    return tuple(link for link in fits if link.width <= widest)


def link_name(link: LinkExpectation) -> str:
    """Name a row of links.csv as `Gen3 x16`."""
    return f"Gen{link.generation} x{link.width}"


def _generation_and_width(machine: Machine, address: str | None) -> tuple[int, int] | None:
    node: PciNode | None = next((one for one in machine.pci if one.address == address), None)
    generation = generation_of(node.max_speed_gt_per_s) if node else None
    return (generation, node.max_width) if node and generation and node.max_width else None


class _Judge:
    """The facts that the expectations of one session rest on."""

    def __init__(self, bandwidth: Bandwidth, machine: Machine) -> None:
        self.machine = machine
        self.gpus = {gpu.index: gpu for gpu in machine.gpus}
        self.to_device = rates(host_copies(bandwidth.samples, "h2d", machine))
        self.to_host = rates(host_copies(bandwidth.samples, "d2h", machine))

    def beside(self, sample: Sample) -> Sample:
        """Return the sample with its expectation; one that a session already stored stays."""
        if sample.expected_gb_per_s is not None:
            return sample
        found = self._expected(sample)
        if found is None:
            return sample
        return msgspec.structs.replace(
            sample,
            expected_gb_per_s=_rounded(found.gb_per_s),
            expected_low_gb_per_s=_rounded(found.low_gb_per_s),
            expected_source=found.source,
        )

    def _expected(self, sample: Sample) -> Expected | None:
        if sample.group is not None or not is_large(sample):
            return None
        if sample.kind == "d2d_local":
            return self._local(sample)
        pair = pair_of(sample)
        if pair is not None:
            return self._between(sample, *pair)
        gpu = self.gpus.get(-1 if (index := host_gpu(sample)) is None else index)
        if gpu is None or sample.pinned is False or not by_copy_engine(sample):
            return None
        if sample.kind not in ("h2d", "d2h", "bidirectional") or is_far(sample, gpu.index, self.machine):
            return None
        return self._host(sample, gpu)

    def _host(self, sample: Sample, gpu: Gpu) -> Expected | None:
        seen = observed_link(gpu, sample, self.machine)
        link = expected_link(seen.generation, seen.width) if seen else None
        if seen is None or link is None:
            return self._inferred(sample, gpu) if seen is None else None
        source = f"{seen.name} {seen.known_by} ({link.confidence}: links.csv)"
        if sample.kind == "bidirectional":
            both = link.copy_to_device_gb_per_s + link.copy_to_host_gb_per_s
            return Expected(
                source=f"both directions of {source}, {BIDIRECTIONAL_SHARE:.0%} of their sum",
                gb_per_s=BIDIRECTIONAL_SHARE * both,
                low_gb_per_s=BIDIRECTIONAL_LOW_SHARE * 2 * link.copy_low_gb_per_s,
            )
        typical = link.copy_to_device_gb_per_s if sample.kind == "h2d" else link.copy_to_host_gb_per_s
        return Expected(source=source, gb_per_s=typical, low_gb_per_s=link.copy_low_gb_per_s)

    def _inferred(self, sample: Sample, gpu: Gpu) -> Expected | None:
        """Name the class of link where none is reported, from the rate, which is then not judged."""
        fits = () if sample.kind == "bidirectional" else links_for(sample.median_gb_per_s or 0, gpu)
        if not fits:
            return None
        others = f" (or {', '.join(map(link_name, fits[1:]))})" if len(fits) > 1 else ""
        return Expected(
            source=f"link not reported; inferred from the rate: what {link_name(fits[0])} carries{others}"
        )

    def _local(self, sample: Sample) -> Expected | None:
        gpu = self.gpus.get(-1 if (index := gpu_of(sample.source)) is None else index)
        row = expected_gpu(gpu.name, gpu.pci_device_id) if gpu else None
        if gpu is None or row is None or row.memory_gb_per_s is None or not by_copy_engine(sample):
            return None
        if gpu.mig.mode:
            return Expected(source="the card is split (MIG), and an instance has a part of its memory's rate")
        slowed = _may_pay_for_ecc(gpu, row)
        return Expected(
            source=f"{LOCAL_COPY_SHARE:.0%} of the memory rate of {row.name} (gpus.csv)"
            + (f", less up to {1 - ECC_LOW_SHARE:.0%} for ECC" if slowed else ""),
            gb_per_s=LOCAL_COPY_SHARE * row.memory_gb_per_s,
            low_gb_per_s=LOCAL_COPY_LOW_SHARE * row.memory_gb_per_s * (ECC_LOW_SHARE if slowed else 1),
        )

    def _between(self, sample: Sample, source: int, destination: int) -> Expected | None:
        if not by_copy_engine(sample) or sample.kind not in ("p2p_direct", "p2p_staged", "bidirectional"):
            return None
        direct = sample.kind == "p2p_direct" or sample.path == "direct"
        if sample.kind == "bidirectional" and sample.path is None:
            return None
        link = self.machine.link(source, destination)
        if direct and link is not None and link.nvlinks:
            return self._nvlink(sample, source, destination, link.nvlinks)
        one = self._over_pcie(sample, source, destination)
        if one is None or sample.kind != "bidirectional":
            return one
        back = self._over_pcie(sample, destination, source)
        if back is None or one.gb_per_s is None or back.gb_per_s is None:
            return None
        both = one.gb_per_s + back.gb_per_s
        return Expected(
            source=f"{BIDIRECTIONAL_SHARE:.0%} of both directions: {one.source}",
            gb_per_s=BIDIRECTIONAL_SHARE * both,
            # Two GPUs of one uplink reach in both directions together no more than in one.
            low_gb_per_s=None,
        )

    def _nvlink(self, sample: Sample, a: int, b: int, count: int) -> Expected | None:
        rows = [expected_gpu(gpu.name, gpu.pci_device_id) for gpu in self._gpus(a, b)]
        versions = {port.version for gpu in self._gpus(a, b) for port in gpu.nvlinks or () if port.version}
        versions = versions or {row.nvlink_generation for row in rows if row and row.nvlink_generation}
        per_gpu = {row.nvlinks for row in rows if row}
        if len(versions) != 1:
            return None
        row = expected_nvlink(versions.pop(), per_gpu.pop() if len(per_gpu) == 1 else None)
        if row is None:
            return None
        both = sample.kind == "bidirectional"
        whole = count * row.link_gb_per_s * (2 if both else 1)
        share = row.bidirectional_share if both else row.copy_share
        return Expected(
            source=f"{share:.0%} of {count} NVLinks of version {row.version} at {row.link_gb_per_s:g} GB/s"
            f"{' both directions' if both else ''} ({row.confidence}: nvlinks.csv)",
            gb_per_s=share * whole,
            low_gb_per_s=min(row.copy_low_share, share) * whole,
        )

    def _over_pcie(self, sample: Sample, source: int, destination: int) -> Expected | None:
        """Expect the slower of the path out of one GPU and the path into the other."""
        ends = [end for end in self._ends(sample, source, destination) if end is not None]
        if len(ends) < 2:
            return None
        slower, words = min(ends)
        return Expected(
            source=f"the slower of its two links: {words}",
            gb_per_s=slower,
            low_gb_per_s=PAIR_LOW_SHARE * slower,
        )

    def _ends(self, sample: Sample, source: int, destination: int) -> Iterator[tuple[float, str] | None]:
        direct = sample.kind == "p2p_direct" or sample.path == "direct"
        shared = self._shared_bridges(source, destination)
        for index, measured, word in (
            (source, self.to_host, f"GPU {source} to host"),
            (destination, self.to_device, f"host to GPU {destination}"),
        ):
            gpu = self.gpus.get(index)
            near = gpu is not None and direct and gpu.pcie.limiting_hop in shared
            if index in measured and not near:
                yield measured[index], f"{word}, measured alone"
                continue
            seen = observed_link(gpu, sample, self.machine, without_bridges=near) if gpu else None
            link = expected_link(seen.generation, seen.width) if seen else None
            if seen is None or link is None:
                yield None
            elif index == source:
                yield link.copy_to_host_gb_per_s, f"{word}, {seen.name} {seen.known_by} (links.csv)"
            else:
                yield link.copy_to_device_gb_per_s, f"{word}, {seen.name} {seen.known_by} (links.csv)"

    def _shared_bridges(self, a: int, b: int) -> set[str]:
        """Return the bridges that stand above both: a direct copy turns round at the first of them."""
        tree = {node.address: node for node in self.machine.pci}
        places = [gpu.pci_address or "" for gpu in self._gpus(a, b)]
        ends = [set(bridges_above(tree, place)[0]) for place in places if place in tree]
        return ends[0] & ends[1] if len(ends) == 2 else set()

    def _gpus(self, *indices: int) -> list[Gpu]:
        return [self.gpus[index] for index in indices if index in self.gpus]


def _may_pay_for_ecc(gpu: Gpu, row: GpuExpectation) -> bool:
    """Return whether error correction takes a part of the memory's rate, or may where that is unknown.

    GeForce and TITAN cards have none, or leave it off.
    """
    if not (row.memory_type or "").startswith("GDDR") or gpu.ecc.mode is False:
        return False
    return gpu.ecc.mode is True or not row.name.startswith(("GeForce", "TITAN"))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
