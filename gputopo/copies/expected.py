"""The expected rate of each measured copy and collective operation, with the source of the expectation.

Expectations exist for large copies that ran by themselves, and for copies with the host while only the other
direction ran. There is no reference data for small copies, copies that run with others, pageable copies,
copies by a kernel, latencies and host memory rates. Each expectation has a low rate. A lower rate is not as
expected.
"""

from collections.abc import Collection, Mapping, Sequence
from math import inf

from msgspec.structs import replace

from gputopo.copies.collectives import expected_rate
from gputopo.copies.pairs import NvLinks, PairNvLinks, is_hybrid
from gputopo.copies.physics import gpu_at, host_link
from gputopo.reference import (
    GpuExpectation,
    LinkExpectation,
    expected_link,
    expected_of,
    fitting_links,
    observed_link,
    over_nvlink,
)
from gputopo.topology import bridges_above
from gputopo.values.bandwidth import (
    KERNELS,
    LOW_SHARE,
    Bandwidth,
    CollectiveRate,
    CopyRate,
    Expectation,
    Rate,
    Sample,
)
from gputopo.values.machine import Gpu, Hop, Machine
from gputopo.values.rates import ends_of_groups, host_link_rates, is_far

# A copy within a GPU's memory, reads and writes, as a share of the published rate: 0.73 on GTX 1080 Ti (353
# of 484), 0.76 on GTX 1070 (195 of 256), 0.80 on GTX 1080 (256 of 320), 0.85 on Tesla M60 (135 of 160), 0.87
# on V100 (783 of 900), from published outputs of p2pBandwidthLatencyTest. Low: slightly below the minimum.
LOCAL_COPY_SHARE = 0.80
LOCAL_COPY_LOW_SHARE = 0.70
# The first GPU with HBM2 reaches less: one P100 444 of 732 GB/s (mpicbg-scicomp/gearshifft pull request 82),
# other P100 460 to 552.
P100_COPY_SHARE = 0.70
P100_COPY_LOW_SHARE = 0.60
# Copies of 40 MB (p2pBandwidthLatencyTest) are too short for faster memory: an H200 reaches 2,880 of 4,800
# GB/s (NVIDIA/cuda-samples issue 311), an H100 2,500 of 3,350 (NVIDIA/nccl issue 1264). Not measured; chosen
# between the two.
SHORT_COPIES_GB_PER_S = 3500
# GDDR stores error correction codes with the data, and reading them takes about 20 % of its rate (CUDA C++
# Best Practices Guide, "Theoretical Bandwidth Calculation"). HBM has separate memory for them.
ECC_LOW_SHARE = 0.80
# Both directions of one link at once, as a share of the sum of both single directions: 101 of 111 GB/s
# (NVIDIA/cuda-samples issue 357, generation 5), 20.0 of 22.6 between GTX 1080 Ti (generation 3). Low: not
# measured; chosen below both.
BIDIRECTIONAL_SHARE = 0.90
BIDIRECTIONAL_LOW_SHARE = 0.80
# A copy with the host while the other direction is in use, as a share of its single rate: 0.71 to 0.75 (A100,
# README of nvbandwidth), 0.63 to 0.91 (H800). 0.42 to 0.50 was reported as a fault (nvbandwidth issues 11 and
# 53).
BESIDE_REVERSE_SHARE = 0.75
# A direct copy within switches, as a share of the slower of its two links: 0.86 to 1.07 in published outputs.
# Low: not measured; chosen below. Any other path has LOW_SHARE: copies across a host bridge reach 0.76 or
# more.
NEAR_LOW_SHARE = 0.80
# A copy staged through host memory, as a share of the slower of its two links: 0.66 (H100) to 0.93 (TITAN
# RTX) in published outputs of p2pBandwidthLatencyTest (A100, H100, H200, V100, RTX 4090 and 5090, TITAN RTX).
# Both directions at once reach 1.0 (TITAN RTX) to 1.7 times the rate of one direction.
STAGED_SHARE = 0.80
# Pairs within a board or within switches.
_NEAR = (Hop.INTERNAL, Hop.PIX, Hop.PXB)
# A direct copy that is this many times faster than the slower GPU's copies with the host uses another link:
# one switch, or NVLinks. Not measured; chosen because a GPU never uses two PCIe links at once.
NVLINK_TIMES = 3


