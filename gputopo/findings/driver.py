"""The driver: whether it works, and GPUs that do not answer."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from gputopo.findings.kernel_log import OFF_THE_BUS, device_words, event_evidence, kernel_events, times
from gputopo.findings.rule import Case, Fault, Rule, check, named
from gputopo.topology import NVIDIA_DRIVER, UNCOUNTED, gpus_of_other_drivers
from gputopo.values.facts import FactPath, at_gpu, label
from gputopo.values.finding import Finding
from gputopo.values.machine import Driver, DriverStatus, Machine, PciNode
from gputopo.values.subject import DRIVER, MACHINE, Subject

# Drivers that reserve a device for a virtual machine.
SET_ASIDE = frozenset({"vfio-pci", "pci-stub", "pciback", "xen-pciback"})

NOT_LOADED = Rule(
    "driver.not_loaded",
    "the NVIDIA kernel module is not loaded",
    remedy=(
        "Run sudo modprobe nvidia. If it fails, see sudo dmesg | grep -i nvidia: after a kernel update "
        "the driver must be installed again; with Secure Boot its module must be signed."
    ),
    severities=("error", "warning"),
)
LIBRARY_MISSING = Rule(
    "driver.library_missing",
    "the driver library libnvidia-ml.so.1 is not found",
    remedy=(
        "Install the user-space part of the driver in the version of the kernel module. In a container, "
        "start it with GPU access (docker run --gpus all)."
    ),
    severities=("error", "warning"),
)
VERSION_MISMATCH = Rule(
    "driver.version_mismatch",
    "driver library and kernel module have different versions",
    remedy=(
        "Reboot: the driver was updated under a running kernel module. In a container, update the driver "
        "of the host, or remove the driver libraries from the image."
    ),
    severities=("error", "warning"),
)
TOO_OLD = Rule(
    "driver.too_old",
    "the driver is older than the CUDA runtime of the program",
    remedy=(
        "Update the driver to a version that supports this CUDA (nvidia-smi shows the highest it "
        "supports), or install a framework built for an older CUDA. In a container, update the driver of "
        "the host."
    ),
    severities=("error", "warning"),
)
NOT_READY = Rule(
    "driver.not_ready",
    "CUDA waits for the NVSwitch fabric",
    remedy=(
        "Start the fabric manager in the version of the driver: sudo systemctl status "
        "nvidia-fabricmanager and /var/log/fabricmanager.log show why it does not run; then restart the "
        "program."
    ),
    severities=("error", "warning"),
)
NO_PERMISSION = Rule(
    "driver.no_permission",
    "/dev/nvidia* is missing, or permission is denied",
    remedy=(
        "Add your user to the group that may open it (ls -l /dev/nvidia*). In a container, start it with "
        "GPU access (docker run --gpus all)."
    ),
    severities=("error", "warning"),
)
RESERVED = Case(
    "vfio-pci",
    "reserved for a virtual machine",
    severity="info",
    remedy="Use it in the virtual machine, or bind it to the nvidia driver.",
)
OTHER_DRIVER = Rule(
    "driver.other_driver",
    "another kernel driver is bound to the NVIDIA device",
    remedy="Install NVIDIA's driver, blacklist the other driver (nouveau) and reboot.",
    severities=("error", "warning", "info"),
    cases=(RESERVED,),
)
HUNG = Rule(
    "driver.hung",
    "a call into the NVIDIA driver did not return",
    remedy=(
        "See sudo dmesg | grep -i -e nvrm -e xid, and ps -eo pid,stat,wchan:30,cmd for processes in "
        "state D. Stop the programs on the GPUs and reset them (sudo nvidia-smi -r -i GPU), or reboot."
    ),
    severities=("error", "warning"),
)
CRASHED = Rule(
    "driver.crashed",
    "a call into the NVIDIA driver crashed",
    remedy=(
        "See sudo dmesg | grep -i -e nvrm -e xid -e segfault. Install the driver again so that "
        "libnvidia-ml.so.1 and the kernel module are of one version, and reboot."
    ),
    severities=("error", "warning"),
)
FAILED = Rule(
    "driver.failed",
    "the NVIDIA driver does not work",
    remedy=(
        "See nvidia-smi and sudo dmesg | grep -i -e nvrm -e xid, and reboot. If nvidia-smi lists the "
        "GPUs, check CUDA_VISIBLE_DEVICES; restart a container that lost its GPUs."
    ),
    severities=("error", "warning"),
    cases=(
        Case(
            "blocked by the operating system",
            "",
            severity="error",
            remedy=(
                "In WSL update Windows' driver of the GPU and WSL (wsl --update), and install no Linux "
                "driver. In a container start it again with GPU access (docker run --gpus all)."
            ),
        ),
        Case(
            "is lost",
            "",
            severity="error",
            remedy=(
                "See sudo dmesg | grep -i xid for the GPU (79: fell off the bus), and reboot or "
                "power-cycle. If it happens again, check seat, riser, power cables and temperature of "
                "the card."
            ),
            fits="slot",
        ),
    ),
)
DRIVER_STATUS: Mapping[DriverStatus, Rule] = {
    "not_loaded": NOT_LOADED,
    "library_missing": LIBRARY_MISSING,
    "version_mismatch": VERSION_MISMATCH,
    "too_old": TOO_OLD,
    "not_ready": NOT_READY,
    "no_permission": NO_PERMISSION,
    "other_driver": OTHER_DRIVER,
    "hung": HUNG,
    "crashed": CRASHED,
    "failed": FAILED,
}
NO_DEVICE = Rule(
    "machine.no_nvidia_device",
    "no NVIDIA device on the PCI bus",
    remedy="To inspect another machine, pass its capture: --from FILE.",
    severities=("info",),
)
GPU_LOST = Rule(
    "gpu.lost",
    "the GPU does not answer",
    remedy=(
        "See sudo dmesg | grep -i xid (79: fell off the bus), and reboot or power-cycle. If it happens "
        "again, check seat, riser, power cables and temperature of the card."
    ),
    severities=("error",),
    fits="slot",
    cases=(
        Case(
            "external power",
            "",
            severity="error",
            remedy=(
                "Connect every power connector of the card to the power supply with a separate cable, "
                "then power-cycle."
            ),
            fits="slot",
        ),
        Case(
            "requires a reset",
            "",
            severity="error",
            remedy=(
                "Stop all programs on this GPU and reset it (sudo nvidia-smi -r -i GPU), or reboot. See "
                "sudo dmesg | grep -i xid for the cause."
            ),
        ),
    ),
)
GPU_NO_ANSWER = Rule(
    "gpu.no_answer",
    "the driver does not list this GPU, or cannot identify it",
    remedy=(
        "See sudo dmesg | grep -i -e nvrm -e xid for its PCI address, and ls -l /dev/nvidia* for missing "
        "permission. Otherwise reboot or power-cycle; if it happens again, check seat, riser, power "
        "cables and temperature of the card."
    ),
    severities=("error", "warning"),
    fits="slot",
)

# States that another kernel driver explains.
_UNCERTAIN = ("not_read", "not_loaded", "library_missing", "failed")
# Reasons that are not NVML codes.
_NO_RETURN = {"HUNG": "the call did not return", "CRASHED": "the call crashed"}


@check(*DRIVER_STATUS.values())
def status(machine: Machine) -> Iterator[Fault]:
    """Find a driver that does not work, or whose parts have different versions.

    In a capture that does not report the driver's status it is a warning, because it may have changed since.
    """
    driver = machine.driver
    differ = _versions_differ(driver)
    holders = _other_drivers_of_all(machine)
    name = "version_mismatch" if differ else "other_driver" if holders else driver.status
    rule = DRIVER_STATUS.get(name)
    if rule is None:
        return
    facts = msgspec.to_builtins(driver)
    evidence: dict[str, Any] = {name: value for name, value in facts.items() if value is not None}
    if devices := {node.address: node.driver for node in _gpu_nodes(machine)}:
        evidence["pci_devices"] = devices
    effect = "no GPU of this machine can be used"
    if differ or (driver.version is not None and machine.gpus):  # other output shows GPUs that answer
        effect = "programs may fail"
    elif name in ("too_old", "not_ready"):
        effect = "CUDA programs cannot start"
    elif name in ("hung", "crashed"):
        effect = "programs on its GPUs may hang or fail" if machine.gpus else effect
    detail = ", ".join(sorted(holders)) or _driver_detail(driver)

    def stopped_at(gpu: int) -> bool:
        return any(
            why == name.upper() and fact.startswith(at_gpu(gpu)) for fact, why in machine.missing.items()
        )

    yield rule.fault(
        DRIVER,
        f"{rule.title}{f' ({detail})' if detail else ''}: {effect}",
        evidence,
        "warning" if driver.status in ("ok", "not_read") else "error",
        case=FAILED.case_in(driver.detail or "") if name == "failed" else None,
        remedy=RESERVED.remedy
        if holders and holders <= SET_ASIDE
        else _reset(rule, [label(machine, gpu) for gpu in machine.gpus if stopped_at(gpu.index)]),
    )


def stopped(status: DriverStatus, detail: str, gpus: Iterable[int] = ()) -> Finding:
    """Return the finding for a driver that hung or crashed during a watch, in a call about these GPUs."""
    rule = DRIVER_STATUS[status]
    says = f"{rule.title} ({detail}): no further samples"
    return rule.finding(DRIVER, says, {"status": status}, "error", remedy=_reset(rule, map(str, gpus)))


def _reset(rule: Rule, gpus: Iterable[str]) -> str:
    """Return the remedy with the GPUs to reset: all GPUs if the GPU of the call is unknown."""
    which = ",".join(gpus)
    return rule.remedy.replace(" -i GPU", f" -i {which}" if which else "")


@check(OTHER_DRIVER)
def gpus_with_other_driver(machine: Machine) -> Iterator[Fault]:
    """Find GPUs with another kernel driver, which NVIDIA's driver does not list, next to GPUs that it lists.

    A warning, unless they are reserved for a virtual machine. If every GPU has another driver, `status`
    reports it.
    """
    bound = gpus_of_other_drivers([machine])
    nodes = {node.address: node for node in _gpu_nodes(machine)}
    if len(bound) == len(nodes) or machine.driver.status not in ("ok", *_UNCERTAIN):
        return
    for holder in sorted(set(bound.values())):
        held = [node for address, node in nodes.items() if bound.get(address) == holder]
        words = (f"{node.address} ({node.name})" if node.name else node.address for node in held)
        yield OTHER_DRIVER.fault(
            MACHINE,
            f"kernel driver {holder} is bound to {', '.join(words)}: not listed by nvidia-smi, not usable by "
            "CUDA",
            {"pci_devices": {address: node.driver for address, node in nodes.items()}},
            None if holder in SET_ASIDE else "warning",
            case=RESERVED if holder in SET_ASIDE else None,
        )


@check(NO_DEVICE)
def no_device(machine: Machine) -> Iterator[Fault]:
    """Report that there is no GPU, which is not a fault."""
    if machine.driver.status == "no_device":
        yield NO_DEVICE.fault(MACHINE, NO_DEVICE.title, {"source": machine.source})


@check(GPU_LOST, GPU_NO_ANSWER)
def lost_gpus(machine: Machine) -> Iterator[Fault]:
    """Find GPUs that NVML counts but that do not answer, with NVML's reason if it is another one."""
    for gpu in machine.gpus:
        if not gpu.lost:
            continue
        path = at_gpu(gpu.index)
        evidence: dict[str, Any] = {
            "pci_address": gpu.pci_address,
            "name": gpu.name,
            "missing": {
                fact: why
                for fact, why in machine.missing.items()
                if fact == path or fact.startswith(f"{path}.")
            },
        }
        events = kernel_events(machine, "xid", "lost", "nvrm")
        logged = [event for event_gpu, event in events if event_gpu is gpu and not event.earlier]
        if logged:
            evidence["kernel_events"] = [event_evidence(event) for event in logged]
        xids = ", ".join(sorted({f"Xid {event.code}" for event in logged if event.code is not None}))
        also = f"; {xids} in the kernel log" if xids else ""
        subject, code = Subject.of_gpus([gpu.index]), machine.missing.get(path, "")
        if code != "GPU_IS_LOST" and re.fullmatch(r"[A-Z0-9_]+", code):
            drivers = {node.address: node.driver for node in _gpu_nodes(machine)}
            evidence |= {"nvml": code, "kernel_driver": drivers.get(gpu.pci_address or "")}
            why = _NO_RETURN.get(code, f"refused with NVML's {code}")
            yield GPU_NO_ANSWER.fault(subject, f"{named(gpu)} does not answer: {why}{also}", evidence)
        else:
            when = f" ({code})" if code not in ("", "GPU_IS_LOST", "no answer") else ""
            who = named(gpu) if (known := label(machine, gpu)) == str(gpu.index) else f"GPU {known}"
            says = f"{who} was detected but stopped responding{when}{also}"
            yield GPU_LOST.fault(subject, says, evidence, case=GPU_LOST.case_in(code))


