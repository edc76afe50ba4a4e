"""The samples of a watch: a screen that is redrawn, or plain lines."""

import csv
import io
import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence

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

SHOWN = 12  # samples in a GPU's sparkline
_BARS = "▁▂▃▄▅▆▇█"
_XIDS_SHOWN = 4
_REASONS_WIDTH = 12  # minimum columns
_PCIE, _NVLINK = "PCIe\nGB/s", "NVLink\nGB/s"  # received/sent
# Heads of the columns that are dropped on a narrow screen, the first one first.
_OPTIONAL = ("Core clock".ljust(SHOWN), "Memory\nMHz", _NVLINK, "Temp\nC", _PCIE, "Load\n%", "Power\nW")
_NOT_IN_CSV = ("gpu", "throttle_mask", "throttled_s", "processes", "other_processes")
_CSV_FIELDS = tuple(name for name in GpuSample.__struct_fields__ if name not in _NOT_IN_CSV)
CSV_HEADER = ",".join(("time_s", "gpu", *_CSV_FIELDS, "throttled_by", "xids")) + "\n"


class Recent:
    """The last samples of a watch, for the sparklines and the list of Xids."""

    def __init__(self, machine: Machine) -> None:
        self._max_mhz = {gpu.index: gpu.clocks_mhz.graphics.max for gpu in machine.gpus}
        self._clocks: dict[int, deque[int | None]] = {}
        self.xids: deque[str] = deque(maxlen=_XIDS_SHOWN)
        self.first_s: float | None = None
        self.last: MachineSample | None = None

    def add(self, sample: MachineSample) -> None:
        """Add the next sample."""
        self.first_s = sample.time_s if self.first_s is None else self.first_s
        self.last = sample
        for gpu in sample.gpus:
            self._clocks.setdefault(gpu.gpu, deque(maxlen=SHOWN)).append(gpu.graphics_mhz)
        self.xids.extend(xid_lines(sample))

    @property
    def seconds(self) -> float:
        """How long the watch has lasted, from its first sample to its last."""
        return 0.0 if self.last is None or self.first_s is None else self.last.time_s - self.first_s

    def sparkline(self, gpu: int) -> str:
        """Return the core clock of the last samples as bars. A full bar is the GPU's maximum; a gap is
        unknown.
        """
        return sparkline(self._clocks.get(gpu, ()), self._max_mhz.get(gpu))


def sparkline(values: Collection[int | None], maximum: int | None) -> str:
    """Return numbers as bars from 0 to `maximum` or the highest number, if that is higher."""
    top = max((value for value in (*values, maximum) if value is not None), default=0)
    return "".join(
        " " if value is None else _BARS[min(max(value, 0) * len(_BARS) // top, len(_BARS) - 1) if top else 0]
        for value in values
    )


def watch_view(recent: Recent, xid_reason: str | None, interval_s: float, width: int) -> list[Line]:
    """Return the screen of a watch after its latest sample: a row for each GPU, then the driver's errors."""
    sample = recent.last
    if sample is None:
        return []
    words = f"{counted(len(sample.gpus), 'GPU')}, every {interval_s:g} s"
    lines = [line(f"Watching {words}, for {recent.seconds:.0f} s so far. Ctrl-C ends.", QUIET), line()]
    heads = Column("GPU", tuple(str(gpu.gpu) for gpu in sample.gpus), "right")
    readings = _columns(sample.gpus, recent)
    reasons = tuple(throttle_in_short(gpu.throttle_mask) for gpu in sample.gpus)
    readings = fitting(readings, width - heads.width - GAP - _REASONS_WIDTH, _OPTIONAL)
    space = max(width - heads.width - width_of(readings) - GAP, _REASONS_WIDTH)
    lines += aligned(heads, [*readings, Column("Throttled by", reasons, max_width=space)])
    if recent.xids:
        lines += [line(), *(line(words, SEVERITY_STYLES["error"]) for words in recent.xids)]
    if xid_reason is not None:
        lines += [line(), *paragraph(f"Xid errors are not watched: {xid_reason}", width, QUIET)]
    return lines


def csv_lines(sample: MachineSample) -> str:
    """Return a sample as CSV, one row for each GPU; facts that are not reported are empty."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    for gpu in sample.gpus:
        facts = (getattr(gpu, name) for name in _CSV_FIELDS)
        xids = " ".join(str(xid.code) for xid in sample.xids if xid.gpu in (gpu.gpu, None))
        rows.writerow((f"{sample.time_s:.3f}", gpu.gpu, *facts, throttle_in_short(gpu.throttle_mask), xids))
    return text.getvalue()


def plain_lines(sample: MachineSample) -> Iterator[str]:
    """Yield a sample as one line for each GPU, for pipes and logs, without facts not reported."""
    at = time.strftime("%H:%M:%S", time.localtime(sample.time_s))
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
        )
        words = [pattern.format(value) for pattern, value in facts if value is not None]
        reasons = throttle_in_short(gpu.throttle_mask)
        if reasons:
            words.append(f"throttled: {reasons}")
        yield f"{at} GPU {gpu.gpu}  {'  '.join(words) or 'does not answer'}"
    for words_of_xid in xid_lines(sample):
        yield f"{at} {words_of_xid}"


def xid_lines(sample: MachineSample) -> list[str]:
    """Return the errors that the driver reported since the previous sample, one per line."""
    at = time.strftime("%H:%M:%S", time.localtime(sample.time_s))
    return [
        f"Xid {xid.code} on {'an unknown GPU' if xid.gpu is None else f'GPU {xid.gpu}'}, seen at {at}"
        for xid in sample.xids
    ]


def throttle_in_short(mask: int | None) -> str:
    """Return each reason of a mask in one or two words; empty for an idle GPU or an unknown mask."""
    if mask is None or mask < 0:
        return ""
    return ", ".join(clock_event_words(decode_clock_events(mask), short=True))


def _columns(samples: Sequence[GpuSample], recent: Recent) -> list[Column]:
    def column(head: str, values: list[int | float | None]) -> Column:
        cells = tuple(NOT_ASKED if value is None else f"{value:.0f}" for value in values)
        return Column(head, cells, "right")

    return [
        column("Load\n%", [one.gpu_utilization_percent for one in samples]),
        column("Core\nMHz", [one.graphics_mhz for one in samples]),
        column("Memory\nMHz", [one.memory_mhz for one in samples]),
        column("Power\nW", [one.power_w for one in samples]),
        column("Temp\nC", [one.temperature_c for one in samples]),
        Column("PCIe\ngen", tuple(map(_link, samples))),
        *(
            Column(head, tuple(value or NOT_ASKED for value in values), "right")
            for head, values in (
                (_PCIE, [_rates(one, "pcie") for one in samples]),
                (_NVLINK, [_rates(one, "nvlink") for one in samples]),
                ("Uncorr./\ncorr. ECC", [_ecc(one) for one in samples]),
            )
            if any(values)
        ),
        Column("Core clock".ljust(SHOWN), tuple(recent.sparkline(one.gpu) for one in samples)),
    ]


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
