"""The driver: whether it works, GPUs that do not answer, Xid errors, and what the kernel log shows."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from gputopo.findings.rule import Case, Fault, Rule, check, named, rule_of
from gputopo.reference import expectations
from gputopo.reference.expectations import expected_of
from gputopo.topology.kernel import (
    NVIDIA_DRIVER,
    SET_ASIDE,
    UNCOUNTED,
    gpu_nodes,
    gpus_of_other_drivers,
    kernel_events,
)
from gputopo.values.fields import rows_of
from gputopo.values.finding import SEVERITIES, Finding, Severity
from gputopo.values.index_ranges import parse_ranges
from gputopo.values.machine import Driver, Gpu, KernelEvent, Machine
from gputopo.values.subject import DRIVER, MACHINE, FactPath, Subject, at_gpu, label

_STATUSES = (
    *("not_loaded", "library_missing", "version_mismatch", "too_old", "not_ready", "no_permission"),
    *("other_driver", "hung", "crashed", "failed"),
)
DRIVER_STATUS = {status: rule_of(f"driver.{status}") for status in _STATUSES}
_RESERVED = DRIVER_STATUS["other_driver"].cases["vfio-pci"]
NO_DEVICE = rule_of("machine.no_nvidia_device")
GPU_LOST = rule_of("gpu.lost")
GPU_NO_ANSWER = rule_of("gpu.no_answer")
PROGRAM_ERROR = rule_of("program.error")

OFF_THE_BUS = 79  # Xid
FABRIC_MANAGER = "fabric manager"  # as the driver of an event of its log


def known_errors(file: str, actions: Mapping[str, Case]) -> dict[tuple[int, str], Case]:
    """Return the errors of a catalogue, by code and "" or what makes a difference: severity or recovery
    action of the message, architecture. `actions`: by their names in it, what to do.

    xids.csv: NVIDIA's catalog (docs.nvidia.com/deploy/xid-errors) and the one for older GPUs, "immediate
    action"; sxids.csv: the appendix on SXid errors of NVIDIA's Fabric Manager User Guide (DU-09883-001), also
    as in leptonai/gpud, sxid.go. Faults of programs are warnings, those of the card errors.
    """
    found: dict[tuple[int, str], Case] = {}
    for row in rows_of(expectations.__file__, f"data/{file}"):
        severity, action = msgspec.convert(row["severity"], Severity), actions[row["action"]]
        whens = row["when"].split() if row["meaning"] else [row["when"]]
        for code in parse_ranges(row["codes"]) or ():
            for when in whens or [""]:
                says = row["meaning"] or f"{found[code, ''].says}: {when}"
                found[code, when] = Case(says, action.remedy, severity, action.fits)
    return found


XIDS = known_errors("xids.csv", rule_of("driver.xid").cases)
XID = rule_of(
    "driver.xid",
    cases={f"Xid {code}" + (f" ({when})" if when else ""): case for (code, when), case in XIDS.items()},
)
# Its cases: by what the messages have in common, the first that fits.
KERNEL_ERROR = rule_of("driver.kernel_error")
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

    def stopped_at(gpu: int) -> bool:
        return any(
            why == name.upper() and fact.startswith(at_gpu(gpu)) for fact, why in machine.missing.items()
        )

    yield rule.fault(
        DRIVER,
        f"{rule.title}{f' ({detail})' if detail else ''}: {effect}",
        evidence,
        "error" if name == driver.status else "warning",
        remedy=_reset(rule, [label(machine, gpu) for gpu in machine.gpus if stopped_at(gpu.index)]),
        case=_case_in(driver.detail or "", rule.cases) if name == "failed" else None,
    )


def stopped(status: str, detail: str, gpus: Iterable[int] = ()) -> Finding:
    """Return the finding of a driver that hung or crashed during a watch, in a call about these GPUs."""
    rule = DRIVER_STATUS[status]
    says = f"{rule.title} ({detail}): no further samples"
    return rule.finding(DRIVER, says, {"status": status}, "error", remedy=_reset(rule, map(str, gpus)))


def _reset(rule: Rule, gpus: Iterable[str]) -> str:
    """Return the remedy with the GPUs to reset: all, if it is not known in whose calls the driver stopped."""
    which = ",".join(gpus)
    return rule.remedy.replace(" -i GPU", f" -i {which}" if which else "")


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
        events = kernel_events(machine, "xid", "lost", "nvrm")
        logged = [event for one, event in events if one is gpu and not event.earlier]
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
            when = f" ({code})" if code not in ("", "GPU_IS_LOST", "no answer") else ""
            who = named(gpu) if (known := label(machine, gpu)) == str(gpu.index) else f"GPU {known}"
            says = f"{who} was enumerated and then did not answer{when}{also}"
            yield GPU_LOST.fault(subject, says, evidence, case=_case_in(code, GPU_LOST.cases))


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
        if event.code == OFF_THE_BUS and not event.earlier:
            continue
        case = xid_case(event.code or 0, event.severity, gpu)
        says = f"Xid {event.code} in the kernel log{times(event)}: {case.says}"
        says = says if gpu is not None else f"{_device(event)}: {says}"
        severity, part = severity_of(event, case.severity), str(event.code)
        yield XID.fault(gpu or DRIVER, says, event_evidence(event), severity, remedy=case.remedy, part=part)


@check(GPU_LOST)
def logged_losses(machine: Machine) -> Iterator[Fault]:
    """Find GPUs that fell off the bus by the kernel log of this boot."""
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
            yield GPU_LOST.fault(DRIVER, f"{_device(event)}: {says}", evidence)


@check(PROGRAM_ERROR)
def program_errors(machine: Machine) -> Iterator[Fault]:
    """Find failures that programs report. They number the GPUs as CUDA does: none is named as the subject."""
    for _, event in kernel_events(machine, "program"):
        says, case = f"{event.device_driver} reports {event.text}", _case_in(event.text, PROGRAM_ERROR.cases)
        yield PROGRAM_ERROR.fault(MACHINE, says, event_evidence(event), case=case, part=event.text)


@check(KERNEL_ERROR)
def kernel_errors(machine: Machine) -> Iterator[Fault]:
    """Find errors of the kernel module without an Xid in the kernel log."""
    known = {event.pci_address for _, event in kernel_events(machine, "xid") if event.code == OFF_THE_BUS}
    cases = [*KERNEL_ERROR.cases, None]
    found = [
        (case, gpu, event)
        for gpu, event in kernel_events(machine, "nvrm", "lost")
        if event.kind == "nvrm" or (event.earlier and event.pci_address not in known)  # else `logged_losses`
        for case in [_case_in(event.text, KERNEL_ERROR.cases)]
    ]
    for case, gpu, event in sorted(found, key=lambda one: cases.index(one[0])):  # a cause before its effects
        says, evidence = f"error in the {log_of(event)}{times(event)}: {event.text}", event_evidence(event)
        if case == "nothing to do":
            says = f"{KERNEL_ERROR.cases[case].says}: needed with NVSwitches only"
        usual = KERNEL_ERROR.cases[case].severity if case else KERNEL_ERROR.severities[0]
        severity = severity_of(event, usual)
        yield KERNEL_ERROR.fault(gpu or DRIVER, says, evidence, severity, case=case, part=event.text)


def _case_in(text: str, cases: Mapping[str, Case]) -> str | None:
    """Return the first case whose name is in a message."""
    return next((word for word in cases if word in text.lower().replace("_", " ")), None)


def log_of(event: KernelEvent) -> str:
    """Return which log an event is in."""
    return "fabric manager's log" if event.device_driver == FABRIC_MANAGER else "kernel log"


def times(event: KernelEvent) -> str:
    """Return how often an event is in the log, and when it was last, in brackets."""
    words = [f"{event.count} times"] if event.count > 1 else []
    if event.last_time is not None:
        since_boot = " after boot" if event.last_time.endswith(" s") else ""
        words.append(f"{'last ' if words else ''}at {event.last_time}{since_boot}")
    words += ["before the last boot or driver load"] if event.earlier else []
    return f" ({', '.join(words)})" if words else ""


def severity_of(event: KernelEvent, severity: Severity) -> Severity:
    """Return the severity of an event: one before the last boot is not of the machine as it is now."""
    return SEVERITIES[max(0, SEVERITIES.index(severity) - event.earlier)]


def event_evidence(event: KernelEvent) -> dict[str, Any]:
    """Return the known facts of an event."""
    return {name: value for name, value in msgspec.to_builtins(event).items() if value not in (None, False)}


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
