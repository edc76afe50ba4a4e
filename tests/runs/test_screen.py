"""What the short runs of a screen show."""

import math
import re
from typing import Any

import msgspec
import pytest

from gputopo.runs import RunReadings, device_rows
from gputopo.values.run.events import GpuSample, Sample
from gputopo.values.run.result import DeviceResult
from gputopo.values.run.several_runs import GpuReading, InRun, Screen, ScreenDevice, ScreenRun
from gputopo.values.run.verdict import Causes, Verdict
from tests import there
from tests.invented_runs import gpu_devices, step

NAMES = dict.fromkeys(range(6), "GeForce GTX 1070")
TWO = dict.fromkeys(range(2), "GeForce GTX 1070")
# Rounds of one GPU differ by a few parts in a thousand, not alike on all GPUs.
WOBBLE = (1.0, 1.002, 0.999)


def runs(
    speeds: dict[int, float],
    clocks: dict[int, float] | None = None,
    rounds: int = 3,
    readings: dict[int, GpuReading] | None = None,
) -> tuple[ScreenRun, ...]:
    """Runs of each GPU by itself. `clocks`: of the cores, in MHz; `readings`: all that was read."""
    read = {gpu: GpuReading(graphics_mhz=mhz) for gpu, mhz in (clocks or {}).items()} | (readings or {})
    return tuple(
        ScreenRun(
            kind="alone",
            round=number + 1,
            mode="parameter_server cpu",
            folder=f"screen/alone-{gpu}-{number + 1}",
            devices=(InRun(number=gpu, images_per_sec=speed, reading=read.get(gpu, GpuReading())),),
            images_per_sec=speed * WOBBLE[(number + gpu) % 3],
            noise=0.001,
        )
        for number in range(rounds)
        for gpu, speed in speeds.items()
    )


def screen_of(found: tuple[ScreenRun, ...], names: dict[int, str] | None = None) -> Screen:
    """A screen of these runs; `names`: of its devices, if it has their rows."""
    return Screen(
        model="alexnet",
        batch_size=512,
        backend="gpu",
        says=(),
        devices=device_rows(names, found) if names else (),
        runs=found,
        seconds=1.0,
        quick=False,
        complete=True,
    )


WELL = {"graphics_mhz": 1900.0, "temperature_c": 70.0, "power_w": 150.0, "pcie_gen": 3.0, "pcie_width": 16.0}


@pytest.mark.parametrize(
    ("speed", "read", "words"),
    [
        (99.8, {"graphics_mhz": 1880.0, "temperature_c": 76.0, "power_w": 140.0}, ()),
        (100.0, {"graphics_mhz": 1700.0}, ("core clock 1,700 MHz, was 1,900 MHz",)),
        (100.0, {"temperature_c": 83.0}, ("13 \N{DEGREE SIGN}C warmer",)),
        (100.0, {"pcie_width": 1.0}, ("link gen3 x1, was gen3 x16",)),
        (93.0, {}, ("7.0% slower (at least 6.6%)", "slow, was even")),
    ],
)
def test_what_moved_by_more_than_runs_differ_since_the_last_screen_is_named(
    speed: float, read: dict[str, float], words: tuple[str, ...]
) -> None:
    def screened(speed: float, read: dict[str, float]) -> tuple[ScreenRun, ...]:
        readings = {0: GpuReading(**WELL), 1: GpuReading(**{**WELL, **read})}
        return runs({0: 100.0, 1: speed}, readings=readings)

    now = device_rows(TWO, screened(speed, read), screen_of(screened(100.0, {}), TWO))[1]
    assert now.changes == words
    assert now.slower == (speed < 95)
    assert ("7.0% slower than in the last screen" in now.says) == now.slower


WELL_ALONE = {
    "graphics_mhz": 1900.0,
    "memory_mhz": 4000.0,
    "throttled_power": 0.0,
    "throttled_thermal": 0.0,
    "throttled_hardware": 0.0,
    "link_gb_per_s": 12.0,
    "other_processes": 0.0,
    "host_cpu": 0.0,
    "host_swap": 0.0,
    "weights_share": 0.0,
}


def found(lost: float, *, peer: dict[str, Any] | None = None, **own: Any) -> Causes:
    """The causes why GPU 1 lacks a share `lost` of the speed of GPU 0; it reads `own` where that differs."""
    readings = {
        gpu: GpuReading(**{**WELL_ALONE, **different}) for gpu, different in ((0, peer or {}), (1, own))
    }
    rows = device_rows(TWO, runs({0: 100.0, 1: 100.0 * (1 - lost)}, readings=readings))
    return there(rows[1].causes)


@pytest.mark.parametrize(
    ("own", "cause"),
    [
        ({"graphics_mhz": 1805.0}, "core-clock"),
        ({"memory_mhz": 3800.0}, "memory-clock"),
        ({"other_processes": 1.0}, "other-process"),
        ({"link_gb_per_s": 3.0, "weights_share": 0.07}, "pcie-link"),
    ],
)
def test_each_cause_is_found_by_what_the_gpu_read(own: dict[str, Any], cause: str) -> None:
    (one,) = found(0.05, **own).found
    assert one.id == cause
    assert one.percent_low == 0.0
    assert one.percent_high == pytest.approx(5.0, rel=0.3)


