"""Xid errors of the kernel module: what each means, and what NVIDIA recommends."""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from gputopo.findings.kernel_log import (
    OFF_THE_BUS,
    device_words,
    event_evidence,
    kernel_events,
    severity_of,
    times,
)
from gputopo.findings.places import Fits
from gputopo.findings.rule import Case, Fault, Rule, check
from gputopo.reference import expected_of, reference_rows
from gputopo.values.finding import Severity
from gputopo.values.index_ranges import parse_ranges
from gputopo.values.machine import Gpu, Machine
from gputopo.values.subject import DRIVER


class Action(NamedTuple):
    """What to do about errors of a catalogue; `fits`: as of a Rule."""

    remedy: str
    fits: Fits = ""


# By their names in xids.csv.
_ACTIONS = {
    "none": Action("None needed."),
    "ended": Action(
        "None needed after a program was stopped, or together with another Xid. If it is the only Xid on "
        "a machine with NVSwitches: sudo systemctl restart nvidia-fabricmanager."
    ),
    "program": Action("Debug the program first (compute-sanitizer); the GPU is rarely the cause."),
    "restart": Action(
        "Start the program again. If it happens again, update the driver and debug the program."
    ),
    "reset": Action(
        "Stop all programs on this GPU and reset it (sudo nvidia-smi -r -i GPU), or reboot. If it "
        "happens again, run NVIDIA's field diagnostic (required for an RMA)."
    ),
    "reboot": Action(
        "Reboot the machine. If it happens again, run nvidia-bug-report.sh and contact the vendor."
    ),
    "drain": Action(
        "Stop the programs that copy between GPUs, start no new ones, then reset the GPU (sudo "
        "nvidia-smi -r -i GPU)."
    ),
    "vm": Action("Restart the virtual machine that uses the GPU."),
    "power cycle": Action(
        "Undo recent hardware changes and power-cycle. If the error persists, contact the vendor."
    ),
    "ecc on": Action(
        "Turn ECC on (sudo nvidia-smi -i GPU -e 1) and reboot. Rows cannot be remapped without ECC."
    ),
    "remap": Action(
        "Reset the GPU after its programs have finished; the row is then remapped. This alone does not "
        "qualify for an RMA (NVIDIA, GPU Memory Error Management)."
    ),
    "retire": Action(
        "Reboot after its programs have finished; the page is then no longer used. Fewer than 60 pages "
        "do not qualify for an RMA (NVIDIA, Dynamic Page Retirement)."
    ),
    "contained": Action(
        "Restart the program that was ended, and reset the GPU after its programs have finished."
    ),
    "watch": Action(
        "Results are not affected: the errors were corrected. Watch for more (nvidia-smi -q -d ECC)."
    ),
    "retrain": Action("None needed at once. Reset the GPU after its programs have finished."),
    "gsp": Action(
        "Reset the GPU (sudo nvidia-smi -r -i GPU) or reboot, and update the driver. If it happens "
        "again, run nvidia-bug-report.sh and report it to NVIDIA."
    ),
    "nvlink": Action(
        "See nvidia-smi nvlink -s and -e; a bridge: reseat it. Stop all programs on this GPU and reset "
        "it (sudo nvidia-smi -r -i GPU), or reboot. If it happens again, run NVIDIA's field diagnostic "
        "(required for an RMA).",
        fits="bridge",
    ),
    "nonfatal": Action(
        "Do what Xid 154 in the same log requests. If there is none, restart the program that was ended."
    ),
    "bus": Action(
        "Check seat, riser, power cables and temperature of the card. Reboot or power-cycle.", fits="slot"
    ),
    "driver": Action(
        "Update the driver. If it happens again, run nvidia-bug-report.sh and report it to NVIDIA."
    ),
    "action": Action(
        "Do what the driver requests (nvidia-smi --query-gpu=gpu_recovery_action --format=csv)."
    ),
    "support": Action("Run nvidia-bug-report.sh and contact the vendor of the card."),
}


def known_errors(kind: str, file: str, actions: Mapping[str, Action]) -> dict[tuple[int, str], Case]:
    """Return the errors of a catalogue, by code and "" or what makes a difference: severity or recovery
    action of the message, architecture. `kind`: Xid or SXid. `actions`: by their names in it, what to do.

    xids.csv: NVIDIA's catalog (docs.nvidia.com/deploy/xid-errors) and the one for older GPUs, "immediate
    action"; sxids.csv: the appendix on SXid errors of NVIDIA's Fabric Manager User Guide (DU-09883-001), also
    as in leptonai/gpud, sxid.go. Faults of programs are warnings, those of the card errors.
    """
    errors: dict[tuple[int, str], Case] = {}
    for row in reference_rows(file):
        severity, action = msgspec.convert(row["severity"], Severity), actions[row["action"]]
        whens = row["when"].split() if row["meaning"] else [row["when"]]
        for code in parse_ranges(row["codes"]) or ():
            for when in whens or [""]:
                says = row["meaning"] or f"{errors[code, ''].says}: {when}"
                name = f"{kind} {code}{f' ({when})' if when else ''}"
                errors[code, when] = Case(name, says, severity, action.remedy, action.fits)
    return errors


XIDS = known_errors("Xid", "xids.csv", _ACTIONS)
XID = Rule(
    "driver.xid",
    "the kernel module reported an Xid error, during a watch or in a kernel log",
    remedy=(
        "Look the number up in NVIDIA's list of Xid errors. sudo dmesg | grep -i xid shows the driver "
        "message."
    ),
    severities=("warning", "info", "error"),
    cases=tuple(XIDS.values()),
)
_UNKNOWN_XID = Case("", "not in the table of known Xid errors", severity="warning", remedy=XID.remedy)
_PREVIOUS = re.compile(r"caused by previous Xid (\d{1,4})")  # the cause of an Xid 45


def xid_case(code: int, said: str | None = None, gpu: Gpu | None = None) -> Case:
    """Return what an Xid means; one that is not in the table is a warning without a meaning.

    `said`: the severity or the recovery action in its message. `gpu`: may be of an architecture with another
    meaning.
    """
    reference = expected_of(gpu) if gpu is not None else None
    architectures = (gpu and gpu.architecture, reference and reference.architecture)
    whens = (word.lower() for word in (said, *architectures) if word)
    return next((XIDS[code, when] for when in (*whens, "") if (code, when) in XIDS), _UNKNOWN_XID)


@check(XID)
def logged_xids(machine: Machine) -> Iterator[Fault]:
    """Find Xid errors in the kernel log, but for the one of a GPU that fell off the bus: `logged_losses`."""
    for gpu, event in kernel_events(machine, "xid"):
        if event.code == OFF_THE_BUS and not event.earlier:
            continue
        case = xid_case(event.code or 0, event.severity, gpu)
        says = f"Xid {event.code} in the kernel log{times(event)}: {case.says}"
        if previous := _PREVIOUS.search(event.text):
            case = xid_case(int(previous[1]), None, gpu)
            says = f"{says}, caused by Xid {previous[1]}: {case.says}"
        says = says if gpu is not None else f"{device_words(event)}: {says}"
        severity, part = severity_of(event, case.severity), str(event.code)
        yield XID.fault(gpu or DRIVER, says, event_evidence(event), severity, case=case, part=part)
