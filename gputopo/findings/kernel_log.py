"""The kernel log: its errors by GPU, and the errors without an Xid of the kernel module or fabric manager."""

from collections.abc import Iterator
from typing import Any

import msgspec

from gputopo.findings.rule import Case, Fault, Rule, check
from gputopo.topology import bridges_above
from gputopo.values.fields import short_address
from gputopo.values.finding import SEVERITIES, Severity
from gputopo.values.machine import Gpu, KernelEvent, KernelEventKind, Machine
from gputopo.values.subject import DRIVER

OFF_THE_BUS = 79  # Xid
FABRIC_MANAGER = "fabric manager"  # as the driver of an event of its log

NO_NVSWITCH = Case(
    "nothing to do",
    "the fabric manager found no NVSwitch and does not run",
    severity="info",
    remedy=(
        "None needed without NVSwitches: sudo systemctl disable --now nvidia-fabricmanager. NVLink "
        "bridges work without it."
    ),
)
# The cases match a part of the message. The first match is used.
KERNEL_ERROR = Rule(
    "driver.kernel_error",
    "an error without an Xid in the log of the kernel module or of the fabric manager",
    remedy="See sudo dmesg | grep -i nvrm, and look the message up in NVIDIA's driver documentation.",
    severities=("warning", "error", "info"),
    cases=(
        NO_NVSWITCH,
        Case(
            "driver interface version",
            "fabric manager and driver have different versions",
            severity="error",
            remedy=(
                "Install nvidia-fabricmanager in the version of the driver, and restart it: until then "
                "CUDA does not start on GPUs with NVSwitches."
            ),
        ),
        Case(
            "wpr2",
            "the GPU was not reset by a reboot",
            severity="error",
            remedy=(
                "Power the machine off for 30 s; a reboot is not enough. For a virtual machine, stop it "
                "and reset the GPU on the host. If it happens again, update the driver."
            ),
        ),
        Case(
            "gfw boot",
            "the GPU's firmware did not start",
            severity="error",
            remedy=(
                "Power the machine off for half a minute, and check seat, riser and power cables of the "
                "card. If the error persists, the card is defective: run nvidia-bug-report.sh and "
                "contact the vendor."
            ),
            fits="slot",
        ),
        Case(
            "i/o region",
            "no address space for the GPU's memory",
            severity="error",
            remedy=(
                "Turn on 'Above 4G Decoding' in the BIOS, or add pci=realloc to the kernel's options. In "
                "a virtual machine use UEFI, a q35 machine and a 64-bit MMIO window larger than the "
                "GPU's memory."
            ),
        ),
        Case(
            "open kernel module",
            "the GPU needs the open kernel modules",
            severity="error",
            remedy=(
                "Install the open kernel modules of the driver (package nvidia-open, or .run with "
                "-M=open), and reboot."
            ),
        ),
        Case(
            "not supported by",
            "the driver does not support the GPU",
            severity="error",
            remedy=(
                "Install a driver that supports the card (nvidia.com/drivers, by its name): a newer one, "
                "for old cards a legacy one."
            ),
        ),
        Case(
            "legacy",
            "the GPU needs a legacy driver",
            severity="error",
            remedy="Install the legacy driver that the message gives.",
        ),
        Case(
            "unlicensed",
            "the vGPU has no license",
            severity="warning",
            remedy=(
                "See sudo journalctl -u nvidia-gridd and /etc/nvidia/gridd.conf: without a license a "
                "vGPU works at a fraction of its speed."
            ),
        ),
        Case(
            "firmware image",
            "a firmware image is missing",
            severity="error",
            remedy=(
                "Install the driver again with its firmware (/lib/firmware/nvidia/VERSION/gsp_*.bin), "
                "and reboot."
            ),
        ),
        Case(
            "api mismatch",
            "library and kernel module differ",
            severity="warning",
            remedy=(
                "Reboot: the driver was updated under a running kernel module. In a container, update "
                "the driver of the host, or remove the driver libraries from the image."
            ),
        ),
        Case(
            "nouveau",
            "another driver uses the GPU",
            severity="error",
            remedy="Blacklist nouveau, update the initramfs and reboot.",
        ),
        Case(
            "inforom",
            "the InfoROM is corrupted",
            severity="warning",
            remedy=(
                "Reboot. If it persists, report it to the card's vendor with the output of "
                "nvidia-bug-report.sh."
            ),
        ),
        Case(
            "gsp",
            "GPU system processor",
            severity="warning",
            remedy=(
                "Reset the GPU (sudo nvidia-smi -r -i GPU) or reboot, and update the driver. If it "
                "happens again, run nvidia-bug-report.sh and report it to NVIDIA."
            ),
        ),
        Case(
            "adapter failed",
            "the GPU could not be started",
            severity="error",
            remedy="Install a driver version that supports the card, and check seat and power cables.",
            fits="slot",
        ),
    ),
)


