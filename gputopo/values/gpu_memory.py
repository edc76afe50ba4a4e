"""Memory of a GPU and its errors, each with its declaration."""

from typing import Annotated

from gputopo.values.fields import Fact, Metric, Smi, Value


class MemoryMib(Value, frozen=True):
    """Memory of a GPU in MiB. `nvidia-smi --query-gpu=memory.total,memory.used,memory.free`."""

    # Without the driver's share: for an A100, nvidia-smi reports 40 960 MiB and CUDA 40 540 MiB.
    total: Annotated[
        int | None,
        Fact(
            stability="fixed",
            peers=True,
            smi=Smi(xml="fb_memory_usage/total", text="FB Memory Usage/Total", csv="memory.total"),
            metric=Metric("gpu_memory_size_bytes", "total memory of a GPU"),
            tolerance=0.02,
        ),
    ] = None
    used: Annotated[
        int | None,
        Fact(
            stability="volatile",
            smi=Smi(xml="fb_memory_usage/used", text="FB Memory Usage/Used", csv="memory.used"),
            metric=Metric("gpu_memory_used_bytes", "memory of a GPU, in use"),
        ),
    ] = None
    free: Annotated[
        int | None,
        Fact(
            stability="volatile",
            smi=Smi(xml="fb_memory_usage/free", text="FB Memory Usage/Free", csv="memory.free"),
            metric=Metric("gpu_memory_free_bytes", "memory of a GPU, free"),
        ),
    ] = None


class Bar1Mib(Value, frozen=True):
    """The window through which other devices access a GPU's memory, in MiB. `nvidia-smi -q -d MEMORY`."""

    total: Annotated[
        int | None,
        Fact(
            stability="fixed",
            peers=True,
            smi=Smi(xml="bar1_memory_usage/total", text="BAR1 Memory Usage/Total"),
            metric=Metric("gpu_bar1_size_bytes", "BAR1 (the window for other devices) of a GPU, total"),
            tolerance=0.02,
        ),
    ] = None
    used: Annotated[
        int | None,
        Fact(
            stability="volatile",
            smi=Smi(xml="bar1_memory_usage/used", text="BAR1 Memory Usage/Used"),
            metric=Metric("gpu_bar1_used_bytes", "BAR1 (the window for other devices) of a GPU, in use"),
        ),
    ] = None
    free: Annotated[
        int | None,
        Fact(
            stability="volatile",
            smi=Smi(xml="bar1_memory_usage/free", text="BAR1 Memory Usage/Free"),
            metric=Metric("gpu_bar1_free_bytes", "BAR1 (the window for other devices) of a GPU, free"),
        ),
    ] = None


