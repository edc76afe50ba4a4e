"""The health of a GPU's memory by the rules of NVIDIA's memory error management: one verdict for each GPU.

Signs are errors, remapped rows, retired pages, repairs, and the action that the driver requests. The finding
has the id of the worst sign. Its evidence has the verdict and the fields behind all signs.

Recovery actions: NVIDIA, GPU Memory Error Management, "Error Recovery and Response Flags", and
nvmlDeviceGpuRecoveryAction_t in nvml.h. With "Drain and Reset", running programs may finish, so it is a
warning. With any other action, the GPU is unusable.
"""

from collections.abc import Iterator
from itertools import chain
from typing import Any, Literal, get_args

import msgspec

from gputopo.findings.places import kind_of_board
from gputopo.findings.rule import Case, Fault, Rule, Threshold, by_model, check, each_gpu
from gputopo.reference import expected_of
from gputopo.values.finding import SEVERITIES, Severity
from gputopo.values.machine import Gpu, Machine

MemoryVerdict = Literal["fine", "watch", "reset", "repair pending", "reboot", "replace"]  # the worst is last

VERDICTS: tuple[MemoryVerdict, ...] = get_args(MemoryVerdict)

RETIRED_PAGES = Threshold(
    "retired pages",
    60,
    "pages",
    "NVIDIA, Dynamic Page Retirement: a card with 60 or more retired pages qualifies for an RMA",
)
NO_SPARE_BANKS = Threshold(
    "memory banks without spare rows",
    1,
    "banks",
    (
        "NVIDIA, GPU Memory Error Management (docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt): the next "
        "error in such a bank fails to remap"
    ),
)


ECC_UNCORRECTED = Rule(
    "ecc.uncorrected",
    "uncorrected ECC errors since the driver was loaded",
    remedy=(
        "Repeat all work since then: results may be wrong. Reset the GPU (sudo nvidia-smi -r -i GPU) or "
        "reboot. If it happens again, run NVIDIA's field diagnostic (required for an RMA)."
    ),
    severities=("error",),
)
ECC_UNCORRECTED_BEFORE = Rule(
    "ecc.uncorrected_before",
    "uncorrected ECC errors before the driver was loaded",
    remedy=(
        "Watch whether the count grows: nvidia-smi -q -d ECC,ROW_REMAPPER. If it does, run NVIDIA's "
        "field diagnostic. Results of earlier runs on this GPU may be wrong."
    ),
    severities=("warning", "info"),
)
ECC_OFF = Rule(
    "ecc.off",
    "ECC off on a model that has it on by default: memory errors corrupt results unnoticed",
    remedy=(
        "If this is not intended, turn it on (sudo nvidia-smi -i GPU -e 1) and reboot. With ECC, GDDR "
        "models have 1/16 less memory; HBM models have the same."
    ),
    severities=("warning", "info"),
)
SRAM_THRESHOLD = Rule(
    "memory.sram_threshold_exceeded",
    "SRAM threshold exceeded: more uncorrectable errors in on-chip memory than NVIDIA allows",
    remedy=(
        "Do not use this GPU. It qualifies for an RMA if the field diagnostic confirms it (NVIDIA, GPU "
        "Memory Error Management, RMA policy)."
    ),
    severities=("error",),
)
REMAP_FAILED = Rule(
    "memory.remap_failed",
    "row remapping failed: a failing memory row could not be replaced",
    remedy=(
        "Do not use this GPU. It qualifies for an RMA if the field diagnostic confirms it (NVIDIA, GPU "
        "Memory Error Management, RMA policy)."
    ),
    severities=("error",),
)
UNREPAIRABLE = Rule(
    "memory.unrepairable",
    "unrepairable memory: a failing memory channel could not be replaced",
    remedy=(
        "Do not use this GPU. It qualifies for an RMA if the field diagnostic confirms it (NVIDIA, GPU "
        "Memory Error Management, RMA policy)."
    ),
    severities=("error",),
)
MANY_RETIRED_PAGES = Rule(
    "memory.many_retired_pages",
    "more retired memory pages than the warranty allows",
    remedy="Have the card replaced (NVIDIA, Dynamic Page Retirement: 60 pages).",
    severities=("error",),
    thresholds=(RETIRED_PAGES,),
)
REPAIR_PENDING = Rule(
    "memory.repair_pending",
    "repair of a memory channel or TPC pending: done at the next GPU reset",
    remedy="Stop all programs on this GPU and reset it (sudo nvidia-smi -r -i GPU), or reboot.",
)
REMAP_PENDING = Rule(
    "memory.remap_pending",
    "row remapping pending: done at the next GPU reset",
    remedy="Stop all programs on this GPU and reset it (sudo nvidia-smi -r -i GPU), or reboot.",
)
RETIREMENT_PENDING = Rule(
    "memory.retirement_pending",
    "page retirement pending: done at the next reboot",
    remedy="Stop all programs on this GPU and reset it (sudo nvidia-smi -r -i GPU), or reboot.",
)
FEW_SPARE_ROWS = Rule(
    "memory.few_spare_rows",
    "memory banks with few or no spare rows: remapping may fail at the next error",
    remedy=(
        "Do not use this GPU for long runs if others are free, and watch nvidia-smi -q -d ROW_REMAPPER. "
        "Have the card replaced when remapping fails."
    ),
    severities=("warning", "info"),
    thresholds=(NO_SPARE_BANKS,),
)
REPAIRED = Rule(
    "memory.repaired",
    "memory rows remapped or pages retired after errors",
    remedy="None needed. Watch whether the number grows: nvidia-smi -q -d ROW_REMAPPER,PAGE_RETIREMENT.",
    severities=("info",),
)
RESET_REQUIRED = Rule(
    "gpu.reset_required",
    "the GPU cannot be used before a reset or reboot",
    remedy="Do what the driver requests, or reboot. See sudo dmesg | grep -i xid for the cause.",
    severities=("error",),
    cases=(
        Case(
            "reset",
            "must be reset before it can be used",
            severity="error",
            remedy=(
                "Stop all programs on it, then sudo nvidia-smi --gpu-reset -i GPU (all GPUs at once if "
                "NVLink connects them), or reboot. See sudo dmesg | grep -i xid for the cause."
            ),
        ),
        Case(
            "reboot",
            "the machine must be rebooted before it can be used",
            severity="error",
            remedy="Reboot. See sudo dmesg | grep -i xid for the cause.",
        ),
        Case(
            "drain p2p",
            "all P2P traffic must end before the fault can be recovered",
            severity="error",
            remedy=(
                "Stop all programs that copy between GPUs, then see the next action: nvidia-smi "
                "--query-gpu=gpu_recovery_action --format=csv. See sudo dmesg | grep -i xid for the "
                "cause."
            ),
        ),
    ),
)
RESET_RECOMMENDED = Rule(
    "gpu.reset_recommended",
    "the GPU works with reduced capacity until it is reset (drain and reset)",
    remedy=(
        "Let its programs finish, start no new ones, then sudo nvidia-smi --gpu-reset -i GPU (all GPUs "
        "at once if NVLink connects them), or reboot. See sudo dmesg | grep -i xid for the cause."
    ),
)


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
    """Find GPUs that need a reset, reboot, repair or replacement: one fault a GPU, for its worst sign."""
    # Each sign with the required action. Among equally bad signs, the first is used.
    kinds_of_signs = (_recovery_action(gpu), _failures(gpu), _errors(gpu), _pending(gpu), _history(gpu))
    signs = sorted(
        chain.from_iterable(kinds_of_signs),
        key=lambda sign: (SEVERITIES.index(sign[1].severity), VERDICTS.index(sign[0])),
        reverse=True,
    )
    if signs:
        evidence: dict[str, Any] = {"verdict": max((verdict for verdict, _ in signs), key=VERDICTS.index)}
        for _, fault in signs:
            evidence |= {name: value for name, value in fault.evidence.items() if name not in evidence}
        says = "; ".join(fault.says for _, fault in signs)
        yield msgspec.structs.replace(signs[0][1], says=says, evidence=evidence)


