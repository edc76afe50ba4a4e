import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.probes.nvml import AT_ONCE, GpuWatch, GpuWatchChild
from gputopo.values.run.events import GpuSample, MachineSample, Xid
from tests.kit.distinct import DISTINCT
from tests.kit.faults import broken
from tests.kit.nvml import FakeNvml, installed
from tests.kit.scenarios import SCENARIOS
from tests.kit.specs import CONSUMER, DEPRECATED, ProcessSpec, Scenario, changed

PERIOD_S = 0.25
# In how many samples each is asked once: each, every second, every 2 s, every 10 s.
EACH, SECOND, TWO_SECONDS, TEN_SECONDS = 1, 4, 8, 40


class Watched:
    """A GpuWatch over the double, with a clock that advances by a period with each sample."""

    def __init__(self, fake: FakeNvml, watch: GpuWatch) -> None:
        self.fake = fake
        self.at_s = 0.0
        self.watch = watch

    def observe(self) -> MachineSample:
        self.at_s += PERIOD_S
        return self.watch.observe()

    def sample(self) -> tuple[GpuSample, ...]:
        return self.observe().gpus

    def next_with(self, field: str) -> GpuSample:
        """Return the next sample of the first GPU in which a field was asked."""
        return next(one for _ in range(50) if getattr(one := self.sample()[0], field) is not None)


@pytest.fixture
def watching() -> Iterator[Callable[..., Watched]]:
    with ExitStack() as stack:

        def start(scenario: Scenario | FakeNvml, *gpus: int, **options: Any) -> Watched:
            fake = scenario if isinstance(scenario, FakeNvml) else FakeNvml(scenario)
            stack.enter_context(installed(fake))
            found: list[Watched] = []
            fake.now = lambda: found[0].at_s if found else 0.0
            watch = stack.enter_context(GpuWatch(gpus or (0,), clock=fake.now, **options))
            found.append(Watched(fake, watch))
            return found[0]

        yield start


Start = Callable[..., Watched]


def gpu(index: int, **values: Any) -> Callable[[Scenario], Scenario]:
    return lambda scenario: changed(scenario, {index: values})


def test_the_first_sample_asks_all_and_says_what_a_driver_reports(watching: Start) -> None:
    (sample,) = watching(changed(DISTINCT, {0: {"fields": {91: 2}}})).sample()
    assert (sample.graphics_mhz, sample.memory_mhz, sample.power_w, sample.pstate) == (1305, 1215, 61.5, "P0")
    assert (sample.power_limit_w, sample.memory_temperature_c, sample.memory_used_mib) == (398.0, 33, 1024)
    assert (sample.gpu_utilization_percent, sample.memory_utilization_percent) == (7, 3)
    assert (sample.pcie_gen, sample.pcie_width, sample.temperature_c) == (3, 16, 31)
    # What was counted before the watch is not of this run.
    assert (sample.pcie_replays, sample.nvlink_errors, sample.throttled_s) == (0, 0, {})


def test_what_changes_slowly_is_asked_less_often_and_by_each_gpu_in_another_sample(watching: Start) -> None:
    watched = watching(DISTINCT, 0, 1, 2, 3)
    samples = [watched.sample() for _ in range(1 + TEN_SECONDS)]

    def asked(field: str, gpu: int) -> list[int]:
        return [number for number, one in enumerate(samples) if getattr(one[gpu], field) is not None][1:]

    for field, every in (("power_w", EACH), ("temperature_c", SECOND), ("pcie_replays", TWO_SECONDS)):
        for number in range(4):
            assert len(asked(field, number)) == TEN_SECONDS // every
    assert len({tuple(asked("temperature_c", number)) for number in range(4)}) == 4


@pytest.mark.parametrize("refuses", [CONSUMER, {"nvmlDeviceGetViolationStatus": DEPRECATED}])
def test_what_a_driver_does_not_report_is_asked_once(refuses: Mapping[str, int], watching: Start) -> None:
    watched = watching(changed(SCENARIOS["four"], {0: {"refuses": refuses}}))
    samples = [watched.sample()[0] for _ in range(12)]
    assert {sample.throttled_s for sample in samples} == {None}
    assert all(sample.graphics_mhz for sample in samples)
    calls = watched.fake.calls
    assert {number for (call, _), number in calls.items() if call.startswith("nvmlDeviceGetViolation")} == {1}


def test_facts_that_change_are_seen_in_the_next_sample_that_asks_them(watching: Start) -> None:
    fake = FakeNvml(SCENARIOS["four"])
    fake.at(1.1, gpu(0, clocks=(900, 900, 405, 405), throttle=0x4))
    fake.at(2.1, lambda box: broken(box, "x1_riser@0", "xid_79@0"))
    watched = watching(fake)
    seen = [watched.observe() for _ in range(12)]
    clocks = [sample.gpus[0].graphics_mhz for sample in seen]
    assert clocks == [1305] * 4 + [900] * 8
    assert [sample.gpus[0].throttle_mask for sample in seen][3:5] == [1, 4]
    widths = [width for sample in seen if (width := sample.gpus[0].pcie_width) is not None]
    assert widths == [16, 16, 1]
    assert [sample.xids for sample in seen if sample.xids] == [(Xid(code=79, gpu=0),)]


