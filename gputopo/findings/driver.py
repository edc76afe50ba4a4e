"""The driver: whether it works, GPUs that do not answer, Xid errors, and what the kernel log shows."""

import csv
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from gputopo.findings.rule import Case, Fault, Finding, Rule, Severity, check, named
from gputopo.reference import data
from gputopo.reference.expectations import expected_of
from gputopo.topology.kernel import (
    NVIDIA_DRIVER,
    SET_ASIDE,
    UNCOUNTED,
    gpu_nodes,
    gpus_of_other_drivers,
    kernel_events,
)
from gputopo.values.index_ranges import parse_ranges
from gputopo.values.machine import Driver, Gpu, KernelEvent, Machine
from gputopo.values.subject import DRIVER, MACHINE, FactPath, Subject, at_gpu

_RESERVED = Case(
    "reserved for a virtual machine", "Use it in the virtual machine, or bind it to nvidia.", "info"
)


_MISMATCH = (
    "Reboot: the driver was updated under a running kernel module. In a container, update the driver of the "
    "host, or remove the driver libraries from the image."
)


def _of(
    status: str,
    title: str,
    remedy: str,
    severities: tuple[Severity, ...] = ("error", "warning"),
    cases: Mapping[str, Case] | None = None,
) -> Rule:
    return Rule(f"driver.{status}", title, remedy, severities, cases=cases or {})


_STATUSES = (
    _of(
        "not_loaded",
        "the NVIDIA kernel module is not loaded",
        "Run sudo modprobe nvidia. If it fails, see sudo dmesg | grep -i nvidia: after a kernel "
        "update the driver must be installed again; with Secure Boot its module must be signed.",
    ),
    _of(
        "library_missing",
        "the driver library libnvidia-ml.so.1 is not found",
        "Install the user-space part of the driver in the version of the kernel module. In a "
        "container, start it with GPU access (docker run --gpus all).",
    ),
    _of(
        "version_mismatch",
        "driver library and kernel module have different versions",
        _MISMATCH,
    ),
    _of(
        "too_old",
        "the driver is older than the CUDA runtime of the program",
        "Update the driver to a version that supports this CUDA (nvidia-smi shows the highest it supports), "
        "or install a framework built for an older CUDA. In a container, update the driver of the host.",
    ),
    _of(
        "not_ready",
        "CUDA waits for the NVSwitch fabric",
        "Start the fabric manager in the version of the driver: sudo systemctl status nvidia-fabricmanager "
        "and /var/log/fabricmanager.log show why it does not run; then restart the program.",
    ),
    _of(
        "no_permission",
        "/dev/nvidia* is missing, or permission is denied",
        "Join the group that may open it (ls -l /dev/nvidia*). In a container, start it with GPU "
        "access (docker run --gpus all).",
    ),
    _of(
        "other_driver",
        "another kernel driver is bound to the NVIDIA device",
        "Install NVIDIA's driver, blacklist the other driver (nouveau) and reboot.",
        severities=("error", "warning", "info"),
        cases={"vfio-pci": _RESERVED},
    ),
    _of(
        "hung",
        "a call into the NVIDIA driver did not return",
        "See sudo dmesg | grep -i -e nvrm -e xid, and ps -eo pid,stat,wchan:30,cmd for processes in "
        "state D. End the programs on the GPU and reset it (sudo nvidia-smi -r -i GPU), or reboot.",
    ),
    _of(
        "crashed",
        "a call into the NVIDIA driver crashed",
        "See sudo dmesg | grep -i -e nvrm -e xid -e segfault. Install the driver again so that "
        "libnvidia-ml.so.1 and the kernel module are of one version, and reboot.",
    ),
    _of(
        "failed",
        "the NVIDIA driver does not work",
        "See nvidia-smi and sudo dmesg | grep -i -e nvrm -e xid, and reboot. If nvidia-smi lists the GPUs, "
        "check CUDA_VISIBLE_DEVICES; restart a container that lost its GPUs.",
    ),
)
DRIVER_STATUS = {rule.id.removeprefix("driver."): rule for rule in _STATUSES}
NO_DEVICE = Rule(
    "machine.no_nvidia_device",
    title="no NVIDIA device on the PCI bus",
    remedy="To inspect another machine, pass its capture: --from FILE.",
    severities=("info",),
)
GPU_LOST = Rule(
    "gpu.lost",
    title="the GPU does not answer",
    remedy="See sudo dmesg | grep -i xid (79: fell off the bus), and reboot or power-cycle. If it happens "
    "again, check seat, riser, power cables and temperature of the card.",
    severities=("error",),
    fits="slot",
)
GPU_NO_ANSWER = Rule(
    "gpu.no_answer",
    title="the driver refuses to report what the GPU is, or does not list it",
    remedy="See sudo dmesg | grep -i -e nvrm -e xid for its PCI address, and ls -l /dev/nvidia* for missing "
    "permission. Else reboot or power-cycle; if it happens again, check seat, riser, power cables and "
    "temperature of the card.",
    severities=("error", "warning"),
    fits="slot",
)

