"""Reads GPUs and pairs of GPUs from NVML, each fact separately, so a failure affects only that fact."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from gputopo.probes.nvml import questions
from gputopo.probes.nvml.door import LOST, Handle, NotReadError, Nvml
from gputopo.probes.nvml.questions import QUESTIONS
from gputopo.probes.nvml.words import (
    MEMORY_LOCATIONS,
    NVLINK_ERRORS,
    PROCESS_FUNCTIONS,
    SLOWDOWNS,
    SRAM_COUNTS,
    VIOLATIONS,
)
from gputopo.values.facts import at_gpu, item, within
from gputopo.values.machine import Gpu, GpuProcess, Link, NvLink

T = TypeVar("T")

NOT_ASKED = "NOT_ASKED"  # after a call that hung or crashed

# Facts that every working GPU reports, and errors that do not mean that the GPU is broken.
_IDENTITY = {"name", "pci_address"}
_MAX_NVLINKS = 64  # NVML_NVLINK_MAX_LINKS is 36 in the newest header
# The two kinds of errors in `nvidia-smi -q -x` on GPUs that count each memory separately.
_OLD_KINDS = {"corrected": "single_bit", "uncorrected": "double_bit"}
_NEW_KINDS = {"corrected": "correctable", "uncorrected": "uncorrectable"}
# Answers of a GPU or driver that does not have a fact, as opposed to one that fails.
_LACKS = {"NOT_SUPPORTED", "FUNCTION_NOT_FOUND", "DEPRECATED"}
_NO_FAULTS = {*_LACKS, "UNREADABLE_TEXT", NOT_ASKED}
_ONE_BY_ONE = tuple(name for name in MEMORY_LOCATIONS if name not in ("device_memory", "sram"))

_P2P_REASONS = {
    "CHIPSET_NOT_SUPPORTED": "the chipset does not carry peer-to-peer traffic",
    "GPU_NOT_SUPPORTED": "a GPU of the pair does not do peer-to-peer",
    "TOPOLOGY_NOT_SUPPORTED": "the PCIe path between the GPUs does not carry peer-to-peer traffic",
    "DISABLED_BY_REGKEY": "a driver setting turns peer-to-peer off",
    "NOT_SUPPORTED": "the driver does not do peer-to-peer between these GPUs",
    "UNKNOWN": "unknown to NVML",
}


class MissingFacts:
    """The reasons of the facts of one machine that were not read, by path (`gpus[0].name`)."""

    def __init__(self, reasons: Mapping[str, str] | None = None) -> None:
        self.reasons: dict[str, str] = dict(reasons or {})

    def note(self, reason: str, *paths: str) -> None:
        """Store the reason of facts that were not read."""
        self.reasons.update(dict.fromkeys(paths, reason))

    def note_if_none(self, reason: str, *paths: str) -> None:
        """Store the reason of facts that have none yet."""
        for path in paths:
            self.reasons.setdefault(path, reason)

    def clear(self, *paths: str) -> None:
        """Remove the reasons of facts that were found after all."""
        for path in paths:
            self.reasons.pop(path, None)

    def reason(self, path: str) -> str | None:
        """Return the reason of a fact, or None if the fact is not missing."""
        return self.reasons.get(path)


def absent_facts(value: msgspec.Struct, prefix: str = "") -> list[str]:
    """Return the paths of the facts that are None, in a value and in its nested values."""
    paths: list[str] = []
    for name in value.__struct_fields__:
        fact: Any = getattr(value, name)
        if fact is None:
            paths.append(within(prefix, name))
        elif isinstance(fact, msgspec.Struct):
            paths += absent_facts(fact, within(prefix, name))
    return paths


def miss_all(gpu: Gpu, reason: str, missing: MissingFacts) -> None:
    """Note the reason for every fact of a GPU that is None."""
    missing.note(reason, *(at_gpu(gpu.index, path) for path in absent_facts(gpu)))


class FactReader:
    """Asks NVML for the facts of one GPU, one pair of GPUs, or the driver, each fact separately.

    `path`: the path of the object, `gpus[0]`. `handles`: one for a GPU, two for a pair, none for the driver.
    `no_answer`: the reason if a GPU is lost or does not even report its identity, otherwise None.
    """

    def __init__(self, nvml: Nvml, missing: MissingFacts, path: str, *handles: Handle) -> None:
        self.nvml, self.missing, self.path, self.handles = nvml, missing, path, handles
        self.no_answer: str | None = None

    def read(self, facts: str | Iterable[str], question: Callable[..., T], *args: object) -> T | None:
        """Return the answer, or note the reason for each fact of the answer and return None."""
        try:
            return question(self.nvml, *self.handles, *args)
        except NotReadError as error:
            self.note(error.reason, *([facts] if isinstance(facts, str) else facts))
            return None

    def gather(
        self, fact: str, names: Iterable[str], question: Callable[..., T], *args: object
    ) -> dict[str, T]:
        """Ask for each name and return the answers. If there are none, note the most specific reason."""
        answers: dict[str, T] = {}
        reasons: dict[str, str] = {}
        for name in names:
            try:
                answers[name] = question(self.nvml, *self.handles, *args, name)
            except NotReadError as error:
                reasons[within(fact, name)] = error.reason
        if reasons and not answers:
            best = max(reasons.values(), key=lambda why: (why == LOST, why != "FUNCTION_NOT_FOUND"))
            reasons = {fact: best}
        for path, reason in reasons.items():
            self.note(reason, path)
        return answers

    def note(self, reason: str, *facts: str) -> None:
        """Store the reason of facts that were not read."""
        if reason == LOST or (reason not in _NO_FAULTS and not _IDENTITY.isdisjoint(facts)):
            self.no_answer = reason if reason == LOST else self.no_answer or reason
        self.missing.note(reason, *(within(self.path, fact) for fact in facts))

    def clear(self, *facts: str) -> None:
        """Remove the reasons of facts that were found after all."""
        self.missing.clear(*(within(self.path, fact) for fact in facts))


def read_gpu(gpu: FactReader, nvml_version: str | None) -> Iterator[dict[str, Any]]:
    """Read a GPU, its identity first. Yield the facts of each question by path; the last is `lost`."""

    def throttled_ns(nvml: Nvml, handle: Handle, name: str) -> int:
        if name in SLOWDOWNS:
            return questions.slowdown_ns(nvml, handle, nvml_version, name)
        return questions.violation_ns(nvml, handle, name)

    for question in QUESTIONS:
        yield gpu.read(question.facts, question.ask) or {}
    yield {"ecc.counts": _error_counts(gpu) or None}
    modes = gpu.read(("mig.mode", "mig.mode_pending", "mig.instances"), questions.mig_modes)
    if modes is not None:
        instances = gpu.read("mig.instances", questions.mig_instances) if modes[0] else 0
        yield {"mig.mode": modes[0], "mig.mode_pending": modes[1], "mig.instances": instances}
    yield {"violation_ns": gpu.gather("violation_ns", (*VIOLATIONS, *SLOWDOWNS), throttled_ns) or None}
    yield {"processes": _processes(gpu)}
    yield {"nvlinks": _nvlinks(gpu)}
    yield _fabric(gpu)
    yield {"lost": gpu.no_answer is not None}


def read_pair(pair: FactReader, link: Link) -> Link:
    """Read what NVML reports of a pair of GPUs."""
    read = pair.read("p2p_read", questions.p2p, "read")
    write = pair.read("p2p_write", questions.p2p, "write")
    refused = next((status for status in (read, write) if status not in (None, "OK")), None)
    return replace(
        link,
        hop=pair.read("hop", questions.common_ancestor),
        p2p_read=read,
        p2p_write=write,
        p2p_reason=None if refused is None else _P2P_REASONS.get(refused, f"NVML reports {refused}"),
    )


def _processes(gpu: FactReader) -> tuple[GpuProcess, ...] | None:
    """Read the processes. A process that computes and draws is listed under both kinds, as in NVML."""
    by_kind = gpu.gather("processes", PROCESS_FUNCTIONS, questions.processes)
    if not by_kind:
        return None
    return tuple(
        GpuProcess(pid=pid, kind=kind, name=questions.process_name(gpu.nvml, pid), memory_mib=memory_mib)
        for kind, processes in by_kind.items()
        for pid, memory_mib in processes
    )


def _fabric(gpu: FactReader) -> dict[str, Any]:
    """Read the state of the NVSwitch fabric; most GPUs have none."""
    facts = ("fabric.state", "fabric.status", "fabric.clique_id", "fabric.health")
    info = gpu.read(facts, questions.fabric_info)
    if info is None:
        return {}
    return {
        "fabric.state": gpu.read("fabric.state", lambda *_: questions.fabric_state(info)),
        "fabric.status": gpu.read("fabric.status", lambda nvml, _: questions.fabric_status(nvml, info)),
        "fabric.clique_id": gpu.read("fabric.clique_id", lambda *_: questions.fabric_clique(info)),
        "fabric.health": gpu.read("fabric.health", lambda *_: questions.fabric_health(info)),
    }


# Memory errors by location


def _error_counts(gpu: FactReader) -> dict[str, int]:
    """Read the error counts by location, with the names of `nvidia-smi -q -x` without its levels.

    Turing and later: `volatile.sram_correctable`, `volatile.dram_uncorrectable`, ..., and if the driver
    counts them separately `volatile.sram_uncorrectable_parity` and `_secded`. Before Turing: each memory of
    the chip, `volatile.double_bit.l2_cache`. An error other than "not supported" is noted under its count.
    """
    reasons: dict[str, str] = {}
    try:
        counts = questions.sram_errors(gpu.nvml, gpu.handles[0])
    except NotReadError as error:
        reasons.update(dict.fromkeys(SRAM_COUNTS, error.reason))
        counts = _counts_at(gpu, "sram", "{since}.sram_{kind}", _NEW_KINDS, reasons)
    if counts or not _LACKS.issuperset(reasons.values()):
        counts |= _counts_at(gpu, "device_memory", "{since}.dram_{kind}", _NEW_KINDS, reasons)
    else:
        counts = _counts_at(gpu, "device_memory", "{since}.{kind}.device_memory", _OLD_KINDS, reasons)
        for place in _ONE_BY_ONE if counts else ():
            counts |= _counts_at(gpu, place, "{since}.{kind}." + place, _OLD_KINDS, reasons)
    if not counts:
        gpu.note(next(iter(reasons.values())), "ecc.counts")
        return counts
    for name, reason in reasons.items():
        if reason not in _LACKS:
            gpu.note(reason, f"ecc.counts.{name}")
    return counts


def _counts_at(
    gpu: FactReader, place: str, name: str, kinds: dict[str, str], reasons: dict[str, str]
) -> dict[str, int]:
    """Read the counts of one location by name. A location without counts is asked for only once."""
    counts: dict[str, int] = {}
    for kind in ("uncorrected", "corrected"):  # a location may count only uncorrected errors
        for since in ("volatile", "aggregate"):
            full = name.format(since=since, kind=kinds[kind])
            try:
                counts[full] = questions.ecc_errors_at(gpu.nvml, gpu.handles[0], place, kind, since)
            except NotReadError as error:
                reasons[full] = error.reason
                if error.reason == "NOT_SUPPORTED":
                    return counts
    return counts


# NVLinks


def _nvlinks(gpu: FactReader) -> tuple[NvLink, ...] | None:
    """Read the NVLink ports: the number that NVML reports, or up to the last that answers; () without any.

    Some drivers report links after the last one as down instead of as absent.
    """
    links: list[NvLink] = []
    reasons: dict[int, str] = {}
    try:
        count = min(questions.nvlink_count(gpu.nvml, gpu.handles[0]), _MAX_NVLINKS)
    except NotReadError:
        count = _MAX_NVLINKS
    for link in range(count):
        try:
            active = bool(gpu.nvml.ask("nvmlDeviceGetNvLinkState", gpu.handles[0], link))
        except NotReadError as error:
            if error.reason in ("NOT_SUPPORTED", "INVALID_ARGUMENT"):
                break  # a GPU without NVLink, or the number after the last one
            reasons[link] = error.reason
            links.append(NvLink(link=link))
            if error.reason in (LOST, "FUNCTION_NOT_FOUND"):
                break
            continue
        links.append(_nvlink(gpu, link) if active else NvLink(link=link, active=False))
    if LOST in reasons.values():
        gpu.no_answer = LOST
    if links and len(reasons) == len(links):
        gpu.note(reasons[0], "nvlinks")
        return None
    if len(links) == _MAX_NVLINKS:
        while links[-1].active is None:  # the driver reported no end: these are not ports
            del reasons[links.pop().link]
    for number, reason in reasons.items():
        gpu.note(reason, item("nvlinks", number, "active"))
    return tuple(links)


def _nvlink(gpu: FactReader, link: int) -> NvLink:
    path = item("nvlinks", link)
    version = gpu.read(within(path, "version"), questions.nvlink_version, link)
    fields: dict[str, int | NotReadError]
    try:
        fields = questions.nvlink_fields(gpu.nvml, gpu.handles[0], link, version)
    except NotReadError as error:
        fields = {"speed": error}
    speed = fields.pop("speed")
    if isinstance(speed, NotReadError):
        gpu.note(speed.reason, within(path, "gb_per_s"))
    return NvLink(
        link=link,
        active=True,
        version=version,
        gb_per_s=None if isinstance(speed, NotReadError) else speed / 1000,
        remote_pci_address=gpu.read(
            within(path, "remote_pci_address"), questions.nvlink_remote_address, link
        ),
        remote_kind=gpu.read(within(path, "remote_kind"), questions.nvlink_remote_kind, link),
        errors=_nvlink_errors(gpu, link, fields),
    )


def _nvlink_errors(gpu: FactReader, link: int, fields: dict[str, int | NotReadError]) -> dict[str, int]:
    """Read the error counters of a link: the four old counters, and the counters that are only field values.

    Hopper and later GPUs do not support some of the old counters and have other ones. An old counter is
    missing only if no field has the same value.
    """
    fact = item("nvlinks", link, "errors")
    counters = gpu.gather(fact, NVLINK_ERRORS, questions.nvlink_errors, link)
    whole = {"crc"} if {"crc_flit", "crc_data"} & counters.keys() else set()  # the same errors, together
    for name, count in fields.items():
        if not isinstance(count, NotReadError) and name not in counters.keys() | whole:
            counters[name] = count
            gpu.clear(within(fact, name))
    if counters:
        gpu.clear(fact)
    return counters
