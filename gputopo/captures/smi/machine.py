"""The GPUs of one output of `nvidia-smi` as a Machine, including GPUs that did not answer.

If `nvidia-smi` counts a GPU but gets no handle for it, it writes a line instead of the GPU's facts. Depending
on the driver version, the line has the GPU's number, its PCI address, both or neither: `Unable to determine
the device handle for GPU3: 0000:04:00.0: Unknown Error`.
"""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from operator import attrgetter
from typing import Any, NamedTuple

from msgspec.structs import replace

from gputopo.captures import limits
from gputopo.captures.smi import values
from gputopo.captures.smi.gpu import ReportedGpu
from gputopo.captures.smi.key_names import COLLECTED, OF_KEYS
from gputopo.captures.smi.names import GPU, Named, Names
from gputopo.captures.smi.values import ReportedValue
from gputopo.values.errors import InputError
from gputopo.values.facts import EVERY, at_gpu, within
from gputopo.values.fields import kernel_address
from gputopo.values.machine import Driver, Gap, Gpu, Machine, Sample, Unread

_NO_HANDLE = re.compile(
    r"Unable to determine the device handle for GPU(?: ?(?P<number>\d{1,3})(?=: |:?\Z))?:?"
    r"(?: ?(?P<address>[0-9a-f]{3,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]))?(?:: *(?P<reason>.*))?",
    re.ASCII | re.IGNORECASE,
)
_WITHOUT_NUMBER = "the line that reports it as not answering does not show its number"


class Unanswered(NamedTuple):
    """The content of such a line, as far as it is present; `reason` is the driver message."""

    number: int | None
    address: str | None
    reason: str


def parse_unanswered(line: str) -> Unanswered | None:
    """Parse such a line; returns None for any other line."""
    match = _NO_HANDLE.fullmatch(line.strip())
    if match is None:
        return None
    return Unanswered(
        number=None if match["number"] is None else int(match["number"]),
        address=None if match["address"] is None else kernel_address(match["address"]),
        reason=values.clean(match["reason"] or "")[:80] or "no answer",
    )


def read_unanswered(lines: Iterable[str]) -> list[Unanswered]:
    """Return the content of all such lines among these."""
    return list(dict.fromkeys(silent for line in lines if (silent := parse_unanswered(line))))


def with_unanswered(
    rows: Mapping[int, ReportedGpu], unanswered: Iterable[Unanswered], names: Names, *, numbered: bool
) -> dict[int, ReportedGpu]:
    """Return all GPUs by index, including those that did not answer, which are lost.

    A line about a GPU that has a row adds no GPU. NVML counts by PCI address: the address places a GPU among
    rows that have addresses, else the number in its line does. A GPU with neither comes last, with the reason
    in `missing`. `numbered`: the rows' indices are the source's, and do not change. Else only the order is
    known.
    """
    new: list[Unanswered] = []
    for line in unanswered:
        answered = [gpu for index, gpu in rows.items() if _is_about(line, index, gpu, numbered)]
        for gpu in answered:
            gpu.lost = True
            gpu.notes[""] = line.reason
        if not answered:
            new.append(line)
    gpus = dict(rows) if numbered else {}
    unnumbered = [] if numbered else [row for _, row in sorted(rows.items())]
    has_addresses = any(row.address is not None for row in rows.values())
    for lost in sorted(new, key=lambda lost: (lost.number is None, lost.number, lost.address or "~")):
        is_placed = lost.address is not None and has_addresses
        if is_placed and not numbered:
            behind = (n for n, row in enumerate(unnumbered) if (row.address or "") > (lost.address or ""))
            unnumbered.insert(next(behind, len(unnumbered)), _lost_gpu(lost, names, placed=True))
        elif lost.number is not None and lost.number not in gpus:
            gpus[lost.number] = _lost_gpu(lost, names, placed=True)
        elif numbered:
            below = [n for n, row in gpus.items() if lost.address and (row.address or "~") < lost.address]
            free = next(n for n in itertools.count(1 + max(below, default=-1)) if n not in gpus)
            gpus[free] = _lost_gpu(lost, names, placed=is_placed)
        else:
            unnumbered.append(_lost_gpu(lost, names, placed=False))
    free_numbers = (n for n in itertools.count() if n not in gpus)
    return gpus | dict(zip([*itertools.islice(free_numbers, len(unnumbered))], unnumbered, strict=True))


