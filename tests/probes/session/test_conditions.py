from typing import Any

import pytest

from gputopo.probes import NotReadError
from gputopo.probes.copy_jobs import Setting
from gputopo.probes.nvml.monitor import Monitor
from gputopo.probes.session.conditions import (
    GpuSampler,
    Meter,
    WindowReading,
    WindowReadings,
    conditions,
    still_rising,
)
from gputopo.probes.session.ramp_up import MIN_S, ramp_up
from gputopo.values.run.events import GpuSample
from tests.kit.distinct import DISTINCT
from tests.kit.nvml import FakeNvml, installed
from tests.probes.session.double import ASLEEP, AWAKE, Clock, EngineDouble, SamplerDouble


def readings(*facts: dict[str, Any], gpu: int = 0, inside: bool = True) -> WindowReadings:
    return {gpu: tuple(WindowReading(GpuSample(gpu=gpu, **one), inside) for one in facts)}


def test_conditions_are_medians_over_all_windows_that_count() -> None:
    windows = [
        readings({"graphics_mhz": 1400, "power_w": 60.0}, {"graphics_mhz": 1410, "power_w": 70.0}),
        readings({"graphics_mhz": 1380, "power_w": 65.0}),
    ]
    (found,) = conditions([0], windows)
    assert (found.readings, found.graphics_mhz, found.power_w) == (3, 1400, 65.0)
    assert found.memory_mhz is None
    assert found.throttle_reasons is None


def test_readings_beside_the_window_stand_only_where_none_lay_inside() -> None:
    late = readings({"pstate": "P8"}, inside=False)
    (found,) = conditions([0], [readings({"pstate": "P0"}), late])
    assert (found.readings, found.readings_beside, found.pstate) == (1, 1, "P0")
    (found,) = conditions([0], [late, late])
    assert (found.readings, found.readings_beside, found.pstate) == (0, 2, "P8")


def test_every_reason_of_throttling_that_was_seen_is_reported() -> None:
    (found,) = conditions(
        [0], [readings({"throttle_mask": 0}, {"throttle_mask": 4}), readings({"throttle_mask": 0x20})]
    )
    assert found.throttle_mask == 0x24
    assert found.throttle_reasons == ("sw_power_cap", "sw_thermal_slowdown")


def test_a_link_that_changes_counts_within_a_window_and_not_between_two() -> None:
    slow, fast = {"pcie_gen": 1, "pcie_width": 16}, {"pcie_gen": 3, "pcie_width": 16}
    assert conditions([0], [readings(slow, fast, slow), readings(fast, fast)])[0].link_changes == 2
    assert conditions([0], [readings(slow), readings(fast)])[0].link_changes == 0


def test_the_pstate_is_the_one_most_readings_show() -> None:
    (found,) = conditions([0], [readings({"pstate": "P2"}, {"pstate": "P0"}, {"pstate": "P2"})])
    assert found.pstate == "P2"


def test_a_window_too_short_for_a_reading_is_reported_as_none() -> None:
    (found,) = conditions([3], [{}])
    assert (found.gpu, found.readings, found.pstate) == (3, 0, None)


@pytest.mark.parametrize(
    "change", [{"pstate": "P8"}, {"graphics_mhz": 700}, {"memory_mhz": 405}, {"pcie_gen": 1}]
)
def test_windows_that_began_lower_than_the_last_are_of_a_card_in_ramp_up(change: dict[str, Any]) -> None:
    early, late = readings(AWAKE | change, AWAKE), readings(AWAKE)
    assert still_rising([early, early, late, late]) == 2


def test_clocks_that_fall_later_on_are_no_ramp_up() -> None:
    high, low = readings(AWAKE), readings(AWAKE | {"graphics_mhz": 900, "pstate": "P2"})
    assert still_rising([high, high, low, low]) == 0
    assert still_rising([high, low, high]) == 0


def test_cards_whose_rates_stay_work_for_the_least_time_and_no_longer() -> None:
    engine = EngineDouble(gpus=1, each_s=0.05)
    with Meter([0], open_sampler=lambda gpu: SamplerDouble(gpu, lambda: AWAKE), now=engine.clock) as meter:
        assert ramp_up(engine, meter, Setting(gpus=(0,)), engine.clock) == ()
    assert MIN_S < engine.clock() / 2 < MIN_S + 0.06  # within the cards, then to them


