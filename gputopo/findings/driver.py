"""The driver: whether it works, and GPUs that it lost."""

from collections.abc import Iterator
from typing import Any

import msgspec

from gputopo.findings.fault import named
from gputopo.findings.finding import Finding
from gputopo.reference.kernel_drivers import NVIDIA_DRIVER, SET_ASIDE, gpu_nodes, held_by_others
from gputopo.values.machine import Driver, Machine

_SET_ASIDE = "set aside for a virtual machine: run there, or bind it to nvidia"
_DRIVER_WORDS: dict[str, tuple[str, str]] = {
    "not_loaded": (
        "the NVIDIA kernel module is not loaded",
        "sudo modprobe nvidia; if it fails, sudo dmesg | grep -i nvidia tells why (after a kernel update the "
        "driver must be installed again; with Secure Boot its module must be signed)",
    ),
    "library_missing": (
        "the driver's library libnvidia-ml.so.1 is not found",
        "install the user-space part of the driver in the version of the kernel module; in a container, "
        "start it with GPU access (docker run --gpus all)",
    ),
    "version_mismatch": (
        "the driver's library and its kernel module are of different versions",
        "reboot (the driver was updated under a running kernel module); in a container, update the driver of "
        "the host or remove the libraries that the image brings",
    ),
    "no_permission": (
        "/dev/nvidia* may not be opened, or is not there",
        "ls -l /dev/nvidia* shows which group may open it: join that group; in a container, start it with "
        "GPU access (docker run --gpus all)",
    ),
    "other_driver": (
        "another kernel driver holds the NVIDIA device",
        "nouveau: install NVIDIA's driver, keep nouveau from loading (blacklist it) and reboot; vfio-pci: "
        f"the device is {_SET_ASIDE}",
    ),
    "failed": (
        "the NVIDIA driver does not work",
        "nvidia-smi and sudo dmesg | grep -i -e nvrm -e xid tell more; a reboot heals most of these",
    ),
}

LOST_REMEDY = (
    "sudo dmesg | grep -i xid tells why (79: fell off the bus); reboot or power-cycle; if it comes again, "
    "check the seat, the riser, the power cables and the heat of this card"
)


def driver(machine: Machine) -> Iterator[Finding]:
    """Give the one finding of a driver that does not work, or whose parts are of different versions.

    What a capture shows beside a driver that it does not tell of is a warning: it may have changed since.
    """
    told = machine.driver
    differ = _versions_differ(told)
    status = "version_mismatch" if differ else "other_driver" if _all_held(machine) else told.status
    if status not in _DRIVER_WORDS:
        return
    what, remedy = _DRIVER_WORDS[status]
    evidence = _driver_evidence(machine)
    effect = "programs may fail" if differ else "no GPU of this machine can be used"
    detail = _driver_detail(msgspec.structs.replace(told, status=status), evidence)
    yield Finding(
        id=f"driver.{status}",
        severity="error" if status == told.status else "warning",
        subject="driver",
        says=f"{what}{f' ({detail})' if detail else ''}: {effect}",
        evidence=evidence,
        remedy=remedy,
    )


def _driver_evidence(machine: Machine) -> dict[str, Any]:
    known = {name: value for name, value in msgspec.to_builtins(machine.driver).items() if value is not None}
    devices = {node.address: node.driver for node in gpu_nodes(machine)}
    return known | ({"pci_devices": devices} if devices else {})


def held_gpus(machine: Machine) -> Iterator[Finding]:
    """Find GPUs that another kernel driver holds beside others: NVIDIA's driver does not count them.

    Set aside for a virtual machine is somebody's will, anything else a warning. Where every GPU is so held
    `driver` tells it.
    """
    held = held_by_others([machine])
    nodes = {node.address: node for node in gpu_nodes(machine)}
    if len(held) == len(nodes) or machine.driver.status not in ("ok", "not_read"):
        return
    for holder in sorted(set(held.values())):
        those = [node for address, node in nodes.items() if held.get(address) == holder]
        words = (f"{node.address} ({node.name})" if node.name else node.address for node in those)
        them = "it" if len(those) == 1 else "them"
        yield Finding(
            id="driver.other_driver",
            severity="info" if holder in SET_ASIDE else "warning",
            subject="machine",
            says=f"the kernel driver {holder} holds {', '.join(words)}: no CUDA program of this machine can "
            f"use {them}, and nvidia-smi does not count {them}",
            evidence={"pci_devices": {address: node.driver for address, node in nodes.items()}},
            remedy=_SET_ASIDE
            if holder in SET_ASIDE
            else f"install NVIDIA's driver, keep {holder} from loading (blacklist it) and reboot",
        )


def _all_held(machine: Machine) -> bool:
    """Tell whether a capture that says nothing else of the driver names another one for every GPU.

    A GPU's own name is told by NVIDIA's driver alone: where one is known, it worked.
    """
    if machine.driver.status != "not_read" or any(gpu.name is not None for gpu in machine.gpus):
        return False
    holders = [node.driver for node in gpu_nodes(machine)]
    return bool(holders) and not {NVIDIA_DRIVER, None} & set(holders)


def _driver_detail(driver: Driver, evidence: dict[str, Any]) -> str | None:
    holders = sorted({holder for holder in evidence.get("pci_devices", {}).values() if holder})
    if driver.status == "other_driver" and holders:
        return ", ".join(holders)
    library, module = driver.nvml_version or driver.version, driver.kernel_module_version
    if (
        (driver.status == "version_mismatch" or _versions_differ(driver))
        and library
        and module
        and library != module
    ):
        return f"library {library}, kernel module {module}"
    return driver.detail


def _versions_differ(driver: Driver) -> bool:
    """Tell whether a driver that answers, or of which a capture says little, has parts of two versions."""
    versions = driver.version, driver.kernel_module_version
    return driver.status in ("ok", "not_read") and None not in versions and versions[0] != versions[1]


def no_device(machine: Machine) -> Iterator[Finding]:
    """Tell that there is no GPU to look at: no fault."""
    if machine.driver.status == "no_device":
        yield Finding(
            id="machine.no_nvidia_device",
            severity="info",
            subject="machine",
            says="this machine has no NVIDIA device on its PCI bus",
            evidence={"source": machine.source},
            remedy="to look at another machine, give its capture: --from FILE",
        )


def lost_gpus(machine: Machine) -> Iterator[Finding]:
    """Find GPUs that were counted and then did not answer."""
    for gpu in machine.gpus:
        if gpu.lost:
            path = f"gpus[{gpu.index}]"
            reasons = {
                fact: why
                for fact, why in machine.missing.items()
                if fact == path or fact.startswith(f"{path}.")
            }
            yield Finding(
                id="gpu.lost",
                severity="error",
                subject=f"gpu:{gpu.index}",
                says=f"{named(gpu)} was counted and then did not answer",
                evidence={"pci_address": gpu.pci_address, "name": gpu.name, "missing": reasons},
                remedy=LOST_REMEDY,
            )
