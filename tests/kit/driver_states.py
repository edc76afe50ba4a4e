"""States of the driver that are no faults of the machine, each a function from a scenario to the scenario."""

from dataclasses import replace

from tests.kit.gpu_faults import one
from tests.kit.specs import DEPRECATED, Scenario

_COLD_S, _COLD_GPU_S = 12.0, 9.0


def cold_init(scenario: Scenario) -> Scenario:
    """The driver is loaded by the first program that uses it."""
    return replace(scenario, init_s=_COLD_S)


def cold_count(scenario: Scenario) -> Scenario:
    """The driver initialises all GPUs before it counts them."""
    return replace(scenario, count_s=_COLD_S)


def cold_gpu(scenario: Scenario, gpu: int) -> Scenario:
    """A card without persistence mode is initialised by its first handle."""
    return one(scenario, gpu, persistence=0, initialise_s=_COLD_S)


def cold_gpus(scenario: Scenario) -> Scenario:
    """All cards are initialised this way, one after another."""
    gpus = tuple(replace(gpu, persistence=0, initialise_s=_COLD_GPU_S) for gpu in scenario.gpus)
    return replace(scenario, gpus=gpus)


def micro_vm(scenario: Scenario) -> Scenario:
    """A virtual machine with the GPUs and without a PCI bus: NVML reports a host bridge between them."""
    gpus = tuple(replace(gpu, parent=None) for gpu in scenario.gpus)
    return replace(scenario, gpus=gpus, bridges=(), nics=(), extra_pci=(), pci_shown=False, virtual=True)


def clocks_deprecated(scenario: Scenario) -> Scenario:
    """A driver from 595 on, which has no application clocks."""
    calls = ("nvmlDeviceGetApplicationsClock", "nvmlDeviceGetDefaultApplicationsClock", "nvmlDeviceGetClock")
    refused = dict.fromkeys(calls, DEPRECATED)
    gpus = tuple(replace(gpu, refuses={**gpu.refuses, **refused}) for gpu in scenario.gpus)
    return replace(scenario, gpus=gpus)


def was_slowed_down(scenario: Scenario, gpu: int) -> Scenario:
    """An hour of hardware thermal slowdown and two hours of the power brake, both in the past."""
    return one(scenario, gpu, slowdown_ns=(3600 * 10**9, 7200 * 10**9))


def driver_570(scenario: Scenario) -> Scenario:
    """A driver without times of hardware slowdowns."""
    return _of_version(scenario, "12", "570.172.08")


def driver_580_65(scenario: Scenario) -> Scenario:
    """The last driver with the first field numbers of these times."""
    return _of_version(scenario, "13", "580.65.06")


def driver_580_76(scenario: Scenario) -> Scenario:
    """A driver whose field numbers were not published."""
    return _of_version(scenario, "13", "580.76.05")


def driver_580_82(scenario: Scenario) -> Scenario:
    """The first driver with the later field numbers of these times."""
    return _of_version(scenario, "13", "580.82.07")


def _of_version(scenario: Scenario, cuda: str, version: str) -> Scenario:
    return replace(scenario, driver_version=version, nvml_version=f"{cuda}.{version}")
