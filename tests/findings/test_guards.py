"""Thresholds at their guards: just inside there is no finding of the rule, just outside there is."""

from typing import Any

import pytest
from msgspec.structs import replace

from gputopo.findings import find, find_bandwidth
from gputopo.values.bandwidth import Sample
from gputopo.values.history import History, PeerClock
from gputopo.values.machine import Machine
from gputopo.values.run.events import GpuSample, MachineSample
from gputopo.values.run.verdict import HostSummary
from tests.findings.boxes import gpu, sound
from tests.findings.measured.machines import changed, is_of, measured
from tests.findings.watched import WORKING, find_watched, found, samples


@pytest.mark.parametrize(
    ("id", "fact", "inside", "outside"),
    [
        ("clocks.memory_differs", "clocks_mhz.memory.max", 869, 868),
        ("clocks.core_differs", "clocks_mhz.sm.max", 1500, 1499),
        ("clocks.memory_below_maximum", "clocks_mhz.memory.now", 790, 789),
        ("card.differs", "memory_mib.total", 15_029, 15_028),
        ("power.limit_below_default", "power_w.limit", 294.0, 293.9),
        ("power.limit_overruled", "power_w.enforced_limit", 294.0, 293.9),
        ("thermal.memory_hot", "temperature_c.memory", 84, 85),
        ("memory.many_retired_pages", "retired_pages.single_bit", 59, 60),
    ],
)
def test_of_one_gpu(id: str, fact: str, inside: Any, outside: Any) -> None:
    for value, expected in ((inside, False), (outside, True)):
        change: Any = value
        for name in reversed(fact.split(".")):
            change = {name: change}
        assert (id in {one.id for one in find(gpu(1, **change)(sound()))}) is expected


@pytest.mark.parametrize(("used", "compared"), [(87, True), (86, False)])
def test_load_at_which_gpus_are_compared(used: int, compared: bool) -> None:
    change = gpu(1, power_w={"draw": 100.0}, utilization_percent={"gpu": used})  # the others have 97%
    assert ("power.below_peers" in {one.id for one in find(change(sound()))}) is compared


def bandwidth_ids(machine: Machine) -> set[str]:
    return {one.id for one in find_bandwidth(machine)}


@pytest.mark.parametrize(("spread", "is_unsteady"), [(14.9, False), (15.1, True)])
def test_spread_of_repeats(spread: float, is_unsteady: bool) -> None:
    def wide(one: Sample) -> Sample:
        return replace(one, spread_percent=spread)

    machine = changed(is_of("h2d", (None, 0)), wide)(measured())
    assert ("bandwidth.unsteady" in bandwidth_ids(machine)) is is_unsteady


@pytest.mark.parametrize(
    ("fast", "mhz", "count", "sags"),
    [
        (20, 1380, 200, False),
        (20, 1370, 200, True),
        (20, 1000, 20, True),
        (11, 1370, 200, False),  # the first mean that counts has a slow one
        (12, 1370, 200, True),
    ],
)
def test_sagging_clock(fast: int, mhz: int, count: int, sags: bool) -> None:
    reported = found([samples()] * fast + [samples(graphics_mhz=mhz)] * count)
    assert ("clocks.sagging" in {one.id for one in reported}) is sags


@pytest.mark.parametrize(
    ("share", "count", "slower"), [(0.949, 20, True), (0.951, 20, False), (0.9, 19, False)]
)
def test_mean_clock_below_peers(share: float, count: int, slower: bool) -> None:
    history = History()
    history.add(MachineSample(time_s=0.0, gpus=(GpuSample(gpu=1, **WORKING),)))
    history.peers[1] = PeerClock(samples=count, shares=share * count)
    ids = {one.id for one in find_watched(sound(2), history)}
    assert ("clocks.core_slower_than_peers" in ids) is slower


@pytest.mark.parametrize(("count", "busy"), [(9, False), (10, True)])
def test_samples_of_a_busy_host(count: int, busy: bool) -> None:
    history = History()
    history.host = HostSummary(samples=count, busy="the host swapped")
    assert ("host.busy" in {one.id for one in find_watched(sound(2), history)}) is busy
