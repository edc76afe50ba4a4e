"""Health of a GPU's memory, as NVIDIA's memory error management judges it: one verdict for each GPU.

Signs are errors, rows, pages and repairs, and the action that the driver requests. The finding has the id of
the worst sign; its evidence has the verdict and the fields behind all of them.

Recovery actions: NVIDIA, GPU Memory Error Management, "Error Recovery and Response Flags", and
nvmlDeviceGpuRecoveryAction_t in nvml.h. After "Drain and Reset" running programs may finish, so that is a
warning; after every other action the GPU is unusable.
"""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, get_args

from gputopo.findings.rule import SEVERITIES, Case, Fault, Rule, Severity, Threshold, check, present
from gputopo.values.machine import Gpu, Machine

Verdict = Literal["fine", "watch", "reset", "repair pending", "reboot", "replace"]  # the worst last

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

_GUIDE = "NVIDIA, GPU Memory Error Management (docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt)"

RETIRED_PAGES = Threshold(
    "retired pages",
    60,
    "pages",
    "NVIDIA, Dynamic Page Retirement: a card with 60 or more retired pages is to be returned",
)
NO_SPARE_BANKS = Threshold(
    "memory banks without spare rows", 1, "banks", f"{_GUIDE}: the next error in such a bank fails to remap"
)

_REPLACE = "Do not use this GPU. NVIDIA's field diagnostic decides on a return: have the card replaced."
_RESET = "End all programs on this GPU and reset it (sudo nvidia-smi -r -i GPU), or reboot."
_CAUSE = "See sudo dmesg | grep -i xid for the cause."
_RESET_GPU = "sudo nvidia-smi --gpu-reset -i GPU (all GPUs at once where NVLink connects them), or reboot"

ECC_UNCORRECTED = Rule(
    "ecc.uncorrected",
    title="uncorrected ECC errors since the driver was loaded",
    remedy="Rerun what ran since then: results may be wrong. Reset the GPU (sudo nvidia-smi -r -i GPU) or "
    "reboot, and have the card replaced if it happens again.",
    severities=("error",),
)
ECC_UNCORRECTED_BEFORE = Rule(
    "ecc.uncorrected_before",
    title="uncorrected ECC errors before the driver was loaded",
    remedy="Watch whether the count grows: nvidia-smi -q -d ECC,ROW_REMAPPER. If it does, run NVIDIA's field "
    "diagnostic. Results of earlier runs on this GPU may be wrong.",
    severities=("warning", "info"),
)
ECC_MODE_PENDING = Rule(
    "ecc.mode_pending",
    title="ECC mode changes at the next reboot",
    remedy="Reboot, or set it back: sudo nvidia-smi -i GPU -e 0 (or 1).",
    severities=("info",),
)
SRAM_THRESHOLD = Rule(
    "memory.sram_threshold_exceeded",
    title="SRAM threshold exceeded: more uncorrectable errors in on-chip memory than NVIDIA allows",
    remedy=_REPLACE,
    severities=("error",),
)
REMAP_FAILED = Rule(
    "memory.remap_failed",
    title="row remapping failed: a failing memory row could not be replaced",
    remedy="Do not use this GPU; have the card replaced.",
    severities=("error",),
)
UNREPAIRABLE = Rule(
    "memory.unrepairable",
    title="unrepairable memory: a failing memory channel could not be replaced",
    remedy=_REPLACE,
    severities=("error",),
)
MANY_RETIRED_PAGES = Rule(
    "memory.many_retired_pages",
    title="more retired memory pages than the warranty allows",
    remedy="Have the card replaced.",
    severities=("error",),
    thresholds=(RETIRED_PAGES,),
)
REPAIR_PENDING = Rule(
    "memory.repair_pending",
    title="repair of a memory channel or TPC pending: done at the next GPU reset",
    remedy=_RESET,
)
REMAP_PENDING = Rule(
    "memory.remap_pending", title="row remapping pending: done at the next GPU reset", remedy=_RESET
)
RETIREMENT_PENDING = Rule(
    "memory.retirement_pending", title="page retirement pending: done at the next reboot", remedy=_RESET
)
FEW_SPARE_ROWS = Rule(
    "memory.few_spare_rows",
    title="memory banks with few or no spare rows: remapping may fail at the next error",
    remedy="Keep long runs off this GPU where others are free, and watch nvidia-smi -q -d ROW_REMAPPER. Have "
    "the card replaced when remapping fails.",
    severities=("warning", "info"),
    thresholds=(NO_SPARE_BANKS,),
)
REPAIRED = Rule(
    "memory.repaired",
    title="memory rows remapped or pages retired after errors",
    remedy="None needed. Watch whether the number grows: nvidia-smi -q -d ROW_REMAPPER,PAGE_RETIREMENT.",
    severities=("info",),
)
_ACTIONS = {
    "reset": Case(
        "must be reset before it can be used", f"End all programs on it, then {_RESET_GPU}. {_CAUSE}", "error"
    ),
    "reboot": Case("the machine must be rebooted before it can be used", f"Reboot. {_CAUSE}", "error"),
    "drain p2p": Case(
        "all P2P traffic must end before the fault can be recovered",
        "End all programs that copy between GPUs, then see the next action: nvidia-smi "
        f"--query-gpu=gpu_recovery_action --format=csv. {_CAUSE}",
        "error",
    ),
}
RESET_REQUIRED = Rule(
    "gpu.reset_required",
    title="the GPU cannot be used before a reset or reboot",
    remedy=f"Do what the driver requests, or reboot. {_CAUSE}",
    severities=("error",),
    cases=_ACTIONS,
)
RESET_RECOMMENDED = Rule(
    "gpu.reset_recommended",
    title="the GPU works with reduced capacity until it is reset (drain and reset)",
    remedy=f"Let its programs finish, start no new ones, then {_RESET_GPU}. {_CAUSE}",
)


