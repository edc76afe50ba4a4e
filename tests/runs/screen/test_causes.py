"""Why a GPU alone is slower than its peer: causes in what both read, with ranges."""

import math
from typing import Any

import pytest

from gputopo.runs.screen import causes_of
from gputopo.values.run.plan import Timed
from gputopo.values.run.several_runs import Reading
from gputopo.values.run.verdict import Causes

WELL = {
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


def found(lost: float, *, rounds: int = 3, peer: dict[str, Any] | None = None, **own: Any) -> Causes:
    """GPU 1 lacks a share `lost` of the speed of GPU 0, and reads `own` where that is different."""
    readings = {
        gpu: dict.fromkeys(range(1, rounds + 1), Reading(**{**WELL, **different}))
        for gpu, different in ((0, peer or {}), (1, own))
    }
    speeds = {
        gpu: {number: Timed(speed, 0.001) for number in range(1, rounds + 1)}
        for gpu, speed in ((0, 100.0), (1, 100.0 * (1 - lost)))
    }
    return causes_of(1, 0, readings, speeds, 100 * lost)


@pytest.mark.parametrize(
    ("own", "cause"),
    [
        ({"graphics_mhz": 1805.0}, "core-clock"),
        ({"graphics_mhz": 1805.0, "throttled_thermal": 1.0}, "thermal"),
        ({"graphics_mhz": 1805.0, "throttled_power": 1.0}, "power-cap"),
        ({"graphics_mhz": 1805.0, "throttled_hardware": 1.0}, "hardware-slowdown"),
        ({"memory_mhz": 3800.0}, "memory-clock"),
        ({"other_processes": 1.0}, "other-process"),
        ({"host_cpu": 0.06}, "host-busy"),
        ({"host_swap": 1.0}, "host-swapping"),
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
    assert clock.percent == pytest.approx(15 * math.log(1900 / 1805) / -math.log(0.85))
    assert clock.percent + causes.unexplained_percent == pytest.approx(15)
    assert causes.says.startswith("Partly: core clock 1,805 MHz, 5.0 % below its peers")


def test_a_busy_host_in_the_runs_of_both_explains_nothing() -> None:
    assert found(0.05, host_cpu=0.3, peer={"host_cpu": 0.3}).found == ()


def test_a_slow_link_that_nothing_waits_for_explains_nothing() -> None:
    assert found(0.05, link_gb_per_s=1.0).found == ()


def test_what_was_not_read_is_not_excluded() -> None:
    causes = found(0.05, memory_mhz=None, link_gb_per_s=None)
    assert set(causes.not_checked) == {"memory-clock", "pcie-link"}


def test_one_round_is_enough() -> None:
    assert [one.id for one in found(0.05, rounds=1, graphics_mhz=1805.0).found] == ["core-clock"]
