"""Faults of the whole machine, each a function from a scenario to the scenario with the fault."""

from dataclasses import replace

from tests.kit.specs import Scenario

_DRIVER_NOT_LOADED, _VERSION_MISMATCH = 9, 18  # nvmlReturn_t
_REDIRECT_ALL = 0x1D  # source validation, request and completion redirect, upstream forwarding
_CHIPSET_NOT_SUPPORTED = 1  # nvmlGpuP2PStatus_t


def acs_on(scenario: Scenario) -> Scenario:
    """Every bridge redirects peer traffic, as firmware for virtual machines sets it."""
    bridges = tuple(replace(bridge, acs=_REDIRECT_ALL) for bridge in scenario.bridges)
    return replace(scenario, bridges=bridges)


def iommu_translated(scenario: Scenario) -> Scenario:
    """The IOMMU is on, and the GPUs are in groups whose addresses are translated."""
    return replace(scenario, iommu="DMA-FQ")


def p2p_off(scenario: Scenario) -> Scenario:
    """NVML reports CHIPSET_NOT_SUPPORTED of every pair."""
    count = len(scenario.gpus)
    pairs = ((a, b) for a in range(count) for b in range(a + 1, count))
    return replace(scenario, p2p=dict.fromkeys(pairs, _CHIPSET_NOT_SUPPORTED))


def driver_mismatch(scenario: Scenario) -> Scenario:
    """An updated library beside a kernel module that is still the old one."""
    return replace(scenario, init_code=_VERSION_MISMATCH)


def driver_not_loaded(scenario: Scenario) -> Scenario:
    """The kernel module is not loaded."""
    return replace(scenario, init_code=_DRIVER_NOT_LOADED, driver_loaded=False)


def container_hidden(scenario: Scenario) -> Scenario:
    """A container with the GPUs and without /sys/bus/pci."""
    return replace(scenario, container="docker", pci_shown=False)


def no_privileges(scenario: Scenario) -> Scenario:
    """Config space beyond the first 64 bytes is for root only."""
    return replace(scenario, privileged=False)
