"""PCIe links: which of them fit the rate of a copy, which link a GPU model has, and their names."""

from collections.abc import Sequence
from math import inf

from gputopo.reference import GpuExpectation, LinkExpectation, expected_gpu, expected_link, fitting_links
from gputopo.values.machine import Gpu


def model_of(gpu: Gpu | None) -> GpuExpectation | None:
    """Return what is published of a GPU's model, or None if the model is unknown."""
    return expected_gpu(gpu.name, gpu.pci_device_id) if gpu else None


def links_for(rate_gb_per_s: float, *gpus: Gpu) -> tuple[LinkExpectation, ...]:
    """Return the links that fit a copy rate, the likeliest first: cards use the latest generation.

    Excludes links that are later or wider than the GPUs' links, if their models are known.
    """
    return fitting_links(rate_gb_per_s, gpus)


def model_link(gpu: Gpu, gb_per_s: float = inf) -> LinkExpectation | None:
    """Return the widest PCIe link that the model of a GPU supports.

    If servers usually give the model fewer lanes, and these carry the rate, returns that link.
    """
    row = model_of(gpu)
    if row is None:
        return None
    usual = expected_link(row.pcie_generation, row.pcie_width_seen)
    return usual if usual and gb_per_s <= usual.data_rate_gb_per_s else widest_link(row)


def widest_link(row: GpuExpectation) -> LinkExpectation | None:
    """Return the widest PCIe link of a GPU model."""
    return expected_link(row.pcie_generation, row.pcie_width)


def link_name(link: LinkExpectation) -> str:
    """Return the name of a row of links.csv: `Gen3 x16`."""
    return f"Gen{link.generation} x{link.width}"


def link_names(links: Sequence[LinkExpectation]) -> str:
    """Return the names of the links that fit a rate, `Gen4 x8 (or Gen3 x16)`; empty if there is none."""
    first, *others = [*map(link_name, links)] or [""]
    return first + (f" (or {', '.join(others)})" if others else "")
