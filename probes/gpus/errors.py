"""A GPU's memory errors: ECC counts, remapped rows, retired pages."""

from gputopo.probes.gpus.notes import Asker
from gputopo.probes.nvml.door import LOST, NotReadError
from gputopo.probes.nvml.words import MEMORY_LOCATIONS, SRAM_COUNTS
from gputopo.values.machine import Ecc, RemappedRows, RetiredPages

_SINCE = ("volatile", "aggregate")
# The names that `nvidia-smi -q -x` has for the two kinds of errors in places told one by one.
_OLD_KINDS = {"corrected": "single_bit", "uncorrected": "double_bit"}
_NEW_KINDS = {"corrected": "correctable", "uncorrected": "uncorrectable"}
# What a card or a driver without a count answers, as opposed to one that fails.
_LACKS = {"NOT_SUPPORTED", "FUNCTION_NOT_FOUND"}
_ONE_BY_ONE = tuple(name for name in MEMORY_LOCATIONS if name not in ("device_memory", "sram"))


def ecc(gpu: Asker) -> Ecc:
    """Give the mode, the totals and the counts by place."""
    mode = gpu.take_parts("ecc", ("mode", "mode_pending"), gpu.nvml.ecc_mode)
    totals = {
        f"{what}_{since}": gpu.take(f"ecc.{what}_{since}", gpu.nvml.ecc_errors, what, since)
        for what in ("corrected", "uncorrected")
        for since in _SINCE
    }
    return Ecc(
        mode=mode.get("mode"), mode_pending=mode.get("mode_pending"), **totals, counts=_counts(gpu) or None
    )


def _counts(gpu: Asker) -> dict[str, int]:
    """Give what the card tells by place, by the names of `nvidia-smi -q -x`, without the lists' levels.

    Since Turing: `volatile.sram_correctable`, `volatile.dram_uncorrectable`, ..., and where the driver
    counts them apart `volatile.sram_uncorrectable_parity` and `_secded`. Before: every memory of the chip,
    `volatile.double_bit.l2_cache`. A refusal that is no plain lack is noted under its count.
    """
    reasons: dict[str, str] = {}
    counts = _sram(gpu, reasons)
    if not counts:
        counts = _at(gpu, "sram", "{since}.sram_{kind}", _NEW_KINDS, reasons)
    if counts or not _LACKS.issuperset(reasons.values()):
        counts |= _at(gpu, "device_memory", "{since}.dram_{kind}", _NEW_KINDS, reasons)
    else:
        old = _at(gpu, "device_memory", "{since}.{kind}.device_memory", _OLD_KINDS, reasons)
        counts |= old
        for place in _ONE_BY_ONE if old else ():
            counts |= _at(gpu, place, "{since}.{kind}." + place, _OLD_KINDS, reasons)
    if counts:
        refused = {name: reason for name, reason in reasons.items() if reason not in _LACKS}
        gpu.notes.missing |= {f"{gpu.path}ecc.counts.{name}": why for name, why in refused.items()}
    else:
        gpu.notes.missing[f"{gpu.path}ecc.counts"] = next(iter(reasons.values()))
    gpu.notes.lost = gpu.notes.lost or LOST in reasons.values()
    return counts


def _sram(gpu: Asker, reasons: dict[str, str]) -> dict[str, int]:
    try:
        return gpu.nvml.sram_errors(gpu.handle)
    except NotReadError as error:
        reasons.update(dict.fromkeys(SRAM_COUNTS, error.reason))
        return {}


def _at(gpu: Asker, place: str, name: str, kinds: dict[str, str], reasons: dict[str, str]) -> dict[str, int]:
    """Give the counts of one place by name. A place of which nothing is counted is asked for once."""
    counts: dict[str, int] = {}
    for what in ("uncorrected", "corrected"):  # a place may count only the first
        for since in _SINCE:
            full = name.format(since=since, kind=kinds[what])
            try:
                counts[full] = gpu.nvml.ecc_errors_at(gpu.handle, place, what, since)
            except NotReadError as error:
                reasons[full] = error.reason
                if error.reason == "NOT_SUPPORTED":
                    return counts
    return counts


def remapped_rows(gpu: Asker) -> RemappedRows:
    """Give the rows that were replaced (Ampere and later)."""
    names = ("correctable", "uncorrectable", "pending", "failure")
    paths = [f"{gpu.path}remapped_rows.{name}" for name in names]
    told = gpu.notes.take(paths, gpu.nvml.remapped_rows, gpu.handle)
    if told is None:
        return RemappedRows()
    return RemappedRows(correctable=told[0], uncorrectable=told[1], pending=told[2], failure=told[3])


def retired_pages(gpu: Asker) -> RetiredPages:
    """Give the pages that are no longer used (before Ampere)."""
    return RetiredPages(
        **gpu.take_each("retired_pages", ("single_bit", "double_bit"), gpu.nvml.retired_pages),
        pending=gpu.take("retired_pages.pending", gpu.nvml.retired_pages_pending),
    )
