"""What is wrong with a machine, or not known of it: one function a rule, values in, findings out.

A new rule is a function from a Machine to findings, its ids in `IDS`, and its name in `RULES`.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import combinations
from typing import Any, Literal

import msgspec

from gputopo.machine import Driver, Gpu, Machine
from gputopo.topology import class_name, links_by_pair

Severity = Literal["info", "warning", "error"]

SEVERITIES: tuple[Severity, ...] = ("info", "warning", "error")

IDS: dict[str, str] = {
    "driver.not_loaded": "an NVIDIA device is there, and the kernel module is not loaded",
    "driver.library_missing": "an NVIDIA device is there, and libnvidia-ml.so.1 is not",
    "driver.version_mismatch": "the library and the kernel module are of different versions",
    "driver.no_permission": "/dev/nvidia* may not be opened, or is not there",
    "driver.other_driver": "another kernel driver holds the NVIDIA device",
    "driver.failed": "the driver fails in another way",
    "machine.no_nvidia_device": "there is no NVIDIA device on the PCI bus",
    "machine.contradiction": "two sources say different things of one fact",
    "gpu.lost": "a GPU was counted and then did not answer",
    "topology.contradiction": "two sources place a pair of GPUs differently, such as NVML and the PCI tree",
    "topology.unknown": "of some pairs neither the PCIe hop nor NVLinks are known",
    "capture.unread": "lines of a capture were not understood",
}
"""Every id that `find` can give, and what it means. An id keeps its meaning from version to version."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to know about a machine. `subject`: `gpu:3`, `link:0-1`, `driver` or `machine`.

    `evidence` holds the values the finding rests on; `remedy` is what a person can do about it.
    """

    id: str
    severity: Severity
    subject: str
    says: str
    evidence: dict[str, Any] = {}
    remedy: str | None = None


class Inspection(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.inspect/1"):
    """A machine and what was found on it: the document that `gputopo inspect --json` prints."""

    machine: Machine
    findings: tuple[Finding, ...] = ()


Rule = Callable[[Machine], Iterable[Finding]]


def find(machine: Machine) -> tuple[Finding, ...]:
    """Give all findings, errors first, then warnings; within a severity in the order of the rules."""
    found = [finding for rule in RULES for finding in rule(machine)]
    return tuple(sorted(found, key=lambda finding: -SEVERITIES.index(finding.severity)))


def reaches(findings: Iterable[Finding], severity: Severity) -> bool:
    """Tell whether any finding is at or above a severity: what `--fail-on` asks."""
    return any(SEVERITIES.index(found.severity) >= SEVERITIES.index(severity) for found in findings)


def driver_broken(machine: Machine) -> Finding | None:
    """Give the finding if there is an NVIDIA device whose driver does not work, else None.

    A launcher stops with exit code 3 on it. None as well where the machine has no NVIDIA device, or where
    a capture says nothing of the driver.
    """
    return next(iter(_driver(machine)), None)


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
        "the device is set aside for a virtual machine, run there or bind it to nvidia",
    ),
    "failed": (
        "the NVIDIA driver does not work",
        "nvidia-smi and sudo dmesg | grep -i -e nvrm -e xid tell more; a reboot heals most of these",
    ),
}


def _driver(machine: Machine) -> Iterator[Finding]:
    driver = machine.driver
    if driver.status not in _DRIVER_WORDS:
        return
    what, remedy = _DRIVER_WORDS[driver.status]
    evidence = _driver_evidence(machine)
    detail = _driver_detail(driver, evidence)
    yield Finding(
        id=f"driver.{driver.status}",
        severity="error",
        subject="driver",
        says=f"{what}{f' ({detail})' if detail else ''}: no GPU of this machine can be used",
        evidence=evidence,
        remedy=remedy,
    )


def _driver_evidence(machine: Machine) -> dict[str, Any]:
    known = {name: value for name, value in msgspec.to_builtins(machine.driver).items() if value is not None}
    devices = [node for node in machine.pci if node.kind == "gpu"]
    return known | ({"pci_devices": {node.address: node.driver for node in devices}} if devices else {})


def _driver_detail(driver: Driver, evidence: dict[str, Any]) -> str | None:
    holders = sorted({holder for holder in evidence.get("pci_devices", {}).values() if holder})
    if driver.status == "other_driver" and holders:
        return ", ".join(holders)
    library, module = driver.nvml_version or driver.version, driver.kernel_module_version
    if driver.status == "version_mismatch" and library and module and library != module:
        return f"library {library}, kernel module {module}"
    return driver.detail


def _no_device(machine: Machine) -> Iterator[Finding]:
    if machine.driver.status == "no_device":
        yield Finding(
            id="machine.no_nvidia_device",
            severity="info",
            subject="machine",
            says="this machine has no NVIDIA device on its PCI bus",
            evidence={"source": machine.source},
            remedy="to look at another machine, give its capture: --from FILE",
        )


def _lost_gpus(machine: Machine) -> Iterator[Finding]:
    for position, gpu in enumerate(machine.gpus):
        if gpu.lost:
            path = f"gpus[{position}]"
            reasons = {
                fact: why
                for fact, why in machine.missing.items()
                if fact == path or fact.startswith(f"{path}.")
            }
            yield Finding(
                id="gpu.lost",
                severity="error",
                subject=f"gpu:{gpu.index}",
                says=f"{_named(gpu)} was counted and then did not answer",
                evidence={"pci_address": gpu.pci_address, "name": gpu.name, "missing": reasons},
                remedy="sudo dmesg | grep -i xid tells why (79: fell off the bus); reboot or power-cycle; "
                "if it comes again, check the seat, the riser, the power cables and the heat of this card",
            )


def _named(gpu: Gpu) -> str:
    known = ", ".join(fact for fact in (gpu.name, gpu.pci_address) if fact)
    return f"GPU {gpu.index}{f' ({known})' if known else ''}"


def _contradictions(machine: Machine) -> Iterator[Finding]:
    for contradiction in machine.contradictions:
        said = "; ".join(f"{source} says {what}" for source, what in contradiction.said.items())
        link = re.match(r"links\[(\d+)-(\d+)\]", contradiction.fact)
        if link:
            a, b = link.groups()
            yield Finding(
                id="topology.contradiction",
                severity="warning",
                subject=f"link:{a}-{b}",
                says=f"GPUs {a} and {b} are placed differently: {said}; the first is used",
                evidence={"fact": contradiction.fact, "said": contradiction.said},
                remedy="compare with nvidia-smi topo -m; a virtual machine or container often shows another "
                "PCI tree than the real one",
            )
        else:
            yield Finding(
                id="machine.contradiction",
                severity="warning",
                subject=_subject_of(machine, contradiction.fact),
                says=f"{contradiction.fact} is told differently: {said}; the first is used",
                evidence={"fact": contradiction.fact, "said": contradiction.said},
                remedy="see that all captures are of one machine and of one moment",
            )


def _subject_of(machine: Machine, fact: str) -> str:
    found = re.match(r"gpus\[(\d+)\]", fact)
    if found and int(found[1]) < len(machine.gpus):
        return f"gpu:{machine.gpus[int(found[1])].index}"
    return "driver" if fact.startswith("driver.") else "machine"


def _unknown_topology(machine: Machine) -> Iterator[Finding]:
    links = links_by_pair(machine)
    pairs = list(combinations(sorted(gpu.index for gpu in machine.gpus if not gpu.lost), 2))
    unknown = [pair for pair in pairs if class_name(links.get(pair)) == "unknown"]
    if unknown:
        yield Finding(
            id="topology.unknown",
            severity="info",
            subject="machine",
            says=f"how far apart {len(unknown)} of {len(pairs)} pairs of GPUs are is not known",
            evidence={"pairs": [f"{a}-{b}" for a, b in unknown]},
            remedy="add the text of nvidia-smi topo -m of this machine with --from",
        )


def _unread_lines(machine: Machine) -> Iterator[Finding]:
    by_source: dict[str, list[dict[str, Any]]] = {}
    for unread in machine.unread:
        by_source.setdefault(unread.source, []).append({"line": unread.line, "text": unread.text})
    for source, lines in by_source.items():
        numbers = ", ".join(str(entry["line"]) for entry in lines[:5]) + (", ..." if lines[5:] else "")
        plural = "s were" if len(lines) > 1 else " was"
        yield Finding(
            id="capture.unread",
            severity="info",
            subject="machine",
            says=f"{len(lines)} line{plural} not understood in {source}: line {numbers}",
            evidence={"source": source, "lines": lines},
            remedy="see whether these lines hold a fact that counts, and report it with the capture",
        )


RULES: tuple[Rule, ...] = (_driver, _no_device, _lost_gpus, _contradictions, _unknown_topology, _unread_lines)
