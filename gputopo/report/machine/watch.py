"""The samples of a watch: a screen that is redrawn, or plain lines."""

import csv
import io
import time
from collections import deque
from collections.abc import Collection, Iterable, Sequence

from gputopo.reference import clock_event_words, decode_clock_events
from gputopo.report.layout import (
    GAP,
    NOT_ASKED,
    QUIET,
    SEVERITY_STYLES,
    Column,
    Line,
    aligned,
    fitting,
    line,
    paragraph,
    width_of,
)
from gputopo.report.units import counted
from gputopo.values.machine import Machine
from gputopo.values.run.events import GpuSample, MachineSample

_SHOWN = 12  # samples in a GPU's sparkline
_BARS = "▁▂▃▄▅▆▇█"
_XIDS_SHOWN = 4
_REASONS_WIDTH = 12  # minimum columns
_PCIE, _NVLINK = "PCIe\nGB/s", "NVLink\nGB/s"  # received/sent
# Heads of the columns that are dropped on a narrow screen, the first one first.
_OPTIONAL = ("Core clock".ljust(_SHOWN), "Memory\nMHz", _NVLINK, "Temp\nC", _PCIE, "Load\n%", "Power\nW")
_NOT_IN_CSV = ("gpu", "throttle_mask", "throttled_s", "processes", "other_processes")
_CSV_FIELDS = tuple(name for name in GpuSample.__struct_fields__ if name not in _NOT_IN_CSV)


class WatchDisplay:
    """Shows the samples of a watch: on a screen that is redrawn, as lines for pipes and logs, or as CSV."""

    csv_header = ",".join(("time_s", "gpu", *_CSV_FIELDS, "throttled_by", "xids")) + "\n"

    def __init__(self, machine: Machine, interval_s: float) -> None:
        self._interval_s = interval_s
        self._max_mhz = {gpu.index: gpu.clocks_mhz.graphics.max for gpu in machine.gpus}
        self._clocks: dict[int, deque[int | None]] = {}
        self._xids: deque[str] = deque(maxlen=_XIDS_SHOWN)
        self._first_s: float | None = None

    def screen(self, sample: MachineSample, xid_reason: str | None, width: int) -> list[Line]:
        """Add the next sample and return the screen: a row for each GPU, then the driver's errors.

        `xid_reason`: why Xid errors are not watched.
        """
        self._first_s = sample.time_s if self._first_s is None else self._first_s
        for gpu in sample.gpus:
            self._clocks.setdefault(gpu.gpu, deque(maxlen=_SHOWN)).append(gpu.graphics_mhz)
        self._xids.extend(_xid_lines(sample))
        words = f"{counted(len(sample.gpus), 'GPU')}, every {self._interval_s:g} s"
        lasted = f"for {sample.time_s - self._first_s:.0f} s so far. Ctrl-C ends."
        lines = [line(f"Watching {words}, {lasted}", QUIET), line()]
        heads = Column("GPU", tuple(str(gpu.gpu) for gpu in sample.gpus), "right")
        readings = fitting(self._columns(sample.gpus), width - heads.width - GAP - _REASONS_WIDTH, _OPTIONAL)
        space = max(width - heads.width - width_of(readings) - GAP, _REASONS_WIDTH)
        reasons = tuple(_throttle_in_short(gpu.throttle_mask) for gpu in sample.gpus)
        lines += aligned(heads, [*readings, Column("Throttled by", reasons, max_width=space)])
        if self._xids:
            lines += [line(), *(line(words, SEVERITY_STYLES["error"]) for words in self._xids)]
        if xid_reason is not None:
            lines += [line(), *paragraph(f"Xid errors are not watched: {xid_reason}", width, QUIET)]
        return lines

    def _columns(self, samples: Sequence[GpuSample]) -> list[Column]:
        def column(head: str, values: Iterable[int | float | None]) -> Column:
            cells = tuple(NOT_ASKED if value is None else f"{value:.0f}" for value in values)
            return Column(head, cells, "right")

        optional = {
            _PCIE: [_rates(sample, "pcie") for sample in samples],
            _NVLINK: [_rates(sample, "nvlink") for sample in samples],
            "Uncorr./\ncorr. ECC": [_ecc(sample) for sample in samples],
        }
        clocks = (_sparkline(self._clocks[sample.gpu], self._max_mhz.get(sample.gpu)) for sample in samples)
        return [
            column("Load\n%", (sample.gpu_utilization_percent for sample in samples)),
            column("Core\nMHz", (sample.graphics_mhz for sample in samples)),
            column("Memory\nMHz", (sample.memory_mhz for sample in samples)),
            column("Power\nW", (sample.power_w for sample in samples)),
            column("Temp\nC", (sample.temperature_c for sample in samples)),
            Column("PCIe\ngen", tuple(map(_link, samples))),
            *(
                Column(head, tuple(value or NOT_ASKED for value in values), "right")
                for head, values in optional.items()
                if any(values)
            ),
            Column("Core clock".ljust(_SHOWN), tuple(clocks)),
        ]

    def csv(self, sample: MachineSample) -> str:
        """Return a sample as CSV, one row for each GPU; facts that are not reported are empty."""
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        for gpu in sample.gpus:
            facts = (getattr(gpu, name) for name in _CSV_FIELDS)
            xids = " ".join(str(xid.code) for xid in sample.xids if xid.gpu in (gpu.gpu, None))
            reasons = _throttle_in_short(gpu.throttle_mask)
            rows.writerow((f"{sample.time_s:.3f}", gpu.gpu, *facts, reasons, xids))
        return text.getvalue()

    def lines(self, sample: MachineSample) -> str:
        """Return a sample as one line for each GPU and each error, without facts that are not reported."""
        at = time.strftime("%H:%M:%S", time.localtime(sample.time_s))
        lines = []
        for gpu in sample.gpus:
            facts = (
                ("load {}%", gpu.gpu_utilization_percent),
                ("core {} MHz", gpu.graphics_mhz),
                ("memory {} MHz", gpu.memory_mhz),
                ("{:.0f} W", gpu.power_w),
                ("{} C", gpu.temperature_c),
                ("gen {}", gpu.pcie_gen),
                ("x{}", gpu.pcie_width),
                ("PCIe {} GB/s", _rates(gpu, "pcie")),
                ("NVLink {} GB/s", _rates(gpu, "nvlink")),
                ("uncorrected/corrected ECC errors {}", _ecc(gpu)),
                ("throttled: {}", _throttle_in_short(gpu.throttle_mask) or None),
            )
            words = [pattern.format(value) for pattern, value in facts if value is not None]
            lines.append(f"{at} GPU {gpu.gpu}  {'  '.join(words) or 'does not answer'}\n")
        return "".join([*lines, *(f"{at} {words}\n" for words in _xid_lines(sample))])


