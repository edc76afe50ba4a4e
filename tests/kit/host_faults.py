"""Faults of the whole machine, each a function from a scenario to the scenario with the fault."""

from dataclasses import replace
from typing import Any

from tests.kit.specs import DEPRECATED, Scenario

_DRIVER_NOT_LOADED, _VERSION_MISMATCH = 9, 18  # nvmlReturn_t
_REDIRECT_ALL = 0x1D  # source validation, request and completion redirect, upstream forwarding
_CHIPSET_NOT_SUPPORTED = 1  # nvmlGpuP2PStatus_t
_COLD_S, _COLD_GPU_S = 12.0, 9.0


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


def micro_vm(scenario: Scenario) -> Scenario:
    """A virtual machine with the GPUs and without a PCI bus: NVML sees a host bridge between them."""
    gpus = tuple(replace(gpu, parent=None, kernel_driver=None) for gpu in scenario.gpus)
    return replace(scenario, gpus=gpus, bridges=(), nics=(), extra_pci=(), pci_shown=False, virtual=True)


def cold_init(scenario: Scenario) -> Scenario:
    """The driver is loaded by the first program that uses it."""
    return replace(scenario, init_s=_COLD_S)


def cold_count(scenario: Scenario) -> Scenario:
    """The driver looks at all GPUs before it counts them."""
    return replace(scenario, count_s=_COLD_S)


def cold_gpus(scenario: Scenario) -> Scenario:
    """Persistence mode is off: each GPU is initialised by its first handle."""
    gpus = tuple(replace(gpu, persistence=0, initialise_s=_COLD_GPU_S) for gpu in scenario.gpus)
    return replace(scenario, gpus=gpus)


def clocks_deprecated(scenario: Scenario) -> Scenario:
    """Drivers from 595 on have no application clocks any more."""
    calls = ("nvmlDeviceGetApplicationsClock", "nvmlDeviceGetDefaultApplicationsClock", "nvmlDeviceGetClock")
    refused = dict.fromkeys(calls, DEPRECATED)
    gpus = tuple(replace(gpu, refuses={**gpu.refuses, **refused}) for gpu in scenario.gpus)
    return replace(scenario, gpus=gpus)


def driver_570(scenario: Scenario) -> Scenario:
    """A driver without times of hardware slowdowns, whose numbers are of power smoothing later."""
    return _driver(scenario, "570.172.08")


def driver_580_65(scenario: Scenario) -> Scenario:
    """The last driver with the first field numbers of hardware slowdowns."""
    return _driver(scenario, "580.65.06")


def driver_580_76(scenario: Scenario) -> Scenario:
    """A driver of which no field numbers were published."""
    return _driver(scenario, "580.76.05")


def driver_580_82(scenario: Scenario) -> Scenario:
    """The first driver with the later field numbers of hardware slowdowns."""
    return _driver(scenario, "580.82.07")


def _driver(scenario: Scenario, version: str) -> Scenario:
    cuda = "13" if version.startswith("580") else "12"
    return replace(scenario, driver_version=version, nvml_version=f"{cuda}.{version}")


def no_privileges(scenario: Scenario) -> Scenario:
    """Config space beyond the first 64 bytes is for root only."""
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
    """The second card's port counts errors of the link, which other ports do not."""
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
    """Change the port of the second card. Raises ValueError where there is none with RDMA."""
    if len(scenario.nics) < 2 or not scenario.nics[1].infiniband:
        raise ValueError(f"{scenario.name} has no two RDMA cards")
    nic = scenario.nics[1]
    changed = replace(nic, ports=(replace(nic.ports[0], **fields), *nic.ports[1:]))
    return replace(scenario, nics=(scenario.nics[0], changed, *scenario.nics[2:]))
