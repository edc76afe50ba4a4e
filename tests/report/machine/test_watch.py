import csv
import io
import re

import msgspec
import pytest

from gputopo.report import WatchDisplay
from gputopo.values.machine import ClockMhz, ClocksMhz, Gpu, Machine
from gputopo.values.run.events import GpuSample, MachineSample, Xid
from tests.report.shown import assert_golden

BUSY = GpuSample(
    gpu=3,
    graphics_mhz=1771,
    memory_mhz=4004,
    power_w=149.6,
    temperature_c=71,
    throttle_mask=0x4,
    gpu_utilization_percent=98,
    pcie_gen=3,
    pcie_width=1,
    pcie_in_mb_per_s=812.5,
    pcie_out_mb_per_s=40.0,
)
LINKED = msgspec.structs.replace(BUSY, nvlink_in_mb_per_s=38_400.0, ecc_corrected=2, ecc_uncorrected=1)
SILENT = GpuSample(gpu=4)
MACHINE = Machine(
    source="live", gpus=(Gpu(index=3, clocks_mhz=ClocksMhz(graphics=ClockMhz(max=1771))), Gpu(index=4))
)


def shown(*samples: MachineSample, xid_reason: str | None = None, width: int = 79) -> str:
    display = WatchDisplay(MACHINE, 1.0)
    *_, lines = [display.screen(sample, xid_reason, width) for sample in samples]
    return "".join("".join(text for text, _ in line).rstrip() + "\n" for line in lines)


def curve(*clocks: int | None) -> str:
    """The core clocks of GPU 3, whose maximum is 1771 MHz."""
    samples = [msgspec.structs.replace(BUSY, graphics_mhz=clock, throttle_mask=None) for clock in clocks]
    text = shown(*(MachineSample(time_s=n, gpus=(one,)) for n, one in enumerate(samples)), width=120)
    head, line = text.splitlines()[3:5]
    return line[head.index("Core clock") :].rstrip()


def test_a_watch_is_shown_as_it_was() -> None:
    """On screens of three widths, in the lines of a pipe, and as CSV."""
    first = MachineSample(time_s=1.0, gpus=(LINKED, SILENT), xids=(Xid(code=79, gpu=3), Xid(code=48)))
    quiet = MachineSample(time_s=2.0, gpus=(LINKED, SILENT))
    screens = {width: shown(first, quiet, width=width) for width in (59, 79, 119)}
    assert all(len(line) <= width for width, screen in screens.items() for line in screen.splitlines())
    blind = shown(quiet, xid_reason="NOT_SUPPORTED")
    display = WatchDisplay(MACHINE, 1.0)
    # A line of a pipe begins with the time of the day where it is read.
    lines = [line.partition(" ")[2] for line in display.lines(first).splitlines()]
    texts = [*screens.values(), blind, *lines, display.csv_header + display.csv(first)]
    assert_golden("watch", re.sub(r"seen at [0-9:]+", "seen at TIME", "\n".join(texts)))


@pytest.mark.parametrize(
    ("mask", "words"), [(None, ""), (1, ""), (0x45, "power limit, HOT"), (0x800, "0x800"), (-1, "")]
)
def test_reasons_are_reported_in_a_word_or_two(mask: int | None, words: str) -> None:
    sample = MachineSample(time_s=1.5, gpus=(msgspec.structs.replace(BUSY, throttle_mask=mask),))
    display = WatchDisplay(MACHINE, 1.0)
    assert (
        next(csv.DictReader(io.StringIO(display.csv_header + display.csv(sample))))["throttled_by"] == words
    )


def test_the_curve_is_full_at_the_maximum_of_the_card_and_has_a_gap_if_nothing_was_reported() -> None:
    assert curve(0, 885, None, 1771) == "▁▁ █".replace("▁▁", "▁▄", 1)


def test_the_curve_keeps_the_last_samples_only() -> None:
    assert curve(0, *[1771] * 12) == "█" * 12