def _sparkline(values: Collection[int | None], maximum: int | None) -> str:
    """Return numbers as bars from 0 to `maximum` or the highest number, if that is higher; a gap for None."""
    top = max((value for value in (*values, maximum) if value is not None), default=0)
    return "".join(
        " " if value is None else _BARS[min(max(value, 0) * len(_BARS) // top, len(_BARS) - 1) if top else 0]
        for value in values
    )


def _xid_lines(sample: MachineSample) -> list[str]:
    """Return the errors that the driver reported since the previous sample, one per line."""
    at = time.strftime("%H:%M:%S", time.localtime(sample.time_s))
    return [
        f"Xid {xid.code} on {'an unknown GPU' if xid.gpu is None else f'GPU {xid.gpu}'}, seen at {at}"
        for xid in sample.xids
    ]


def _throttle_in_short(mask: int | None) -> str:
    """Return each reason of a mask in one or two words; empty for an idle GPU or an unknown mask."""
    return (
        ""
        if mask is None or mask < 0
        else ", ".join(clock_event_words(decode_clock_events(mask), short=True))
    )


def _rates(sample: GpuSample, link: str) -> str | None:
    """Return what a link carries to and from the GPU, `12.1/0.3`, or None if neither is known."""
    rates = [getattr(sample, f"{link}_{direction}_mb_per_s") for direction in ("in", "out")]
    if rates == [None, None]:
        return None
    return "/".join("?" if rate is None else f"{rate / 1000:.1f}" for rate in rates)


def _ecc(sample: GpuSample) -> str | None:
    """Return uncorrected/corrected ECC errors since the start of the watch, or None if there are none."""
    counts = (sample.ecc_uncorrected or 0, sample.ecc_corrected or 0)
    return "/".join(map(str, counts)) if any(counts) else None


def _link(sample: GpuSample) -> str:
    if sample.pcie_gen is None and sample.pcie_width is None:
        return NOT_ASKED
    generation = "?" if sample.pcie_gen is None else str(sample.pcie_gen)
    return generation if sample.pcie_width is None else f"{generation} x{sample.pcie_width}"
