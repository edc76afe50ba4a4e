"""Memory that failed: errors that were not corrected, rows and pages that were or must be replaced."""

from collections.abc import Iterator

from gputopo.findings.fault import Fault, findings_of, present
from gputopo.findings.finding import Finding
from gputopo.values.machine import Gpu, Machine

# NVIDIA Dynamic Page Retirement documentation: a card with 60 and more retired pages is to be returned.
RETIRED_PAGES = 60


def ecc(machine: Machine) -> Iterator[Finding]:
    """Find errors that were seen and not corrected since the driver was loaded, and a mode that waits."""
    gpus = present(machine)
    faults = [
        Fault(
            gpu,
            f"since the driver was loaded {gpu.ecc.uncorrected_volatile} memory errors were not corrected",
            {
                "uncorrected_volatile": gpu.ecc.uncorrected_volatile,
                "uncorrected_aggregate": gpu.ecc.uncorrected_aggregate,
                "counts": {name: count for name, count in (gpu.ecc.counts or {}).items() if count},
            },
            "error",
        )
        for gpu in gpus
        if gpu.ecc.uncorrected_volatile
    ]
    yield from findings_of(
        "ecc.uncorrected",
        faults,
        "results since then may be wrong: run again; reset the GPU (sudo nvidia-smi -r -i GPU) or reboot, "
        "and have the card replaced if it comes again",
        machine,
    )
    waiting = [
        Fault(
            gpu,
            f"error correction will be {'on' if gpu.ecc.mode_pending else 'off'} after a reboot",
            {"mode": gpu.ecc.mode, "mode_pending": gpu.ecc.mode_pending},
            "info",
        )
        for gpu in gpus
        if gpu.ecc.mode is not None
        and gpu.ecc.mode_pending is not None
        and gpu.ecc.mode != gpu.ecc.mode_pending
    ]
    yield from findings_of(
        "ecc.mode_pending", waiting, "reboot, or set it back: sudo nvidia-smi -i GPU -e 0 (or 1)", machine
    )


def replaced_memory(machine: Machine) -> Iterator[Finding]:
    """Find row remaps and page retirements that failed, that wait for a reset, or that are too many."""
    gpus = present(machine)
    yield from findings_of(
        "memory.remap_failed",
        [
            Fault(gpu, "a memory row that fails could not be replaced by a spare one", _rows(gpu), "error")
            for gpu in gpus
            if gpu.remapped_rows.failure
        ],
        "do not use this card; have it replaced",
        machine,
    )
    yield from findings_of(
        "memory.remap_pending",
        [
            Fault(gpu, "a memory row that fails is replaced at the next reset", _rows(gpu), "warning")
            for gpu in gpus
            if gpu.remapped_rows.pending and not gpu.remapped_rows.failure
        ],
        "end the work on this GPU and reset it (sudo nvidia-smi -r -i GPU), or reboot",
        machine,
    )
    yield from findings_of(
        "memory.retirement_pending",
        [
            Fault(
                gpu, "a memory page that fails is taken out of use at the next reboot", _pages(gpu), "warning"
            )
            for gpu in gpus
            if gpu.retired_pages.pending
        ],
        "end the work on this GPU and reset it (sudo nvidia-smi -r -i GPU), or reboot",
        machine,
    )
    yield from findings_of(
        "memory.many_retired_pages",
        [
            Fault(gpu, f"{count} memory pages were taken out of use", _pages(gpu), "error")
            for gpu in gpus
            if (count := (gpu.retired_pages.single_bit or 0) + (gpu.retired_pages.double_bit or 0))
            >= RETIRED_PAGES
        ],
        "have the card replaced: this many failing pages are more than its maker accepts",
        machine,
    )


def _rows(gpu: Gpu) -> dict[str, object]:
    rows = gpu.remapped_rows
    return {
        "correctable": rows.correctable,
        "uncorrectable": rows.uncorrectable,
        "pending": rows.pending,
        "failure": rows.failure,
    }


def _pages(gpu: Gpu) -> dict[str, object]:
    pages = gpu.retired_pages
    return {"single_bit": pages.single_bit, "double_bit": pages.double_bit, "pending": pages.pending}
