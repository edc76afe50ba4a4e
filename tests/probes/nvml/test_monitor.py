import mmap
import threading
from collections.abc import Callable

import msgspec
import pytest

from gputopo.probes import NotReadError
from gputopo.probes.nvml import CLOCKS, GpuWatch, GpuWatchChild, Monitor
from gputopo.values.run.events import GpuSample, MachineSample, Xid
from tests.kit.distinct import DISTINCT
from tests.kit.driver_time import DriverTime
from tests.kit.faults import selected
from tests.kit.nvml import FakeNvml, crash, hang, installed
from tests.kit.scenarios import SCENARIOS

FOUR = DISTINCT


def test_the_chosen_gpus_are_sampled_in_their_order() -> None:
    with installed(FakeNvml(FOUR)), Monitor([3, 0]) as monitor:
        last, first = monitor.sample()
    assert (last.gpu, first.gpu) == (3, 0)
    assert first == GpuSample(
        gpu=0,
        graphics_mhz=1305,
        memory_mhz=1215,
        power_w=61.5,
        temperature_c=31,
        throttle_mask=1,
        gpu_utilization_percent=7,
        pcie_gen=3,
        pcie_width=16,
        pstate="P0",
    )


def test_a_gpu_that_is_lost_while_it_is_watched_gives_nothing_and_the_rest_goes_on() -> None:
    fake = FakeNvml(FOUR)
    fake.lose(1, after_calls=10)
    with installed(fake), Monitor([0, 1]) as monitor:
        before, after = monitor.sample(), (monitor.sample(), monitor.sample())[1]
    assert before[1].power_w == 61.5
    assert after[1] == GpuSample(gpu=1)
    assert after[0].power_w == 61.5


def test_a_gpu_that_is_not_there_or_gone_from_the_start_is_an_empty_sample() -> None:
    with installed(FakeNvml(SCENARIOS["lost_handle"])), Monitor([2, 17, 0]) as monitor:
        lost, absent, whole = monitor.sample()
    assert (lost, absent) == (GpuSample(gpu=2), GpuSample(gpu=17))
    assert whole.graphics_mhz == 1305


@pytest.mark.parametrize(
    ("call", "field"),
    [
        ("nvmlDeviceGetClockInfo[2]", "memory_mhz"),
        ("nvmlDeviceGetUtilizationRates", "gpu_utilization_percent"),
    ],
)
def test_a_refused_call_leaves_only_its_field_empty(call: str, field: str) -> None:
    fake = FakeNvml(FOUR)
    fake.refuse(call)
    with installed(fake), Monitor([0]) as monitor:
        (sample,) = monitor.sample()
    with installed(FakeNvml(FOUR)), Monitor([0]) as monitor:
        (whole,) = monitor.sample()
    assert getattr(whole, field) is not None
    assert sample == msgspec.structs.replace(whole, **{field: None})


def test_a_child_samples_as_the_monitor_does() -> None:
    fake = FakeNvml(FOUR)
    fake.script_clock(0, 0, [1410, 1100, 900])
    with installed(fake), GpuWatchChild([3, 0]) as watcher:
        seen = [watcher.observe().gpus for _ in range(3)]
    assert [[sample.gpu for sample in samples] for samples in seen] == [[3, 0]] * 3
    assert [samples[1].graphics_mhz for samples in seen] == [1410, 1100, 900]
    assert (seen[0][0].power_w, watcher.stop) == (61.5, None)
    assert watcher.observe().gpus == ()


def test_a_cold_driver_may_take_as_long_to_be_watched_as_to_be_read() -> None:
    fake, time_of_driver = FakeNvml(selected("dgx1+cold_init+cold_gpus")), DriverTime()
    fake.sleep = time_of_driver.sleep
    with installed(fake), GpuWatchChild(range(8), poll=time_of_driver.look) as watcher:
        assert [sample.power_w for sample in watcher.observe().gpus] == [31.7] * 8


def test_a_child_can_be_closed_while_another_thread_waits_for_its_sample() -> None:
    fake, begun = FakeNvml(FOUR), mmap.mmap(-1, 1)

    def begin_and_hang() -> None:
        begun[0] = 1
        hang()

    fake.spoil("nvmlDeviceGetPowerUsage", begin_and_hang)
    with installed(fake):
        monitor = GpuWatchChild([0])
        thread = threading.Thread(target=monitor.observe)
        thread.start()
        while not begun[0]:
            pass
        monitor.close()
        thread.join(5)
    assert not thread.is_alive()
    assert monitor.stop is None


@pytest.mark.parametrize(
    ("code", "fault", "reason"),
    [(9, None, "DRIVER_NOT_LOADED"), (None, crash, "nvmlInit ended the process with SIGSEGV")],
)
def test_a_child_that_cannot_open_nvml_is_refused_with_the_reason(
    code: int | None, fault: Callable[[], None] | None, reason: str
) -> None:
    fake = FakeNvml(FOUR, init_code=code)
    if fault is not None:
        fake.spoil("nvmlInitWithFlags", fault)
    with installed(fake), pytest.raises(NotReadError, match=reason):
        GpuWatchChild([0])