def with_expectations(bandwidth: Bandwidth, machine: Machine) -> Bandwidth:
    """Return the same bandwidth with the expectation of each sample that has one."""
    judge = _Judge(bandwidth, machine)
    return replace(bandwidth, samples=tuple(map(judge.beside, bandwidth.samples)))


def model_link(gpu: Gpu, gb_per_s: float = inf) -> LinkExpectation | None:
    """Return the widest PCIe link that the model of a GPU supports.

    If servers usually give the model fewer lanes, and these carry the rate, returns that link.
    """
    row = expected_of(gpu)
    if row is None:
        return None
    usual = expected_link(row.pcie_generation, row.pcie_width_seen)
    return usual if usual and gb_per_s <= usual.data_rate_gb_per_s else _widest_link(row)


def _widest_link(row: GpuExpectation) -> LinkExpectation | None:
    return expected_link(row.pcie_generation, row.pcie_width)


def link_names(links: Sequence[LinkExpectation]) -> str:
    """Return the names of the links that fit a rate, `Gen4 x8 (or Gen3 x16)`; empty if no link fits."""
    first, *others = [link.name for link in links] or [""]
    return first + (f" (or {', '.join(others)})" if others else "")


class _Judge:
    """The facts behind the expectations of one session."""

    def __init__(self, bandwidth: Bandwidth, machine: Machine) -> None:
        self.machine = machine
        self.gpus = machine.by_index
        self.nvlinks = NvLinks(bandwidth, machine)
        copies = bandwidth.copies
        self.over_nvlink = over_nvlink(copies, machine)
        self.to_device = host_link_rates(copies, "h2d", machine)
        self.to_host = host_link_rates(copies, "d2h", machine)
        self.ends = ends_of_groups(copies)

    def beside(self, sample: Sample) -> Sample:
        match sample:
            case Rate() if sample.expectation.gb_per_s is not None:
                return sample
            case CollectiveRate():
                bus = expected_rate(sample, self.machine)
                return sample if bus is None else replace(sample, expectation=bus.rounded(1))
            case CopyRate():
                expectation = self._of_copy(sample)
                return sample if expectation is None else replace(sample, expectation=expectation.rounded(3))
        return sample

    def _of_copy(self, sample: CopyRate) -> Expectation | None:
        expectation = self._expected(sample)
        if expectation is None:
            lacking = self._lacking(sample)
            return Expectation(f"no reference data for {lacking}") if lacking else None
        low = expectation.low_gb_per_s or (expectation.gb_per_s and LOW_SHARE * expectation.gb_per_s)
        return expectation._replace(low_gb_per_s=low)

    def _expected(self, sample: CopyRate) -> Expectation | None:
        if not sample.is_large or sample.method in KERNELS:
            return None
        if sample.kind == "d2d_local":
            return self._local(sample)
        pair = sample.pair
        of_one_gpu = sample.with_reverse and pair is None and len(self.ends[sample.group]) == 2
        if sample.group is not None and not of_one_gpu:
            return None
        if pair is not None:
            return self._between(sample, *pair)
        gpu = gpu_at(sample.host_gpu, self.gpus)
        if gpu is None or sample.pinned is False or not sample.is_by_copy_engine:
            return None
        if is_far(sample, gpu.index, self.machine):
            return None
        return self._host(sample, gpu)

    def _lacking(self, sample: CopyRate) -> str | None:
        if sample.group is not None or not sample.is_large:
            return None
        names = {
            gpu.name or "GPUs of an unknown model"
            for index, gpu in self.gpus.items()
            if index in sample.gpu_ends and expected_of(gpu) is None
        }
        return " and ".join(sorted(names)) or None

    def _host(self, sample: CopyRate, gpu: Gpu) -> Expectation | None:
        over = host_link(sample, gpu)
        if over != "PCIe":
            return Expectation(f"no reference data: copies with the host over {over}")
        measured = sample.one_way_rate
        in_both_directions = sample.kind == "bidirectional" or sample.with_reverse
        fits = () if in_both_directions else fitting_links(measured, [gpu])
        if seen := observed_link(gpu, sample, self.machine):
            link, known_by = seen
            source = f"{link.name} {known_by} ({link.confidence}: links.csv)"
        elif (by_model := model_link(gpu, measured)) is not None:
            link, source = by_model, _by_model(by_model, gpu)
            if fits and measured < link.copy_low_gb_per_s and link not in fits:
                source += f"; the rate fits {link_names(fits)}"
        else:
            words = f"link not reported; inferred from the rate: {link_names(fits)}"
            return Expectation(words) if fits else None
        to_device, to_host = link.copy_to_device_gb_per_s, link.copy_to_host_gb_per_s
        typical, low = (to_host if sample.kind == "d2h" else to_device), link.copy_low_gb_per_s
        if sample.kind == "bidirectional":
            typical, low = to_device + to_host, BIDIRECTIONAL_LOW_SHARE * 2 * low
        if sample.with_reverse:
            return Expectation(
                f"{BESIDE_REVERSE_SHARE:.0%} of one direction of {source}",
                BESIDE_REVERSE_SHARE * typical,
            )
        if in_both_directions:
            source = f"both directions of {source}, {BIDIRECTIONAL_SHARE:.0%} of their sum"
            typical *= BIDIRECTIONAL_SHARE
        return Expectation(source, typical, low)

    def _local(self, sample: CopyRate) -> Expectation | None:
        gpu = gpu_at(sample.source.gpu, self.gpus)
        row = expected_of(gpu) if gpu else None
        if gpu is None or row is None or row.memory_gb_per_s is None or not sample.is_by_copy_engine:
            return None
        if gpu.mig.mode:
            return Expectation("MIG is on, and an instance has only a part of the memory bandwidth")
        if sample.bytes is None and row.memory_gb_per_s > SHORT_COPIES_GB_PER_S:
            return Expectation(
                "no reference data: copies of unknown size, possibly too small for this memory"
            )
        slowed = _may_pay_for_ecc(gpu, row)
        share, low = LOCAL_COPY_SHARE, LOCAL_COPY_LOW_SHARE
        if row.chip == "GP100":
            share, low = P100_COPY_SHARE, P100_COPY_LOW_SHARE
        return Expectation(
            f"{share:.0%} of the memory rate of {row.name} (gpus.csv)"
            + (f", less up to {1 - ECC_LOW_SHARE:.0%} for ECC" if slowed else ""),
            share * row.memory_gb_per_s,
            low * row.memory_gb_per_s * (ECC_LOW_SHARE if slowed else 1),
        )

    def _between(self, sample: CopyRate, source: int, destination: int) -> Expectation | None:
        direct = sample.kind == "p2p_direct" or sample.path == "direct"
        if sample.kind == "bidirectional" and sample.path is None:
            return None
        nvlinks = self.nvlinks.between(source, destination) if direct else None
        if nvlinks is not None:
            expectation = _over_nvlink(sample, nvlinks)
            fits = sample.rate >= (expectation.low_gb_per_s or 0)
            model = expected_of(self.gpus[source])
            if fits or nvlinks.by != "rate" or model is None or not is_hybrid(model):
                return expectation
            return Expectation(
                f"no reference data: between the rates of {nvlinks.links - 1} and "
                f"{nvlinks.links} NVLinks, or through the CPU"
            )
        forth = self._over_pcie(sample, source, destination, direct=direct)
        if forth is None or forth.gb_per_s is None or sample.kind != "bidirectional":
            return forth
        back = self._over_pcie(sample, destination, source, direct=direct)
        if back is None or back.gb_per_s is None:
            return back
        if not direct:
            source_words = f"as much as one direction alone: {forth.source}"
            return Expectation(source_words, min(forth.gb_per_s, back.gb_per_s))
        return Expectation(
            f"{BIDIRECTIONAL_SHARE:.0%} of both directions: {forth.source}",
            BIDIRECTIONAL_SHARE * (forth.gb_per_s + back.gb_per_s),
        )

    def _over_pcie(
        self, sample: CopyRate, source: int, destination: int, *, direct: bool
    ) -> Expectation | None:
        """Return the slower rate of the path out of one GPU and the path into the other."""
        if direct and (min(source, destination), max(source, destination)) in self.over_nvlink:
            return Expectation("no reference data: faster than PCIe, and the number of NVLinks is unknown")
        shared = self._shared_bridges(source, destination) if direct else set[str]()
        sends = self._end(sample, source, self.to_host, f"GPU {source} to host", shared)
        receives = self._end(sample, destination, self.to_device, f"host to GPU {destination}", shared)
        if sends is None or receives is None:
            return None
        slower, words = min(sends, receives)
        if not direct:
            return Expectation(
                f"staged through host memory, {STAGED_SHARE:.0%} of the slower of its links: {words}",
                STAGED_SHARE * slower,
            )
        if sample.one_way_rate > NVLINK_TIMES * slower:
            return Expectation("no reference data: much faster than copies with the host")
        link = self.machine.link(source, destination)
        near = link is not None and link.hop in _NEAR
        return Expectation(
            f"the slower of its two links: {words}",
            slower,
            NEAR_LOW_SHARE * slower if near else None,
        )

    def _end(
        self, sample: CopyRate, index: int, measured: Mapping[int, float], word: str, shared: Collection[str]
    ) -> tuple[float, str] | None:
        """Return the rate of one end of a copy between GPUs and its source, or None if it is unknown."""
        gpu = self.gpus.get(index)
        if gpu is None:
            return (measured[index], f"{word}, measured alone") if index in measured else None
        near = gpu.pcie.limiting_hop in shared
        if index in measured and not near:
            return measured[index], f"{word}, measured alone"
        if seen := observed_link(gpu, sample, self.machine, without_bridges=near):
            link, known_by = seen
            usual = link.copy_to_host_gb_per_s if measured is self.to_host else link.copy_to_device_gb_per_s
            return usual, f"{word}, {link.name} {known_by} (links.csv)"
        by_model = model_link(gpu, sample.one_way_rate)
        return None if by_model is None else (by_model.copy_to_host_gb_per_s, _by_model(by_model, gpu))

    def _shared_bridges(self, a: int, b: int) -> set[str]:
        """Return the bridges above both GPUs. A direct copy uses only the nearest of them."""
        tree = {node.address: node for node in self.machine.pci}
        places = [gpu.pci_address or "" for gpu in (self.gpus.get(a), self.gpus.get(b)) if gpu is not None]
        ends = [set(bridges_above(tree, place)[0]) for place in places if place in tree]
        return ends[0] & ends[1] if len(ends) == 2 else set()