@check(GPU_NO_ANSWER)
def unlisted_gpus(machine: Machine) -> Iterator[Fault]:
    """Find GPUs that the NVIDIA kernel module has but NVML does not count.

    Their start failed, or a control group hides them. Not checked in a container, which gets some of the
    GPUs. Virtual functions are not GPUs.
    """
    if machine.driver.status != "ok" or machine.host.container not in (None, "none"):
        return
    if any(gpu.pci_address is None for gpu in machine.gpus):
        return
    names = {node.address: node.name for node in _gpu_nodes(machine)}
    for path in (path for path, why in machine.missing.items() if why == UNCOUNTED):
        at = FactPath.parse(path)
        if at.key.endswith(":00.0"):
            name = f" ({names[at.key]})" if names.get(at.key) else ""
            yield GPU_NO_ANSWER.fault(
                MACHINE,
                f"{at.key}{name} is bound to the NVIDIA kernel driver and not listed by NVML: its start "
                "failed, or it is hidden from this process",
                {"pci_address": at.key, "kernel_driver": NVIDIA_DRIVER},
                "warning",
            )


@check(GPU_LOST)
def logged_losses(machine: Machine) -> Iterator[Fault]:
    """Find GPUs that fell off the bus according to the kernel log of this boot."""
    seen: list[str | None] = []
    for gpu, event in kernel_events(machine, "xid", "lost"):
        of_another = event.kind == "xid" and event.code != OFF_THE_BUS
        if of_another or event.earlier or event.pci_address in seen:
            continue
        seen.append(event.pci_address)
        code = f"Xid {event.code} " if event.code else ""
        says, evidence = f"fallen off the bus, {code}in the kernel log{times(event)}", event_evidence(event)
        if gpu is not None and not gpu.lost:
            yield GPU_LOST.fault(gpu, says, evidence)
        elif gpu is None:
            yield GPU_LOST.fault(DRIVER, f"{device_words(event)}: {says}", evidence)