GPU_IS_LOST, NOT_SUPPORTED, NO_PERMISSION = 15, 3, 4


def test_a_sample_is_what_the_monitor_samples_and_when() -> None:
    with installed(FakeNvml(DISTINCT)):
        with Monitor([2, 0]) as monitor:
            sampled = monitor.sample()
        with GpuWatch([2, 0], asked=CLOCKS, now=lambda: 1700000000.5) as watcher:
            assert watcher.observe() == MachineSample(time_s=1700000000.5, gpus=sampled)
            assert watcher.xid_reason is None


def test_an_xid_is_reported_once_with_its_gpu() -> None:
    fake = FakeNvml(DISTINCT)
    with installed(fake), GpuWatch([0, 3], asked=CLOCKS) as watcher:
        assert watcher.observe().xids == ()
        for gpu, code in ((3, 79), (1, 79), (0, 31)):  # one is not watched
            fake.raise_xid(gpu, code)
        assert watcher.observe().xids == (Xid(code=79, gpu=3), Xid(code=31, gpu=0))
        assert watcher.observe().xids == ()


def test_a_storm_of_errors_does_not_hold_up_a_sample() -> None:
    fake = FakeNvml(DISTINCT)
    with installed(fake), GpuWatch([0], asked=CLOCKS) as watcher:
        for _ in range(200):
            fake.raise_xid(0, 13)
        seen = [len(watcher.observe().xids) for _ in range(5)]
    assert sum(seen) == 200
    assert max(seen) < 100


def test_errors_before_a_gpu_is_lost_are_returned_first() -> None:
    fake = FakeNvml(DISTINCT)
    with installed(fake), GpuWatch([0], asked=CLOCKS) as watcher:
        fake.raise_xid(0, 79)
        fake.spoil(
            "nvmlEventSetWait_v2", lambda: fake.refuse("nvmlEventSetWait_v2", GPU_IS_LOST), after_calls=1
        )
        assert watcher.observe().xids == (Xid(code=79, gpu=0),)
        assert watcher.xid_reason is None
        assert watcher.observe().xids == ()
        assert watcher.xid_reason == "GPU_IS_LOST"


@pytest.mark.parametrize(
    ("call", "code", "reason"),
    [
        ("nvmlEventSetCreate", NO_PERMISSION, "NO_PERMISSION"),
        ("nvmlDeviceRegisterEvents", NOT_SUPPORTED, "NOT_SUPPORTED"),
    ],
)
def test_where_events_are_refused_the_reason_is_reported_and_the_rest_goes_on(
    call: str, code: int, reason: str
) -> None:
    fake = FakeNvml(DISTINCT)
    fake.refuse(call, code)
    with installed(fake), GpuWatch([0], asked=CLOCKS) as watcher:
        fake.raise_xid(0, 79)
        sample = watcher.observe()
        assert (watcher.xid_reason, sample.xids, sample.gpus[0].power_w) == (reason, (), 61.5)


def test_a_gpu_lost_while_it_is_watched_raises_nothing_and_its_errors_are_reported_again_later() -> None:
    fake = FakeNvml(DISTINCT)
    with installed(fake), GpuWatch([0, 1], asked=CLOCKS) as watcher:
        fake.lose(1)
        fake.refuse("nvmlEventSetWait_v2", GPU_IS_LOST)
        sample = watcher.observe()
        assert sample.gpus[1] == GpuSample(gpu=1, lost=True)
        assert sample.gpus[0].power_w == 61.5
        assert watcher.xid_reason == "GPU_IS_LOST"
        fake.refuse("nvmlEventSetWait_v2", 0)
        fake.raise_xid(0, 94)
        assert watcher.observe().xids == (Xid(code=94, gpu=0),)
        assert watcher.xid_reason is None


def test_all_is_given_back_at_the_end_and_nothing_was_written() -> None:
    fake = FakeNvml(DISTINCT)
    with installed(fake):
        with GpuWatch([0, 1], asked=CLOCKS) as watcher:
            watcher.observe()
        assert (fake.open, fake.writes) == (0, [])
        assert fake.calls["nvmlEventSetFree", None] == 1
        assert watcher.observe().gpus == (GpuSample(gpu=0), GpuSample(gpu=1))
        watcher.close()


def test_a_child_reports_why_it_sees_no_errors() -> None:
    fake = FakeNvml(SCENARIOS["four"])
    fake.refuse("nvmlEventSetCreate", NO_PERMISSION)
    with installed(fake), GpuWatchChild([0]) as watcher:
        watcher.observe()
        assert watcher.xid_reason == "NO_PERMISSION"
