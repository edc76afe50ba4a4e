"""GPU memory errors: uncorrected ECC errors, row remapping and page retirement."""

from collections.abc import Iterator

from gputopo.findings.rule import Fault, Rule, Threshold, check, present
from gputopo.values.machine import Machine

RETIRED_PAGES = Threshold(
    "retired pages",
    60,
    "pages",
    "NVIDIA, Dynamic Page Retirement: a card with 60 or more retired pages is to be returned",
)

ECC_UNCORRECTED = Rule(
    "ecc.uncorrected",
    title="uncorrected ECC errors since the driver was loaded",
    remedy="Rerun what ran since then: results may be wrong. Reset the GPU (sudo nvidia-smi -r -i GPU) or "
    "reboot, and have the card replaced if it happens again.",
    severities=("error",),
)
ECC_MODE_PENDING = Rule(
    "ecc.mode_pending",
    title="ECC mode changes at the next reboot",
    remedy="Reboot, or set it back: sudo nvidia-smi -i GPU -e 0 (or 1).",
    severities=("info",),
)
REMAP_FAILED = Rule(
    "memory.remap_failed",
    title="row remapping failed: a failing memory row could not be replaced",
    remedy="Do not use this GPU; have the card replaced.",
    severities=("error",),
)
_RESET = "End all programs on this GPU and reset it (sudo nvidia-smi -r -i GPU), or reboot."
REMAP_PENDING = Rule(
    "memory.remap_pending", title="row remapping pending: done at the next GPU reset", remedy=_RESET
)
RETIREMENT_PENDING = Rule(
    "memory.retirement_pending", title="page retirement pending: done at the next reboot", remedy=_RESET
)
MANY_RETIRED_PAGES = Rule(
    "memory.many_retired_pages",
    title="more retired memory pages than the warranty allows",
    remedy="Have the card replaced.",
    severities=("error",),
    thresholds=(RETIRED_PAGES,),
)


@check(ECC_UNCORRECTED, ECC_MODE_PENDING)
def ecc(machine: Machine) -> Iterator[Fault]:
    """Find uncorrected errors since the driver was loaded, and a pending change of the mode."""
    for gpu in present(machine):
        one = gpu.ecc
        if one.uncorrected_volatile:
            yield ECC_UNCORRECTED.fault(
                gpu,
                f"{one.uncorrected_volatile} uncorrected ECC errors since the driver was loaded",
                {
                    "uncorrected_volatile": one.uncorrected_volatile,
                    "uncorrected_aggregate": one.uncorrected_aggregate,
                    "counts": {name: count for name, count in (one.counts or {}).items() if count},
                },
            )
        if one.mode is not None and one.mode_pending is not None and one.mode != one.mode_pending:
            yield ECC_MODE_PENDING.fault(
                gpu,
                f"ECC will be {'on' if one.mode_pending else 'off'} after a reboot",
                {"mode": one.mode, "mode_pending": one.mode_pending},
            )


@check(REMAP_FAILED, REMAP_PENDING)
def remapped_rows(machine: Machine) -> Iterator[Fault]:
    """Find row remaps that failed or wait for a reset."""
    for gpu in present(machine):
        rows = gpu.remapped_rows
        evidence = {
            "correctable": rows.correctable,
            "uncorrectable": rows.uncorrectable,
            "pending": rows.pending,
            "failure": rows.failure,
        }
        if rows.failure:
            yield REMAP_FAILED.fault(gpu, REMAP_FAILED.title, evidence)
        elif rows.pending:
            yield REMAP_PENDING.fault(gpu, REMAP_PENDING.title, evidence)


@check(RETIREMENT_PENDING, MANY_RETIRED_PAGES)
def retired_pages(machine: Machine) -> Iterator[Fault]:
    """Find page retirements that wait for a reboot, or are too many."""
    for gpu in present(machine):
        pages = gpu.retired_pages
        evidence = {
            "single_bit": pages.single_bit,
            "double_bit": pages.double_bit,
            "pending": pages.pending,
        }
        if pages.pending:
            yield RETIREMENT_PENDING.fault(gpu, RETIREMENT_PENDING.title, evidence)
        count = (pages.single_bit or 0) + (pages.double_bit or 0)
        if count >= RETIRED_PAGES.value:
            yield MANY_RETIRED_PAGES.fault(gpu, f"{count} memory pages retired", evidence)