@check(KERNEL_ERROR)
def kernel_errors(machine: Machine) -> Iterator[Fault]:
    """Find errors of the kernel module without an Xid in the kernel log."""
    known = {event.pci_address for _, event in kernel_events(machine, "xid") if event.code == OFF_THE_BUS}
    order = [*KERNEL_ERROR.cases, None]
    errors = [
        (KERNEL_ERROR.case_in(event.text), gpu, event)
        for gpu, event in kernel_events(machine, "nvrm", "lost")
        if event.kind == "nvrm" or (event.earlier and event.pci_address not in known)  # else `logged_losses`
    ]
    errors.sort(key=lambda item: order.index(item[0]))  # causes before effects
    for case, gpu, event in errors:
        says, evidence = f"error in the {log_of(event)}{times(event)}: {event.text}", event_evidence(event)
        if case is NO_NVSWITCH:
            says = f"{case.says}: needed with NVSwitches only"
        severity = severity_of(event, case.severity if case else KERNEL_ERROR.severities[0])
        yield KERNEL_ERROR.fault(gpu or DRIVER, says, evidence, severity, case=case, part=event.text)


def log_of(event: KernelEvent) -> str:
    """Return the name of the log that an event is in."""
    return "fabric manager's log" if event.device_driver == FABRIC_MANAGER else "kernel log"


def times(event: KernelEvent) -> str:
    """Return, in brackets, how often an event is in the log, and when it last occurred."""
    words = [f"{event.count} times"] if event.count > 1 else []
    if event.last_time is not None:
        since_boot = " after boot" if event.last_time.endswith(" s") else ""
        words.append(f"{'last ' if words else ''}at {event.last_time}{since_boot}")
    words += ["before the last boot or driver load"] if event.earlier else []
    return f" ({', '.join(words)})" if words else ""


def severity_of(event: KernelEvent, severity: Severity) -> Severity:
    """Return the severity of an event. An event before the last boot does not describe the present state."""
    return SEVERITIES[max(0, SEVERITIES.index(severity) - event.earlier)]


def event_evidence(event: KernelEvent) -> dict[str, Any]:
    """Return the known facts of an event."""
    return {name: value for name, value in msgspec.to_builtins(event).items() if value not in (None, False)}


def device_words(event: KernelEvent) -> str:
    """Return the name of the device of an event, if it is not a known GPU."""
    return f"device {event.pci_address}" if event.pci_address else "unknown GPU"


def kernel_events(machine: Machine, *kinds: KernelEventKind) -> Iterator[tuple[Gpu | None, KernelEvent]]:
    """Return the events of these kinds, each with its GPU, or None if it has no GPU or the GPU is unknown.

    An event in two logs (dmesg and kern.log) counts once, with the higher number. An event that occurred
    again since the last boot counts only since then.
    """
    events: dict[tuple[object, ...], KernelEvent] = {}
    for event in machine.kernel_events:
        if event.kind in kinds:
            words = event.text if event.code is None and event.kind != "aer" else None
            key = event.kind, event.code, event.severity, event.pci_address, words
            if key not in events or (events[key].earlier, -events[key].count) > (event.earlier, -event.count):
                events[key] = event
    owners = _owners(machine) if events else {}
    for event in events.values():
        where = None if event.pci_address is None else short_address(event.pci_address)
        yield owners.get(where or ""), event


def _owners(machine: Machine) -> dict[str, Gpu]:
    """Return the GPU of each address: the GPU's own address, and bridges that lead to no other GPU."""
    tree = machine.pci_by_address
    below: dict[str, list[Gpu]] = {}
    gpus = {short_address(gpu.pci_address): gpu for gpu in machine.gpus if gpu.pci_address is not None}
    for address in tree:
        if (gpu := gpus.get(short_address(address))) is not None:
            for bridge in bridges_above(tree, address)[0]:
                below.setdefault(short_address(bridge), []).append(gpu)
    owners = {where: gpus_below[0] for where, gpus_below in below.items() if len(gpus_below) == 1}
    return owners | gpus