def _other_drivers_of_all(machine: Machine) -> set[str]:
    """Return the kernel drivers of the GPUs if none has NVIDIA's driver, which then does not load.

    Empty if NVIDIA's driver is known to work. A GPU with a name uses NVIDIA's driver.
    """
    holders = {node.driver or NVIDIA_DRIVER for node in _gpu_nodes(machine)}
    if machine.driver.status == "other_driver":
        return holders - {NVIDIA_DRIVER}
    named = any(gpu.name is not None for gpu in machine.gpus)
    return set() if machine.driver.status not in _UNCERTAIN or named or NVIDIA_DRIVER in holders else holders


def _driver_detail(driver: Driver) -> str | None:
    library, module = driver.nvml_version or driver.version, driver.kernel_module_version
    mismatch = driver.status == "version_mismatch" or _versions_differ(driver)
    if mismatch and library and module and library != module:
        return f"library {library}, kernel module {module}"
    return driver.detail


def _versions_differ(driver: Driver) -> bool:
    """Return whether the driver has parts of two versions, if it answers or its status is not reported."""
    versions = driver.version, driver.kernel_module_version
    return driver.status in ("ok", "not_read") and None not in versions and versions[0] != versions[1]


def _gpu_nodes(machine: Machine) -> list[PciNode]:
    """Return the NVIDIA GPUs on the PCI bus."""
    return [node for node in machine.pci if node.kind == "gpu"]