@check(ECC_OFF)
def ecc_off(machine: Machine) -> Iterator[Fault]:
    """Find data center models with ECC off on all GPUs. For a GPU that differs, see `peers.facts`."""
    for group in by_model(machine):
        reference = expected_of(group[0])
        if kind_of_board(group[0]) and all(gpu.ecc.mode is False for gpu in group):
            hbm = reference is not None and (reference.memory_type or "").startswith("HBM")
            for gpu in (gpu for gpu in group if not gpu.ecc.mode_pending):
                yield ECC_OFF.fault(gpu, "ECC off", {"mode": False}, "warning" if hbm else "info")


def _recovery_action(gpu: Gpu) -> Iterator[tuple[MemoryVerdict, Fault]]:
    action = gpu.recovery_action
    evidence = {"pci_address": gpu.pci_address, "recovery_action": action}
    if action == "drain and reset":
        says = "works with reduced capacity until it is reset; start no new programs"
        yield "reset", RESET_RECOMMENDED.fault(gpu, says, evidence)
    elif action not in (None, "none"):
        case = next((case for case in RESET_REQUIRED.cases if case.name == action), None)
        says = case.says if case else f"recovery action requested by the driver: {action}"
        what: MemoryVerdict = "reboot" if action == "reboot" else "reset"
        yield what, RESET_REQUIRED.fault(gpu, says, evidence, case=case)


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
    """Return uncorrected errors since the driver was loaded (a reboot clears them), or earlier errors."""
    now, ever = (_uncorrected(gpu, since) for since in ("volatile", "aggregate"))
    if now:
        says = f"{now} uncorrected ECC errors since the driver was loaded"
        yield "reset", ECC_UNCORRECTED.fault(gpu, says, _counts(gpu))
    elif ever:
        repaired = (gpu.remapped_rows.uncorrectable or 0) + (gpu.retired_pages.double_bit or 0)
        says = f"{ever} uncorrected ECC errors in total, none since the driver was loaded"
        severity: Severity = "info" if ever <= repaired else "warning"
        yield "watch", ECC_UNCORRECTED_BEFORE.fault(gpu, says, _counts(gpu), severity)


def _pending(gpu: Gpu) -> Iterator[tuple[MemoryVerdict, Fault]]:
    """Return repairs that take effect with a reset or reboot."""
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
    """Return past repairs and the remaining spare resources."""
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
    """Return the number of uncorrected errors: the total, or the sum over the reported locations."""
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
