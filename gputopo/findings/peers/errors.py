"""Errors that only some GPUs of a model have: corrected memory errors, and facts that they cannot report."""

import re
from collections.abc import Iterator
from statistics import median
from typing import Any

import msgspec

from gputopo.findings import memory_health
from gputopo.findings.peers.compare import known
from gputopo.findings.rule import Fault, Rule, Threshold, by_model, check, present
from gputopo.values.fact_path import FactPath
from gputopo.values.fields import fields_of, path_in_words
from gputopo.values.machine import Gpu, Machine

MORE_TIMES = Threshold("more errors than peers", 10, "times the median of the peers", "Ours")
MORE_ERRORS = Threshold(
    "more errors than peers, at least", 100, "corrected errors", "Single errors are usual. Ours"
)
MORE_ROWS = Threshold(
    "more remapped rows than peers, at least",
    8,
    "rows or pages",
    "A bank has eight spare rows (NVIDIA, GPU Memory Error Management)",
)

MORE_MEMORY_ERRORS = Rule(
    "memory.more_errors_than_peers",
    title="many more corrected memory errors than GPUs of the same model",
    remedy="Results are right: the errors were corrected. Watch whether the counts grow (nvidia-smi -q -d "
    "ECC,ROW_REMAPPER); if they do, run NVIDIA's field diagnostic.",
    severities=("info",),
    thresholds=(MORE_TIMES, MORE_ERRORS, MORE_ROWS),
)
FIELD_ERROR = Rule(
    "gpu.field_error",
    title="the GPU cannot report what GPUs of the same model report",
    remedy="See sudo dmesg | grep -i -e nvrm -e xid. Reset the GPU (sudo nvidia-smi -r -i GPU) or reboot; "
    "if it happens again, a sensor, the fan or the board is defective.",
    severities=("warning", "info"),
)

_COUNTS = {
    "ecc.corrected_volatile": MORE_ERRORS,
    "ecc.corrected_aggregate": MORE_ERRORS,
    "remapped_rows.correctable": MORE_ROWS,
}
# Driver messages and NVML's codes for "failed", as opposed to "not supported" or "no permission".
_ERROR = re.compile(
    r"unknown(?:[ _]error)?|(?:unk(?:nown)?)?\s?err(?:or)?!*|timeout|gpu[ _]is[ _]lost"
    r"|(?:gpu )?reset[ _]required|gpu requires reset|irq_issue|corrupted_inforom|operating_system",
    re.IGNORECASE,
)
_ABSENT = ("N/A", "[N/A]", "NOT_SUPPORTED", "Not Supported", "[Not Supported]")


@check(MORE_MEMORY_ERRORS)
def memory_errors(machine: Machine) -> Iterator[Fault]:
    """Find GPUs with far more corrected errors than their peers; what needs a repair has a finding."""
    covered = {index for finding in memory_health.verdicts(machine) for index in finding.subject.gpus}
    for group in by_model(machine):
        found: dict[int, dict[str, int]] = {}
        for path, least in _COUNTS.items():
            counts = known(group, path)
            for index, count in counts.items():
                others = [other for gpu, other in counts.items() if gpu != index]
                if others and count >= max(MORE_TIMES.value * median(others), least.value):
                    found.setdefault(index, {})[path] = count
        for gpu in group:
            if gpu.index in found and gpu.index not in covered:
                words = (f"{path_in_words(Gpu, path)} {count}" for path, count in found[gpu.index].items())
                says = f"{', '.join(words)}: far more than on GPUs of this model"
                yield MORE_MEMORY_ERRORS.fault(gpu, says, dict(found[gpu.index]))


@check(FIELD_ERROR)
def field_errors(machine: Machine) -> Iterator[Fault]:
    """Find facts that a GPU alone cannot report: an error where its peers have none, or nothing where all of
    them have a value. What a GPU does not report in MIG mode, without ECC or before a reset is no such case.
    """
    reasons = _reasons(machine)
    if not reasons:
        return
    for group in _groups(machine):
        for gpu in group:
            peers = [one for one in group if one is not gpu]
            own = reasons.get(gpu.index, {})
            failed = {
                fact: why
                for fact, why in own.items()
                if _ERROR.fullmatch(why)
                and not (gpu.recovery_action not in (None, "none") and "reset" in why.lower())
                and peers
                and not any(_ERROR.fullmatch(reasons.get(one.index, {}).get(fact, "")) for one in peers)
            }
            if failed:
                words = ", ".join(path_in_words(Gpu, fact) for fact in failed)
                says = f"{'; '.join(dict.fromkeys(failed.values()))} in place of {words}"
                yield FIELD_ERROR.fault(gpu, says, {"missing": failed})
                continue
            alike = [one for one in peers if (one.mig.mode, one.ecc.mode) == (gpu.mig.mode, gpu.ecc.mode)]
            absent = {
                fact: why
                for fact, why in own.items()
                if why in _ABSENT
                and len(alike) == len(peers) > 1
                and _is_value(fact)
                and all(_value(one, fact) is not None for one in peers)
            }
            if absent:
                words = ", ".join(path_in_words(Gpu, fact) for fact in absent)
                says = f"does not report {words}, as GPUs of this model do"
                yield FIELD_ERROR.fault(gpu, says, {"missing": absent}, "info")


def _reasons(machine: Machine) -> dict[int, dict[str, str]]:
    """Return why facts are missing, by GPU and fact; only of single GPUs, and of those that answer."""
    found: dict[int, dict[str, str]] = {}
    for path, why in machine.missing.items():
        if _ERROR.fullmatch(why) or why in _ABSENT:
            at = FactPath.parse(path)
            if at.group == "gpus" and at.key.isdigit() and at.fact and "[" not in at.fact:
                found.setdefault(int(at.key), {})[at.fact] = why
    return found


def _groups(machine: Machine) -> list[list[Gpu]]:
    """Return the GPUs of each model. One without a name is of that model where there is only one."""
    groups = by_model(machine)
    nameless = [gpu for gpu in present(machine) if not gpu.name]
    return [groups[0] + nameless] if len(groups) == 1 else groups


def _is_value(fact: str) -> bool:
    """Return whether a fact is a single one that nvidia-smi reports."""
    field = fields_of(Gpu).get(fact)
    return field is not None and field.leaf and field.smi is not None


def _value(gpu: Gpu, fact: str) -> Any:
    """Return the value of a fact by its path, which may end in the key of a dictionary."""
    value: Any = gpu
    names = fact.split(".")
    while names and isinstance(value, msgspec.Struct):
        value = getattr(value, names.pop(0), None)
    return value.get(".".join(names)) if names and isinstance(value, dict) else None if names else value
