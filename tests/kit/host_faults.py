"""Faults of the whole machine, each a function from a scenario to the scenario with the fault."""

from dataclasses import replace
from typing import Any

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
    """NVML reports CHIPSET_NOT_SUPPORTED for every pair."""
    count = len(scenario.gpus)
    pairs = ((a, b) for a in range(count) for b in range(a + 1, count))
    return replace(scenario, p2p=dict.fromkeys(pairs, _CHIPSET_NOT_SUPPORTED))


def driver_mismatch(scenario: Scenario) -> Scenario:
    """An updated library with an old kernel module that is still loaded."""
    return replace(scenario, init_code=_VERSION_MISMATCH)


def driver_not_loaded(scenario: Scenario) -> Scenario:
    """The kernel module is not loaded."""
    return replace(scenario, init_code=_DRIVER_NOT_LOADED, driver_loaded=False)


def container_hidden(scenario: Scenario) -> Scenario:
    """A container with the GPUs and without /sys/bus/pci."""
    return replace(scenario, container="docker", pci_shown=False)


def no_privileges(scenario: Scenario) -> Scenario:
    """Only root can read config space beyond the first 64 bytes."""
    return replace(scenario, privileged=False)


def port_down(scenario: Scenario) -> Scenario:
    """The second card's port has no link."""
    return _port(scenario, state="1: DOWN", phys_state="2: Polling", rate="10 Gb/sec (4X SDR)")


def port_slow(scenario: Scenario) -> Scenario:
    """The second card's port runs at a quarter of its rate, on one lane."""
    return _port(scenario, rate="25 Gb/sec (1X EDR)")


def port_mtu(scenario: Scenario) -> Scenario:
    """The second card's interface has the smallest MTU."""
    return _port(scenario, mtu=2044)


def port_errors(scenario: Scenario) -> Scenario:
    """The second card's port counts link errors; other ports do not."""
    return _port(scenario, errors={"symbol_error": 40_000, "port_rcv_errors": 12_000})


def peer_memory_off(scenario: Scenario) -> Scenario:
    """nvidia_peermem is not loaded."""
    _port(scenario)
    return replace(scenario, peer_memory=None)


def nic_missing(scenario: Scenario) -> Scenario:
    """The second network card is not on the bus."""
    _port(scenario)
    return replace(scenario, nics=(scenario.nics[0], *scenario.nics[2:]))


def _port(scenario: Scenario, **fields: Any) -> Scenario:
    """Change the port of the second card. Raises ValueError if it has no RDMA port."""
    if len(scenario.nics) < 2 or not scenario.nics[1].infiniband:
        raise ValueError(f"{scenario.name} has no two RDMA cards")
    nic = scenario.nics[1]
    changed = replace(nic, ports=(replace(nic.ports[0], **fields), *nic.ports[1:]))
    return replace(scenario, nics=(scenario.nics[0], changed, *scenario.nics[2:]))