def test_the_rest_of_a_gap_is_unexplained_and_shares_add_up() -> None:
    causes = found(0.15, graphics_mhz=1805.0)
    (clock,) = causes.found
    assert clock.percent == pytest.approx(15 * math.log(1900 / 1805) / -math.log(0.85), rel=0.02)
    assert clock.percent + causes.unexplained_percent == pytest.approx(15, abs=0.1)
    assert causes.says.startswith("Partly: core clock 1,805 MHz, 5.0% below its peers")


def test_what_was_not_read_is_not_excluded() -> None:
    causes = found(0.05, memory_mhz=None, link_gb_per_s=None)
    assert set(causes.not_checked) == {"memory-clock", "pcie-link"}


def test_a_short_run_reads_the_means_of_what_slows_a_gpu_and_the_medians_of_its_row() -> None:
    (device,) = gpu_devices(1)
    readings = RunReadings((device,))
    for number, mask in enumerate((0x20, 0x20, 0x20, 0), start=-1):  # warm until its second counted step
        sample = GpuSample(gpu=0, graphics_mhz=1500, throttle_mask=mask, other_processes=1)
        readings.add(Sample(time_s=float(number), gpus=(sample,)))
        readings.add(step(number, [(0.0, 0.1)]))
    row = DeviceResult(
        device=device, batch_size=8, weights_ms=10.0, compute_ms=30.0, graphics_mhz=1490, temperature_c=70
    )
    assert readings.of_device(row) == GpuReading(
        graphics_mhz=1490,
        temperature_c=70,
        throttled_power=0.0,
        throttled_thermal=0.5,
        throttled_hardware=0.0,
        other_processes=1.0,
        weights_share=0.25,
    )


def by_number(rows: tuple[ScreenDevice, ...]) -> dict[int, ScreenDevice]:
    return {row.number: row for row in rows}


def test_the_published_table_is_made_anew_with_its_unexplained_part() -> None:
    speeds = {0: 1560.0, 1: 1320.6, 2: 1541.7, 3: 1474.8, 4: 1558.0, 5: 1557.0}
    clocks = {0: 1885.0, 1: 1790.0, 2: 1873.0, 3: 1790.0, 4: 1885.0, 5: 1880.0}
    rows = by_number(device_rows(NAMES, runs(speeds, clocks)))
    assert {number for number, row in rows.items() if row.word == "slow"} == {1, 3}
    assert rows[2].word == "even"
    assert rows[1].percent_of_best == pytest.approx(84.65, abs=0.2)
    causes = there(rows[3].causes)
    assert [one.id for one in causes.found] == ["core-clock"]
    assert "Possible cause: core clock 1,790 MHz" in rows[3].says
    assert rows[1].explained_percent == pytest.approx(4.8, abs=0.2)
    assert rows[1].unexplained_percent == pytest.approx(10.7, abs=0.4)
    assert "unexplained" in rows[1].says
    assert [row.number for row in rows.values() if row.is_outlier] == [1, 3]


def test_three_slow_gpus_of_four_are_slow_and_one_fast_gpu_of_eight_makes_none_slow() -> None:
    names = dict.fromkeys(range(8), "A")
    slow = device_rows(dict.fromkeys(range(4), "A"), runs({0: 100.0, 1: 90.0, 2: 90.0, 3: 90.0}))
    assert [row.word for row in slow] == ["even", "slow", "slow", "slow"]
    fast = device_rows(names, runs({0: 100.0} | dict.fromkeys(range(1, 8), 90.0)))
    assert {row.word for row in fast} == {"even"}


def test_one_round_alone_leaves_it_open_and_the_run_of_all_at_once_decides() -> None:
    alone = runs({0: 100.0, 1: 80.0}, rounds=1)
    rows = by_number(device_rows({0: "A", 1: "A"}, alone))
    assert [row.word for row in rows.values()] == ["cannot tell"] * 2
    words = {0: Verdict(word="even", says=""), 1: Verdict(word="slow", says="")}
    devices = tuple(InRun(number=gpu, verdict=verdict) for gpu, verdict in words.items())
    at_once = ScreenRun(kind="independent", round=1, mode="independent", folder="x", devices=devices)
    rows = by_number(device_rows({0: "A", 1: "A"}, (*alone, at_once)))
    assert [row.word for row in rows.values()] == ["even", "slow"]


def test_gpus_of_other_models_are_no_peers() -> None:
    rows = device_rows({0: "A", 1: "B"}, runs({0: 100.0, 1: 50.0}))
    assert [row.word for row in rows] == ["cannot tell"] * 2
    assert rows[1].says == "GPU 1 cannot be compared: no other GPU of its kind was run"


def test_rounds_that_differ_much_leave_it_open() -> None:
    noisy = tuple(
        msgspec.structs.replace(run, images_per_sec=(run.images_per_sec or 0) * (1 + 0.1 * (place % 4 == 1)))
        for place, run in enumerate(runs({0: 100.0, 1: 96.0}))
    )
    unsure = by_number(device_rows({0: "A", 1: "A"}, noisy))[1]
    assert unsure.word == "cannot tell"
    assert re.fullmatch(r"GPU 1 is at most [\d.]+% slower than GPU 0 \(97\.5% confidence\)", unsure.says)


def test_a_gpu_that_could_not_be_run_has_its_reason() -> None:
    failed = msgspec.structs.replace(
        runs({1: 1.0})[0], images_per_sec=None, noise=None, failure="out of memory"
    )
    rows = by_number(device_rows({0: "A", 1: "A"}, (*runs({0: 100.0}), failed)))
    assert rows[1].says == "GPU 1 could not be run alone: out of memory"
    assert rows[1].alone is None