def _by_model(link: LinkExpectation, gpu: Gpu) -> str:
    """Return the words for a link that is known from the model, because no source reports the slot."""
    row = expected_of(gpu)
    assert row is not None, "the link is one of the model"
    words = "the widest that {} supports" if link == _widest_link(row) else "as servers usually give {}"
    return f"{link.name}, {words.format(row.name)} (gpus.csv); its slot is unknown"


def _over_nvlink(sample: CopyRate, nvlinks: PairNvLinks) -> Expectation:
    count, row = nvlinks.links, nvlinks.row
    is_bidirectional = sample.kind == "bidirectional"
    whole = count * row.link_gb_per_s * (2 if is_bidirectional else 1)
    share = row.bidirectional_share if is_bidirectional else row.copy_share
    return Expectation(
        f"{share:.0%} of {count} NVLink{'s' if count > 1 else ''} of version {row.version} at "
        f"{row.link_gb_per_s:g} GB/s{' both directions' if is_bidirectional else ''} "
        f"({row.confidence}: nvlinks.csv)"
        + ("" if nvlinks.by == "source" else f"; number of NVLinks by {nvlinks.by}"),
        share * whole,
        min(row.copy_low_share, share) * whole,
    )


def _may_pay_for_ecc(gpu: Gpu, row: GpuExpectation) -> bool:
    """Return whether error correction reduces the memory's rate, or may reduce it if that is unknown.

    GeForce and TITAN cards do not have it, or have it off.
    """
    if not (row.memory_type or "").startswith("GDDR") or gpu.ecc.mode is False:
        return False
    return gpu.ecc.mode is True or not row.name.startswith(("GeForce", "TITAN"))