OFF_THE_BUS = 79  # Xid
_XID_GSP = (
    "Reset the GPU (sudo nvidia-smi -r -i GPU) or reboot, and update the driver. If it happens again, run "
    "nvidia-bug-report.sh and report it to NVIDIA."
)
_XID_RESET = (
    "End all programs on this GPU and reset it (sudo nvidia-smi -r -i GPU), or reboot. If it happens again, "
    "run NVIDIA's field diagnostic, which decides on a return."
)
# By the `action` of xids.csv (NVIDIA, Xid catalog, "immediate action").
_XID_ACTIONS = {
    "none": "None needed.",
    "ended": "None after a program was ended, or beside another Xid. Alone on a machine with NVSwitches: "
    "sudo systemctl restart nvidia-fabricmanager.",
    "program": "Debug the program first (compute-sanitizer); the GPU is rarely the cause.",
    "restart": "Start the program again. If it happens again, update the driver and debug the program.",
    "reset": _XID_RESET,
    "reboot": "Reboot the machine. If it happens again, run nvidia-bug-report.sh and contact the vendor.",
    "drain": "End the programs that copy between GPUs, start no new ones, then reset the GPU (sudo "
    "nvidia-smi -r -i GPU).",
    "vm": "Restart the virtual machine that uses the GPU.",
    "power cycle": "Undo recent changes of the hardware and power-cycle. If it stays, contact the vendor.",
    "ecc on": "Turn ECC on (sudo nvidia-smi -i GPU -e 1) and reboot: only then rows can be remapped.",
    "remap": "Reset the GPU when its programs have ended, for the repair. No reason for a return (NVIDIA, "
    "GPU Memory Error Management).",
    "retire": "Reboot when its programs have ended: then the page is no longer used. No reason for a return "
    "below 60 pages (NVIDIA, Dynamic Page Retirement).",
    "contained": "Start the program that was ended again, and reset the GPU when it has ended.",
    "watch": "Results are right: the errors were corrected. Watch whether they go on (nvidia-smi -q -d ECC).",
    "retrain": "None needed at once: reset the GPU when its programs have ended.",
    "gsp": _XID_GSP,
    "nvlink": f"See nvidia-smi nvlink -s and -e; a bridge: reseat it. {_XID_RESET}",
    "nonfatal": "Do what Xid 154 beside it names; without one, start the program that was ended again.",
    "bus": "Check seat, riser, power cables and temperature of the card. Reboot or power-cycle.",
    "driver": "Update the driver. If it happens again, run nvidia-bug-report.sh and report it to NVIDIA.",
    "action": "Do what the message names: nvidia-smi --query-gpu=gpu_recovery_action --format=csv shows it.",
    "support": "Run nvidia-bug-report.sh and contact the vendor of the card.",
}


