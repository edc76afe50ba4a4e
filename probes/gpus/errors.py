"""Memory errors of a GPU: ECC counts, remapped rows, retired pages."""

from gputopo.probes.facts import FactReader
from gputopo.probes.nvml.door import NotReadError
from gputopo.probes.nvml.words import MEMORY_LOCATIONS, SRAM_COUNTS
from gputopo.values.machine import Ecc, RemappedRows, RetiredPages, SpareRows

_SINCE = ("volatile", "aggregate")
# The names of the two kinds of errors in `nvidia-smi -q -x`, where memories are counted one by one.
_OLD_KINDS = {"corrected": "single_bit", "uncorrected": "double_bit"}
_NEW_KINDS = {"corrected": "correctable", "uncorrected": "uncorrectable"}
# What a GPU or driver without a count answers, as opposed to one that fails.
_LACKS = {"NOT_SUPPORTED", "FUNCTION_NOT_FOUND"}
_ONE_BY_ONE = tuple(name for name in MEMORY_LOCATIONS if name not in ("device_memory", "sram"))


def ecc(gpu: FactReader) -> Ecc:
    """Read the ECC mode, the totals, the counts by location, and pending repairs."""
    mode = gpu.read_parts("ecc", ("mode", "mode_pending"), gpu.nvml.ecc_mode)
    totals = {
        f"{what}_{since}": gpu.read(f"ecc.{what}_{since}", gpu.nvml.ecc_errors, what, since)
        for what in ("corrected", "uncorrected")
        for since in _SINCE
    }
    counts = _counts(gpu) or None
    repairs = gpu.read_parts(
        "ecc", ("channel_repair_pending", "tpc_repair_pending"), gpu.nvml.repairs_pending
    )
    return Ecc(
        mode=mode.get("mode"),
        mode_pending=mode.get("mode_pending"),
        corrected_volatile=totals["corrected_volatile"],
        uncorrected_volatile=totals["uncorrected_volatile"],
        corrected_aggregate=totals["corrected_aggregate"],
        uncorrected_aggregate=totals["uncorrected_aggregate"],
        counts=counts,
        channel_repair_pending=repairs.get("channel_repair_pending"),
        tpc_repair_pending=repairs.get("tpc_repair_pending"),
        unrepairable_memory=gpu.read("ecc.unrepairable_memory", gpu.nvml.unrepairable_memory),
    )


def _counts(gpu: FactReader) -> dict[str, int]:
    """Read the error counts by location, by the names of `nvidia-smi -q -x` without its levels.

    Since Turing: `volatile.sram_correctable`, `volatile.dram_uncorrectable`, ..., and where the driver
    counts them apart `volatile.sram_uncorrectable_parity` and `_secded`. Before: every memory of the chip,
    `volatile.double_bit.l2_cache`. A refusal other than "not supported" is noted under its count.
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
        for name, reason in reasons.items():
            if reason not in _LACKS:
                gpu.note(reason, f"ecc.counts.{name}")
    else:
        gpu.note(next(iter(reasons.values())), "ecc.counts")
    return counts


def _sram(gpu: FactReader, reasons: dict[str, str]) -> dict[str, int]:
    try:
        return gpu.nvml.sram_errors(gpu.handles[0])
    except NotReadError as error:
        reasons.update(dict.fromkeys(SRAM_COUNTS, error.reason))
        return {}


def _at(
    gpu: FactReader, place: str, name: str, kinds: dict[str, str], reasons: dict[str, str]
) -> dict[str, int]:
    """Read the counts of one location by name. One that is not counted is asked for once."""
    counts: dict[str, int] = {}
    for what in ("uncorrected", "corrected"):  # a location may count only the first
        for since in _SINCE:
            full = name.format(since=since, kind=kinds[what])
            try:
                counts[full] = gpu.nvml.ecc_errors_at(gpu.handles[0], place, what, since)
            except NotReadError as error:
                reasons[full] = error.reason
                if error.reason == "NOT_SUPPORTED":
                    return counts
    return counts


def remapped_rows(gpu: FactReader) -> RemappedRows:
    """Read the remapped rows (Ampere and later)."""
    names = ("correctable", "uncorrectable", "pending", "failure")
    rows = gpu.read([f"remapped_rows.{name}" for name in names], gpu.nvml.remapped_rows)
    banks = gpu.read_named("remapped_rows.banks", SpareRows.__struct_fields__, gpu.nvml.spare_rows)
    spare = SpareRows(**banks)
    if rows is None:
        return RemappedRows(banks=spare)
    return RemappedRows(
        correctable=rows[0], uncorrectable=rows[1], pending=rows[2], failure=rows[3], banks=spare
    )


def retired_pages(gpu: FactReader) -> RetiredPages:
    """Read the retired pages (before Ampere)."""
    return RetiredPages(
        **gpu.read_each("retired_pages", ("single_bit", "double_bit"), gpu.nvml.retired_pages),
        pending=gpu.read("retired_pages.pending", gpu.nvml.retired_pages_pending),
    )
