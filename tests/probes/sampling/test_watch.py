import pytest

from gputopo.probes.nvml.door import NotReadError
from gputopo.probes.sampling.sampler import Monitor
from gputopo.probes.sampling.watch import Watcher, WatcherChild
from gputopo.values.run.events import GpuSample, MachineSample, Xid
from tests.cost import cost_of
from tests.kit.distinct import DISTINCT
from tests.kit.faults import broken
from tests.kit.nvml import FakeNvml, crash, installed
from tests.kit.scenarios import SCENARIOS

GPU_IS_LOST, NOT_SUPPORTED, NO_PERMISSION = 15, 3, 4


def test_a_sample_is_what_the_monitor_samples_and_when() -> None:
    with installed(FakeNvml(DISTINCT)):
        with Monitor([2, 0]) as monitor:
            sampled = monitor.sample()
        with Watcher([2, 0], now=lambda: 1700000000.5) as watcher:
            assert watcher.observe() == MachineSample(time_s=1700000000.5, gpus=sampled)
            assert watcher.xid_reason is None


def test_an_xid_is_reported_once_with_its_gpu() -> None:
    fake = FakeNvml(DISTINCT)
    with installed(fake), Watcher([0, 3]) as watcher:
        assert watcher.observe().xids == ()
        fake.raise_xid(3, 79)
        fake.raise_xid(0, 31)
        assert watcher.observe().xids == (Xid(code=79, gpu=3), Xid(code=31, gpu=0))
        assert watcher.observe().xids == ()


def test_the_errors_of_a_gpu_that_is_not_watched_are_not_reported() -> None:
    fake = FakeNvml(DISTINCT)
    with installed(fake), Watcher([0]) as watcher:
        fake.raise_xid(1, 79)
        assert watcher.observe().xids == ()


def test_a_storm_of_errors_does_not_hold_up_a_sample() -> None:
    fake = FakeNvml(DISTINCT)
    with installed(fake), Watcher([0]) as watcher:
        for _ in range(200):
            fake.raise_xid(0, 13)
        seen = [len(watcher.observe().xids) for _ in range(5)]
    assert sum(seen) == 200
    assert max(seen) < 100


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
    with installed(fake), Watcher([0]) as watcher:
        fake.raise_xid(0, 79)
        sample = watcher.observe()
        assert (watcher.xid_reason, sample.xids, sample.gpus[0].power_w) == (reason, (), 61.5)


def test_a_driver_without_events_is_watched_all_the_same() -> None:
    fake = FakeNvml(DISTINCT)
    fake.without("nvmlEventSetCreate", "nvmlEventSetWait_v2")
    with installed(fake), Watcher([0]) as watcher:
        assert watcher.observe().gpus[0].graphics_mhz == 1305
        assert watcher.xid_reason == "FUNCTION_NOT_FOUND"


def test_one_gpu_without_events_costs_only_its_own() -> None:
    fake = FakeNvml(DISTINCT)
    fake.refuse("nvmlDeviceRegisterEvents", NOT_SUPPORTED, gpu=0)
    with installed(fake), Watcher([0, 1]) as watcher:
        fake.raise_xid(1, 48)
        assert watcher.observe().xids == (Xid(code=48, gpu=1),)


def test_a_gpu_lost_while_it_is_watched_raises_nothing_and_its_errors_are_reported_again_later() -> None:
    fake = FakeNvml(DISTINCT)
    with installed(fake), Watcher([0, 1]) as watcher:
        fake.lose(1)
        fake.refuse("nvmlEventSetWait_v2", GPU_IS_LOST)
        sample = watcher.observe()
        assert sample.gpus[1] == GpuSample(gpu=1)
        assert sample.gpus[0].power_w == 61.5
        assert watcher.xid_reason == "GPU_IS_LOST"
        fake.refuse("nvmlEventSetWait_v2", 0)
        fake.raise_xid(0, 94)
        assert watcher.observe().xids == (Xid(code=94, gpu=0),)
        assert watcher.xid_reason is None


def test_with_nothing_but_lost_gpus_there_are_samples_that_report_it() -> None:
    with installed(FakeNvml(SCENARIOS["lost_handle"])), Watcher([2]) as watcher:
        assert watcher.observe().gpus == (GpuSample(gpu=2),)
        assert watcher.xid_reason == "NO_GPU_ANSWERS"


def test_without_nvml_there_is_no_watcher() -> None:
    with installed(FakeNvml(DISTINCT, init_code=9)), pytest.raises(NotReadError, match="DRIVER_NOT_LOADED"):
        Watcher([0])


def test_all_is_given_back_at_the_end_and_nothing_was_written() -> None:
    fake = FakeNvml(DISTINCT)
    with installed(fake):
        with Watcher([0, 1]) as watcher:
            watcher.observe()
        assert (fake.open, fake.writes) == (0, [])
        assert fake.calls["nvmlEventSetFree", None] == 1
        assert watcher.observe().gpus == (GpuSample(gpu=0), GpuSample(gpu=1))
        watcher.close()


def test_a_gpu_that_falls_off_the_bus_is_reported_by_its_xid() -> None:
    with installed(FakeNvml(broken("four", "xid_79@2"))), Watcher(range(4)) as watcher:
        assert watcher.observe().xids == (Xid(code=79, gpu=2),)


def test_a_link_that_flaps_is_seen_from_sample_to_sample() -> None:
    with installed(FakeNvml(broken("four", "link_flapping@2"))), Watcher([2]) as watcher:
        assert [watcher.observe().gpus[0].pcie_gen for _ in range(4)] == [3, 1, 3, 1]


def test_a_sample_of_eight_gpus_is_cheap() -> None:
    """At 1 Hz, 20 ms would be 2 % of a core; it takes about 1 ms."""
    with installed(FakeNvml(SCENARIOS["dgx1"])), Watcher(range(8)) as watcher:
        assert cost_of(watcher.observe, rounds=20) < 1.5


def test_a_child_watches_as_the_watcher_does() -> None:
    with installed(FakeNvml(broken("four", "xid_79@2"))), WatcherChild(range(4)) as watcher:
        sample = watcher.observe()
        assert sample.xids == (Xid(code=79, gpu=2),)
        assert [gpu.gpu for gpu in sample.gpus] == [0, 1, 2, 3]
        assert (watcher.observe().xids, watcher.xid_reason, watcher.stop) == ((), None, None)


def test_a_child_reports_why_it_sees_no_errors() -> None:
    fake = FakeNvml(SCENARIOS["four"])
    fake.refuse("nvmlEventSetCreate", NO_PERMISSION)
    with installed(fake), WatcherChild([0]) as watcher:
        watcher.observe()
        assert watcher.xid_reason == "NO_PERMISSION"


def test_a_driver_that_crashes_ends_the_samples_of_a_watch() -> None:
    fake = FakeNvml(SCENARIOS["four"])
    fake.spoil("nvmlEventSetWait_v2", crash, after_calls=1)
    with installed(fake), WatcherChild([0, 1]) as watcher:
        assert watcher.observe().gpus[1].power_w is not None
        sample = watcher.observe()
        assert (sample.gpus, sample.xids) == ((), ())
        assert watcher.stop is not None
        assert watcher.stop.text.startswith("nvmlEventSetWait_v2 ended the process")