def _known_xids() -> dict[tuple[int, str], Case]:
    """Return the Xids of NVIDIA's catalog (docs.nvidia.com/deploy/xid-errors) and of the one for older GPUs.

    By code and "", or what makes a difference: severity or recovery action of the message, architecture.
    Faults of programs are warnings, those of the card errors.
    """
    found: dict[tuple[int, str], Case] = {}
    with (Path(data.__path__[0]) / "xids.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            severity = msgspec.convert(row["severity"], Severity)
            fits = {"bus": "slot", "nvlink": "bridge"}.get(row["action"], "")
            whens = row["when"].split() if row["meaning"] else [row["when"]]
            for code in parse_ranges(row["codes"]) or ():
                for when in whens or [""]:
                    says = row["meaning"] or f"{found[code, ''].says}: {when}"
                    found[code, when] = Case(says, _XID_ACTIONS[row["action"]], severity, fits=fits)
    return found


XIDS = _known_xids()
XID = Rule(
    "driver.xid",
    title="the kernel module reported an Xid error, during a watch or in a kernel log",
    remedy="Look the number up in NVIDIA's list of Xid errors. sudo dmesg | grep -i xid shows the driver "
    "message.",
    severities=("warning", "info", "error"),
    cases={f"Xid {code}" + (f" ({when})" if when else ""): case for (code, when), case in XIDS.items()},
)
# By what the messages have in common, the first that fits.
_KERNEL_CASES = {
    "firmware": Case(
        "a firmware image is missing",
        "Install the driver again with its firmware (/lib/firmware/nvidia/VERSION/gsp_*.bin), and reboot.",
        "error",
    ),
    "api mismatch": Case("library and kernel module differ", _MISMATCH, "warning"),
    "nouveau": Case(
        "another driver has the GPU", "Blacklist nouveau, update the initramfs and reboot.", "warning"
    ),
    "inforom": Case(
        "the InfoROM is corrupted",
        "Reboot. If it stays, report it to the card's vendor with the output of nvidia-bug-report.sh.",
        "warning",
    ),
    "gsp": Case("GPU system processor", _XID_GSP, "warning"),
    "adapter failed": Case(
        "the GPU could not be started",
        "Install a driver version that supports the card, and check seat and power cables.",
        "error",
        fits="slot",
    ),
}
KERNEL_ERROR = Rule(
    "driver.kernel_error",
    title="the kernel module reported an error without an Xid in the kernel log",
    remedy="See sudo dmesg | grep -i nvrm, and look the message up in NVIDIA's driver documentation.",
    severities=("warning", "error"),
    cases=_KERNEL_CASES,
)
_UNKNOWN_XID = Case("not in the table of known Xid errors", XID.remedy, "warning")


# Reasons that are no code of NVML's.
_NO_RETURN = {"HUNG": "the call did not return", "CRASHED": "the call crashed"}


def xid_case(code: int, said: str | None = None, gpu: Gpu | None = None) -> Case:
    """Return what an Xid means; one that is not in the table is a warning without a meaning.

    `said`: the severity or the recovery action in its message. `gpu`: may be of an architecture with another
    meaning.
    """
    reference = expected_of(gpu) if gpu is not None else None
    architectures = (gpu and gpu.architecture, reference and reference.architecture)
    whens = (word.lower() for word in (said, *architectures) if word)
    return next((XIDS[code, when] for when in (*whens, "") if (code, when) in XIDS), _UNKNOWN_XID)


@check(*DRIVER_STATUS.values())
def status(machine: Machine) -> Iterator[Fault]:
    """Find a driver that does not work, or whose parts have different versions.

    Shown by a capture that does not report the driver's status it is a warning: it may have changed since.
    """
    driver = machine.driver
    differ = _versions_differ(driver)
    elsewhere = _all_have_other_driver(machine)
    name = "version_mismatch" if differ else "other_driver" if elsewhere else driver.status
    rule = DRIVER_STATUS.get(name)
    if rule is None:
        return
    evidence = _driver_evidence(machine)
    effect = "no GPU of this machine can be used"
    if differ:
        effect = "programs may fail"
    elif name in ("too_old", "not_ready"):
        effect = "CUDA programs cannot start"
    elif name in ("hung", "crashed"):
        effect = "programs on its GPUs may hang or fail" if machine.gpus else effect
    detail = _driver_detail(msgspec.structs.replace(driver, status=name), evidence)
    yield rule.fault(
        DRIVER,
        f"{rule.title}{f' ({detail})' if detail else ''}: {effect}",
        evidence,
        "error" if name == driver.status else "warning",
    )


def stopped(status: str, detail: str) -> Finding:
    """Return the finding of a driver that hung or crashed during a watch."""
    rule = DRIVER_STATUS[status]
    return rule.finding(DRIVER, f"{rule.title} ({detail}): no further samples", {"status": status}, "error")


@check(DRIVER_STATUS["other_driver"])
def gpus_with_other_driver(machine: Machine) -> Iterator[Fault]:
    """Find GPUs with another kernel driver beside others: NVIDIA's driver does not list them.

    A warning, unless they are reserved for a virtual machine. Where every GPU has another driver, `status`
    reports that.
    """
    bound = gpus_of_other_drivers([machine])
    nodes = {node.address: node for node in gpu_nodes(machine)}
    if len(bound) == len(nodes) or machine.driver.status not in ("ok", "not_read"):
        return
    for holder in sorted(set(bound.values())):
        those = [node for address, node in nodes.items() if bound.get(address) == holder]
        words = (f"{node.address} ({node.name})" if node.name else node.address for node in those)
        yield DRIVER_STATUS["other_driver"].fault(
            MACHINE,
            f"kernel driver {holder} is bound to {', '.join(words)}: not listed by nvidia-smi, not usable by "
            "CUDA",
            {"pci_devices": {address: node.driver for address, node in nodes.items()}},
            _RESERVED.severity if holder in SET_ASIDE else "warning",
            remedy=_RESERVED.remedy if holder in SET_ASIDE else None,
        )


@check(NO_DEVICE)
def no_device(machine: Machine) -> Iterator[Fault]:
    """Report that there is no GPU to look at, which is no fault."""
    if machine.driver.status == "no_device":
        yield NO_DEVICE.fault(MACHINE, NO_DEVICE.title, {"source": machine.source})


@check(GPU_LOST, GPU_NO_ANSWER)
def lost_gpus(machine: Machine) -> Iterator[Fault]:
    """Find GPUs that were counted and then did not answer, with the reason of NVML where it is another."""
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
        logged = [event for one, event in kernel_events(machine, "xid", "lost", "nvrm") if one is gpu]
        if logged:
            evidence["kernel_events"] = [event_evidence(event) for event in logged]
        xids = ", ".join(sorted({f"Xid {event.code}" for event in logged if event.code is not None}))
        also = f"; {xids} in the kernel log" if xids else ""
        subject, code = Subject.of_gpus([gpu.index]), machine.missing.get(path, "")
        if code != "GPU_IS_LOST" and re.fullmatch(r"[A-Z0-9_]+", code):
            drivers = {node.address: node.driver for node in gpu_nodes(machine)}
            evidence |= {"nvml": code, "kernel_driver": drivers.get(gpu.pci_address or "")}
            why = _NO_RETURN.get(code, f"refused with NVML's {code}")
            yield GPU_NO_ANSWER.fault(subject, f"{named(gpu)} does not answer: {why}{also}", evidence)
        else:
            when = f" ({code})" if code.startswith("listed at") else ""
            says = f"{named(gpu)} was enumerated and then did not answer{when}{also}"
            yield GPU_LOST.fault(subject, says, evidence)


@check(GPU_NO_ANSWER)
def unlisted_gpus(machine: Machine) -> Iterator[Fault]:
    """Find GPUs that the NVIDIA kernel module has, and NVML does not count: their start failed, or a control
    group hides them. Not in a container, which is given some of the GPUs. Virtual functions are no GPUs.
    """
    if machine.driver.status != "ok" or machine.host.container not in (None, "none"):
        return
    if any(gpu.pci_address is None for gpu in machine.gpus):
        return
    names = {node.address: node.name for node in gpu_nodes(machine)}
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


@check(XID)
def logged_xids(machine: Machine) -> Iterator[Fault]:
    """Find Xid errors in the kernel log, but for the one of a GPU that fell off the bus: `logged_losses`."""
    for gpu, event in kernel_events(machine, "xid"):
        if event.code == OFF_THE_BUS:
            continue
        case = xid_case(event.code or 0, event.severity, gpu)
        says = f"Xid {event.code} in the kernel log{times(event)}: {case.says}"
        evidence = event_evidence(event)
        if gpu is not None:
            yield XID.fault(gpu, says, evidence, case.severity, remedy=case.remedy, part=str(event.code))
        else:
            yield XID.fault(DRIVER, f"{_device(event)}: {says}", evidence, case.severity, remedy=case.remedy)


@check(GPU_LOST)
def logged_losses(machine: Machine) -> Iterator[Fault]:
    """Find GPUs that fell off the bus by the kernel log."""
    seen: list[str | None] = []
    for gpu, event in kernel_events(machine, "xid", "lost"):
        if (event.kind == "xid" and event.code != OFF_THE_BUS) or event.pci_address in seen:
            continue
        seen.append(event.pci_address)
        code = f"Xid {event.code}, " if event.code else ""
        says, evidence = f"fallen off the bus ({code}kernel log{times(event)})", event_evidence(event)
        if gpu is not None and not gpu.lost:
            yield GPU_LOST.fault(gpu, says, evidence)
        elif gpu is None:
            yield GPU_LOST.fault(DRIVER, f"{_device(event)}: {says}", evidence)


@check(KERNEL_ERROR)
def kernel_errors(machine: Machine) -> Iterator[Fault]:
    """Find errors of the kernel module without an Xid in the kernel log."""
    for gpu, event in kernel_events(machine, "nvrm"):
        case = next((word for word in _KERNEL_CASES if word in event.text.lower().replace("_", " ")), None)
        says, evidence = f"kernel log{times(event)}: {event.text}", event_evidence(event)
        yield KERNEL_ERROR.fault(gpu or DRIVER, says, evidence, case=case, part=event.text)


def times(event: KernelEvent) -> str:
    """Return how often an event is in the log, and when it was last, in brackets."""
    words = [f"{event.count} times"] if event.count > 1 else []
    if event.last_time is not None:
        since_boot = " after boot" if event.last_time.endswith(" s") else ""
        words.append(f"{'last ' if words else ''}at {event.last_time}{since_boot}")
    return f" ({', '.join(words)})" if words else ""


def event_evidence(event: KernelEvent) -> dict[str, Any]:
    """Return the known facts of an event."""
    return {name: value for name, value in msgspec.to_builtins(event).items() if value is not None}


def _device(event: KernelEvent) -> str:
    return f"device {event.pci_address}" if event.pci_address else "unknown GPU"


def _driver_evidence(machine: Machine) -> dict[str, Any]:
    known = {name: value for name, value in msgspec.to_builtins(machine.driver).items() if value is not None}
    devices = {node.address: node.driver for node in gpu_nodes(machine)}
    return known | ({"pci_devices": devices} if devices else {})


def _all_have_other_driver(machine: Machine) -> bool:
    """Return whether a capture without a driver status shows another kernel driver for every GPU.

    Only NVIDIA's driver reports a GPU's name: where one is known, it worked.
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
    mismatch = driver.status == "version_mismatch" or _versions_differ(driver)
    if mismatch and library and module and library != module:
        return f"library {library}, kernel module {module}"
    return driver.detail


def _versions_differ(driver: Driver) -> bool:
    """Return whether a driver that answers, or whose status is not reported, has parts of two versions."""
    versions = driver.version, driver.kernel_module_version
    return driver.status in ("ok", "not_read") and None not in versions and versions[0] != versions[1]