def test_a_gpu_that_falls_off_the_bus_is_lost_and_the_others_go_on(watching: Start) -> None:
    fake = FakeNvml(SCENARIOS["four"])
    fake.at(1.1, gpu(1, lost="calls"))
    watched = watching(fake, 0, 1)
    seen = [watched.sample() for _ in range(8)]
    assert [second.lost for _, second in seen] == [False] * 4 + [True] * 4
    assert seen[-1][1] == GpuSample(gpu=1, lost=True)
    assert seen[-1][1].silent
    assert seen[-1][0].graphics_mhz == 1305


def test_the_time_in_which_a_policy_throttled_is_counted_from_the_begin(watching: Start) -> None:
    fake = FakeNvml(changed(SCENARIOS["four"], {0: {"violations": {0: 5_000_000_000, 1: 0}}}))
    fake.at(1.1, gpu(0, violations={0: 5_600_000_000, 1: 0}))
    watched = watching(fake)
    assert watched.sample()[0].throttled_s == {}
    assert watched.next_with("throttled_s").throttled_s == {"power": 0.6}


def test_at_once_each_sample_has_all_with_nvlink_rates_and_the_ecc_errors_since_the_begin(
    watching: Start,
) -> None:
    fake = FakeNvml(
        changed(DISTINCT, {0: {"fields": {139: 1 << 40, 138: 1 << 41}, "ecc_errors": (5, 7, 0, 0)}})
    )
    later = {139: (1 << 40) + 2**20, 138: (1 << 41) + 2**21}
    fake.at(0.3, gpu(0, fields=later, ecc_errors=(6, 7, 3, 0)))
    watched = watching(fake, asked=AT_ONCE)
    (first,), (second,) = watched.sample(), watched.sample()
    assert (first.ecc_corrected, first.ecc_uncorrected, first.nvlink_in_mb_per_s) == (0, 0, None)
    assert (second.ecc_corrected, second.ecc_uncorrected) == (1, 3)
    assert (second.nvlink_in_mb_per_s, second.nvlink_out_mb_per_s) == (4295.0, 8589.9)
    assert None not in (second.temperature_c, second.power_limit_w, second.pcie_in_mb_per_s)
    assert second.processes is None


@pytest.mark.parametrize(
    ("received", "mb_per_s"), [((1 << 32) - 1, (1500.0, 250.0)), (1 << 32, (None, None))]
)
def test_counters_that_fit_in_32_bits_are_not_used_and_throughput_is_that_of_20_ms(
    received: int, mb_per_s: tuple[float | None, ...], watching: Start
) -> None:
    of_card = {"fields": {198: received, 197: 9}, "pcie_kb_per_s": (250_000, 1_500_000)}
    (sample,) = watching(changed(SCENARIOS["four"], {0: of_card})).sample()
    assert (sample.pcie_in_mb_per_s, sample.pcie_out_mb_per_s) == mb_per_s


@pytest.mark.parametrize(
    ("pids", "counted"),
    [
        ((), (0, 0)),
        (("own", 1), (2, 1)),
        (("own", 999_999_999), (2, 1)),  # it is not to be seen, but ours is: so numbers are of this namespace
        ((999_999_999,), (1, None)),
        (("parent",), (1, 1)),
    ],
)
def test_processes_of_others_are_told_from_those_of_the_run(
    watching: Start, pids: tuple[int | str, ...], counted: tuple[int, int | None]
) -> None:
    known: dict[int | str, int] = {"own": os.getpid(), "parent": os.getppid()}
    numbers = [known.get(pid, 0) or int(pid) for pid in pids]
    on_card = tuple(ProcessSpec(number, "compute", None) for number in numbers)
    scenario = changed(SCENARIOS["four"], {0: {"processes": on_card}})
    (sample,) = watching(scenario, run_pid=os.getpid()).sample()
    assert (sample.processes, sample.other_processes) == counted


def totals(values: list[int]) -> list[int | None]:
    """Return the replays since the begin after each value of NVML's counter."""
    fake = FakeNvml(SCENARIOS["four"])
    found = []
    with installed(fake), GpuWatch([0], asked=AT_ONCE) as watch:
        for value in values:
            fake.scenario = changed(fake.scenario, {0: {"replays": value}})
            found.append(watch.observe().gpus[0].pcie_replays)
    return found


@given(st.lists(st.integers(0, 1000)), st.integers((1 << 32) - 1000, (1 << 32) - 1))
def test_a_counter_of_32_bits_that_wraps_counts_on(steps: list[int], first: int) -> None:
    values = [total % (1 << 32) for total in accumulate(steps, initial=first)]
    # One that wraps from its lower half would have counted 2^31 in a step.
    assert totals(values)[-1] == sum(steps)


@pytest.mark.parametrize("last", [510, (1 << 31) - 1])
def test_a_counter_that_goes_back_but_from_its_upper_half_has_begun_anew(last: int) -> None:
    assert totals([last - 10, last, 3, 4]) == [0, 10, 13, 14]


def test_the_child_samples_as_the_watch_does_and_knows_the_run_it_belongs_to() -> None:
    scenario = changed(SCENARIOS["four"], {0: {"processes": (ProcessSpec(os.getpid(), "compute", None),)}})
    with installed(FakeNvml(scenario)), GpuWatchChild([0, 1]) as watch:
        sample = watch.observe()
    assert (sample.gpus[0].processes, sample.gpus[0].other_processes) == (1, 0)
    assert [one.power_limit_w for one in sample.gpus] == [400.0, 400.0]