class Ecc(Value, frozen=True):
    """Error correction: mode now and after a reboot, error counts since boot and in total, repairs.

    `counts`: by location, as the card reports them, {"volatile.sram_uncorrectable_parity": 0}. Repairs of a
    memory channel or a TPC (cluster of SMs) take effect after a reset (Blackwell and later).
    """

    mode: Annotated[
        bool | None,
        Fact(
            peers=True,
            smi=Smi(
                kind="switch", xml="ecc_mode/current_ecc", text="ECC Mode/Current", csv="ecc.mode.current"
            ),
            metric=Metric("gpu_ecc_enabled", "whether memory errors are corrected"),
        ),
    ] = None
    mode_pending: Annotated[
        bool | None,
        Fact(
            smi=Smi(
                kind="switch", xml="ecc_mode/pending_ecc", text="ECC Mode/Pending", csv="ecc.mode.pending"
            ),
            metric=Metric("gpu_ecc_enabled_after_reboot", "the same after a reboot"),
        ),
    ] = None
    corrected_volatile: Annotated[
        int | None,
        Fact(
            stability="state",
            counter=True,
            labels={"error": "corrected", "counted": "volatile"},
            smi=Smi(
                kind="count",
                xml="ecc_errors/volatile/single_bit/total",
                text="ECC Errors/volatile/single Bit/Total",
                csv="ecc.errors.corrected.volatile.total",
            ),
            metric=Metric(
                "gpu_ecc_errors_total",
                "memory errors; volatile: since the driver was loaded, aggregate: in total",
            ),
        ),
    ] = None
    uncorrected_volatile: Annotated[
        int | None,
        Fact(
            stability="state",
            counter=True,
            labels={"error": "uncorrected", "counted": "volatile"},
            smi=Smi(
                kind="count",
                xml="ecc_errors/volatile/double_bit/total",
                text="ECC Errors/volatile/double Bit/Total",
                csv="ecc.errors.uncorrected.volatile.total",
            ),
            metric=Metric(
                "gpu_ecc_errors_total",
                "memory errors; volatile: since the driver was loaded, aggregate: in total",
            ),
        ),
    ] = None
    corrected_aggregate: Annotated[
        int | None,
        Fact(
            stability="state",
            counter=True,
            labels={"error": "corrected", "counted": "aggregate"},
            smi=Smi(
                kind="count",
                xml="ecc_errors/aggregate/single_bit/total",
                text="ECC Errors/aggregate/single Bit/Total",
                csv="ecc.errors.corrected.aggregate.total",
            ),
            metric=Metric(
                "gpu_ecc_errors_total",
                "memory errors; volatile: since the driver was loaded, aggregate: in total",
            ),
        ),
    ] = None
    uncorrected_aggregate: Annotated[
        int | None,
        Fact(
            stability="state",
            counter=True,
            labels={"error": "uncorrected", "counted": "aggregate"},
            smi=Smi(
                kind="count",
                xml="ecc_errors/aggregate/double_bit/total",
                text="ECC Errors/aggregate/double Bit/Total",
                csv="ecc.errors.uncorrected.aggregate.total",
            ),
            metric=Metric(
                "gpu_ecc_errors_total",
                "memory errors; volatile: since the driver was loaded, aggregate: in total",
            ),
        ),
    ] = None
    counts: Annotated[
        dict[str, int] | None,
        Fact(
            stability="state",
            counter=True,
            metric=Metric("gpu_ecc_place_errors_total", "memory errors by their place", by="place"),
        ),
    ] = None
    channel_repair_pending: Annotated[
        bool | None,
        Fact(
            stability="state",
            smi=Smi(
                kind="yes", xml="ecc_errors/channel_repair_pending", text="ECC Errors/Channel Repair Pending"
            ),
            metric=Metric("gpu_channel_repair_pending", "whether the repair of a memory channel is pending"),
        ),
    ] = None
    tpc_repair_pending: Annotated[
        bool | None,
        Fact(
            "TPC repair pending",
            stability="state",
            smi=Smi(kind="yes", xml="ecc_errors/tpc_repair_pending", text="ECC Errors/TPC Repair Pending"),
            metric=Metric("gpu_tpc_repair_pending", "whether the repair of a TPC is pending"),
        ),
    ] = None
    unrepairable_memory: Annotated[
        bool | None,
        Fact(
            stability="state",
            smi=Smi(kind="yes", xml="ecc_errors/unrepairable_memory", text="ECC Errors/Unrepairable Memory"),
            metric=Metric("gpu_unrepairable_memory", "whether memory could not be repaired"),
        ),
    ] = None


class SpareRows(Value, frozen=True):
    """Number of memory banks with all, many, some, few or no spare rows left."""

    max: Annotated[
        int | None,
        Fact(
            "with max spare rows",
            labels={"spare_rows": "max"},
            smi=Smi(
                kind="banks",
                xml="remapped_rows/row_remapper_histogram/row_remapper_histogram_max",
                text="Remapped Rows/Bank Remap Availability Histogram/max",
                csv="remapped_rows.histogram.max",
            ),
            metric=Metric("gpu_memory_banks", "memory banks, by the spare rows that they have left"),
        ),
    ] = None
    high: Annotated[
        int | None,
        Fact(
            "with high spare rows",
            labels={"spare_rows": "high"},
            smi=Smi(
                kind="banks",
                xml="remapped_rows/row_remapper_histogram/row_remapper_histogram_high",
                text="Remapped Rows/Bank Remap Availability Histogram/high",
                csv="remapped_rows.histogram.high",
            ),
            metric=Metric("gpu_memory_banks", "memory banks, by the spare rows that they have left"),
        ),
    ] = None
    partial: Annotated[
        int | None,
        Fact(
            "with partial spare rows",
            labels={"spare_rows": "partial"},
            smi=Smi(
                kind="banks",
                xml="remapped_rows/row_remapper_histogram/row_remapper_histogram_partial",
                text="Remapped Rows/Bank Remap Availability Histogram/partial",
                csv="remapped_rows.histogram.partial",
            ),
            metric=Metric("gpu_memory_banks", "memory banks, by the spare rows that they have left"),
        ),
    ] = None
    low: Annotated[
        int | None,
        Fact(
            "with low spare rows",
            labels={"spare_rows": "low"},
            smi=Smi(
                kind="banks",
                xml="remapped_rows/row_remapper_histogram/row_remapper_histogram_low",
                text="Remapped Rows/Bank Remap Availability Histogram/low",
                csv="remapped_rows.histogram.low",
            ),
            metric=Metric("gpu_memory_banks", "memory banks, by the spare rows that they have left"),
        ),
    ] = None
    none: Annotated[
        int | None,
        Fact(
            "with none spare rows",
            labels={"spare_rows": "none"},
            smi=Smi(
                kind="banks",
                xml="remapped_rows/row_remapper_histogram/row_remapper_histogram_none",
                text="Remapped Rows/Bank Remap Availability Histogram/none",
                csv="remapped_rows.histogram.none",
            ),
            metric=Metric("gpu_memory_banks", "memory banks, by the spare rows that they have left"),
        ),
    ] = None


