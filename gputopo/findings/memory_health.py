"""Health of a GPU's memory, as NVIDIA's memory error management judges it: one verdict for each GPU.

Signs are errors, rows, pages and repairs, and the action that the driver requests. The finding has the id of
the worst sign; its evidence has the verdict and the fields behind all of them.

Recovery actions: NVIDIA, GPU Memory Error Management, "Error Recovery and Response Flags", and
nvmlDeviceGpuRecoveryAction_t in nvml.h. After "Drain and Reset" running programs may finish, so that is a
warning; after every other action the GPU is unusable.
"""

import re
from collections.abc import Iterator
from typing import Any, Literal, get_args

import msgspec

from gputopo.findings.rule import Fault, by_model, check, each_gpu, kind_of_board, present, rule_of, threshold
from gputopo.reference.expectations import expected_of
from gputopo.values.fields import fields_of, path_in_words
from gputopo.values.finding import SEVERITIES, Severity
from gputopo.values.machine import Gpu, Machine
from gputopo.values.subject import DOES_NOT_APPLY, FactPath

MemoryVerdict = Literal["fine", "watch", "reset", "repair pending", "reboot", "replace"]  # the worst last

VERDICTS: tuple[MemoryVerdict, ...] = get_args(MemoryVerdict)

RETIRED_PAGES = threshold("memory_health.RETIRED_PAGES")
NO_SPARE_BANKS = threshold("memory_health.NO_SPARE_BANKS")


ECC_UNCORRECTED = rule_of("ecc.uncorrected")
ECC_UNCORRECTED_BEFORE = rule_of("ecc.uncorrected_before")
ECC_MODE_PENDING = rule_of("ecc.mode_pending")
ECC_OFF = rule_of("ecc.off")
SRAM_THRESHOLD = rule_of("memory.sram_threshold_exceeded")
REMAP_FAILED = rule_of("memory.remap_failed")
UNREPAIRABLE = rule_of("memory.unrepairable")
MANY_RETIRED_PAGES = rule_of("memory.many_retired_pages", RETIRED_PAGES)
REPAIR_PENDING = rule_of("memory.repair_pending")
REMAP_PENDING = rule_of("memory.remap_pending")
RETIREMENT_PENDING = rule_of("memory.retirement_pending")
FEW_SPARE_ROWS = rule_of("memory.few_spare_rows", NO_SPARE_BANKS)
REPAIRED = rule_of("memory.repaired")
RESET_REQUIRED = rule_of("gpu.reset_required")
RESET_RECOMMENDED = rule_of("gpu.reset_recommended")


@each_gpu(
    RESET_REQUIRED,
    SRAM_THRESHOLD,
    REMAP_FAILED,
    UNREPAIRABLE,
    MANY_RETIRED_PAGES,
    ECC_UNCORRECTED,
    RESET_RECOMMENDED,
    REPAIR_PENDING,
    REMAP_PENDING,
    RETIREMENT_PENDING,
    ECC_UNCORRECTED_BEFORE,
    FEW_SPARE_ROWS,
    REPAIRED,
)
def verdicts(gpu: Gpu) -> Iterator[Fault]:
    """Find GPUs that need a reset, reboot, repair or replacement: one fault for each, of its worst sign."""
    signs = sorted(
        _signs(gpu), key=lambda one: (SEVERITIES.index(one[1].severity), VERDICTS.index(one[0])), reverse=True
    )
    if signs:
        evidence: dict[str, Any] = {"verdict": max((verdict for verdict, _ in signs), key=VERDICTS.index)}
        for _, fault in signs:
            evidence |= {name: value for name, value in fault.evidence.items() if name not in evidence}
        says = "; ".join(fault.says for _, fault in signs)
        yield msgspec.structs.replace(signs[0][1], says=says, evidence=evidence)


@each_gpu(ECC_MODE_PENDING)
def ecc_mode(gpu: Gpu) -> Iterator[Fault]:
    """Find a pending change of the ECC mode."""
    now, later = gpu.ecc.mode, gpu.ecc.mode_pending
    if now is not None and later is not None and now != later:
        says = f"ECC will be {'on' if later else 'off'} after a reboot"
        yield ECC_MODE_PENDING.fault(gpu, says, {"mode": now, "mode_pending": later})


