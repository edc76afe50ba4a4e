"""Reference data for GPUs, PCIe links and NVLinks, from the tables that come with gputopo.

Every row of `data/gpus.csv`, `links.csv`, `nvlinks.csv` and `nccl_bus.csv` lists its sources. A GPU without a
row has no reference data: that is reported, and never a pass.
"""

import functools
import re
from collections.abc import Iterable

import msgspec

from gputopo.values.fields import rows_of
from gputopo.values.machine import Gpu

# GT/s per lane of each generation. linux: drivers/pci/probe.c, pcie_link_speed[].
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6, 128.0: 7}
# PCI Express Base Specification, Link Capabilities Register; sysfs has 0 and 255 for "unknown".
_WIDTHS = (1, 2, 4, 8, 12, 16, 32)

# Drivers older than a GPU report such names; then only the PCI id identifies the GPU.
_NAMELESS = re.compile(r"(?:NVIDIA )?Graphics Device|Unknown.*", re.IGNORECASE)
_MODEL_NUMBER = re.compile(r"(?<![A-Z0-9])[A-Z]{0,2}[0-9]{2,4}(?![0-9]|[A-Z]*B\b)")

# The low values in links.csv are a tenth below usual copies; this is a margin for noise, not measured.
FITTING_SHARE = 0.95
_NEWEST_IN_USE = 5  # no GPU in gpus.csv with a published copy rate has a generation 6 slot


def generation_of(speed_gt_per_s: float | None) -> int | None:
    """Return the generation with this speed in GT/s per lane, or None for another speed."""
    return None if speed_gt_per_s is None else _GENERATIONS.get(speed_gt_per_s)


def parse_link_speed(text: str | None) -> float | None:
    """Return the GT/s in "16 GT/s", "8.0 GT/s PCIe" or "16GT/s"; None for "Unknown" and similar texts."""
    match = re.match(r"\s*(\d{1,4}(?:\.\d{1,3})?)\s*GT/s", text or "")
    return float(match[1]) if match and float(match[1]) > 0 else None


def parse_link_width(text: str | None) -> int | None:
    """Return the lanes in "16" or "x16"; None for a number that no PCIe link has: 0 and 255 mean unknown."""
    match = re.fullmatch(r"\s*x?(\d{1,2})\s*", text or "", re.ASCII)
    return int(match[1]) if match and int(match[1]) in _WIDTHS else None


def address_order(address: str) -> tuple[int, ...]:
    """Return the sort key of an address in PCI order, which is NVML's order of GPUs."""
    return tuple(int(part, 16) for part in re.split("[:.]", address))


class GpuExpectation(msgspec.Struct, frozen=True, kw_only=True):
    """Reference data for a GPU model; None if no source has a value. Clocks are in MHz as NVML counts them.

    `compute_capability`: major and minor number of the machine code that it runs, (8, 6) for sm_86.
    `fp32_tflops`: peak without tensor cores at the boost clock, in 10^12 operations a second.
    `tensor_tflops`: peak of dense FP16 products that are added in FP32, None without tensor cores.
    `p2p_over_pcie`: whether NVIDIA's driver allows P2P between two of these GPUs over PCIe.
    `notebook_device_ids`: PCI ids of notebook GPUs with the same name and other numbers. If boards with one
    name differ, the row has the lower value of each clock and rate; `memory_max_gb_per_s` is the memory rate
    of the fastest board.
    """

    name: str
    architecture: str
    source: str
    other_names: tuple[str, ...] = ()
    chip: str | None = None
    compute_capability: tuple[int, int] | None = None
    pci_device_id: str | None = None
    notebook_device_ids: tuple[str, ...] = ()
    boost_mhz: int | None = None  # the rated core clock
    max_core_mhz: int | None = None  # the maximum in NVML, which GeForce GPUs do not reach
    max_memory_mhz: int | None = None  # half of the data rate of one pin
    memory_type: str | None = None
    memory_gib: int | None = None  # of the largest card with the name
    memory_bus_bits: int | None = None
    memory_gb_per_s: float | None = None  # as published, in 10^9 bytes a second
    memory_max_gb_per_s: float | None = None
    fp32_tflops: float | None = None
    tensor_tflops: float | None = None
    l2_mib: float | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    pcie_width_seen: int | None = None  # fewer lanes in servers without a fault
    c2c_gb_per_s: float | None = None  # one direction of NVLink-C2C to the CPU's memory
    power_w: int | None = None
    slowdown_c: int | None = None
    nvlink_generation: int | None = None
    nvlinks: int | None = None
    pair_nvlinks: tuple[int, ...] = ()
    nvlink_by_bridge: bool | None = None  # only with a bridge between two cards
    p2p_over_pcie: bool | None = None
    note: str | None = None

    @property
    def is_module(self) -> bool:
        """Whether it is on a board with NVLinks (SXM), whose PCIe link also has all lanes."""
        return self.nvlink_by_bridge is False