def with_lost(machine: Machine, lost: Iterable[Unanswered]) -> Machine:
    """Return a machine with the GPUs that did not answer, by number; GPUs without one come last."""
    gpus = {gpu.index: gpu for gpu in machine.gpus}
    missing = dict(machine.missing)
    for silent in sorted(lost, key=lambda gpu: (gpu.number is None, gpu.number, gpu.address or "")):
        index = 1 + max(gpus, default=-1) if silent.number is None else silent.number
        if index not in gpus:
            gpus[index] = Gpu(index=index, lost=True, pci_address=silent.address)
            missing[at_gpu(index)] = silent.reason
            if silent.number is None:
                missing[at_gpu(index, "index")] = _WITHOUT_NUMBER
    return replace(machine, gpus=tuple(gpus[index] for index in sorted(gpus)), missing=missing)


def _is_about(line: Unanswered, index: int, gpu: ReportedGpu, numbered: bool) -> bool:
    """Return whether a line is about a GPU: by address if both have one, else by index."""
    if line.address is not None and gpu.address is not None:
        return line.address == gpu.address
    return numbered and line.number == index


def _lost_gpu(line: Unanswered, names: Names, *, placed: bool) -> ReportedGpu:
    gpu = ReportedGpu(names, lost=True, notes={"": line.reason})
    if line.address is not None:
        gpu.reported["pci_address"] = {0: ReportedValue(line.address)}
    if not placed:
        gpu.notes["index"] = _WITHOUT_NUMBER
    return gpu


_NOT_IN_CAPTURE = "not in the capture"
_NEVER = ("cuda_index", "numa_node", "cpu_affinity", "nvlinks", "pcie.limiting_hop", "pcie.aer")


class Identity(NamedTuple):
    """What identifies the machine of one output among others in the same file; None or empty if unknown."""

    where: str  # the part of the file, in words
    driver: str | None
    attached: int | None
    addresses: frozenset[str]
    uuids: frozenset[str]


def identity_of(machine: Machine, where: str) -> Identity:
    """Return the identity of the machine of one output."""
    counted = next((gap.attached for gap in machine.gaps if gap.attached is not None), len(machine.gpus))
    return Identity(
        where=where,
        driver=machine.driver.version,
        attached=counted if machine.driver.status == "ok" else None,
        addresses=frozenset(gpu.pci_address for gpu in machine.gpus if gpu.pci_address),
        uuids=frozenset(gpu.uuid for gpu in machine.gpus if gpu.uuid),
    )


def refuse_others(outputs: Sequence[Identity], origin: str) -> None:
    """Raise InputError if the outputs of one file are from several machines."""
    distinct = {output[1:]: output for output in reversed(outputs)}
    for first, other in combinations(reversed(distinct.values()), 2):
        if why := _is_other(first, other):
            raise InputError(f"{origin}: two machines, {other.where} {why}", "give one file for each machine")


def _is_other(first: Identity, other: Identity) -> str | None:
    """Return why two outputs are from two machines, or None if they may be from one.

    NVML no longer counts a GPU that fell off the bus: if the outputs share a UUID, the number of GPUs may
    differ.
    """
    if None not in (first.driver, other.driver) and first.driver != other.driver:
        return f"has driver {other.driver}, not {first.driver}"
    if first.uuids & other.uuids:
        return None
    both = (first, other)
    if all(output.attached == len(output.uuids) == len(output.addresses) > 0 for output in both):
        return "has GPUs with other UUIDs"
    counts = first.attached, other.attached
    if None not in counts and counts[0] != counts[1]:
        return f"counts {counts[1]} GPUs, not {counts[0]}"
    every = len(first.addresses | other.addresses)
    if counts[0] is not None and every > counts[0]:
        return f"has GPUs at other PCI addresses: {', '.join(sorted(other.addresses - first.addresses)[:4])}"
    return None