@check(ECC_OFF)
def ecc_off(machine: Machine) -> Iterator[Fault]:
    """Find data center models with ECC off on all GPUs; of one that differs see `peers.facts`."""
    for group in by_model(machine):
        reference = expected_of(group[0])
        if kind_of_board(group[0]) and all(gpu.ecc.mode is False for gpu in group):
            hbm = reference is not None and (reference.memory_type or "").startswith("HBM")
            for gpu in (gpu for gpu in group if not gpu.ecc.mode_pending):
                yield ECC_OFF.fault(gpu, "ECC off", {"mode": False}, "warning" if hbm else "info")


def _signs(gpu: Gpu) -> Iterator[tuple[MemoryVerdict, Fault]]:
    """Yield what the fields report, each with what is to be done: of equally bad ones the first counts."""
    yield from _recovery_action(gpu)
    yield from _failures(gpu)
    yield from _errors(gpu)
    yield from _pending(gpu)
    yield from _history(gpu)


def _recovery_action(gpu: Gpu) -> Iterator[tuple[MemoryVerdict, Fault]]:
    action = gpu.recovery_action
    evidence = {"pci_address": gpu.pci_address, "recovery_action": action}
    if action == "drain and reset":
        says = "works with reduced capacity until it is reset; start no new programs"
        yield "reset", RESET_RECOMMENDED.fault(gpu, says, evidence)
    elif action not in (None, "none"):
        case = RESET_REQUIRED.cases.get(action)
        says = case.says if case else f"recovery action requested by the driver: {action}"
        what: MemoryVerdict = "reboot" if action == "reboot" else "reset"
        yield what, RESET_REQUIRED.fault(gpu, says, evidence, remedy=case.remedy if case else None)


def _failures(gpu: Gpu) -> Iterator[tuple[MemoryVerdict, Fault]]:
    """Return the signs for which NVIDIA replaces a GPU."""
    if gpu.remapped_rows.failure:
        yield "replace", REMAP_FAILED.fault(gpu, REMAP_FAILED.title, _rows(gpu))
    if (gpu.ecc.counts or {}).get("aggregate.sram_threshold_exceeded"):
        yield "replace", SRAM_THRESHOLD.fault(gpu, SRAM_THRESHOLD.title, _counts(gpu))
    if gpu.ecc.unrepairable_memory:
        yield "replace", UNREPAIRABLE.fault(gpu, UNREPAIRABLE.title, {"unrepairable_memory": True})
    count = (gpu.retired_pages.single_bit or 0) + (gpu.retired_pages.double_bit or 0)
    if count >= RETIRED_PAGES.value:
        yield "replace", MANY_RETIRED_PAGES.fault(gpu, f"{count} memory pages retired", _pages(gpu))


def _errors(gpu: Gpu) -> Iterator[tuple[MemoryVerdict, Fault]]:
    """Return uncorrected errors since the driver was loaded, else those before: a reboot clears the first."""
    now, ever = (_uncorrected(gpu, since) for since in ("volatile", "aggregate"))
    if now:
        says = f"{now} uncorrected ECC errors since the driver was loaded"
        yield "reset", ECC_UNCORRECTED.fault(gpu, says, _counts(gpu))
    elif ever:
        repaired = (gpu.remapped_rows.uncorrectable or 0) + (gpu.retired_pages.double_bit or 0)
        says = f"{ever} uncorrected ECC errors in all, none since the driver was loaded"
        severity: Severity = "info" if ever <= repaired else "warning"
        yield "watch", ECC_UNCORRECTED_BEFORE.fault(gpu, says, _counts(gpu), severity)


def _pending(gpu: Gpu) -> Iterator[tuple[MemoryVerdict, Fault]]:
    """Return what takes effect with a reset or reboot."""
    which = {"channel_repair_pending": "a memory channel", "tpc_repair_pending": "a TPC"}
    if repairs := {name: True for name in which if getattr(gpu.ecc, name)}:
        words = " and ".join(which[name] for name in repairs)
        says = f"repair of {words} pending: done at the next GPU reset"
        yield "repair pending", REPAIR_PENDING.fault(gpu, says, repairs)
    if gpu.remapped_rows.pending and not gpu.remapped_rows.failure:
        yield "reset", REMAP_PENDING.fault(gpu, REMAP_PENDING.title, _rows(gpu))
    if gpu.retired_pages.pending:
        yield "reboot", RETIREMENT_PENDING.fault(gpu, RETIREMENT_PENDING.title, _pages(gpu))