class LinkExpectation(msgspec.Struct, frozen=True, kw_only=True):
    """Rate of a PCIe link of one generation and width in one direction, in 10^9 bytes a second.

    `data_rate_gb_per_s`: after line coding, before packet headers. `copy_*`: of large copies from or to
    pinned host memory.
    """

    generation: int
    width: int
    gt_per_s: float
    data_rate_gb_per_s: float
    copy_low_gb_per_s: float
    copy_to_device_gb_per_s: float
    copy_to_host_gb_per_s: float
    confidence: str  # measured, scaled from other widths of the generation, inferred or estimated
    source: str
    note: str | None = None

    @property
    def name(self) -> str:
        """The name of the link: `Gen3 x16`."""
        return f"Gen{self.generation} x{self.width}"


class NvLinkExpectation(msgspec.Struct, frozen=True, kw_only=True):
    """Rate of one NVLink of a version in one direction, in 10^9 bytes a second.

    Shares of the rate of all links between two GPUs that large copies reach: `copy_share` in one direction,
    `copy_low_share` the minimum without a fault, `bidirectional_share` of twice that rate in both directions.
    """

    version: int
    link_gb_per_s: float
    copy_low_share: float
    copy_share: float
    bidirectional_share: float
    confidence: str
    source: str
    chip: str | None = None  # only for GPUs with this chip; None: for all others
    nccl_gb_per_s: float | None = None
    measured: str | None = None
    note: str | None = None


class BusExpectation(msgspec.Struct, frozen=True, kw_only=True):
    """Bus bandwidth of NCCL in a collective operation over the GPUs of one host, in 10^9 bytes a second.

    It applies to sizes from `from_bytes` on. `nvls`: with or without reduction in the NVSwitches (NVLink
    SHARP), None if there is no choice.
    """

    gpu: str
    ranks: int
    operation: str
    from_bytes: int
    low_gb_per_s: float
    confidence: str
    source: str
    bus_gb_per_s: float | None = None
    nvls: bool | None = None
    links: str | None = None  # what connects the GPUs, if their model does not determine it
    note: str | None = None


def expected_gpu(name: str | None, device_id: str | None = None) -> GpuExpectation | None:
    """Return the reference data of a GPU by its NVML name, or None.

    The whole name must match, with or without "NVIDIA": a longer name is another model, a notebook GPU, a
    vGPU or a MIG instance. `device_id` ("2204") excludes notebook GPUs with the name of a card. It identifies
    a GPU only if there is no name, or a name without a model; if several rows have the id, the result is
    None.
    """
    device_id = (device_id or "").lower()
    if name and not _NAMELESS.fullmatch(name):
        row = _by_name().get(name.casefold().removeprefix("nvidia "))
        return None if row is not None and device_id in row.notebook_device_ids else row
    rows = [row for row in known_gpus() if device_id and row.pci_device_id == device_id]
    return rows[0] if len(rows) == 1 else None


def expected_of(gpu: Gpu) -> GpuExpectation | None:
    """Return the reference data of a GPU, or None."""
    return expected_gpu(gpu.name, gpu.pci_device_id)


def name_of(gpu: Gpu) -> str | None:
    """Return the name of a GPU from the driver, else from its PCI device id in the reference data."""
    row = None if gpu.name else expected_of(gpu)
    return gpu.name if row is None else row.name


def expected_link(generation: int | None, width: int | None) -> LinkExpectation | None:
    """Return the row of a PCIe link by generation (1 to 6) and width, or None."""
    return None if generation is None or width is None else _links().get((generation, width))


def expected_nvlink(version: int | None, chip: str | None = None) -> NvLinkExpectation | None:
    """Return the row of one NVLink by version (1 to 5), or None. `chip`: the GPU's chip, if known."""
    rows = _nvlinks()
    return rows.get((version, chip)) or rows.get((version, None))


