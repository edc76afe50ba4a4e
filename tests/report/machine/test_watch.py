import csv
import io

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.report import WatchDisplay
from gputopo.values.machine import ClockMhz, ClocksMhz, Gpu, Machine
from gputopo.values.run.events import GpuSample, MachineSample, Xid

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


def row(text: str, gpu: int) -> list[str]:
    return next(line.split() for line in text.splitlines() if line.split()[:1] == [str(gpu)])


def test_a_gpu_has_a_row_with_its_readings_and_why_it_is_throttled() -> None:
    text = shown(MachineSample(time_s=10.0, gpus=(BUSY, SILENT)))
    assert row(text, 3) == [
        "3",
        "98",
        "1771",
        "4004",
        "150",
        "71",
        "3",
        "x1",
        "0.8/0.0",
        "█",
        "power",
        "limit",
    ]
    assert row(text, 4) == ["4", "-", "-", "-", "-", "-", "-", "-"]
    assert "NVLink" not in text
    linked = shown(MachineSample(time_s=10.0, gpus=(LINKED, SILENT)), width=120)
    assert row(linked, 3)[8:-2] == ["0.8/0.0", "38.4/?", "1/2", "█"]


def test_on_a_narrow_screen_the_least_important_columns_go() -> None:
    sample = MachineSample(time_s=10.0, gpus=(LINKED, SILENT))
    heads = {}
    for width in (59, 79, 119):
        narrow = shown(sample, width=width)
        assert max(map(len, (line.rstrip() for line in narrow.splitlines()))) <= width
        assert row(narrow, 3)[-2:] == ["power", "limit"]
        some = ("Core clock", "NVLink", "Temp", "ECC", "Throttled by")
        heads[width] = [one for one in some if one in narrow]
    assert heads == {59: list(some[3:]), 79: list(some[1:]), 119: list(some)}


def test_sixteen_gpus_throttled_for_many_reasons_fit_80_columns() -> None:
    samples = tuple(msgspec.structs.replace(BUSY, gpu=n, throttle_mask=0xFFFF) for n in range(16))
    text = shown(*(MachineSample(time_s=n, gpus=samples) for n in range(30)))
    assert max(map(len, (line.rstrip() for line in text.splitlines()))) <= 79


def test_xids_are_shown_and_kept_for_a_while() -> None:
    quiet = MachineSample(time_s=2.0, gpus=(BUSY,))
    text = shown(MachineSample(time_s=1.0, gpus=(BUSY,), xids=(Xid(code=79, gpu=3), Xid(code=48))), quiet)
    assert "Xid 79 on GPU 3" in text
    assert "Xid 48 on an unknown GPU" in text


def test_xids_that_cannot_be_watched_are_not_passed_over() -> None:
    text = shown(MachineSample(time_s=1.0, gpus=(BUSY,)), xid_reason="NOT_SUPPORTED")
    assert "Xid errors are not watched: NOT_SUPPORTED" in text


def test_a_pipe_gets_a_line_a_gpu_with_the_units() -> None:
    sample = MachineSample(time_s=0.0, gpus=(BUSY, SILENT), xids=(Xid(code=79, gpu=4),))
    first, second, xid = WatchDisplay(MACHINE, 1.0).lines(sample).splitlines()
    assert first.partition(" ")[2] == (
        "GPU 3  load 98%  core 1771 MHz  memory 4004 MHz  150 W  71 C  gen 3  x1  PCIe 0.8/0.0 GB/s  "
        "throttled: power limit"
    )
    assert second.endswith("GPU 4  does not answer")
    assert "Xid 79 on GPU 4" in xid


def test_csv_has_the_facts_by_name_the_throttle_reasons_and_xids() -> None:
    display = WatchDisplay(MACHINE, 1.0)
    text = display.csv(MachineSample(time_s=1.5, gpus=(LINKED, SILENT), xids=(Xid(code=79, gpu=4),)))
    first, second = csv.DictReader(io.StringIO(display.csv_header + text))
    assert (first["time_s"], first["gpu"], first["ecc_uncorrected"]) == ("1.500", "3", "1")
    assert (first["nvlink_in_mb_per_s"], first["nvlink_out_mb_per_s"]) == ("38400.0", "")
    assert (first["throttled_by"], first["xids"], second["xids"]) == ("power limit", "", "79")


@pytest.mark.parametrize(
    ("mask", "words"),
    [(None, ""), (0, ""), (1, ""), (0x45, "power limit, HOT"), (0x800, "0x800"), (-1, "")],
)
def test_reasons_are_reported_in_a_word_or_two(mask: int | None, words: str) -> None:
    sample = MachineSample(time_s=1.5, gpus=(msgspec.structs.replace(BUSY, throttle_mask=mask),))
    display = WatchDisplay(MACHINE, 1.0)
    assert (
        next(csv.DictReader(io.StringIO(display.csv_header + display.csv(sample))))["throttled_by"] == words
    )


def test_the_curve_is_full_at_the_maximum_of_the_card_and_has_a_gap_if_nothing_was_reported() -> None:
    assert curve(0, 885, None, 1771) == "▁▁ █".replace("▁▁", "▁▄", 1)


@given(st.lists(st.none() | st.integers(-5, 5000), min_size=1, max_size=12))
def test_any_history_is_drawn_one_sign_a_sample(clocks: list[int | None]) -> None:
    drawn = curve(*clocks).ljust(len(clocks))
    assert [sign == " " for sign in drawn] == [clock is None for clock in clocks]


def test_the_curve_keeps_the_last_samples_only() -> None:
    assert curve(0, *[1771] * 12) == "█" * 12
