"""One fault of one GPU, and how the faults of several become findings: what is the same is said once."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from gputopo.findings.finding import Finding, Severity
from gputopo.values.index_ranges import index_ranges
from gputopo.values.machine import Gpu, Machine

MOST_TOLD = 3  # different wordings that stand in a finding about many GPUs; the evidence has all


class Fault(msgspec.Struct, frozen=True):
    """What is wrong with one GPU. `says` reads on after "GPU 3: ": "the link has 1 of 16 lanes"."""

    gpu: Gpu
    says: str
    evidence: dict[str, Any]
    severity: Severity


def findings_of(id: str, faults: Iterable[Fault], remedy: str, machine: Machine) -> Iterator[Finding]:
    """Give one finding for each fault, but only one where several GPUs have the same.

    The same: of one severity and in the same words. Where every GPU of the machine has a fault of one
    severity, its words may differ: then it is a property of the machine, and said once as well.
    """
    for group in _groups(list(faults), sum(not gpu.lost for gpu in machine.gpus)):
        first = group[0]
        alone = len(group) == 1
        yield Finding(
            id=id,
            severity=first.severity,
            subject=f"gpu:{first.gpu.index}" if alone else f"gpus:{numbers(f.gpu.index for f in group)}",
            says=f"{named(first.gpu)}: {first.says}" if alone else _words(group),
            evidence=first.evidence
            if alone
            else {"gpus": {str(fault.gpu.index): fault.evidence for fault in group}},
            remedy=remedy,
        )


def named(gpu: Gpu) -> str:
    """Name a GPU by number, model and address, as far as they are known."""
    known = ", ".join(fact for fact in (gpu.name, gpu.pci_address) if fact)
    return f"GPU {gpu.index}{f' ({known})' if known else ''}"


def numbers(indices: Iterable[int]) -> str:
    """Write GPU indices as a list with ranges: `0-2,5`."""
    return index_ranges(indices)


def roughly(share: float) -> str:
    """Write a share to the next tenth, so that cards with about the same are told together."""
    return f"{max(round(share, 1), 0.1):.0%}" if share >= 0.05 else "under 5%"


def present(machine: Machine) -> list[Gpu]:
    """Give the GPUs that answer: rules ask nothing of a lost one."""
    return [gpu for gpu in machine.gpus if not gpu.lost]


def kinds(machine: Machine) -> list[list[Gpu]]:
    """Give the GPUs of each model together: one is the control of the others. Nameless ones have no peers."""
    found: dict[str, list[Gpu]] = {}
    for gpu in present(machine):
        if gpu.name:
            found.setdefault(gpu.name, []).append(gpu)
    return list(found.values())


def _groups(faults: Sequence[Fault], gpus: int) -> list[list[Fault]]:
    found: dict[tuple[str, str], list[Fault]] = {}
    for fault in faults:
        everywhere = gpus > 1 and sum(other.severity == fault.severity for other in faults) == gpus
        found.setdefault((fault.severity, "" if everywhere else fault.says), []).append(fault)
    return list(found.values())


def _words(group: Sequence[Fault]) -> str:
    by_words: dict[str, list[int]] = {}
    for fault in group:
        by_words.setdefault(fault.says, []).append(fault.gpu.index)
    told = [
        f"GPU {gpus[0]}: {says}" if len(gpus) == 1 else f"GPUs {numbers(gpus)}{_each(says)}: {says}"
        for says, gpus in list(by_words.items())[:MOST_TOLD]
    ]
    return "; ".join(told) + ("; the others in the same way" if len(by_words) > MOST_TOLD else "")


def _each(says: str) -> str:
    """Words about one card ("its link has ...") are of each of them."""
    return ", each" if re.search(r"\bits?\b", says) else ""