def driver(reported: Iterable[tuple[Named, str]]) -> tuple[Driver, dict[str, str]]:
    """Return the driver, and why versions are missing.

    `nvidia-smi` prints the driver version only if NVML answered, so the state is "ok" if there is a version.
    """
    facts: dict[str, Any] = {}
    missing: dict[str, str] = {}
    for named, text in sorted(reported, key=lambda report: report[0].rank):
        value = values.parse(named.kind, text)
        if value.value is not None:
            facts.setdefault(named.fact, value.value)
        else:
            missing.setdefault(named.fact, value.reason or _NOT_IN_CAPTURE)
    missing = {within("driver", fact): why for fact, why in missing.items() if fact not in facts}
    return Driver(status="ok" if "version" in facts else "not_read", **facts), missing


def machine(
    source: str,
    reported_gpus: Mapping[int, ReportedGpu],
    *,
    driver_values: Sequence[tuple[Named, str]],
    not_understood: Sequence[Unread],
    attached: str | None,
    time: str | None = None,
    without_mask: bool = True,
    gaps: Sequence[Gap] = (),
) -> Machine:
    """Combine the GPUs, by index, into a machine.

    `attached`: the number of GPUs that the output reports, as written; `time`: as written.
    """
    limits.require_gpus(reported_gpus, source)
    reported_driver, missing = driver(driver_values)
    at = None if time is None else values.parse_time(time)
    gpus: list[Gpu] = []
    reasons: dict[int, dict[str, str]] = {}
    for index, reported in sorted(reported_gpus.items()):
        gpu, why = reported.gpu(index)
        gpus.append(gpu)
        reasons[index] = why
    missing |= _not_in_capture(gpus, reasons, source)
    if without_mask and gpus:
        missing[at_gpu(EVERY, "throttle.mask")] = f"{source} reports the reasons, not the mask"
    missing |= {at_gpu(index, fact): why for index, facts in reasons.items() for fact, why in facts.items()}
    counted = values.gpu_count(attached)
    if counted is not None and counted != len(gpus):
        words = f"{counted} GPUs are attached and {len(gpus)} are listed"
        missing[at_gpu(EVERY, "index")] = f"{words}: these are numbered"
        gaps = [Gap(source=source, text=words, attached=counted, listed=len(gpus)), *gaps]
    return Machine(
        source=source,
        driver=reported_driver,
        gpus=tuple(gpus),
        missing=missing,
        unread=tuple(dict.fromkeys(sorted(not_understood, key=lambda line: line.line))),
        gaps=tuple(gaps),
        samples=() if at is None else (Sample(source=source, time=at),),
    )


def _not_in_capture(
    gpus: Sequence[Gpu], reasons: Mapping[int, Mapping[str, str]], source: str
) -> dict[str, str]:
    """Return the reason for every fact that the output does not mention, only once if no GPU has the fact."""
    absent = {
        fact: [gpu.index for gpu in gpus if value_of(gpu) is None and fact not in reasons[gpu.index]]
        for fact, value_of in _FACTS.items()
    }
    missing = {at_gpu(EVERY, fact): f"not reported by {source}" for fact in _NEVER} if gpus else {}
    everywhere = {fact for fact, indices in absent.items() if gpus and len(indices) == len(gpus)}
    in_part = {fact.partition(".")[0] for fact in _FACTS if fact not in everywhere}
    for fact in sorted(everywhere):
        section = fact.partition(".")[0]
        missing[at_gpu(EVERY, fact if section in in_part else section)] = _NOT_IN_CAPTURE
    for fact, indices in absent.items():
        if fact not in everywhere:
            missing |= {at_gpu(index, fact): _NOT_IN_CAPTURE for index in indices}
    return missing


_FACTS = {
    fact: attrgetter(fact)
    for fact in (
        *(row.fact for row in GPU if row.fact not in OF_KEYS),
        *COLLECTED,
        "mig.instances",
        "processes",
    )
}
