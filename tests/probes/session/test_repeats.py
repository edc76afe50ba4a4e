"""Cards that go to sleep in the middle of a session."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from gputopo.copies.budget import Effort, Speeds
from gputopo.copies.copies import Copy, Job
from gputopo.probes.session.conditions import Meter
from gputopo.probes.session.repeats import WAKING_S, Outcome, measure_job
from tests.probes.session.double import ASLEEP, AWAKE, EngineDouble, SamplerDouble

JOB = Job(kind="h2d", copies=(Copy(kind="h2d", source="host", destination="gpu:0", pinned=True),))


@dataclass
class Sleeper:
    """A card that sleeps for so many readings, copies a quarter as fast then, and is measured again."""

    readings: int = 0
    engine: EngineDouble | None = None
    meter: Meter | None = None

    def facts(self) -> dict[str, Any]:
        self.readings -= 1
        return AWAKE if self.readings < 0 else ASLEEP

    def measured(self) -> Outcome:
        if self.engine is None:
            self.engine = EngineDouble(gpus=1, rate=lambda copy: 12.0 if self.readings < 0 else 3.0)
        if self.meter is None:
            sampler: Callable[[int], SamplerDouble] = lambda gpu: SamplerDouble(gpu, self.facts)  # noqa: E731
            self.meter = Meter([0], open_sampler=sampler, now=self.engine.clock)
        return measure_job(JOB, self.engine, self.meter, Speeds(), Effort(0.008, 5))


@pytest.fixture
def rested() -> Sleeper:
    """A card that was measured awake, ten seconds ago."""
    card = Sleeper()
    card.measured()
    assert card.engine is not None
    card.engine.clock.now_s += 10.0
    return card


def test_a_card_that_fell_asleep_is_woken_before_its_numbers_count(rested: Sleeper) -> None:
    rested.readings = 30
    (sample,) = rested.measured().samples
    assert sample.repeats_gb_per_s == pytest.approx([12.0] * 5)


def test_a_card_that_is_held_down_for_good_is_waited_for_once(rested: Sleeper) -> None:
    assert rested.engine is not None
    rested.readings = 10**9
    begun = rested.engine.clock.now_s
    (sample,) = rested.measured().samples
    assert sample.median_gb_per_s == pytest.approx(3.0)
    assert WAKING_S < rested.engine.clock.now_s - begun < WAKING_S + 0.5
    rested.engine.clock.now_s += 10.0
    begun = rested.engine.clock.now_s
    rested.measured()
    assert rested.engine.clock.now_s - begun < 0.5


def test_a_card_that_stays_at_work_costs_no_windows_more(rested: Sleeper) -> None:
    assert rested.engine is not None
    rested.measured()
    before = len(rested.engine.asked)
    rested.measured()
    assert len(rested.engine.asked) - before == 6