def _history(gpu: Gpu) -> Iterator[tuple[MemoryVerdict, Fault]]:
    """Return repairs of the past, and what they left to spare."""
    banks = gpu.remapped_rows.banks
    few = [f"{count} {words}" for count, words in ((banks.none, "without"), (banks.low, "with few")) if count]
    if few and not gpu.remapped_rows.failure:
        severity: Severity = "warning" if (banks.none or 0) >= NO_SPARE_BANKS.value else "info"
        evidence = {f"banks_{name}": getattr(banks, name) for name in banks.__struct_fields__}
        yield (
            "watch",
            FEW_SPARE_ROWS.fault(gpu, f"memory banks {', '.join(few)} spare rows", evidence, severity),
        )
    rows, pages = gpu.remapped_rows, gpu.retired_pages
    if rows.uncorrectable and not rows.failure:
        says = f"{rows.uncorrectable} memory rows remapped after uncorrectable errors"
        yield "fine", REPAIRED.fault(gpu, says, _rows(gpu))
    if 0 < (count := (pages.single_bit or 0) + (pages.double_bit or 0)) < RETIRED_PAGES.value:
        yield "fine", REPAIRED.fault(gpu, f"{count} memory pages retired", _pages(gpu))


def _uncorrected(gpu: Gpu, since: str) -> int:
    """Return the uncorrected errors: the total, else those of the places that are reported."""
    total: int | None = getattr(gpu.ecc, f"uncorrected_{since}")
    if total is not None:
        return total
    counts = gpu.ecc.counts or {}
    apart = sum(counts.get(f"{since}.sram_uncorrectable_{code}", 0) for code in ("parity", "secded"))
    sram = counts.get(f"{since}.sram_uncorrectable", apart)
    old = sum(count for place, count in counts.items() if place.startswith(f"{since}.double_bit."))
    return sram + counts.get(f"{since}.dram_uncorrectable", 0) + old


def _counts(gpu: Gpu) -> dict[str, Any]:
    return {
        "uncorrected_volatile": gpu.ecc.uncorrected_volatile,
        "uncorrected_aggregate": gpu.ecc.uncorrected_aggregate,
        "counts": {name: count for name, count in (gpu.ecc.counts or {}).items() if count},
    }


def _rows(gpu: Gpu) -> dict[str, Any]:
    rows = gpu.remapped_rows
    return {name: getattr(rows, name) for name in ("correctable", "uncorrectable", "pending", "failure")}


def _pages(gpu: Gpu) -> dict[str, Any]:
    pages = gpu.retired_pages
    return {
        "single_bit": pages.single_bit,
        "double_bit": pages.double_bit,
        "retirement_pending": pages.pending,
    }


FIELD_ERROR = rule_of("gpu.field_error")

# Driver messages and NVML's codes for "failed", as opposed to "not supported" or "no permission".
_ERROR = re.compile(
    r"unknown(?:[ _]error)?|(?:unk(?:nown)?)?\s?err(?:or)?!*|timeout|gpu[ _]is[ _]lost"
    r"|(?:gpu )?reset[ _]required|gpu requires reset|irq_issue|corrupted_inforom|operating_system",
    re.IGNORECASE,
)


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
                for fact, why in (own.items() if len(alike) == len(peers) > 1 else ())
                if why in DOES_NOT_APPLY
                and _is_value(fact)
                and all(_value(one, fact) is not None for one in peers)
            }
            if absent:
                words = ", ".join(path_in_words(Gpu, fact) for fact in absent)
                says = f"does not report {words}, as GPUs of this model do"
                severity: Severity = "warning" if "inforom_version" in absent else "info"
                yield FIELD_ERROR.fault(gpu, says, {"missing": absent}, severity)


def _reasons(machine: Machine) -> dict[int, dict[str, str]]:
    """Return why facts are missing, by GPU and fact; only of single GPUs, and of those that answer."""
    found: dict[int, dict[str, str]] = {}
    for path, why in machine.missing.items():
        if _ERROR.fullmatch(why) or why in DOES_NOT_APPLY:
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