class RemappedRows(Value, frozen=True):
    """Memory rows that were replaced by spare ones (Ampere and later)."""

    correctable: Annotated[
        int | None,
        Fact(
            labels={"error": "correctable"},
            smi=Smi(
                kind="count",
                xml="remapped_rows/remapped_row_corr",
                text="Remapped Rows/Correctable Error",
                csv="remapped_rows.correctable",
            ),
            metric=Metric("gpu_remapped_rows", "memory rows that were replaced, by the error that caused it"),
        ),
    ] = None
    uncorrectable: Annotated[
        int | None,
        Fact(
            labels={"error": "uncorrectable"},
            smi=Smi(
                kind="count",
                xml="remapped_rows/remapped_row_unc",
                text="Remapped Rows/Uncorrectable Error",
                csv="remapped_rows.uncorrectable",
            ),
            metric=Metric("gpu_remapped_rows", "memory rows that were replaced, by the error that caused it"),
        ),
    ] = None
    pending: Annotated[
        bool | None,
        Fact(
            smi=Smi(
                kind="yes",
                xml="remapped_rows/remapped_row_pending",
                text="Remapped Rows/Pending",
                csv="remapped_rows.pending",
            ),
            metric=Metric("gpu_remapping_pending", "whether a row waits for a reset"),
        ),
    ] = None
    failure: Annotated[
        bool | None,
        Fact(
            smi=Smi(
                kind="yes",
                xml="remapped_rows/remapped_row_failure",
                text="Remapped Rows/Remapping Failure Occurred",
                csv="remapped_rows.failure",
            ),
            metric=Metric("gpu_remapping_failed", "whether a row could not be replaced"),
        ),
    ] = None
    banks: Annotated[SpareRows, Fact("memory banks")] = SpareRows()


class RetiredPages(Value, frozen=True):
    """Memory pages that are not used any more (before Ampere)."""

    single_bit: Annotated[
        int | None,
        Fact(
            smi=Smi(
                kind="count",
                xml="retired_pages/multiple_single_bit_retirement/retired_count",
                text="Retired Pages/Single Bit ECC",
                csv=("retired_pages.single_bit_ecc.count", "retired_pages.sbe"),
            )
        ),
    ] = None
    double_bit: Annotated[
        int | None,
        Fact(
            smi=Smi(
                kind="count",
                xml="retired_pages/double_bit_retirement/retired_count",
                text="Retired Pages/Double Bit ECC",
                csv=("retired_pages.double_bit.count", "retired_pages.dbe"),
            )
        ),
    ] = None
    pending: Annotated[
        bool | None,
        Fact(
            smi=Smi(
                kind="yes",
                xml=("retired_pages/pending_retirement", "retired_pages/pending_blacklist"),
                text=("Retired Pages/Pending Page Blacklist", "Retired Pages/Pending"),
                csv="retired_pages.pending",
            ),
            metric=Metric("gpu_retirement_pending", "whether a page waits for a reboot"),
        ),
    ] = None