def test_readings_are_taken_again_only_after_a_pause() -> None:
    clock = Clock()
    with Meter([0, 1], open_sampler=lambda gpu: SamplerDouble(gpu, lambda: AWAKE), now=clock) as meter:
        window = meter.window([1])
        window.take()
        window.take()
        clock.now_s += 0.01
        window.take()
    found = window.readings((0.0, 1.0))
    assert len(found[1]) == 2
    assert not found.get(0)


class SlowSampler(SamplerDouble):
    """NVML that takes 3 ms of a clock for a reading."""

    def __init__(self, gpu: int, clock: Clock) -> None:
        super().__init__(gpu, lambda: AWAKE)
        self.clock = clock

    def sample(self) -> tuple[GpuSample, ...]:
        self.clock.now_s += 0.003
        return super().sample()


def test_a_reading_that_outlasts_the_window_does_not_count_as_one_inside() -> None:
    clock = Clock()
    with Meter([0], open_sampler=lambda gpu: SlowSampler(gpu, clock), now=clock) as meter:
        window = meter.window([0])
        window.take()
        clock.now_s += 0.01
        window.take()
        assert meter.reading_s == pytest.approx(0.003)
    for span, inside in [((0.0, 0.1), 2), ((0.0, 0.014), 1), ((0.001, 0.014), 0), (None, 0)]:
        (found,) = conditions([0], [window.readings(span)])
        assert (found.readings, found.readings_beside) == (inside, 2 - inside)


def test_windows_too_short_for_all_gpus_read_one_after_another() -> None:
    clock = Clock()
    with Meter(range(3), open_sampler=lambda gpu: SlowSampler(gpu, clock), now=clock) as meter:
        windows = []
        for _ in range(3):
            asked = meter.window(range(3))
            begun = clock()
            asked.take()
            windows.append(asked.readings((begun, begun + 0.004)))
        all_read = meter.window(range(3), counts=False)
        all_read.take()
    assert [one.readings for one in conditions(range(3), windows)] == [1, 1, 1]
    assert all(all_read.readings(None)[gpu] for gpu in range(3))


def test_of_gpus_that_are_not_read_in_every_window_the_own_readings_are_compared() -> None:
    windows = [
        readings(ASLEEP, gpu=0),
        readings(AWAKE, gpu=1),
        readings(ASLEEP, gpu=0),
        readings(AWAKE, gpu=0),
    ]
    assert still_rising(windows) == 3


def test_nvml_that_cannot_be_used_is_reported_and_nothing_is_read() -> None:
    def refuse(gpu: int) -> GpuSampler:
        raise NotReadError("DRIVER_NOT_LOADED")

    with Meter([0], open_sampler=refuse) as meter:
        assert meter.reason == "DRIVER_NOT_LOADED"
        window = meter.window([0])
        window.take()
    assert 0 not in window.readings(None)


def test_the_real_monitor_is_opened_and_closed() -> None:
    with installed(FakeNvml(DISTINCT)) as fake:
        with Meter([0, 2], open_sampler=lambda gpu: Monitor([gpu])) as meter:
            window = meter.window([2])
            window.take()
        assert fake.open == 0
        assert fake.writes == []
    (found,) = conditions([2], [window.readings(None)])
    assert (found.readings_beside, found.pstate, found.pcie_gen) == (1, "P0", 3)


@pytest.mark.parametrize("slower", [{"memory_mhz": 405}, {"pcie_gen": 1}, {"pstate": "P8"}])
def test_the_highest_clocks_are_learnt_and_lower_ones_after_them_are_a_ramp_up(
    slower: dict[str, Any],
) -> None:
    fast = {"memory_mhz": 1215, "pcie_gen": 3, "pstate": "P0"}
    meter = Meter([0], open_sampler=lambda gpu: SamplerDouble(gpu, dict), now=Clock())
    meter.learn(readings(fast | slower))
    assert not meter.in_ramp_up(readings(fast | slower))
    meter.learn(readings(fast))
    meter.learn(readings(fast | slower))  # not forgotten for it
    assert meter.in_ramp_up(readings(fast | slower))
    assert not meter.in_ramp_up(readings(fast))
    meter.accept(readings(fast | slower))
    assert not meter.in_ramp_up(readings(fast | slower))
    unknown = Meter([0], open_sampler=lambda gpu: SamplerDouble(gpu, dict), now=Clock())
    unknown.learn(readings(dict.fromkeys(fast)))
    assert not unknown.in_ramp_up(readings(fast | slower)), "of a card whose state is not known"