def expected_bus(gpu: str, ranks: int, operation: str, size: int) -> list[BusExpectation]:
    """Return the rows of an operation, one for each method, with the largest of their sizes up to `size`."""
    rows: dict[bool | None, BusExpectation] = {}
    for row in sorted(known_bus_rates(), key=lambda row: row.from_bytes):
        if (row.gpu, row.ranks, row.operation) == (gpu, ranks, operation) and row.from_bytes <= size:
            rows[row.nvls] = row
    return list(rows.values())


def fitting_links(rate_gb_per_s: float, gpus: Iterable[Gpu] = ()) -> tuple[LinkExpectation, ...]:
    """Return the PCIe links that fit a copy at this rate, the latest generation first.

    A copy fits a link if it is no faster than the link's data rate and no slower than the link's slowest
    normal copies. Links that are later or wider than the links of all these GPUs are skipped, if their models
    are known.
    """
    rows = [(gpu, expected_of(gpu)) for gpu in gpus]
    generations = [_newest_generation(gpu.name) if row is None else row.pcie_generation for gpu, row in rows]
    known = [generation for generation in generations if generation is not None]
    newest = max(known) if known and len(known) == len(rows) else _NEWEST_IN_USE
    widest = max(((row and row.pcie_width) or 16 for _, row in rows), default=16)
    return tuple(
        link
        for link in sorted(_links().values(), key=lambda link: (-link.generation, link.width))
        if link.generation <= newest
        and link.width <= widest
        and FITTING_SHARE * link.copy_low_gb_per_s <= rate_gb_per_s <= link.data_rate_gb_per_s
    )


def _newest_generation(name: str | None) -> int | None:
    """Return the latest PCIe generation of the models with the number of a model without a row.

    "Tesla V100-FHHL-16GB" has no row, and no V100 has a later generation than 3.
    """
    numbers = _numbers(name or "")
    alike = (row.pcie_generation for row in known_gpus() if numbers & _numbers(row.name))
    return max(filter(None, alike), default=None)


def _numbers(name: str) -> set[str]:
    """Return the model numbers in a name, such as `V100` or `3090`, without amounts of memory."""
    return set(_MODEL_NUMBER.findall(name.upper()))


@functools.cache
def known_gpus() -> tuple[GpuExpectation, ...]:
    """Return all rows of the GPU table, in order."""
    return tuple(map(_gpu, reference_rows("gpus.csv")))


@functools.cache
def _by_name() -> dict[str, GpuExpectation]:
    return {name.casefold(): row for row in known_gpus() for name in (row.name, *row.other_names)}


def _gpu(row: dict[str, str]) -> GpuExpectation:
    flags = _flags(row, "nvlink_by_bridge", "p2p_over_pcie")
    capability = row["compute_capability"]
    lists = {
        "compute_capability": capability.split(".") if capability else None,
        "other_names": row["other_names"].split("|") if row["other_names"] else [],
        "notebook_device_ids": row["notebook_device_ids"].split(),
        "pair_nvlinks": row["pair_nvlinks"].split(),
    }
    return msgspec.convert({**_filled(row), **flags, **lists}, GpuExpectation, strict=False)


@functools.cache
def _links() -> dict[tuple[int, int], LinkExpectation]:
    links = (
        msgspec.convert(_filled(row), LinkExpectation, strict=False) for row in reference_rows("links.csv")
    )
    return {(link.generation, link.width): link for link in links}


@functools.cache
def _nvlinks() -> dict[tuple[int | None, str | None], NvLinkExpectation]:
    rows = (
        msgspec.convert(_filled(row), NvLinkExpectation, strict=False)
        for row in reference_rows("nvlinks.csv")
    )
    return {(row.version, row.chip): row for row in rows}


@functools.cache
def known_bus_rates() -> tuple[BusExpectation, ...]:
    """Return all rows of the table of collective operations, in order."""
    return tuple(
        msgspec.convert({**_filled(row), **_flags(row, "nvls")}, BusExpectation, strict=False)
        for row in reference_rows("nccl_bus.csv")
    )


def _flags(row: dict[str, str], *names: str) -> dict[str, bool]:
    return {name: row[name] == "yes" for name in names if row[name]}


def _filled(row: dict[str, str]) -> dict[str, str]:
    return {name: text for name, text in row.items() if text}


def reference_rows(file: str) -> list[dict[str, str]]:
    """Return the rows of a table in `gputopo/reference/data`."""
    return rows_of(__file__, f"data/{file}")
