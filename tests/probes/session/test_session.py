"""Cards that go to sleep in the middle of a session."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from gputopo.probes import Copy, CopyJob
from gputopo.probes.session import Effort, Meter, Speeds, measure_job
from gputopo.values.bandwidth import CopyRate, Samples
from gputopo.values.ends import End
from tests.probes.session.double import AWAKE, EngineDouble, SamplerDouble

MAX_RAMP_UP_S = 1.5
JOB = CopyJob(
    kind="h2d", copies=(Copy(kind="h2d", source=End("host"), destination=End("gpu:0"), pinned=True),)
)


@dataclass
class IdleCard:
    """A card with low clocks for so many readings, a quarter as fast then, and measured again."""

    slower: dict[str, Any]
    readings: int = 0
    engine: EngineDouble | None = None
    meter: Meter | None = None

    def facts(self) -> dict[str, Any]:
        self.readings -= 1
        return AWAKE if self.readings < 0 else AWAKE | self.slower

    def measured(self) -> tuple[CopyRate, ...]:
        if self.engine is None:
            self.engine = EngineDouble(gpus=1, rate=lambda copy: 12.0 if self.readings < 0 else 3.0)
        if self.meter is None:
            sampler: Callable[[int], SamplerDouble] = lambda gpu: SamplerDouble(gpu, self.facts)  # noqa: E731
            self.meter = Meter([0], open_sampler=sampler, now=self.engine.clock)
        samples, failures = measure_job(JOB, self.engine, self.meter, Speeds(), Effort(0.008, 5))
        assert failures == []
        return Samples(samples).of(CopyRate)


@pytest.fixture(params=[{"memory_mhz": 405}, {"pcie_gen": 1}, {"pstate": "P8"}], ids=repr)
def idle(request: pytest.FixtureRequest) -> IdleCard:
    """A card that was measured at full clocks, ten seconds ago. It becomes slower in one of these ways."""
    card = IdleCard(request.param)
    card.measured()
    assert card.engine is not None
    card.engine.clock.now_s += 10.0
    return card


def test_a_card_that_became_idle_is_ramped_up_before_its_numbers_count(idle: IdleCard) -> None:
    idle.readings = 30
    (sample,) = idle.measured()
    assert sample.repeats_gb_per_s == pytest.approx([12.0] * 5)


def test_a_card_that_is_throttled_for_good_is_waited_for_once(idle: IdleCard) -> None:
    assert idle.engine is not None
    idle.readings = 10**9
    begun = idle.engine.clock.now_s
    (sample,) = idle.measured()
    assert sample.median_gb_per_s == pytest.approx(3.0)
    assert MAX_RAMP_UP_S < idle.engine.clock.now_s - begun < MAX_RAMP_UP_S + 0.5
    idle.engine.clock.now_s += 10.0
    begun = idle.engine.clock.now_s
    idle.measured()
    assert idle.engine.clock.now_s - begun < 0.5


def test_a_card_that_stays_under_load_costs_no_windows_more(idle: IdleCard) -> None:
    assert idle.engine is not None
    idle.measured()
    before = len(idle.engine.asked)
    idle.measured()
    assert len(idle.engine.asked) - before == 6


def test_a_copy_within_a_gpu_is_read_and_written_so_its_speed_is_half_of_its_number() -> None:
    local = CopyJob(
        kind="d2d_local", copies=(Copy(kind="d2d_local", source=End("gpu:0"), destination=End("gpu:0")),)
    )
    engine, speeds = EngineDouble(gpus=1, rate=lambda copy: 200.0), Speeds()
    with Meter([0], open_sampler=lambda gpu: SamplerDouble(gpu, lambda: AWAKE), now=engine.clock) as meter:
        ((sample,), _) = measure_job(local, engine, meter, speeds, Effort(0.008, 5))
    assert sample.value == pytest.approx(400.0)
    assert speeds.of(local.copies[0]) == pytest.approx(200.0)