class Sign(NamedTuple):
    """What one field or several report of a GPU's memory: the rule, what is to be done, and the fields."""

    rule: Rule
    verdict: Verdict
    says: str
    evidence: dict[str, Any]
    severity: Severity | None = None
    remedy: str | None = None

    @property
    def rank(self) -> tuple[int, int]:
        """How bad it is: severity, then verdict."""
        severity = self.severity or self.rule.severities[0]
        return SEVERITIES.index(severity), VERDICTS.index(self.verdict)


@check(
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
def verdicts(machine: Machine) -> Iterator[Fault]:
    """Find GPUs that need a reset, reboot, repair or replacement: one fault for each, of its worst sign."""
    for gpu in present(machine):
        signs = sorted(signs_of(gpu), key=lambda sign: sign.rank, reverse=True)
        if not signs:
            continue
        worst = signs[0]
        evidence: dict[str, Any] = {"verdict": verdict(gpu)}
        for sign in signs:
            evidence |= {name: value for name, value in sign.evidence.items() if name not in evidence}
        says = "; ".join(sign.says for sign in signs)
        yield worst.rule.fault(gpu, says, evidence, worst.severity, remedy=worst.remedy)


@check(ECC_MODE_PENDING)
def ecc_mode(machine: Machine) -> Iterator[Fault]:
    """Find a pending change of the ECC mode."""
    for gpu in present(machine):
        one = gpu.ecc
        if one.mode is not None and one.mode_pending is not None and one.mode != one.mode_pending:
            yield ECC_MODE_PENDING.fault(
                gpu,
                f"ECC will be {'on' if one.mode_pending else 'off'} after a reboot",
                {"mode": one.mode, "mode_pending": one.mode_pending},
            )


def verdict(gpu: Gpu) -> Verdict:
    """Return what is to be done about a GPU; fine where no field shows a sign."""
    return max((sign.verdict for sign in signs_of(gpu)), key=VERDICTS.index, default="fine")


def signs_of(gpu: Gpu) -> Iterator[Sign]:
    """Return the signs of a GPU; of equally bad ones the first gives the finding its id."""
    yield from _recovery_action(gpu)
    yield from _failures(gpu)
    yield from _errors(gpu)
    yield from _pending(gpu)
    yield from _history(gpu)


def _recovery_action(gpu: Gpu) -> Iterator[Sign]:
    action = gpu.recovery_action
    evidence = {"pci_address": gpu.pci_address, "recovery_action": action}
    if action == "drain and reset":
        says = "works with reduced capacity until it is reset; start no new programs"
        yield Sign(RESET_RECOMMENDED, "reset", says, evidence)
    elif action not in (None, "none"):
        case = _ACTIONS.get(action)
        says = case.says if case else f"recovery action requested by the driver: {action}"
        what: Verdict = "reboot" if action == "reboot" else "reset"
        yield Sign(RESET_REQUIRED, what, says, evidence, remedy=case.remedy if case else None)


def _failures(gpu: Gpu) -> Iterator[Sign]:
    """Return the signs for which NVIDIA replaces a GPU."""
    if gpu.remapped_rows.failure:
        yield Sign(REMAP_FAILED, "replace", REMAP_FAILED.title, _rows(gpu))
    if (gpu.ecc.counts or {}).get("aggregate.sram_threshold_exceeded"):
        yield Sign(SRAM_THRESHOLD, "replace", SRAM_THRESHOLD.title, _counts(gpu))
    if gpu.ecc.unrepairable_memory:
        yield Sign(UNREPAIRABLE, "replace", UNREPAIRABLE.title, {"unrepairable_memory": True})
    count = (gpu.retired_pages.single_bit or 0) + (gpu.retired_pages.double_bit or 0)
    if count >= RETIRED_PAGES.value:
        yield Sign(MANY_RETIRED_PAGES, "replace", f"{count} memory pages retired", _pages(gpu))


def _errors(gpu: Gpu) -> Iterator[Sign]:
    """Return uncorrected errors since the driver was loaded, else those before: a reboot clears the first."""
    now, ever = (_uncorrected(gpu, since) for since in ("volatile", "aggregate"))
    if now:
        says = f"{now} uncorrected ECC errors since the driver was loaded"
        yield Sign(ECC_UNCORRECTED, "reset", says, _counts(gpu))
    elif ever:
        repaired = (gpu.remapped_rows.uncorrectable or 0) + (gpu.retired_pages.double_bit or 0)
        says = f"{ever} uncorrected ECC errors in all, none since the driver was loaded"
        severity: Severity = "info" if ever <= repaired else "warning"
        yield Sign(ECC_UNCORRECTED_BEFORE, "watch", says, _counts(gpu), severity)


def _pending(gpu: Gpu) -> Iterator[Sign]:
    """Return what takes effect with a reset or reboot."""
    repairs = {
        name: pending
        for name in ("channel_repair_pending", "tpc_repair_pending")
        if (pending := getattr(gpu.ecc, name))
    }
    if repairs:
        which = {"channel_repair_pending": "a memory channel", "tpc_repair_pending": "a TPC"}
        says = (
            f"repair of {' and '.join(which[name] for name in repairs)} pending: done at the next GPU reset"
        )
        yield Sign(REPAIR_PENDING, "repair pending", says, repairs)
    if gpu.remapped_rows.pending and not gpu.remapped_rows.failure:
        yield Sign(REMAP_PENDING, "reset", REMAP_PENDING.title, _rows(gpu))
    if gpu.retired_pages.pending:
        yield Sign(RETIREMENT_PENDING, "reboot", RETIREMENT_PENDING.title, _pages(gpu))


def _history(gpu: Gpu) -> Iterator[Sign]:
    """Return repairs of the past, and what they left to spare."""
    banks = gpu.remapped_rows.banks
    few = [f"{count} {words}" for count, words in ((banks.none, "without"), (banks.low, "with few")) if count]
    if few and not gpu.remapped_rows.failure:
        severity: Severity = "warning" if (banks.none or 0) >= NO_SPARE_BANKS.value else "info"
        evidence = {f"banks_{name}": getattr(banks, name) for name in banks.__struct_fields__}
        yield Sign(FEW_SPARE_ROWS, "watch", f"memory banks {', '.join(few)} spare rows", evidence, severity)
    rows, pages = gpu.remapped_rows, gpu.retired_pages
    if rows.uncorrectable and not rows.failure:
        says = f"{rows.uncorrectable} memory rows remapped after uncorrectable errors"
        yield Sign(REPAIRED, "fine", says, _rows(gpu))
    if 0 < (count := (pages.single_bit or 0) + (pages.double_bit or 0)) < RETIRED_PAGES.value:
        yield Sign(REPAIRED, "fine", f"{count} memory pages retired", _pages(gpu))


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
