"""The state of the GPUs in the windows of a copy, and which windows count."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from gputopo.probes import Copy, CopyJob, CopyWindow, NotReadError, SessionRequest
from gputopo.probes.session import Effort, Meter, Speeds, measure_job
from gputopo.values.bandwidth import Conditions, CopyRate, Samples
from gputopo.values.ends import HOST, End
from gputopo.values.run.events import GpuSample
from tests.probes.session.double import (
    ASLEEP,
    AWAKE,
    Clock,
    EngineDouble,
    SamplerDouble,
    doors,
    machine,
    measure,
)

Facts = dict[str, Any]
UP = Copy(kind="h2d", source=HOST, destination=End("gpu:0"), pinned=True)
OTHER = Copy(kind="h2d", source=HOST, destination=End("gpu:1"), pinned=True)


@dataclass
class ReadEngine(EngineDouble):
    """An engine of slow copies, in whose windows NVML is read as often as there are facts for it.

    `late`: the windows whose readings come after the copies have ended.
    """

    rate: Callable[[Copy], float] = lambda copy: 0.1
    windows: Sequence[Sequence[Facts]] = ()
    late: frozenset[int] = frozenset()
    facts: Facts = field(default_factory=dict)
    counted: int = 0

    def measure(
        self, job: CopyJob, sizes: Sequence[int], while_running: Callable[[], None] | None = None
    ) -> CopyWindow:
        def read() -> None:
            if self.counted in self.late:
                self.clock.now_s += 10.0
            for facts in self.windows[self.counted]:
                self.facts = facts
                assert while_running is not None
                while_running()
                self.clock.now_s += 0.004
            self.counted += 1

        return super().measure(job, sizes, None if while_running is None else read)


def measured(*windows: Sequence[Facts], late: Sequence[int] = (), gpus: int = 1) -> CopyRate:
    """Measure in these windows; the sample of GPU 0. Two GPUs are read one after another."""
    engine = ReadEngine(windows=windows, late=frozenset(late))
    job = CopyJob(kind="h2d", copies=(UP, OTHER)[:gpus], group=None if gpus == 1 else "h2d gpus:0,1")
    with Meter(
        range(gpus), open_sampler=lambda gpu: SamplerDouble(gpu, lambda: engine.facts), now=engine.clock
    ) as meter:
        samples, _ = measure_job(job, engine, meter, Speeds(), Effort(0.0, len(windows), exact=True))
    return Samples(samples).of(CopyRate)[0]


def conditions(*windows: Sequence[Facts], late: Sequence[int] = ()) -> Conditions:
    (found,) = measured(*windows, late=late).conditions
    return found


def test_conditions_are_medians_over_all_windows_that_count() -> None:
    found = conditions(
        [{"graphics_mhz": 1400, "power_w": 60.0}, {"graphics_mhz": 1410, "power_w": 70.0}],
        [{"graphics_mhz": 1380, "power_w": 65.0}],
    )
    assert (found.readings, found.graphics_mhz, found.power_w) == (3, 1400, 65.0)
    assert found.memory_mhz is None
    assert found.throttle_reasons is None


def test_readings_beside_the_window_stand_only_where_none_lay_inside() -> None:
    found = conditions([{"pstate": "P0"}], [{"pstate": "P8"}], late=[1])
    assert (found.readings, found.readings_beside, found.pstate) == (1, 1, "P0")
    found = conditions([{"pstate": "P8"}], [{"pstate": "P8"}], late=[0, 1])
    assert (found.readings, found.readings_beside, found.pstate) == (0, 2, "P8")


def test_every_reason_of_throttling_that_was_seen_is_reported() -> None:
    found = conditions([{"throttle_mask": 0x4}, {"throttle_mask": 0x20}], [{"throttle_mask": 0}])
    assert found.throttle_reasons == ("sw_power_cap", "sw_thermal_slowdown")


def test_a_link_that_changes_counts_within_a_window_and_not_between_two() -> None:
    slow, fast = {"pcie_gen": 3, "pcie_width": 8}, {"pcie_gen": 3, "pcie_width": 16}
    assert conditions([slow, fast, slow], [fast, fast]).link_changes == 2
    assert conditions([slow], [fast]).link_changes == 0


HIGH = AWAKE
LOWER: list[Facts] = [{"graphics_mhz": 700}, {"pcie_gen": 1}]


@pytest.mark.parametrize("change", LOWER)
def test_windows_that_began_lower_than_the_last_are_of_a_card_in_ramp_up(change: Facts) -> None:
    early, late = [AWAKE | change, AWAKE], [AWAKE]
    assert len(measured(early, early, late, late).discarded_gb_per_s) == 2


def test_clocks_that_fall_later_on_are_no_ramp_up() -> None:
    low = AWAKE | {"graphics_mhz": 900, "pstate": "P2"}
    assert measured([HIGH], [HIGH], [low], [low]).discarded_gb_per_s == ()
    assert measured([HIGH], [low], [HIGH]).discarded_gb_per_s == ()


def test_of_gpus_that_are_not_read_in_every_window_the_own_readings_are_compared() -> None:
    found = measured([ASLEEP], [AWAKE], [ASLEEP], [AWAKE], [AWAKE], gpus=2)  # GPU 0, 1, 0, 1, 0
    assert len(found.discarded_gb_per_s) == 3


def test_cards_whose_rates_stay_work_for_the_least_time_before_the_first_number() -> None:
    engine = EngineDouble(gpus=1, each_s=0.05)
    begun: list[float] = []
    measure(
        machine(1), SessionRequest(), doors=doors(engine), on_job=lambda job: begun.append(engine.clock())
    )
    assert 0.25 < begun[0] / 2 < 0.25 + 0.06  # within the cards, then to them


class SlowSampler(SamplerDouble):
    """NVML that takes 3 ms of a clock for a reading."""

    def __init__(self, gpu: int, clock: Clock) -> None:
        super().__init__(gpu, lambda: AWAKE)
        self.clock = clock

    def sample(self) -> tuple[GpuSample, ...]:
        self.clock.now_s += 0.003
        return super().sample()


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


@pytest.mark.parametrize(
    ("span", "inside"), [((0.0, 0.1), 2), ((0.0, 0.014), 1), ((0.001, 0.014), 0), (None, 0)]
)
def test_a_reading_that_outlasts_the_window_does_not_count_as_one_inside(
    span: tuple[float, float] | None, inside: int
) -> None:
    clock = Clock()
    with Meter([0], open_sampler=lambda gpu: SlowSampler(gpu, clock), now=clock) as meter:
        window = meter.window([0])
        window.take()
        clock.now_s += 0.01
        window.take()
        assert meter.reading_s == pytest.approx(0.003)
    assert [reading.inside for reading in window.readings(span)[0]].count(True) == inside


def test_windows_too_short_for_all_gpus_read_one_after_another() -> None:
    clock = Clock()
    read: list[int] = []
    with Meter(range(3), open_sampler=lambda gpu: SlowSampler(gpu, clock), now=clock) as meter:
        for _ in range(3):
            asked = meter.window(range(3))
            asked.take()
            read += [gpu for gpu, readings in asked.readings(None).items() if readings]
        all_read = meter.window(range(3), counts=False)
        all_read.take()
    assert read == [0, 1, 2]
    assert all(all_read.readings(None)[gpu] for gpu in range(3))


def test_nvml_that_cannot_be_used_is_reported_and_nothing_is_read() -> None:
    def refuse(gpu: int) -> SamplerDouble:
        raise NotReadError("DRIVER_NOT_LOADED")

    with Meter([0], open_sampler=refuse) as meter:
        assert meter.reason == "DRIVER_NOT_LOADED"
        window = meter.window([0])
        window.take()
    assert 0 not in window.readings(None)
